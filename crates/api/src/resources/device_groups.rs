//! Groups of devices beyond their objects: who is in one, and how many.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::access::Role;
use crate::app::App;
use crate::call::{self, Call, Page};
use crate::device_tools::DeviceProblem;
use crate::endpoint::{Endpoint, Outcome, get};
use crate::fleet_tools::FleetTools;
use crate::parameters::Cursor;
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
    let asked = tokio::task::spawn_blocking(move || question(&*tools)).await;
    asked
        .map_err(|_| Problem::unavailable("The devices cannot be read now."))?
        .map_err(devices::problem)
}

async fn devices_of(call: Call) -> Outcome {
    let from = devices::first_of(&call)?;
    let (group, limit) = (call.path("id").to_owned(), call.query.limit());
    let page = ask(&call.app, move |tools| {
        tools.group_devices(&group, from, limit)
    })
    .await?;
    call::ok(Page {
        data: page.rows,
        next: page
            .next
            .map(|no| Cursor::new(&no.to_string(), "").encode()),
    })
}

async fn counts(call: Call) -> Outcome {
    let group = call.path("id").to_owned();
    call::ok(ask(&call.app, move |tools| tools.group_counts(&group)).await?)
}
