//! Jobs: list, read and cancel them.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get, post};
use crate::jobs::JobView;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::NAMESPACE;

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/jobs", "listJobs", list)
            .role(Role::Viewer, EndpointScope::Selected)
            .tag("configuration")
            .summary("List jobs")
            .description(
                "Long work in the background, newest first. The node keeps 200 jobs until it stops; a stop ends those that run.",
            )
            .parameters(&[NAMESPACE])
            .unpaged::<JobView>(),
        get("/api/v1/jobs/{id}", "getJob", read)
            .role(Role::Viewer, EndpointScope::Selected)
            .tag("configuration")
            .summary("Read a job")
            .path_parameter("id", "The job's id.")
            .response::<JobView>(200, "The job with its progress.")
            .problem_response(404, "There is no such job."),
        post("/api/v1/jobs/{id}/cancel", "cancelJob", cancel)
            .role(Role::Operator, EndpointScope::Selected)
            .tag("configuration")
            .summary("Cancel a job")
            .description("The job ends after the current item. Completed items are kept. A job that has ended is not changed.")
            .path_parameter("id", "The job's id.")
            .response::<JobView>(200, "The job.")
            .problem_response(404, "There is no such job."),
    ]
}

fn job_not_found(id: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no job {id:?}."))
}

async fn list(call: ApiCall) -> ApiResult {
    call::unpaged_list(call.app.jobs.list(&call.namespaces()))
}

async fn read(call: ApiCall) -> ApiResult {
    let id = call.path("id");
    let job = call.app.jobs.get(id, &call.namespaces());
    call::json_response(job.ok_or_else(|| job_not_found(id))?)
}

async fn cancel(call: ApiCall) -> ApiResult {
    let id = call.path("id");
    let job = call.app.jobs.cancel(id, &call.namespaces());
    let job = job.ok_or_else(|| job_not_found(id))?;
    audit::record_action(&call, "job.cancel", Some(id), None).await;
    call::json_response(job)
}

/// The response to a request that has started a job.
pub(super) fn accepted(view: &JobView) -> Response {
    let mut response = (StatusCode::ACCEPTED, Json(view)).into_response();
    if let Ok(location) = HeaderValue::try_from(format!("/api/v1/jobs/{}", view.id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}
