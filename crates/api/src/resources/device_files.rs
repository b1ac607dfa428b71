//! Devices by the thousand, as lines of a file.

use axum::http::header;
use schemars::JsonSchema;
use serde::Serialize;

use super::devices::ask;
use crate::access::Role;
use crate::audit;
use crate::call::{self, Call};
use crate::device_tools::DeviceProblem;
use crate::endpoint::{Endpoint, Outcome, get, post};
use crate::parameters::{Parameter, Shape};

/// Largest piece of an import.
const MAX_IMPORT_BYTES: usize = 16 << 20;
const JSONL: &str = "application/x-ndjson";
const CSV: &str = "text/csv";
/// Where the next piece of an export begins.
const NEXT: &str = "tidegate-next";

const FIRST_LINE: Parameter = Parameter {
    name: "first_line",
    about: "The number of the first line, where the body is a piece of a file; a head line of CSV goes with each piece.",
    shape: Shape::Number(1, u32::MAX as u64),
};
const CREATES_ONLY: Parameter = Parameter {
    name: "create_only",
    about: "`true`: devices that are there are refused; otherwise they are replaced.",
    shape: Shape::Flag,
};
const FROM: Parameter = Parameter {
    name: "from",
    about: "The field `Tidegate-Next` of the answer before.",
    shape: Shape::Number(0, u32::MAX as u64),
};
const COUNT: Parameter = Parameter {
    name: "count",
    about: "Devices of a piece; 10,000 if it is left out.",
    shape: Shape::Number(1, 50_000),
};

/// A line that was not taken.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the registry answers")]
struct Refused {
    line: u64,
    field: String,
    reason: String,
}

/// What came of lines.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the registry answers")]
struct Imported {
    created: u64,
    updated: u64,
    refused: u64,
    /// The first 50,000 of them.
    refusals: Vec<Refused>,
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
            .raw_body(&[JSONL])
            .answers::<Imported>(200, "Taken as far as it could be."),
        get("/api/v1/device-export", "exportDevices", export)
            .role(Role::Operator)
            .tag("devices")
            .summary("Devices as lines of JSON")
            .description(
                "Without secrets; with `Accept: text/csv` as CSV. The field `Tidegate-Next` of an answer says where the next piece \
                 begins; the last one has none.",
            )
            .parameters(&[FROM, COUNT])
            .answers_raw(200, "A piece.", &[JSONL]),
    ]
}

async fn import(mut call: Call) -> Outcome {
    let format = match call.expect_media_type(CSV) {
        Ok(()) => "csv",
        Err(_) => {
            call.expect_media_type(JSONL)?;
            "jsonl"
        }
    };
    let first_line = call.query.number(FIRST_LINE).unwrap_or(1);
    let creates_only = call.query.flag(CREATES_ONLY).unwrap_or(false);
    let body = call.bytes(MAX_IMPORT_BYTES).await?;
    let imported = ask(&call.app, move |tools| {
        let text = str::from_utf8(&body).map_err(|error| DeviceProblem::Field {
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
    audit::action(&call, "device.import", None, Some(told)).await;
    call::ok(imported)
}

async fn export(call: Call) -> Outcome {
    let accept = call.headers().get(header::ACCEPT);
    let wants_csv = accept.and_then(|value| value.to_str().ok());
    let (format, media_type) = match wants_csv.is_some_and(|accept| accept.contains(CSV)) {
        true => ("csv", CSV),
        false => ("jsonl", JSONL),
    };
    let from = call.query.number(FROM).unwrap_or(0) as u32;
    let count = call.query.number(COUNT).unwrap_or(10_000) as usize;
    let piece = ask(&call.app, move |tools| tools.export(format, from, count)).await?;
    let mut response = call::text(media_type, piece.text);
    if let Some(next) = piece.next {
        response.headers_mut().insert(NEXT, next.into());
    }
    Ok(response)
}
