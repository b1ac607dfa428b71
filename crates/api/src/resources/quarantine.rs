//! Damaged files that the node was started without.

use crate::access::Role;
use crate::audit;
use crate::blocking::run_blocking;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, delete, get};
use crate::node_backend::QuarantinedPart;
use crate::problem_details::{ApiResult, ProblemDetails};

const PANICKED: &str = "The quarantine cannot be read now.";

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/quarantine", "listQuarantine", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("configuration")
            .summary("List damaged files in quarantine")
            .description(
                "With `store.on_damage = \"quarantine\"`, a node starts without damaged data and keeps the damaged files. \
                 The node alarm `damaged_files` is active while there are any.",
            )
            .unpaged::<QuarantinedPart>(),
        delete("/api/v1/quarantine/{id}", "deleteQuarantine", remove)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Delete damaged files from the quarantine")
            .path_parameter("id", "The id in the list.")
            .empty_response(204, "Deleted.")
            .problem_response(404, "There is nothing with this id."),
    ]
}

fn disk_problem(error: &std::io::Error) -> ProblemDetails {
    ProblemDetails::unavailable(format!(
        "The quarantine cannot be read or changed: {error}."
    ))
}

async fn list(call: ApiCall) -> ApiResult {
    let program = call.app.program.clone();
    let parts = run_blocking(move || program.quarantine(), PANICKED).await?;
    call::unpaged_list(parts.map_err(|error| disk_problem(&error))?)
}

async fn remove(call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    let (program, deleted) = (call.app.program.clone(), id.clone());
    let deleted = run_blocking(move || program.delete_quarantined(&deleted), PANICKED).await?;
    if !deleted.map_err(|error| disk_problem(&error))? {
        return Err(ProblemDetails::not_found(format!(
            "There is nothing with the id {id:?} in the quarantine."
        )));
    }
    audit::record_action(&call, "quarantine.delete", Some(&id), None).await;
    call::no_content()
}
