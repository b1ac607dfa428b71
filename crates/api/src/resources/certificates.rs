//! Certificates that are uploaded for listeners. Private keys are stored and never returned.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::listeners::on_backend;
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, delete, get, put};
use crate::node_backend::StoredCertificate;
use crate::problem_details::{ApiResult, ProblemDetails};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CertificateInput {
    /// PEM text with the certificate, followed by its chain; at most 64 KiB.
    #[schemars(length(max = 65536))]
    certificate: String,
    /// PEM text with the certificate's key; at most 64 KiB. Omit it for authorities of clients.
    #[schemars(length(max = 65536))]
    private_key: Option<String>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let about = "The certificate's id: 1 to 32 lower-case letters, digits, `-` and `_`.";
    vec![
        get("/api/v1/certificates", "listCertificates", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("configuration")
            .summary("List uploaded certificates")
            .description(
                "All certificates of listeners that were uploaded over the API, on one page, without their keys. \
                 Certificates in files are shown with their listeners.",
            )
            .unpaged::<StoredCertificate>(),
        get("/api/v1/certificates/{id}", "getCertificate", read)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("configuration")
            .summary("Read an uploaded certificate")
            .path_parameter("id", about)
            .response::<StoredCertificate>(200, "The certificate, without its key."),
        put("/api/v1/certificates/{id}", "putCertificate", write)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Upload or replace a certificate")
            .description(
                "Listeners with this certificate use the new one for their next connections; open connections stay.",
            )
            .path_parameter("id", about)
            .request_body::<CertificateInput>()
            .response::<StoredCertificate>(200, "Replaced.")
            .response::<StoredCertificate>(201, "Created.")
            .problem_response(409, "There are too many certificates, or listeners need its key."),
        delete("/api/v1/certificates/{id}", "deleteCertificate", remove)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Delete an uploaded certificate")
            .path_parameter("id", about)
            .empty_response(204, "Deleted.")
            .problem_response(404, "There is no certificate with this id.")
            .problem_response(409, "A listener uses it."),
    ]
}

async fn find(call: &ApiCall, id: &str) -> Result<StoredCertificate, ProblemDetails> {
    let all = on_backend(call, |backend| backend.certificates()).await?;
    all.into_iter()
        .find(|certificate| certificate.id == id)
        .ok_or_else(|| ProblemDetails::not_found(format!("There is no certificate {id:?}.")))
}

async fn list(call: ApiCall) -> ApiResult {
    call::unpaged_list(on_backend(&call, |backend| backend.certificates()).await?)
}

async fn read(call: ApiCall) -> ApiResult {
    call::json_response(find(&call, call.path("id")).await?)
}

async fn write(mut call: ApiCall) -> ApiResult {
    let input: CertificateInput = call.body_json().await?;
    let id = call.path("id").to_owned();
    let is_new = {
        let _changing = call.app.changing.lock().await;
        let id = id.clone();
        on_backend(&call, move |backend| {
            backend.put_certificate(&id, &input.certificate, input.private_key.as_deref())
        })
        .await?
    };
    let stored = find(&call, &id).await?;
    let after = json!({
        "subject": stored.subject, "not_after_ms": stored.not_after_ms,
        "has_private_key": stored.has_private_key,
    });
    audit::record_action(&call, "certificate.put", Some(&id), Some(after)).await;
    let mut response = call::json_response(stored)?;
    if is_new {
        *response.status_mut() = StatusCode::CREATED;
    }
    Ok(response)
}

async fn remove(call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    {
        let _changing = call.app.changing.lock().await;
        let id = id.clone();
        on_backend(&call, move |backend| backend.remove_certificate(&id)).await?;
    }
    audit::record_action(&call, "certificate.delete", Some(&id), None).await;
    call::no_content()
}
