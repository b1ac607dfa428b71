//! Import and export of many devices as lines of a file.

use axum::http::header;
use devices::{ImportFormat, ImportMode, ImportSummary};
use serde_json::json;

use super::devices::run_blocking;
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::device_service::DeviceServiceError;
use crate::endpoint::{Endpoint, EndpointScope, get, post};
use crate::problem_details::ApiResult;
use crate::query_parameters::{NAMESPACE, Parameter, ParameterType};

/// Maximum size of one piece of an import, in bytes.
const MAX_IMPORT_BYTES: usize = 16 << 20;
const JSONL: &str = "application/x-ndjson";
const CSV: &str = "text/csv";
/// Response header with the start of the next piece of an export.
const NEXT_HEADER: &str = "tidegate-next";

const FIRST_LINE: Parameter = Parameter {
    name: "first_line",
    description: "Number of the first line if the body is a piece of a file; each piece of CSV has a header line.",
    shape: ParameterType::Number(1, u32::MAX as u64),
};
const CREATES_ONLY: Parameter = Parameter {
    name: "create_only",
    description: "`true`: reject devices that exist; otherwise they are replaced.",
    shape: ParameterType::Flag,
};
const FROM: Parameter = Parameter {
    name: "from",
    description: "Header `Tidegate-Next` of the previous response.",
    shape: ParameterType::Number(0, u32::MAX as u64),
};
const COUNT: Parameter = Parameter {
    name: "count",
    description: "Maximum number of devices per piece; default 10,000.",
    shape: ParameterType::Number(1, 50_000),
};

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/v1/device-import", "importDevices", import)
            .role(Role::Operator, EndpointScope::Selected)
            .tag("devices")
            .summary("Import devices")
            .description(
                "Lines of JSON (application/x-ndjson), each a device with its id, or of CSV (text/csv) with a header line. Invalid \
                 lines are reported and do not affect the others. Repeated lines change nothing, so an interrupted import \
                 can be continued. Send a file in pieces of up to 16 MiB, see `first_line`.",
            )
            .parameters(&[FIRST_LINE, CREATES_ONLY])
            .raw_request_body(&[JSONL])
            .response::<ImportSummary>(200, "The result; invalid lines were rejected."),
        get("/api/v1/device-export", "exportDevices", export)
            .role(Role::Operator, EndpointScope::Selected)
            .tag("devices")
            .summary("Export devices")
            .description(
                "Without secrets; with `Accept: text/csv` as CSV. The header `Tidegate-Next` of a response is the start of the next piece; \
                 the last one has none.",
            )
            .parameters(&[FROM, COUNT, NAMESPACE])
            .raw_response(200, "A piece.", &[JSONL]),
    ]
}

async fn import(mut call: ApiCall) -> ApiResult {
    let format = match call.expect_media_type(CSV) {
        Ok(()) => ImportFormat::Csv,
        Err(_) => {
            call.expect_media_type(JSONL)?;
            ImportFormat::Jsonl
        }
    };
    let first_line = call.query.number_value(FIRST_LINE).unwrap_or(1);
    let mode = match call.query.flag_value(CREATES_ONLY) {
        Some(true) => ImportMode::Create,
        _ => ImportMode::Replace,
    };
    let body = call.body_bytes(MAX_IMPORT_BYTES).await?;
    let selection = call.namespaces();
    let imported = run_blocking(&call.app, move |tools| {
        let text = str::from_utf8(&body).map_err(|error| DeviceServiceError::Field {
            field: String::new(),
            detail: format!(
                "The body is not UTF-8 from byte {} on.",
                error.valid_up_to()
            ),
        })?;
        tools.import(text, format, mode, first_line, &selection)
    })
    .await?;
    let mut counts = json!(imported);
    if let Some(fields) = counts.as_object_mut() {
        fields.remove("rejections");
    }
    audit::record_action(&call, "device.import", None, Some(counts)).await;
    call::json_response(imported)
}

async fn export(call: ApiCall) -> ApiResult {
    let accept = call.headers().get(header::ACCEPT);
    let wants_csv = accept.and_then(|value| value.to_str().ok());
    let (format, media_type) = match wants_csv.is_some_and(|accept| accept.contains(CSV)) {
        true => (ImportFormat::Csv, CSV),
        false => (ImportFormat::Jsonl, JSONL),
    };
    let from = call.query.number_value(FROM).unwrap_or(0) as u32;
    let count = call.query.number_value(COUNT).unwrap_or(10_000) as usize;
    let selection = call.namespaces();
    let piece = run_blocking(&call.app, move |tools| {
        tools.export(format, from, count, selection)
    })
    .await?;
    let mut response = call::text_response(media_type, piece.text);
    if let Some(next) = piece.next {
        response.headers_mut().insert(NEXT_HEADER, next.into());
    }
    Ok(response)
}
