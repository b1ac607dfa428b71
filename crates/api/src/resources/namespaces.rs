//! Namespaces beyond their objects: their use of quotas.

use namespaces::{QUOTA_MEGABYTE, Quota};

use crate::access::Role;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::object_store::{run_on_store, store_problem};
use crate::objects::BackendObjectKind;
use crate::objects::{self, QuotaUsage};
use crate::problem_details::{ApiResult, ProblemDetails};

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/namespaces/{id}/usage", "getNamespaceUsage", usage)
            .role(
                Role::Viewer,
                EndpointScope::object(BackendObjectKind::Namespace, "id"),
            )
            .tag("access")
            .path_parameter("id", "The namespace's id.")
            .summary("Read the quota usage of a namespace")
            .description(
                "The exact numbers of objects, connections and stored bytes at this moment, and the number of messages in the last second.",
            )
            .unpaged::<QuotaUsage>(),
    ]
}

async fn usage(call: ApiCall) -> ApiResult {
    let id = call.path("id");
    let limits = call.app.namespaces.get(id);
    let limits = limits
        .ok_or_else(|| ProblemDetails::not_found(format!("There is no namespace {id:?}.")))?;
    let kinds = objects::object_kinds(&call.app.object_backend);
    let (devices, files) = (call.app.devices.clone(), call.app.files.clone());
    let telemetry = call.app.telemetry_backend.clone();
    let clients = call.app.namespaces.usage(id);
    let rows = run_on_store(&call.app, move |objects| {
        let count = devices.registry().count_in_namespace(&limits.id);
        let count = count.map_err(|error| ProblemDetails::unavailable(format!("{error}.")))?;
        let of_files = files.namespace_usage(&limits.id);
        telemetry.count_stored_bytes();
        let telemetry_bytes = clients.as_ref().map_or(0, |usage| usage.telemetry_bytes());
        let counted = [
            (Quota::Devices, count),
            (Quota::Files, of_files.files),
            (
                Quota::FileMegabytes,
                of_files.bytes.div_ceil(QUOTA_MEGABYTE),
            ),
            (
                Quota::TelemetryMegabytes,
                telemetry_bytes.div_ceil(QUOTA_MEGABYTE),
            ),
        ];
        let usage = objects::quota_usage(&kinds, objects, &limits, &counted, clients.as_deref());
        usage.map_err(|error| store_problem(&error))
    })
    .await??;
    call::unpaged_list(rows)
}
