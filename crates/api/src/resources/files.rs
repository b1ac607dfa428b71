//! Files that devices and people have sent, and transfers that are not complete.

use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use outbound::url_encoding::url_encode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use transfer::{
    FileDigest, FileInfo, FileOwner, FileService, FileState, FileTarget, OwnerKind,
    TransferRequest, TransferStatus,
};
use wall_clock::now_ms;

use super::change_feed::{stream_changes, stream_states};
use super::file_download::download;
use super::firmware::check_image_is_here;
use super::upload_body::{UploadTarget, receive_body, run_on_files};
use crate::access::{EndpointAccess, Role};
use crate::audit;
use crate::blocking::run_blocking;
use crate::call::{self, ApiCall};
use crate::cluster_files::{self, FileReader};
use crate::endpoint::{Endpoint, EndpointScope, delete, get, post, put};
use crate::endpoint_place::{EndpointPlace, MergedAnswer, MergedRows};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{
    NAMESPACE, NODE, PageCursor, Parameter, ParameterType, text_parameter, time_parameter,
};
use crate::sorted_list::{SortOrder, SortValue, SortedPage, rows_within, sort_parameter};

const OCTETS: &str = "application/octet-stream";
const MAX_LINK_LIFE_S: u64 = 30 * 24 * 3600;
/// Rows of an answer to another node in bytes. The remaining rows are left out, and asked for with the next page.
const MAX_NODE_PAGE_BYTES: usize = 2 << 20;

const STATE: Parameter = Parameter {
    name: "state",
    description: "Only complete files, or only transfers that are not complete.",
    shape: ParameterType::Words(&["complete", "receiving"]),
};
const OWNER: Parameter = text_parameter(
    "owner",
    "Id of the device, client or operator that sent the file.",
);
const PRODUCT: Parameter = text_parameter("product", "Product of the device that sent the file.");
const FILE_ID: Parameter = text_parameter("file_id", "Id that the sender chose.");
const EXPIRES: Parameter = time_parameter(
    "expires",
    "When the link expires, in milliseconds since 1970.",
);
const SIGNATURE: Parameter = text_parameter("signature", "Signature of the link.");
/// Of a signed link.
const LINK_NODE: Parameter = text_parameter(
    "node",
    "Name of the cluster node that has the file; part of links that were created in a cluster.",
);
const EXPORT: Parameter = Parameter {
    name: "export",
    description: "Only files with an export in one of these states.",
    shape: ParameterType::Words(&["waiting", "running", "complete", "failed"]),
};
const SORT: Parameter = sort_parameter(&[
    "name",
    "size",
    "owner",
    "file_id",
    "received_bytes",
    "created_at_ms",
    "completed_at_ms",
    "expires_at_ms",
]);
const EXPIRES_IN: Parameter = Parameter {
    name: "expires_in_s",
    description: "Time in seconds after which the complete file is removed; default: `files.retention_s`.",
    shape: ParameterType::Number(1, 315_360_000),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LinkRequest {
    /// Validity in seconds, at most 30 days.
    #[serde(default = "default_link_life_s")]
    #[schemars(range(min = 1, max = 2_592_000))]
    expires_in_s: u64,
}

fn default_link_life_s() -> u64 {
    3600
}

/// A link to a file that needs no login.
#[derive(Serialize, JsonSchema)]
struct FileLink {
    /// Path and query, relative to the address of the API.
    path: String,
    expires_at_ms: u64,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint, role: Role| {
        endpoint
            .role(role, EndpointScope::file("id"))
            .tag("files")
            .path_parameter("id", "The file's id.")
            .place(EndpointPlace::File("id"))
    };
    vec![
        get("/api/v1/files", "listFiles", list)
            .role(Role::Viewer, EndpointScope::Selected)
            .tag("files")
            .parameters(&[NAMESPACE, STATE, OWNER, PRODUCT, FILE_ID, EXPORT, SORT])
            .summary("List files and file transfers")
            .description(
                "The newest first. In a cluster, the files of all nodes, each with the field `node`; then a page may be short and still have a \
                 next one.",
            )
            .place(EndpointPlace::AllNodes(MergedAnswer::Rows(MergedRows {
                time_field: "created_at_ms",
                sort_value: json_sort_value,
            })))
            .node_paged::<FileInfo>(),
        one(get("/api/v1/files/{id}", "getFile", info), Role::Viewer)
            .summary("Read the description of a file")
            .description("In a cluster with the field `node`, the name of the node that has the file.")
            .response::<FileInfo>(200, "The file or transfer."),
        one(get("/api/v1/files/{id}/status", "getFileStatus", status), Role::Viewer)
            .summary("Read the received ranges of a file")
            .response::<TransferStatus>(200, "The ranges received and missing."),
        get("/api/v1/files/{id}/events", "watchFile", watch)
            .role(Role::Viewer, EndpointScope::Selected)
            .tag("files")
            .path_parameter("id", "The file's id.")
            .summary("Stream the progress of a file transfer")
            .description(
                "Server-Sent Events, or a WebSocket with `Upgrade: websocket`: `{\"event\": \"file\", \"at_ms\", \"file\"}` with the present \
                 state and each change, at most one a second. The stream ends when the file is deleted, or its node does not answer.",
            )
            .raw_response(200, "The stream.", &["text/event-stream"])
            .empty_response(101, "A WebSocket.")
            .problem_response(429, "Too many streams are open."),
        one(get("/api/v1/files/{id}/content", "downloadFile", content), Role::Viewer)
            .summary("Download a file")
            .description(
                "With `Range`, `If-Range`, `If-Match` and `If-None-Match`; the entity tag is the SHA-256 digest of the file, which is also in \
                 `Repr-Digest`. A file of another node of the cluster arrives through this one. If that node is lost meanwhile, or the file is \
                 deleted, the connection ends before the whole length has arrived; continue with `Range`.",
            )
            .raw_response(200, "The file.", &[OCTETS])
            .raw_response(206, "The requested part.", &[OCTETS])
            .empty_response(304, "The file has the entity tag of If-None-Match.")
            .problem_response(409, "The file is not complete.")
            .problem_response(412, "The file has another entity tag than those of If-Match.")
            .problem_response(416, "The range is not within the file."),
        one(post("/api/v1/files/{id}/links", "createFileLink", create_link), Role::Operator)
            .summary("Create a download link that needs no login")
            .description("The link is valid until it expires or the file is deleted.")
            .request_body::<LinkRequest>()
            .response::<FileLink>(201, "The link.")
            .problem_response(409, "The file is not complete."),
        one(post("/api/v1/files/{id}/pause", "pauseFileTransfer", pause), Role::Operator)
            .summary("Pause a file transfer")
            .description(
                "It keeps what was received and does not expire. Segments are rejected: over MQTT with 0x97, over HTTP with 423, over \
                 a link with the code `limit exceeded`.",
            )
            .response::<FileInfo>(200, "The transfer.")
            .problem_response(409, "The file is complete, or is being sent in one request."),
        one(post("/api/v1/files/{id}/resume", "resumeFileTransfer", resume), Role::Operator)
            .summary("Resume a paused file transfer")
            .description("The sender continues. The transfer is removed if no segment arrives for the time-out, counted from now.")
            .response::<FileInfo>(200, "The transfer.")
            .problem_response(409, "The file is complete."),
        one(delete("/api/v1/files/{id}", "deleteFile", remove), Role::Operator)
            .summary("Delete a file, or cancel a transfer")
            .empty_response(204, "Deleted."),
        put("/api/v1/uploads/{name}", "uploadFile", upload)
            .role(Role::Operator, EndpointScope::Selected)
            .tag("files")
            .path_parameter("name", "Name of the file.")
            .parameters(&[NAMESPACE, EXPIRES_IN])
            .summary("Upload a file in one request")
            .description(
                "The body is the file. It replaces the caller's file of this name when it is complete. A SHA-256 digest in \
                 `Repr-Digest` or `Digest` is verified. To continue interrupted uploads, use `/api/v1/tus`. In a cluster, the file stays at the \
                 node that receives it.",
            )
            .raw_request_body(&[OCTETS])
            .response::<FileInfo>(201, "The file is complete.")
            .with_location()
            .problem_response(409, "A quota is used up, or the file is being uploaded by another request.")
            .problem_response(507, "The disk is nearly full."),
        get("/api/v1/signed-files/{id}", "downloadSignedFile", signed)
            .access(EndpointAccess::Open)
            .place(EndpointPlace::ChosenByHandler)
            .tag("files")
            .path_parameter("id", "The file's id.")
            .parameters(&[EXPIRES, SIGNATURE, LINK_NODE])
            .summary("Download a file by a signed link")
            .raw_response(200, "The file.", &[OCTETS])
            .raw_response(206, "The requested part.", &[OCTETS])
            .empty_response(304, "The file has the entity tag of If-None-Match.")
            .problem_response(403, "The link is invalid or has expired.")
            .problem_response(412, "The file has another entity tag than those of If-Match.")
            .problem_response(503, "The file is an image that has not arrived from another node of the cluster yet.")
            .problem_response(416, "The range is not within the file."),
    ]
}

pub(super) fn file_not_found(id: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no file {id:?}."))
}

async fn list(call: ApiCall) -> ApiResult {
    let namespaces = call.namespaces();
    let limit = call.query.limit();
    let order = SortOrder::read(&call.query)?;
    let before = call.query.after().map(|cursor| cursor.first);
    let [owner, product, file_id] =
        [OWNER, PRODUCT, FILE_ID].map(|name| call.query.owned_text(name));
    let states = call.query.comma_separated(STATE);
    let exports = call.query.comma_separated(EXPORT);
    let files = call.app.files.clone();
    // A message between nodes is limited.
    let max_bytes = match call.is_from_node() {
        true => MAX_NODE_PAGE_BYTES,
        false => usize::MAX,
    };
    let found = move || -> Result<FilePage, ProblemDetails> {
        let has_export = |info: &FileInfo| {
            let mut states = info.exports.iter().map(|export| export.state.name());
            exports.is_empty() || states.any(|state| exports.iter().any(|wanted| wanted == state))
        };
        let is = |wanted: &Option<String>, value: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| Some(wanted) == value)
        };
        let wanted = |info: &FileInfo| {
            let state = match info.state {
                FileState::Receiving => "receiving",
                FileState::Complete => "complete",
            };
            (states.is_empty() || states.iter().any(|known| known == state))
                && has_export(info)
                && is(&owner, Some(&info.owner.id))
                && is(&product, info.owner.product.as_deref())
                && is(&file_id, Some(&info.file_id))
        };
        match order {
            None => Ok(FilePage::Newest(files.list(
                &namespaces,
                before.as_deref(),
                limit + 1,
                &wanted,
            ))),
            Some(order) => {
                let mut page = SortedPage::new(order, limit);
                for info in files.list(&namespaces, None, usize::MAX, &wanted) {
                    let (value, id) = (sort_value(&info, page.field()), info.id.clone());
                    page.offer(value, &id, info)?;
                }
                page.limit_bytes(max_bytes);
                Ok(FilePage::Sorted(page))
            }
        }
    };
    match run_blocking(found, "The files cannot be read now.").await?? {
        FilePage::Newest(rows) => {
            let limit = limit.min(rows_within(rows.iter(), max_bytes));
            call::paged_rows(rows, limit, |info| PageCursor::new(&info.id, ""))
        }
        FilePage::Sorted(page) => page.into_response(),
    }
}

enum FilePage {
    Newest(Vec<FileInfo>),
    Sorted(SortedPage<FileInfo>),
}

fn sort_value(info: &FileInfo, field: &str) -> SortValue {
    match field {
        "size" => SortValue::optional_number(info.size),
        "owner" => SortValue::text(&info.owner.id),
        "file_id" => SortValue::text(&info.file_id),
        "received_bytes" => SortValue::number(info.received_bytes),
        "created_at_ms" => SortValue::number(info.created_at_ms),
        "completed_at_ms" => SortValue::optional_number(info.completed_at_ms),
        "expires_at_ms" => SortValue::optional_number(info.expires_at_ms),
        _ => SortValue::text(&info.name),
    }
}

/// The same of a file in JSON.
fn json_sort_value(info: &Value, field: &str) -> SortValue {
    match field {
        "owner" => SortValue::json(&info["owner"]["id"]),
        _ => SortValue::json(&info[field]),
    }
}

/// A file or transfer of this node; `None`: there is none.
pub(super) async fn find_here(
    call: &ApiCall,
    id: &str,
) -> Result<Option<FileInfo>, ProblemDetails> {
    let (files, wanted) = (call.app.files.clone(), id.to_owned());
    let find = move || files.info(FileTarget::Id(&wanted));
    run_blocking(find, "The files cannot be read now.").await
}

async fn info(call: ApiCall) -> ApiResult {
    let id = call.path("id");
    let found = find_here(&call, id).await?;
    let mut shown = json!(found.ok_or_else(|| file_not_found(id))?);
    if let Some(cluster) = call.app.program.cluster_backend() {
        shown["node"] = cluster.node().into();
    }
    call::json_response(shown)
}

async fn status(call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    let status = run_on_files(&call.app.files, move |files| {
        files.status(FileTarget::Id(&id))
    });
    call::json_response(status.await?)
}

async fn watch(call: ApiCall) -> ApiResult {
    let namespaces = call.namespaces();
    let id = call.path("id").to_owned();
    let Some(info) = find_here(&call, &id).await? else {
        return watch_elsewhere(call, &id).await;
    };
    // Files of other namespaces are answered like absent ones.
    if !namespaces.contains(&info.owner.namespace) {
        return Err(file_not_found(&id));
    }
    let files = call.app.files.clone();
    stream_changes(call, "file", move || {
        files.info(FileTarget::Id(&id)).map(|info| json!(info))
    })
}

/// Streams the states of a file of another node, which checks the permissions of the caller.
async fn watch_elsewhere(call: ApiCall, id: &str) -> ApiResult {
    let reader = FileReader::of_other_node(&call, id).await?;
    let reader = reader.ok_or_else(|| file_not_found(id))?;
    if reader.read().await?.is_none() {
        return Err(file_not_found(id));
    }
    let reader = Arc::new(reader);
    stream_states(call, "file", move || {
        let reader = reader.clone();
        Box::pin(async move { reader.read().await.ok().flatten() })
    })
}

async fn content(call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    download(call, &id).await
}

async fn remove(call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    let deleted = run_on_files(&call.app.files, move |files| files.delete(&id)).await?;
    let about = json!({"name": deleted.name, "file_id": deleted.file_id, "owner": deleted.owner});
    audit::record_action(&call, "file.delete", Some(&deleted.id), Some(about)).await;
    call::no_content()
}

async fn pause(call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    let paused = run_on_files(&call.app.files, move |files| files.pause(&id)).await?;
    audit::record_action(&call, "file.pause", Some(&paused.id), None).await;
    call::json_response(paused)
}

async fn resume(call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    let resumed = run_on_files(&call.app.files, move |files| files.resume(&id)).await?;
    audit::record_action(&call, "file.resume", Some(&resumed.id), None).await;
    call::json_response(resumed)
}

async fn create_link(mut call: ApiCall) -> ApiResult {
    let request: LinkRequest = call.body_json().await?;
    if !(1..=MAX_LINK_LIFE_S).contains(&request.expires_in_s) {
        let detail = format!("expires_in_s: expected 1 to {MAX_LINK_LIFE_S} seconds.");
        return Err(ProblemDetails::invalid_field("expires_in_s", detail));
    }
    let expires_at_ms = now_ms() + request.expires_in_s * 1000;
    let id = call.path("id").to_owned();
    let wanted = id.clone();
    let signature = run_on_files(&call.app.files, move |files| {
        files.sign_link(&wanted, expires_at_ms)
    });
    let signature = signature.await?;
    let about = json!({"expires_at_ms": expires_at_ms});
    audit::record_action(&call, "file.link", Some(&id), Some(about)).await;
    let mut path = FileService::signed_path(&id, expires_at_ms, &signature);
    if let Some(cluster) = call.app.program.cluster_backend() {
        // Each node signs its own links. A request without a login is not passed on to all nodes in search of the right one.
        path.push_str(&format!("&{}={}", NODE.name, url_encode(cluster.node())));
    }
    let link = FileLink {
        path,
        expires_at_ms,
    };
    Ok((StatusCode::CREATED, axum::Json(link)).into_response())
}

async fn signed(call: ApiCall) -> ApiResult {
    if let Some(node) = cluster_files::other_named_node(&call)? {
        return cluster_files::pass_on(&call, &node).await;
    }
    let id = call.path("id").to_owned();
    let expires_at_ms = call.query.number_value(EXPIRES).unwrap_or(0);
    let signature = call.query.text_value(SIGNATURE.name).unwrap_or_default();
    if !call.app.files.is_link_valid(&id, expires_at_ms, signature) {
        let detail = "The link is invalid or has expired; ask for a new one.";
        return Err(ProblemDetails::new(StatusCode::FORBIDDEN, detail));
    }
    // A link in the description of a package may lead to another node than that which sent it.
    check_image_is_here(&call, &id)?;
    download(call, &id).await
}

/// The namespace of a new file: the one that the request names, otherwise the only one of the caller.
pub(super) fn namespace_of_upload(call: &ApiCall) -> Result<String, ProblemDetails> {
    use namespaces::NamespaceSelection::{All, Only};
    let selection = call.namespaces();
    let named = call.query.text_value(NAMESPACE.name);
    let namespace = match (named, &selection) {
        (Some(named), _) => named.to_owned(),
        (None, All) => namespaces::default_id(),
        (None, Only(names)) => match names.first() {
            Some(only) if names.len() == 1 => only.clone(),
            _ => {
                let names = Vec::from_iter(names.iter().map(String::as_str)).join(", ");
                let detail = format!("namespace is missing; expected one of {names}.");
                return Err(ProblemDetails::invalid_parameter(NAMESPACE.name, detail));
            }
        },
    };
    match selection.contains(&namespace) && call.app.namespaces.get(&namespace).is_some() {
        true => Ok(namespace),
        false => {
            let detail = format!("namespace: there is no namespace {namespace:?}.");
            Err(ProblemDetails::invalid_parameter(NAMESPACE.name, detail))
        }
    }
}

/// The caller as the owner of a new file.
pub(super) fn owner_of_upload(call: &ApiCall) -> Result<FileOwner, ProblemDetails> {
    Ok(FileOwner {
        kind: OwnerKind::Operator,
        id: call.identity.name.clone(),
        product: None,
        namespace: namespace_of_upload(call)?,
    })
}

/// The SHA-256 digest of the whole body in `Repr-Digest` (RFC 9530) or `Digest` (RFC 3230).
fn announced_digest(headers: &HeaderMap) -> Result<Option<FileDigest>, ProblemDetails> {
    let field = |name: &str| {
        headers
            .get(name)
            .map(|value| value.to_str().unwrap_or_default())
    };
    for (name, before, after) in [
        ("repr-digest", "sha-256=:", ":"),
        ("digest", "sha-256=", ""),
    ] {
        let Some(value) = field(name) else {
            continue;
        };
        let mut digests = value.split(',').map(str::trim);
        let text = digests.find_map(|digest| {
            let (start, rest) = digest.split_at_checked(before.len())?;
            start
                .eq_ignore_ascii_case(before)
                .then(|| rest.strip_suffix(after))?
        });
        // Other algorithms are ignored, as the specification requires.
        let Some(text) = text else {
            continue;
        };
        let digest = FileDigest::from_base64(text).ok_or_else(|| {
            let detail = format!("{name}: expected sha-256 and 32 bytes in base64.");
            ProblemDetails::bad_request(detail)
        })?;
        return Ok(Some(digest));
    }
    Ok(None)
}

fn content_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(axum::http::header::CONTENT_TYPE)?;
    value.to_str().ok().map(str::to_owned)
}

async fn upload(mut call: ApiCall) -> ApiResult {
    let owner = owner_of_upload(&call)?;
    let expires_in_s = call.query.number_value(EXPIRES_IN);
    let info = receive_file(&mut call, owner, expires_in_s).await?;
    let about = json!({"name": info.name, "size": info.size, "checksum": info.checksum});
    audit::record_action(&call, "file.upload", Some(&info.id), Some(about)).await;
    let location = [(
        axum::http::header::LOCATION,
        format!("/api/v1/files/{}", info.id),
    )];
    Ok((StatusCode::CREATED, location, axum::Json(info)).into_response())
}

/// Receives the body of a request as the owner's file of the name in the path.
pub(super) async fn receive_file(
    call: &mut ApiCall,
    owner: FileOwner,
    expires_in_s: Option<u64>,
) -> Result<FileInfo, ProblemDetails> {
    let digest = announced_digest(call.headers())?;
    let length = call.headers().get(axum::http::header::CONTENT_LENGTH);
    let size = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let name = call.path("name").to_owned();
    let request = TransferRequest {
        size,
        content_type: content_type(call.headers()),
        expires_at_ms: expires_in_s.map(|seconds| now_ms() + seconds * 1000),
        ..TransferRequest::new(
            owner.clone(),
            format!("upload {} {name}", owner.namespace),
            name,
        )
    };
    call.mark_long_lived();
    // One request at a time uploads a file of this name; what an earlier one left is removed.
    let guard = (call.app.files).lock_single_request(&owner, &request.file_id);
    let guard = guard.ok_or_else(|| {
        ProblemDetails::conflict("The file is being uploaded by another request; try again later.")
    })?;
    let file_id = request.file_id.clone();
    let begun = run_on_files(&call.app.files, move |files| {
        files.abort(&request.owner, &file_id)?;
        files.begin(request)
    });
    let id = begun.await?.info().id.clone();
    let target = UploadTarget {
        id: id.clone(),
        owner,
        offset: 0,
        max_bytes: None,
    };
    let received = receive_body(call, target, None).await;
    let finished = match received.failure {
        Some(problem) => Err(problem),
        None => {
            let (id, bytes) = (id.clone(), received.bytes);
            let finish =
                move |files: &FileService| files.finish(FileTarget::Id(&id), Some(bytes), digest);
            run_on_files(&call.app.files, finish).await
        }
    };
    let info = match finished {
        Ok(info) => info,
        Err(problem) => {
            let removed = run_on_files(&call.app.files, move |files| files.delete(&id));
            // The transfer expires in any case.
            let _ = removed.await;
            return Err(problem);
        }
    };
    drop(guard);
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_bodies_are_read() {
        let abc = FileDigest::of(b"abc");
        let read = |name: &'static str, value: String| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().expect("a header"));
            announced_digest(&headers)
        };
        let base64 = abc.to_base64();
        for (name, value) in [
            ("repr-digest", format!("sha-256=:{base64}:")),
            ("repr-digest", format!("unixsum=:AA==:, sha-256=:{base64}:")),
            ("digest", format!("SHA-256={base64}")),
        ] {
            assert_eq!(read(name, value).ok(), Some(Some(abc)));
        }
        assert_eq!(read("digest", "md5=AAAA".to_owned()).ok(), Some(None));
        assert!(read("repr-digest", "sha-256=:AAAA:".to_owned()).is_err());
    }
}
