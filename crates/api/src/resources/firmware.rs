//! Firmware of devices, beyond the objects that define it.

use ::firmware::{
    AssignedPackage, AssignmentTarget, ChunkTransport, FirmwareType, ImageStatus, InstallRecord,
    InstallState,
};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse as _;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::device_http;
use super::devices::run_blocking;
use super::file_download::download;
use super::upload_body::to_problem;
use crate::access::Role;
use crate::blocking;
use crate::call::{self, ApiCall};
use crate::device_service::DeviceServiceError;
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::endpoint_place::{EndpointPlace, MergedAnswer};
use crate::objects::BackendObjectKind;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{Parameter, ParameterType, text_parameter};

const OCTETS: &str = "application/octet-stream";

const TITLE: Parameter = text_parameter(
    "title",
    "Title of the package, as in `fw_title` or `sw_title`.",
);
const VERSION: Parameter = text_parameter("version", "Version of the package.");
const SIZE: Parameter = Parameter {
    name: "size",
    description: "Size of a chunk in bytes; without it, the whole image.",
    shape: ParameterType::Number(0, u32::MAX as u64),
};
const CHUNK: Parameter = Parameter {
    name: "chunk",
    description: "Number of the chunk, from 0.",
    shape: ParameterType::Number(0, u32::MAX as u64),
};

/// What a device is to install.
#[derive(Serialize, JsonSchema)]
struct AssignedFirmware {
    #[serde(rename = "type")]
    kind: FirmwareType,
    /// Id of the package.
    package: String,
    title: String,
    version: String,
    /// Size of the image in bytes.
    size: u64,
    /// What decides it: an assignment to a `product`, `group` or `device`, or a `campaign`.
    assigned_to: &'static str,
    /// Id of the product, group, device or campaign.
    target: String,
    /// `null`: the device has not been notified yet.
    state: Option<InstallState>,
    /// Percentage of the download.
    progress: Option<u8>,
    /// Why the installation failed.
    error: Option<String>,
    /// Title and version that the device runs, as it has reported.
    current_title: Option<String>,
    current_version: Option<String>,
    /// Properties of the firmware that the device runs, as it has reported; only of JetLinks devices.
    current_properties: Map<String, Value>,
    /// When the state changed.
    updated_at_ms: Option<u64>,
}

impl AssignedFirmware {
    fn new(assigned: AssignedPackage, record: Option<InstallRecord>) -> Self {
        let (assigned_to, target) = match assigned.target {
            AssignmentTarget::Product(id) => ("product", id),
            AssignmentTarget::Group(id) => ("group", id),
            AssignmentTarget::Device(id) => ("device", id),
            AssignmentTarget::Campaign(id) => ("campaign", id.to_string()),
        };
        let package = assigned.package;
        // Another record is about an earlier target.
        let is_told = |record: &&InstallRecord| record.package.as_deref() == Some(&package.id);
        let known = record.as_ref().filter(is_told);
        Self {
            kind: package.kind,
            package: package.id.clone(),
            title: package.title.clone(),
            version: package.version.clone(),
            size: package.size,
            assigned_to,
            target,
            state: known.map(|record| record.state),
            progress: known.and_then(|record| record.progress),
            error: known.and_then(|record| record.error.clone()),
            current_title: record.as_ref().and_then(|it| it.current_title.clone()),
            current_version: record.as_ref().and_then(|it| it.current_version.clone()),
            updated_at_ms: known.map(|record| record.updated_at_ms),
            current_properties: record
                .map(|record| record.current_properties)
                .unwrap_or_default(),
        }
    }
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get(
            "/api/v1/devices/{id}/firmware",
            "getDeviceFirmware",
            of_device,
        )
        .role(Role::Viewer, EndpointScope::device("id"))
        .tag("firmware")
        .path_parameter("id", "The device's id, percent-encoded.")
        .summary("List the firmware packages of a device")
        .description("At most one package of each type.")
        .unpaged::<AssignedFirmware>(),
        get("/api/v1/firmware/{id}/image", "getFirmwareImage", image_of_package)
            .role(
                Role::Viewer,
                EndpointScope::object(BackendObjectKind::Firmware, "id"),
            )
            .tag("firmware")
            .path_parameter("id", "The package's id, percent-encoded.")
            .summary("Show where the image of a firmware package is")
            .description(
                "One row, in a cluster one of each node. A node copies the image from another one when it learns of the package, and \
                 notifies its devices when it has it.",
            )
            .place(EndpointPlace::AllNodes(MergedAnswer::Lists(None)))
            .node_unpaged::<ImageStatus>(),
        image(get(
            "/api/v1/{token}/firmware",
            "downloadFirmware",
            firmware,
        ))
        .summary("Download the firmware (device)"),
        image(get(
            "/api/v1/{token}/software",
            "downloadSoftware",
            software,
        ))
        .summary("Download the software (device)"),
    ]
}

fn image(endpoint: Endpoint) -> Endpoint {
    device_http::of_device(endpoint)
        .tag("firmware")
        .parameters(&[TITLE, VERSION, SIZE, CHUNK])
        .description(
            "The package that is assigned to the device; with `Range`, `If-Range` and `If-None-Match`. With `size` and `chunk`, \
             one chunk; beyond the end it is empty.",
        )
        .raw_response(200, "The image, or a chunk of it.", &[OCTETS])
        .raw_response(206, "The requested part.", &[OCTETS])
        .empty_response(304, "The image has the entity tag of If-None-Match.")
        .problem_response(404, "Nothing is assigned to the device.")
        .problem_response(503, "The image has not arrived from another node of the cluster yet.")
        .problem_response(416, "The range is not within the image.")
}

async fn firmware(call: ApiCall) -> ApiResult {
    send_image(call, FirmwareType::Firmware).await
}

async fn software(call: ApiCall) -> ApiResult {
    send_image(call, FirmwareType::Software).await
}

/// Sends the image that is assigned to the calling device, or a chunk of it.
async fn send_image(call: ApiCall, kind: FirmwareType) -> ApiResult {
    let device = device_http::run_blocking(&call, |backend, caller| backend.device(caller)).await?;
    let firmware = call.app.firmware.clone();
    let Some(assigned) = firmware.assigned(&device, kind) else {
        let detail = format!("No {} is assigned to the device.", kind.name());
        return Err(ProblemDetails::not_found(detail));
    };
    let package = assigned.package;
    for (parameter, expected) in [(TITLE, &package.title), (VERSION, &package.version)] {
        let given = call.query.text_value(parameter.name);
        if given.is_some_and(|given| given != expected) {
            let detail = format!(
                "{}: the {} {expected:?} is assigned to the device; ask for that.",
                parameter.name, parameter.name
            );
            return Err(ProblemDetails::invalid_parameter(parameter.name, detail));
        }
    }
    check_image_is_here(&call, &package.file)?;
    let size = call.query.number_value(SIZE).unwrap_or(0);
    if size == 0 {
        let mut response = download(call, &package.file).await?;
        let fields = response.headers_mut();
        // ThingsBoard's name for it.
        if let Ok(name) = HeaderValue::from_str(&package.title) {
            fields.insert("x-filename", name);
        }
        return Ok(response);
    }
    let start = call.query.number_value(CHUNK).unwrap_or(0);
    let start = start.saturating_mul(size).min(package.size);
    let len = size.min(package.size - start);
    let most = firmware.max_chunk_bytes();
    if len > most {
        let detail =
            format!("size: expected at most {most} bytes; for more, use Range without size.");
        return Err(ProblemDetails::invalid_parameter(SIZE.name, detail));
    }
    let read = move || firmware.read_chunk(&package, start, len, ChunkTransport::Http);
    let read = blocking::run_blocking(read, "The image cannot be read now.").await?;
    let fields = [(header::CONTENT_TYPE, OCTETS)];
    Ok((StatusCode::OK, fields, read.map_err(to_problem)?).into_response())
}

/// Rejects requests for an image that is on its way from another node of the cluster.
pub(super) fn check_image_is_here(call: &ApiCall, file: &str) -> Result<(), ProblemDetails> {
    match call.app.firmware.is_awaited(file) {
        false => Ok(()),
        true => Err(ProblemDetails::unavailable(
            "The image has not arrived from another node of the cluster yet; try again.",
        )),
    }
}

async fn image_of_package(call: ApiCall) -> ApiResult {
    let (id, firmware) = (call.path("id").to_owned(), call.app.firmware.clone());
    let package = id.clone();
    let status = move || firmware.image_status(&package);
    let status = blocking::run_blocking(status, "The image cannot be read now.").await?;
    let not_found = || ProblemDetails::not_found(format!("There is no firmware package {id:?}."));
    call::unpaged_list(vec![status.ok_or_else(not_found)?])
}

async fn of_device(call: ApiCall) -> ApiResult {
    let (id, firmware) = (call.path("id").to_owned(), call.app.firmware.clone());
    let assigned = run_blocking(&call.app, move |devices| {
        let device = devices.registry().device(&id)?;
        let device = device
            .ok_or_else(|| DeviceServiceError::NotFound(format!("There is no device {id:?}.")))?;
        let mut all = Vec::new();
        for kind in FirmwareType::ALL {
            if let Some(assigned) = firmware.assigned(&device, kind) {
                let record = firmware
                    .install(device.no, kind)
                    .map_err(|error| DeviceServiceError::Unavailable(format!("{error}.")))?;
                all.push(AssignedFirmware::new(assigned, record));
            }
        }
        Ok(all)
    });
    call::unpaged_list(assigned.await?)
}
