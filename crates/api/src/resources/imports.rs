//! Imports of devices and telemetry as jobs: the file is received first, then processed in pieces.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;

use axum::http::StatusCode;
use devices::{ImportFormat, ImportMode};
use http_body_util::BodyExt as _;
use namespaces::NamespaceSelection;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::jobs::accepted;
use crate::access::Role;
use crate::audit;
use crate::blocking::run_blocking;
use crate::call::ApiCall;
use crate::device_service::DeviceService;
use crate::endpoint::{Endpoint, EndpointScope, post};
use crate::job_files::{JobFile, job_namespace};
use crate::jobs::{JobHandle, JobView, NewJob};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{NAMESPACE, Parameter, ParameterType};
use crate::telemetry_backend::{ImportedRow, TelemetryBackend};

const JSONL: &str = "application/x-ndjson";
const CSV: &str = "text/csv";
const MAX_FILE_BYTES: u64 = 16 << 30;
const MAX_LINE_BYTES: u64 = 1 << 20;
/// Lines that are processed at once.
const PIECE_LINES: usize = 1000;
const PIECE_BYTES: usize = 4 << 20;
const MAX_PIECE_BYTES: usize = 16 << 20;
const PANICKED: &str = "The file cannot be written now.";

const KIND: Parameter = Parameter {
    name: "kind",
    description: "`devices` or `telemetry`.",
    shape: ParameterType::Words(&["devices", "telemetry"]),
};
const CREATES_ONLY: Parameter = Parameter {
    name: "create_only",
    description: "`true`: reject devices that exist; otherwise they are replaced.",
    shape: ParameterType::Flag,
};

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/v1/imports", "startImport", start)
            .role(Role::Operator, EndpointScope::Selected)
            .tag("devices")
            .summary("Import devices or telemetry as a job")
            .description(
                "Devices: as for `POST /api/v1/device-import`, in a file of any size up to 16 GiB. Telemetry: lines of JSON \
                 `{\"device\", \"ts_ms\", \"values\"}`, as exported; the values are stored as they are, without rules, rule chains and alarms. \
                 The job begins when the file has arrived. Its progress is in lines; invalid lines are its `failures` and do not affect the others. \
                 A cancelled import keeps what it has stored, and can be repeated: repeated lines change nothing. Operators of several namespaces \
                 name one with `namespace`.",
            )
            .parameters(&[KIND, CREATES_ONLY, NAMESPACE])
            .raw_request_body(&[JSONL, CSV])
            .response::<JobView>(202, "The job has begun.")
            .with_location()
            .problem_response(409, "Too many jobs are running."),
    ]
}

/// What is imported, and how.
#[derive(Clone, Copy)]
enum ImportKind {
    Devices(ImportFormat, ImportMode),
    Telemetry,
}

impl ImportKind {
    fn from_call(call: &ApiCall) -> Result<Self, ProblemDetails> {
        let is_csv = call.expect_media_type(CSV).is_ok();
        if !is_csv {
            call.expect_media_type(JSONL)?;
        }
        match call.query.text_value(KIND.name) {
            Some("devices") => {
                let format = match is_csv {
                    true => ImportFormat::Csv,
                    false => ImportFormat::Jsonl,
                };
                let mode = match call.query.flag_value(CREATES_ONLY) {
                    Some(true) => ImportMode::Create,
                    _ => ImportMode::Replace,
                };
                Ok(Self::Devices(format, mode))
            }
            Some("telemetry") if !is_csv => Ok(Self::Telemetry),
            Some("telemetry") => Err(ProblemDetails::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                format!("Telemetry is imported as {JSONL}."),
            )),
            _ => {
                let detail = "kind: expected devices or telemetry.";
                Err(ProblemDetails::invalid_parameter(KIND.name, detail))
            }
        }
    }

    fn job_kind(self) -> &'static str {
        match self {
            Self::Devices(..) => "device_import",
            Self::Telemetry => "telemetry_import",
        }
    }
}

async fn start(mut call: ApiCall) -> ApiResult {
    let kind = ImportKind::from_call(&call)?;
    let selection = call.namespaces();
    let namespace = job_namespace(&selection)?;
    let (file, lines) = receive(&mut call).await?;
    let job = call.app.jobs.start(NewJob {
        kind: kind.job_kind(),
        subject: String::new(),
        namespace,
        created_by: call.identity.name.clone(),
    });
    let job = job.map_err(|error| ProblemDetails::conflict(format!("{error}.")))?;
    let view = job.view();
    audit::record_action(&call, kind.job_kind(), Some(&view.id), None).await;
    job.set_total(lines);
    let importer = Importer {
        devices: call.app.devices.clone(),
        telemetry: call.app.telemetry_backend.clone(),
        selection,
        job,
    };
    tokio::task::spawn_blocking(move || {
        let imported = importer.run(kind, file.path());
        importer.job.end(imported);
    });
    Ok(accepted(&view))
}

/// Writes the body to a file; returns it with the number of its lines.
async fn receive(call: &mut ApiCall) -> Result<(JobFile, u64), ProblemDetails> {
    let program = call.app.program.clone();
    let mut file = run_blocking(move || JobFile::create(&*program), PANICKED).await??;
    let within = call.app.config.body_timeout();
    let mut body = call.take_body();
    let (mut bytes, mut lines, mut last) = (0, 0, b'\n');
    loop {
        let frame = timeout(within, body.frame()).await.map_err(|_| {
            let detail = format!("Nothing of the body arrived within {} s.", within.as_secs());
            ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, detail)
        })?;
        let Some(frame) = frame else { break };
        let frame =
            frame.map_err(|_| ProblemDetails::bad_request("The request body is incomplete."))?;
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        bytes += piece.len() as u64;
        if bytes > MAX_FILE_BYTES {
            let detail = format!("The body exceeds the limit of {MAX_FILE_BYTES} bytes.");
            return Err(ProblemDetails::new(StatusCode::PAYLOAD_TOO_LARGE, detail));
        }
        lines += piece.iter().filter(|byte| **byte == b'\n').count() as u64;
        last = piece.last().copied().unwrap_or(last);
        let program = call.app.program.clone();
        file = run_blocking(
            move || {
                file.check_room(&*program)?;
                file.write_all(&piece)
                    .map_err(|error| file.problem(&error))?;
                Ok::<_, ProblemDetails>(file)
            },
            PANICKED,
        )
        .await??;
    }
    Ok((file, lines + u64::from(last != b'\n')))
}

struct Importer {
    devices: DeviceService,
    telemetry: std::sync::Arc<dyn TelemetryBackend>,
    selection: NamespaceSelection,
    job: JobHandle,
}

/// A line of a telemetry file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TelemetryLine {
    device: String,
    ts_ms: i64,
    values: Map<String, Value>,
}

impl Importer {
    fn run(&self, kind: ImportKind, path: &Path) -> Result<(), String> {
        let unreadable = |error: io::Error| format!("the file cannot be read: {error}");
        let mut input = BufReader::new(File::open(path).map_err(unreadable)?);
        let header = match kind {
            ImportKind::Devices(ImportFormat::Csv, _) => {
                let mut header = String::new();
                let read = input.by_ref().take(MAX_LINE_BYTES).read_line(&mut header);
                read.map_err(unreadable)?;
                self.job.advance();
                header
            }
            _ => String::new(),
        };
        // The number of the first line of a piece; the header is line 1.
        let mut line = 1 + u64::from(!header.is_empty());
        loop {
            let mut piece = header.clone();
            let (mut lines, mut quotes) = (0, 0);
            // A field of CSV may contain line ends.
            while (lines < PIECE_LINES && piece.len() < PIECE_BYTES) || quotes % 2 == 1 {
                let before = piece.len();
                if before > MAX_PIECE_BYTES {
                    return Err(format!("line {line}: a quoted field does not end"));
                }
                let read = input.by_ref().take(MAX_LINE_BYTES).read_line(&mut piece);
                if read.map_err(unreadable)? == 0 {
                    break;
                }
                if (piece.len() - before) as u64 == MAX_LINE_BYTES && !piece.ends_with('\n') {
                    return Err(format!(
                        "line {} is longer than the limit of {MAX_LINE_BYTES} bytes; the lines before it are imported",
                        line + lines as u64
                    ));
                }
                lines += 1;
                if !header.is_empty() {
                    let quoted = piece.as_bytes()[before..].iter();
                    quotes += quoted.filter(|byte| **byte == b'"').count();
                }
            }
            if lines == 0 || self.job.is_cancelled() {
                return Ok(());
            }
            match kind {
                ImportKind::Devices(format, mode) => {
                    self.import_devices(&piece, (format, mode), line, lines)?;
                }
                ImportKind::Telemetry => self.import_telemetry(&piece, line)?,
            }
            line += lines as u64;
        }
    }

    fn import_devices(
        &self,
        piece: &str,
        (format, mode): (ImportFormat, ImportMode),
        line: u64,
        lines: usize,
    ) -> Result<(), String> {
        let imported = self
            .devices
            .import(piece, format, mode, line, &self.selection)
            .map_err(|error| error.to_string())?;
        for rejection in &imported.rejections {
            let reason = match rejection.field.as_str() {
                "" => rejection.reason.clone(),
                field => format!("{field}: {}", rejection.reason),
            };
            self.job
                .fail_item(&format!("line {}", rejection.line), reason);
        }
        self.job
            .advance_by((lines as u64).saturating_sub(imported.rejections.len() as u64));
        Ok(())
    }

    fn import_telemetry(&self, piece: &str, first: u64) -> Result<(), String> {
        let (mut rows, mut numbers) = (Vec::new(), Vec::new());
        for (number, text) in (first..).zip(piece.lines()) {
            if text.trim().is_empty() {
                self.job.advance();
                continue;
            }
            match serde_json::from_str::<TelemetryLine>(text) {
                Ok(line) => {
                    numbers.push(number);
                    rows.push(ImportedRow {
                        device: line.device,
                        ts_ms: line.ts_ms,
                        values: line.values,
                    });
                }
                Err(error) => {
                    let reason = format!("expected {{\"device\", \"ts_ms\", \"values\"}}: {error}");
                    self.job.fail_item(&format!("line {number}"), reason);
                }
            }
        }
        let stored = self.telemetry.import_rows(&rows, &self.selection);
        let stored = stored.map_err(|error| match error {
            crate::telemetry_backend::TelemetryBackendError::NoDevice(detail)
            | crate::telemetry_backend::TelemetryBackendError::Unavailable(detail) => detail,
            crate::telemetry_backend::TelemetryBackendError::Parameter { name, detail } => {
                format!("{name}: {detail}")
            }
        })?;
        for (number, result) in numbers.iter().zip(stored) {
            match result {
                Ok(()) => self.job.advance(),
                Err(reason) => self.job.fail_item(&format!("line {number}"), reason),
            }
        }
        Ok(())
    }
}
