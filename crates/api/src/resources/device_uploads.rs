//! Files of devices over HTTP: devices authenticate by their access token.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use devices::Device;
use transfer::{FileInfo, FileOwner, FileTarget, OwnerKind};

use super::device_http;
use super::file_download::download;
use super::files::receive_file;
use crate::blocking::run_blocking;
use crate::call::ApiCall;
use crate::cluster_files;
use crate::endpoint::{Endpoint, get, put};
use crate::endpoint_place::EndpointPlace;
use crate::problem_details::{ApiResult, ProblemDetails};

const OCTETS: &str = "application/octet-stream";

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        device_http::of_device(put("/api/v1/{token}/uploads/{name}", "uploadDeviceFile", upload))
            .tag("files")
            .path_parameter("name", "Name of the file.")
            .summary("Upload a file (device)")
            .description(
                "The body is the file. It replaces the device's file of this name when it is complete. A SHA-256 digest in \
                 `Repr-Digest` or `Digest` is verified. In a cluster, the file stays at the node that receives it.",
            )
            .raw_request_body(&[OCTETS])
            .response::<FileInfo>(201, "The file is complete.")
            .problem_response(409, "A quota is used up, or the file is being uploaded by another request.")
            .problem_response(507, "The disk is nearly full."),
        device_http::of_device(get(
            "/api/v1/{token}/files/{id}/content",
            "downloadDeviceFile",
            content,
        ))
        .tag("files")
        .place(EndpointPlace::ChosenByHandler)
        .path_parameter("id", "The file's id.")
        .summary("Download a file of the device (device)")
        .description("With `Range`, `If-Range`, `If-Match` and `If-None-Match`. In a cluster, at whichever node the file is.")
        .raw_response(200, "The file.", &[OCTETS])
        .raw_response(206, "The requested part.", &[OCTETS])
        .empty_response(304, "The file has the entity tag of If-None-Match.")
        .problem_response(409, "The file is not complete.")
        .problem_response(412, "The file has another entity tag than those of If-Match.")
        .problem_response(416, "The range is not within the file."),
    ]
}

async fn caller(call: &ApiCall) -> Result<Arc<Device>, ProblemDetails> {
    device_http::run_blocking(call, |backend, caller| backend.device(caller)).await
}

async fn upload(mut call: ApiCall) -> ApiResult {
    let device = caller(&call).await?;
    let product = device.product.get();
    let owner = FileOwner {
        kind: OwnerKind::Device,
        id: device.id.to_string(),
        product: Some(device.product.id().to_string()),
        namespace: product.namespace().to_owned(),
    };
    drop(product);
    let info = receive_file(&mut call, owner, None).await?;
    Ok((StatusCode::CREATED, axum::Json(info)).into_response())
}

async fn content(call: ApiCall) -> ApiResult {
    let device = caller(&call).await?;
    let (id, files) = (call.path("id").to_owned(), call.app.files.clone());
    let wanted = id.clone();
    let find = move || files.info(FileTarget::Id(&wanted));
    let found = run_blocking(find, "The file cannot be read now.").await?;
    let is_own = |info: &FileInfo| {
        info.owner.kind == OwnerKind::Device && info.owner.id == device.id.as_str()
    };
    match found {
        Some(info) if is_own(&info) => return download(call, &id).await,
        Some(_) => {}
        // The other node authenticates the device, too.
        None => {
            if let Some(node) = cluster_files::other_holder(&call, &id).await? {
                return cluster_files::pass_on(&call, &node).await;
            }
        }
    }
    // Files of others are answered like absent ones.
    Err(ProblemDetails::not_found(format!(
        "There is no file {id:?}."
    )))
}
