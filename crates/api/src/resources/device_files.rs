//! Devices by the thousand, as lines of a file.

use axum::http::header;
use schemars::JsonSchema;
use serde::Serialize;

use super::devices::run_blocking;
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::device_backend::DeviceBackendError;
use crate::endpoint::{ApiResult, Endpoint, get, post};
use crate::query_parameters::{Parameter, ParameterType};

/// Largest piece of an import.
const MAX_IMPORT_BYTES: usize = 16 << 20;
const JSONL: &str = "application/x-ndjson";
const CSV: &str = "text/csv";
/// Where the next piece of an export begins.
const NEXT_HEADER: &str = "tidegate-next";

const FIRST_LINE: Parameter = Parameter {
    name: "first_line",
    description: "The number of the first line, where the body is a piece of a file; a head line of CSV goes with each piece.",
    shape: ParameterType::Number(1, u32::MAX as u64),
};
const CREATES_ONLY: Parameter = Parameter {
    name: "create_only",
    description: "`true`: devices that are there are refused; otherwise they are replaced.",
    shape: ParameterType::Flag,
};
const FROM: Parameter = Parameter {
    name: "from",
    description: "The field `Tidegate-Next` of the answer before.",
    shape: ParameterType::Number(0, u32::MAX as u64),
};
const COUNT: Parameter = Parameter {
    name: "count",
    description: "Devices of a piece; 10,000 if it is left out.",
    shape: ParameterType::Number(1, 50_000),
};

/// A line that was not taken.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the registry answers")]
struct ImportRejection {
    line: u64,
    field: String,
    reason: String,
}

/// What came of lines.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the registry answers")]
struct ImportSummary {
    created: u64,
    updated: u64,
    refused: u64,
    /// The first 50,000 of them.
    refusals: Vec<ImportRejection>,
    /// The line behind the last one: everything before it is on disk, and an import that was interrupted goes on here.
    next_line: u64,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/v1/device-import", "importDevices", import)
            .role(Role::Operator)
            .tag("devices")
            .summary("Make or replace many devices")
            .description(
                "Lines of JSON (application/x-ndjson), each a device with its id, or of CSV (text/csv) with a head line. Lines that \
                 cannot be taken are told and do not hold up the others. The same lines again change nothing more, so that an import \
                 that broke off is made again from where it was. A file goes in pieces of up to 16 MiB, see `first_line`.",
            )
            .parameters(&[FIRST_LINE, CREATES_ONLY])
            .raw_request_body(&[JSONL])
            .response::<ImportSummary>(200, "Taken as far as it could be."),
        get("/api/v1/device-export", "exportDevices", export)
            .role(Role::Operator)
            .tag("devices")
            .summary("Devices as lines of JSON")
            .description(
                "Without secrets; with `Accept: text/csv` as CSV. The field `Tidegate-Next` of an answer says where the next piece \
                 begins; the last one has none.",
            )
            .parameters(&[FROM, COUNT])
            .raw_response(200, "A piece.", &[JSONL]),
    ]
}

async fn import(mut call: ApiCall) -> ApiResult {
    let format = match call.expect_media_type(CSV) {
        Ok(()) => "csv",
        Err(_) => {
            call.expect_media_type(JSONL)?;
            "jsonl"
        }
    };
    let first_line = call.query.number_value(FIRST_LINE).unwrap_or(1);
    let creates_only = call.query.flag_value(CREATES_ONLY).unwrap_or(false);
    let body = call.body_bytes(MAX_IMPORT_BYTES).await?;
    let imported = run_blocking(&call.app, move |tools| {
        let text = str::from_utf8(&body).map_err(|error| DeviceBackendError::Field {
            field: String::new(),
            detail: format!(
                "The body is not UTF-8 from byte {} on.",
                error.valid_up_to()
            ),
        })?;
        tools.import(text, format, creates_only, first_line)
    })
    .await?;
    let mut told = imported.clone();
    if let Some(fields) = told.as_object_mut() {
        fields.remove("refusals");
    }
    audit::record_action(&call, "device.import", None, Some(told)).await;
    call::json_response(imported)
}

async fn export(call: ApiCall) -> ApiResult {
    let accept = call.headers().get(header::ACCEPT);
    let wants_csv = accept.and_then(|value| value.to_str().ok());
    let (format, media_type) = match wants_csv.is_some_and(|accept| accept.contains(CSV)) {
        true => ("csv", CSV),
        false => ("jsonl", JSONL),
    };
    let from = call.query.number_value(FROM).unwrap_or(0) as u32;
    let count = call.query.number_value(COUNT).unwrap_or(10_000) as usize;
    let piece = run_blocking(&call.app, move |tools| tools.export(format, from, count)).await?;
    let mut response = call::text_response(media_type, piece.text);
    if let Some(next) = piece.next {
        response.headers_mut().insert(NEXT_HEADER, next.into());
    }
    Ok(response)
}
