//! Resumable uploads by the tus protocol 1.0 (<https://tus.io/protocols/resumable-upload>), with the extensions creation,
//! creation-with-upload, checksum, expiration, termination and concatenation.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{Algorithm, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use serde_json::{Map, Value, json};
use transfer::{
    FileDigest, FileInfo, FileService, FileState, FileTarget, OwnerKind, TransferRequest,
    UploadGuard,
};

use super::files::owner_of_upload;
use super::upload_body::{UploadTarget, receive_body, run_on_files, to_problem};
use crate::access::{EndpointAccess, Role};
use crate::audit;
use crate::blocking::run_blocking;
use crate::call::ApiCall;
use crate::endpoint::{Endpoint, EndpointScope, delete, head, options, patch, post};
use crate::endpoint_place::EndpointPlace;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::NAMESPACE;

const VERSION: &str = "1.0.0";
const EXTENSIONS: &str =
    "creation,creation-with-upload,checksum,expiration,termination,concatenation";
const CHECKSUM_ALGORITHMS: &str = "sha1,sha256";
const OFFSET_OCTETS: &str = "application/offset+octet-stream";
const PATH: &str = "/api/v1/tus";
/// Maximum number of uploads that form one file.
const MAX_PARTS: usize = 1000;

const TUS_RESUMABLE: &str = "tus-resumable";
const UPLOAD_OFFSET: &str = "upload-offset";
const UPLOAD_LENGTH: &str = "upload-length";
const UPLOAD_EXPIRES: &str = "upload-expires";
const UPLOAD_METADATA: &str = "upload-metadata";
const UPLOAD_CONCAT: &str = "upload-concat";
const UPLOAD_CHECKSUM: &str = "upload-checksum";
const METHOD_OVERRIDE: &str = "x-http-method-override";

/// The status of tus for a checksum that differs; it is not registered with IANA.
fn checksum_status() -> StatusCode {
    StatusCode::from_u16(460).expect("a valid status code")
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint| {
        endpoint
            .role(Role::Operator, EndpointScope::file("id"))
            .tag("files")
            .path_parameter("id", "The upload's id.")
            .problem_response(412, "The version in Tus-Resumable is not 1.0.0.")
    };
    let path = format!("{PATH}/{{id}}");
    vec![
        options(PATH, "tusOptions", describe)
            .access(EndpointAccess::Open)
            .tag("files")
            .summary("Read the version and extensions of tus")
            .empty_response(204, "In headers."),
        post(PATH, "tusCreate", create)
            .role(Role::Operator, EndpointScope::Selected)
            .tag("files")
            .parameters(&[NAMESPACE])
            .summary("Begin a resumable upload")
            .description(
                "As described by tus 1.0. `Upload-Metadata` may contain `filename`, `filetype`, and `sha256` (hexadecimal) to \
                 verify the whole file. In a cluster, an upload is continued at the node where it was begun.",
            )
            .empty_response(201, "The upload was begun.")
            .with_location()
            .problem_response(409, "A quota is used up, or a part is not complete.")
            .problem_response(412, "The version in Tus-Resumable is not 1.0.0.")
            .problem_response(460, "The checksum of the body differs.")
            .problem_response(507, "The disk is nearly full."),
        one(head(path.as_str(), "tusOffset", offset))
            .place(EndpointPlace::File("id"))
            .summary("Read how much of an upload was received")
            .empty_response(200, "In headers."),
        one(patch(path.as_str(), "tusAppend", append))
            .place(EndpointPlace::LocalFile("id"))
            .summary("Continue a resumable upload")
            .raw_request_body(&[OFFSET_OCTETS])
            .empty_response(204, "Received; at the end the file is complete.")
            .problem_response(409, "The upload continues at another offset.")
            .problem_response(421, "The upload was begun at another node of the cluster, which `detail` names.")
            .problem_response(423, "Another request continues this upload, or it is paused.")
            .problem_response(460, "The checksum of the body, or of the file, differs.")
            .problem_response(507, "The disk is nearly full."),
        one(delete(path.as_str(), "tusTerminate", terminate))
            .place(EndpointPlace::File("id"))
            .summary("Cancel a resumable upload")
            .empty_response(204, "Deleted."),
        one(post(path.as_str(), "tusOverride", overridden))
            .place(EndpointPlace::LocalFile("id"))
            .problem_response(421, "The upload was begun at another node of the cluster, which `detail` names.")
            .summary("Continue or cancel an upload by another method")
            .description("For clients that cannot send PATCH or DELETE: the method is in `X-HTTP-Method-Override`.")
            .empty_response(204, "Done."),
    ]
}

/// Adds the version of tus to every response below its path.
pub(crate) async fn add_version(request: Request, next: Next) -> Response {
    let is_tus = request.uri().path().strip_prefix(PATH);
    let is_tus = is_tus.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let mut response = next.run(request).await;
    if is_tus {
        let fields = response.headers_mut();
        fields.insert(TUS_RESUMABLE, HeaderValue::from_static(VERSION));
        if response.status() == StatusCode::PRECONDITION_FAILED {
            let versions = HeaderValue::from_static(VERSION);
            response.headers_mut().insert("tus-version", versions);
        }
    }
    response
}

fn field<'c>(headers: &'c HeaderMap, name: &str) -> Result<Option<&'c str>, ProblemDetails> {
    let value = headers.get(name).map(HeaderValue::to_str).transpose();
    value.map_err(|_| ProblemDetails::bad_request(format!("{name}: expected printable ASCII.")))
}

fn number(headers: &HeaderMap, name: &'static str) -> Result<Option<u64>, ProblemDetails> {
    let Some(text) = field(headers, name)? else {
        return Ok(None);
    };
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| text.parse().ok()).flatten();
    number
        .map(Some)
        .ok_or_else(|| ProblemDetails::bad_request(format!("{name}: expected a number of bytes.")))
}

fn check_version(headers: &HeaderMap) -> Result<(), ProblemDetails> {
    match field(headers, TUS_RESUMABLE)? {
        Some(VERSION) => Ok(()),
        _ => {
            let detail =
                "Tus-Resumable: expected 1.0.0, the version of tus that this node supports.";
            Err(ProblemDetails::new(StatusCode::PRECONDITION_FAILED, detail))
        }
    }
}

/// Reads `key base64, key base64, key`.
fn read_metadata(text: &str) -> Result<Map<String, Value>, ProblemDetails> {
    let mut metadata = Map::new();
    for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
        let pair = pair.trim();
        let (key, encoded) = pair.split_once(' ').unwrap_or((pair, ""));
        let decoded = STANDARD.decode(encoded.trim()).ok();
        let value = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
        let value = value.ok_or_else(|| {
            let detail =
                format!("Upload-Metadata: expected UTF-8 in base64 as the value of {key:?}.");
            ProblemDetails::bad_request(detail)
        })?;
        metadata.insert(key.to_owned(), value.into());
    }
    Ok(metadata)
}

fn write_metadata(user_data: &Value) -> Option<String> {
    let metadata = user_data.get("metadata")?.as_object()?;
    let pairs = metadata.iter().map(|(key, value)| {
        let value = value.as_str().unwrap_or_default();
        match value.is_empty() {
            true => key.clone(),
            false => format!("{key} {}", STANDARD.encode(value)),
        }
    });
    Some(pairs.collect::<Vec<_>>().join(","))
}

/// The meaning of `Upload-Concat`.
enum UploadConcatenation {
    None,
    Partial,
    /// Ids of the parts in order.
    Final(Vec<String>),
}

fn concatenation(headers: &HeaderMap) -> Result<UploadConcatenation, ProblemDetails> {
    let wrong = || {
        let detail = format!(
            "Upload-Concat: expected `partial`, or `final;` and the paths of at most {MAX_PARTS} uploads, separated by spaces."
        );
        ProblemDetails::bad_request(detail)
    };
    let Some(text) = field(headers, UPLOAD_CONCAT)? else {
        return Ok(UploadConcatenation::None);
    };
    if text == "partial" {
        return Ok(UploadConcatenation::Partial);
    }
    let parts = text.strip_prefix("final;").ok_or_else(wrong)?;
    let parts = parts.split_whitespace().map(|part| {
        let path = part.split_once(PATH).map(|(_, path)| path);
        path.and_then(|path| path.strip_prefix('/'))
            .map(str::to_owned)
    });
    let parts: Option<Vec<String>> = parts.collect();
    match parts {
        Some(parts) if (1..=MAX_PARTS).contains(&parts.len()) => {
            Ok(UploadConcatenation::Final(parts))
        }
        _ => Err(wrong()),
    }
}

/// The checksum that a body must have.
struct ExpectedChecksum {
    algorithm: &'static Algorithm,
    digest: Vec<u8>,
}

fn expected_checksum(headers: &HeaderMap) -> Result<Option<ExpectedChecksum>, ProblemDetails> {
    let wrong = || {
        let detail = format!(
            "Upload-Checksum: expected one of the algorithms {CHECKSUM_ALGORITHMS}, and the digest in base64."
        );
        ProblemDetails::bad_request(detail)
    };
    let Some(text) = field(headers, UPLOAD_CHECKSUM)? else {
        return Ok(None);
    };
    let (name, digest) = text.split_once(' ').ok_or_else(wrong)?;
    let algorithm = match name {
        "sha1" => &SHA1_FOR_LEGACY_USE_ONLY,
        "sha256" => &SHA256,
        _ => return Err(wrong()),
    };
    let digest = STANDARD.decode(digest.trim()).map_err(|_| wrong())?;
    Ok(Some(ExpectedChecksum { algorithm, digest }))
}

fn has_offset_octets(headers: &HeaderMap) -> bool {
    let media_type = headers.get(header::CONTENT_TYPE);
    media_type.is_some_and(|media_type| media_type.as_bytes() == OFFSET_OCTETS.as_bytes())
}

fn set_number(fields: &mut HeaderMap, name: &'static str, value: u64) {
    fields.insert(name, value.into());
}

fn set_expiry(fields: &mut HeaderMap, info: &FileInfo) {
    let at_s = info
        .expires_at_ms
        .and_then(|ms| i64::try_from(ms / 1000).ok());
    let at = at_s.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    let printer = jiff::fmt::rfc2822::DateTimePrinter::new();
    let text = at.and_then(|at| printer.timestamp_to_rfc9110_string(&at).ok());
    let value = text.and_then(|text| HeaderValue::from_str(&text).ok());
    if let Some(value) = value.filter(|_| info.state == FileState::Receiving) {
        fields.insert(UPLOAD_EXPIRES, value);
    }
}

async fn describe(call: ApiCall) -> ApiResult {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let fields = response.headers_mut();
    fields.insert("tus-version", HeaderValue::from_static(VERSION));
    fields.insert("tus-extension", HeaderValue::from_static(EXTENSIONS));
    let algorithms = HeaderValue::from_static(CHECKSUM_ALGORITHMS);
    fields.insert("tus-checksum-algorithm", algorithms);
    let max_size = call.app.files.settings().max_file_bytes;
    fields.insert("tus-max-size", max_size.into());
    Ok(response)
}

/// Takes an upload for one request.
fn lock(call: &ApiCall, id: &str) -> Result<UploadGuard, ProblemDetails> {
    call.app.files.lock_upload(id).ok_or_else(|| {
        let detail = "Another request continues this upload; try again later.";
        ProblemDetails::new(StatusCode::LOCKED, detail)
    })
}

/// An unguessable id for a new upload, which tus clients do not choose.
fn new_file_id() -> Result<String, ProblemDetails> {
    let mut random = [0; 16];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut random)
        .map_err(|_| ProblemDetails::unavailable("The system provides no randomness."))?;
    Ok(format!("tus {:032x}", u128::from_le_bytes(random)))
}

async fn create(mut call: ApiCall) -> ApiResult {
    check_version(call.headers())?;
    let owner = owner_of_upload(&call)?;
    let metadata = read_metadata(field(call.headers(), UPLOAD_METADATA)?.unwrap_or_default())?;
    let parts = concatenation(call.headers())?;
    let expected = expected_checksum(call.headers())?;
    let concat = field(call.headers(), UPLOAD_CONCAT)?.map(str::to_owned);
    let length = number(call.headers(), UPLOAD_LENGTH)?;
    let text = |key: &str| metadata.get(key).and_then(Value::as_str);
    let digest = text("sha256")
        .or(text("checksum"))
        .map(str::parse::<FileDigest>);
    let digest = digest.transpose().map_err(|error| {
        ProblemDetails::bad_request(format!("Upload-Metadata: sha256: {error}."))
    })?;
    let file_id = new_file_id()?;
    let name = text("filename")
        .or(text("name"))
        .unwrap_or("upload")
        .to_owned();
    let content_type = text("filetype").or(text("type")).map(str::to_owned);
    let size = match &parts {
        UploadConcatenation::None | UploadConcatenation::Partial => {
            Some(length.ok_or_else(|| {
                ProblemDetails::bad_request(
                    "Upload-Length: expected the size of the upload in bytes.",
                )
            })?)
        }
        UploadConcatenation::Final(_) if length.is_some() => {
            let detail =
                "Upload-Length: expected none for a final upload, which is as long as its parts.";
            return Err(ProblemDetails::bad_request(detail));
        }
        UploadConcatenation::Final(parts) => Some(size_of_parts(&call, parts).await?),
    };
    let request = TransferRequest {
        size,
        checksum: digest,
        content_type,
        user_data: json!({"metadata": metadata, "concat": concat}),
        is_partial: matches!(parts, UploadConcatenation::Partial),
        ..TransferRequest::new(owner.clone(), file_id, name)
    };
    let begun = run_on_files(&call.app.files, move |files| files.begin(request)).await?;
    let id = begun.info().id.clone();
    let _guard = lock(&call, &id)?;
    let done = match parts {
        UploadConcatenation::Final(parts) => {
            let target = id.clone();
            let joined = run_on_files(&call.app.files, move |files| {
                files.concatenate(&target, &parts)?;
                Ok(parts)
            });
            match joined.await {
                Ok(parts) => complete(&call, &id).await.map(|()| (0, Some(parts))),
                Err(problem) => Err(problem),
            }
        }
        UploadConcatenation::None | UploadConcatenation::Partial => {
            if has_offset_octets(call.headers()) {
                let appended = append_body(&mut call, begun.info(), 0, expected).await;
                appended.map(|offset| (offset, None))
            } else {
                // An empty file is complete at once.
                match size {
                    Some(0) => complete(&call, &id).await.map(|()| (0, None)),
                    _ => Ok((0, None)),
                }
            }
        }
    };
    let (received, joined) = match done {
        Ok(done) => done,
        Err(problem) => {
            let removed = run_on_files(&call.app.files, move |files| files.delete(&id));
            let _ = removed.await;
            return Err(problem);
        }
    };
    if let Some(parts) = joined {
        // Their bytes are in the file now.
        let removed = run_on_files(&call.app.files, move |files| {
            for part in parts {
                files.delete(&part)?;
            }
            Ok(())
        });
        removed.await?;
    }
    let mut response = StatusCode::CREATED.into_response();
    let fields = response.headers_mut();
    let location = HeaderValue::try_from(format!("{PATH}/{id}"));
    let location = location.map_err(|_| ProblemDetails::unavailable("The id is not usable."))?;
    fields.insert(header::LOCATION, location);
    if has_offset_octets(call.headers()) {
        set_number(fields, UPLOAD_OFFSET, received);
    }
    set_expiry(fields, begun.info());
    Ok(response)
}

/// The size of a file that is made of these uploads, which must be the caller's and whole.
async fn size_of_parts(call: &ApiCall, parts: &[String]) -> Result<u64, ProblemDetails> {
    let namespaces = call.namespaces();
    let mut size = 0;
    for part in parts {
        let info = info_of(call, part).await?;
        // Uploads of other namespaces are answered like absent ones.
        if !namespaces.contains(&info.owner.namespace) {
            return Err(upload_not_found(part));
        }
        if !info.is_partial {
            return Err(ProblemDetails::bad_request(format!(
                "Upload-Concat: the upload {part:?} was not begun as partial."
            )));
        }
        if !FileService::has_all_bytes(&info) {
            return Err(ProblemDetails::conflict(format!(
                "Upload-Concat: the upload {part:?} is not complete; continue it first."
            )));
        }
        size = u64::saturating_add(size, info.size.unwrap_or(0));
    }
    Ok(size)
}

fn upload_not_found(id: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no upload {id:?}."))
}

async fn info_of(call: &ApiCall, id: &str) -> Result<FileInfo, ProblemDetails> {
    let (files, wanted) = (call.app.files.clone(), id.to_owned());
    let find = move || {
        let info = files.info(FileTarget::Id(&wanted));
        let of_operator = |info: &FileInfo| info.owner.kind == OwnerKind::Operator;
        if !info.as_ref().is_some_and(of_operator) {
            return Err(upload_not_found(&wanted));
        }
        // Reads which bytes were received, if the node has been restarted.
        let prefix = files.received_prefix(&wanted).map_err(to_problem)?;
        let info = files.info(FileTarget::Id(&wanted));
        let mut info = info.ok_or_else(|| upload_not_found(&wanted))?;
        info.received_bytes = prefix;
        Ok(info)
    };
    run_blocking(find, "The files cannot be read now.").await?
}

/// Makes an upload whose bytes have all arrived a complete file.
async fn complete(call: &ApiCall, id: &str) -> Result<(), ProblemDetails> {
    let wanted = id.to_owned();
    let finish = move |files: &FileService| {
        let info = files.info(FileTarget::Id(&wanted));
        match info.is_some_and(|info| info.is_partial) {
            true => Ok(None),
            false => files.finish(FileTarget::Id(&wanted), None, None).map(Some),
        }
    };
    let finished = run_on_files(&call.app.files, finish).await;
    let finished = finished.map_err(|mut problem| {
        if problem.status == StatusCode::UNPROCESSABLE_ENTITY {
            problem.status = checksum_status();
        }
        problem
    })?;
    if let Some(info) = finished {
        let about = json!({"name": info.name, "size": info.size, "checksum": info.checksum});
        audit::record_action(call, "file.upload", Some(&info.id), Some(about)).await;
    }
    Ok(())
}

async fn offset(call: ApiCall) -> ApiResult {
    check_version(call.headers())?;
    let info = info_of(&call, call.path("id")).await?;
    let mut response = StatusCode::OK.into_response();
    let fields = response.headers_mut();
    set_number(fields, UPLOAD_OFFSET, info.received_bytes);
    if let Some(size) = info.size {
        set_number(fields, UPLOAD_LENGTH, size);
    }
    if let Some(metadata) = write_metadata(&info.user_data)
        && let Ok(value) = HeaderValue::try_from(metadata)
    {
        fields.insert(UPLOAD_METADATA, value);
    }
    let concat = info.user_data.get("concat").and_then(Value::as_str);
    if let Some(value) = concat.and_then(|concat| HeaderValue::from_str(concat).ok()) {
        fields.insert(UPLOAD_CONCAT, value);
    }
    set_expiry(fields, &info);
    Ok(response)
}

async fn append(mut call: ApiCall) -> ApiResult {
    check_version(call.headers())?;
    if !has_offset_octets(call.headers()) {
        let detail = format!("The body must be sent with Content-Type: {OFFSET_OCTETS}.");
        return Err(ProblemDetails::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            detail,
        ));
    }
    let expected = expected_checksum(call.headers())?;
    let offset = number(call.headers(), UPLOAD_OFFSET)?.ok_or_else(|| {
        ProblemDetails::bad_request("Upload-Offset: expected the offset of the body in bytes.")
    })?;
    let id = call.path("id").to_owned();
    let _guard = lock(&call, &id)?;
    let info = info_of(&call, &id).await?;
    if offset != info.received_bytes {
        return Err(ProblemDetails::conflict(format!(
            "Upload-Offset: expected {}, because the upload continues there; the request has {offset}.",
            info.received_bytes
        )));
    }
    let received = append_body(&mut call, &info, offset, expected).await?;
    let mut response = StatusCode::NO_CONTENT.into_response();
    let fields = response.headers_mut();
    set_number(fields, UPLOAD_OFFSET, received);
    set_expiry(fields, &info);
    Ok(response)
}

/// Writes the body of a request to an upload, and completes it with the last byte. Returns the new offset.
async fn append_body(
    call: &mut ApiCall,
    info: &FileInfo,
    offset: u64,
    expected: Option<ExpectedChecksum>,
) -> Result<u64, ProblemDetails> {
    let size = info.size.unwrap_or(offset);
    if info.state == FileState::Complete {
        return Ok(size);
    }
    call.mark_long_lived();
    let target = UploadTarget {
        id: info.id.clone(),
        owner: info.owner.clone(),
        offset,
        max_bytes: Some(size - offset.min(size)),
    };
    let algorithm = expected.as_ref().map(|expected| expected.algorithm);
    let received = receive_body(call, target, algorithm).await;
    if let Some(problem) = received.failure {
        // What arrived without a checksum to verify counts; the client continues behind it.
        return Err(problem);
    }
    if let Some(expected) = expected {
        if received.digest.as_deref() != Some(&expected.digest[..]) {
            let detail = "The checksum of the body differs; send it again.";
            return Err(ProblemDetails::new(checksum_status(), detail));
        }
        let (id, bytes) = (info.id.clone(), received.bytes);
        let record = move |files: &FileService| files.record_staged(&id, offset, bytes);
        run_on_files(&call.app.files, record).await?;
    }
    let end = offset + received.bytes;
    if end == size {
        complete(call, &info.id).await?;
    }
    Ok(end)
}

async fn terminate(call: ApiCall) -> ApiResult {
    check_version(call.headers())?;
    let id = call.path("id").to_owned();
    let _guard = lock(&call, &id)?;
    let deleted = run_on_files(&call.app.files, move |files| files.delete(&id)).await?;
    let about = json!({"name": deleted.name, "file_id": deleted.file_id, "owner": deleted.owner});
    audit::record_action(&call, "file.delete", Some(&deleted.id), Some(about)).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn overridden(call: ApiCall) -> ApiResult {
    let method = field(call.headers(), METHOD_OVERRIDE)?.map(str::to_ascii_uppercase);
    match method.as_deref() {
        Some("PATCH") => append(call).await,
        Some("DELETE") => terminate(call).await,
        Some("HEAD") => offset(call).await,
        _ => {
            let detail = "X-HTTP-Method-Override: expected PATCH, DELETE or HEAD.";
            Err(ProblemDetails::bad_request(detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read_and_written() {
        let text = "filename d29ybGQ=,is_confidential";
        let metadata = read_metadata(text).expect("valid");
        assert_eq!(metadata["filename"], "world");
        let written = write_metadata(&json!({"metadata": metadata}));
        assert_eq!(written.as_deref(), Some(text));
        assert!(read_metadata("filename %%%").is_err());
        assert!(read_metadata("").is_ok_and(|metadata| metadata.is_empty()));
    }

    #[test]
    fn parts_are_read_from_paths_and_addresses() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(UPLOAD_CONCAT, text.parse().expect("a header"));
            concatenation(&headers)
        };
        let parts = read("final;/api/v1/tus/a https://node:8080/api/v1/tus/b");
        assert!(matches!(parts, Ok(UploadConcatenation::Final(parts)) if parts == ["a", "b"]));
        assert!(matches!(read("partial"), Ok(UploadConcatenation::Partial)));
        for wrong in ["final;", "final;/elsewhere/a", "whole"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
