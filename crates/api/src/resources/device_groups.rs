//! Groups of devices beyond their objects: who is in one, and how many.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::access::Role;
use crate::app::App;
use crate::call::{self, Call};
use crate::device_tools::DeviceProblem;
use crate::endpoint::{Endpoint, Outcome, get};
use crate::fleet_tools::FleetTools;
use crate::problem::Problem;

use super::devices::{self, Device};

/// How many devices a group has.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the registry answers")]
struct GroupCounts {
    group: String,
    devices: u64,
    online: u64,
    /// There are more; so many were counted.
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
            devices_of,
        ))
        .summary("Devices of a group")
        .description(
            "In the order in which they were made. A page may be short or empty and still have a next one.",
        )
        .pages::<Device>(),
        one(get(
            "/api/v1/device-groups/{id}/counts",
            "countDevicesOfGroup",
            counts,
        ))
        .summary("Count devices of a group")
        .answers::<GroupCounts>(200, "Now."),
    ]
}

/// Asks on a thread that may read the disk.
pub(super) async fn ask<T: Send + 'static>(
    app: &App,
    question: impl FnOnce(&dyn FleetTools) -> Result<T, DeviceProblem> + Send + 'static,
) -> Result<T, Problem> {
    let tools = Arc::clone(&app.fleet_tools);
    let asked =
        call::blocking(move || question(&*tools), "The devices cannot be read now.").await?;
    asked.map_err(devices::problem)
}

async fn devices_of(call: Call) -> Outcome {
    let from = call.query.after_number("devices")?.unwrap_or(0);
    let (group, limit) = (call.path("id").to_owned(), call.query.limit());
    let page = ask(&call.app, move |tools| {
        tools.group_devices(&group, from, limit)
    })
    .await?;
    call::page_from(page.rows, page.next)
}

async fn counts(call: Call) -> Outcome {
    let group = call.path("id").to_owned();
    call::ok(ask(&call.app, move |tools| tools.group_counts(&group)).await?)
}
