//! Device groups beyond their objects: members and counts.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::access::Role;
use crate::blocking;
use crate::call::{self, ApiCall};
use crate::device_backend::DeviceBackendError;
use crate::endpoint::{Endpoint, get};
use crate::fleet_backend::FleetBackend;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::state::ApiState;

use super::devices::{self, Device};

/// Number of devices in a group.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the registry answers")]
struct GroupCounts {
    group: String,
    devices: u64,
    online: u64,
    /// Whether counting stopped at a limit and there are more.
    is_cut: bool,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint| {
        endpoint
            .role(Role::Viewer)
            .tag("devices")
            .path_parameter("id", "The group's id, percent-encoded.")
    };
    vec![
        one(get(
            "/api/v1/device-groups/{id}/devices",
            "listDevicesOfGroup",
            list_devices,
        ))
        .summary("List devices of a group")
        .description(
            "In the order of creation. A page may be short or empty and still have a next one.",
        )
        .paged::<Device>(),
        one(get(
            "/api/v1/device-groups/{id}/counts",
            "countDevicesOfGroup",
            counts,
        ))
        .summary("Count devices of a group")
        .response::<GroupCounts>(200, "Now."),
    ]
}

/// Runs a query on a thread that may read the disk.
pub(super) async fn run_blocking<T: Send + 'static>(
    app: &ApiState,
    question: impl FnOnce(&dyn FleetBackend) -> Result<T, DeviceBackendError> + Send + 'static,
) -> Result<T, ProblemDetails> {
    let tools = Arc::clone(&app.fleet_backend);
    let asked =
        blocking::run_blocking(move || question(&*tools), "The devices cannot be read now.")
            .await?;
    asked.map_err(devices::to_problem)
}

async fn list_devices(call: ApiCall) -> ApiResult {
    let from = call.query.after_number("devices")?.unwrap_or(0);
    let (group, limit) = (call.path("id").to_owned(), call.query.limit());
    let page = run_blocking(&call.app, move |tools| {
        tools.group_devices(&group, from, limit)
    })
    .await?;
    call::page_of(page.rows, page.next)
}

async fn counts(call: ApiCall) -> ApiResult {
    let group = call.path("id").to_owned();
    call::json_response(run_blocking(&call.app, move |tools| tools.group_counts(&group)).await?)
}
