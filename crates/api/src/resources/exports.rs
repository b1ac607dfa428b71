//! Exports of devices and telemetry as jobs: the node writes a file, which is downloaded afterwards.

use std::io::{self, Write as _};
use std::sync::Arc;

use devices::ImportFormat;
use namespaces::NamespaceSelection;
use schemars::JsonSchema;
use serde::Deserialize;

use super::jobs::accepted;
use crate::access::Role;
use crate::audit;
use crate::blocking::run_blocking;
use crate::call::ApiCall;
use crate::cluster_telemetry::{AbsentNodes, ClusterTelemetry};
use crate::device_service::DeviceService;
use crate::endpoint::{Endpoint, EndpointScope, get, post};
use crate::file_body;
use crate::job_files::{JobFile, job_namespace};
use crate::jobs::{JobHandle, JobView, NewJob};
use crate::node_backend::ProgramBackend;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::NAMESPACE;
use crate::telemetry_backend::{RowQuery, TelemetryBackendError, TelemetryReader};

const JSONL: &str = "application/x-ndjson";
const CSV: &str = "text/csv";
/// Devices that are read at once.
const PAGE: usize = 1000;
const PANICKED: &str = "The file cannot be written now.";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ExportKind {
    Devices,
    Telemetry,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ExportFileFormat {
    #[default]
    Jsonl,
    Csv,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ExportInput")]
#[serde(deny_unknown_fields)]
struct ExportInput {
    kind: ExportKind,
    /// Of telemetry: only `jsonl`.
    #[serde(default)]
    format: ExportFileFormat,
    /// Telemetry: only of devices of this product.
    product: Option<String>,
    /// Telemetry: only of these devices.
    devices: Option<Vec<String>>,
    /// Telemetry: only these keys.
    keys: Option<Vec<String>>,
    /// Telemetry: from this time on.
    from_ms: Option<i64>,
    /// Telemetry: before this time.
    to_ms: Option<i64>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/v1/exports", "startExport", start)
            .role(Role::Operator, EndpointScope::Selected)
            .tag("devices")
            .summary("Export devices or telemetry as a job")
            .description(
                "The job writes a file on the node; its progress is in devices. Devices are exported without secrets, as by \
                 `GET /api/v1/device-export`. Telemetry is exported as lines of JSON `{\"device\", \"ts_ms\", \"values\"}`, ordered by time for \
                 each device, and can be imported by `POST /api/v1/imports`. `GET /api/v1/exports/{id}/content` with the id of the job downloads the file, \
                 which the node keeps as long as the job. Operators of several namespaces name one with `namespace`.",
            )
            .parameters(&[NAMESPACE])
            .request_body::<ExportInput>()
            .response::<JobView>(202, "The job has begun.")
            .with_location()
            .problem_response(409, "Too many jobs are running."),
        get("/api/v1/exports/{id}/content", "getExportContent", content)
            .role(Role::Operator, EndpointScope::Selected)
            .tag("devices")
            .summary("Download the file of an export")
            .path_parameter("id", "The job's id.")
            .raw_response(200, "The file.", &[JSONL, CSV])
            .problem_response(404, "There is no such job, or it has no complete file."),
    ]
}

async fn start(mut call: ApiCall) -> ApiResult {
    let input: ExportInput = call.body_json().await?;
    if input.kind == ExportKind::Telemetry && input.format != ExportFileFormat::Jsonl {
        let detail = "format: expected jsonl for telemetry.";
        return Err(ProblemDetails::invalid_field("format", detail));
    }
    let selection = call.namespaces();
    let namespace = job_namespace(&selection)?;
    let program = call.app.program.clone();
    let file = run_blocking(move || JobFile::create(&*program), PANICKED).await??;
    let kind = match input.kind {
        ExportKind::Devices => "device_export",
        ExportKind::Telemetry => "telemetry_export",
    };
    let job = call.app.jobs.start(NewJob {
        kind,
        subject: input.product.clone().unwrap_or_default(),
        namespace,
        created_by: call.identity.name.clone(),
    });
    let job = job.map_err(|error| ProblemDetails::conflict(format!("{error}.")))?;
    let view = job.view();
    audit::record_action(&call, kind, Some(&view.id), None).await;
    let mut exporter = Exporter {
        devices: call.app.devices.clone(),
        // Devices whose telemetry is incomplete are named in the job.
        telemetry: match ClusterTelemetry::new(&call.app, AbsentNodes::Refused) {
            Some(telemetry) => Arc::new(telemetry),
            None => call.app.telemetry_backend.clone(),
        },
        program: call.app.program.clone(),
        selection,
        input,
        job,
        file,
    };
    tokio::task::spawn_blocking(move || {
        let exported = exporter.run();
        let Exporter {
            job, file, input, ..
        } = exporter;
        if exported.is_ok() && !job.is_cancelled() {
            let media_type = match input.format {
                ExportFileFormat::Jsonl => JSONL,
                ExportFileFormat::Csv => CSV,
            };
            job.set_result(file, media_type);
        }
        job.end(exported);
    });
    Ok(accepted(&view))
}

struct Exporter {
    devices: DeviceService,
    telemetry: Arc<dyn TelemetryReader>,
    program: Arc<dyn ProgramBackend>,
    selection: NamespaceSelection,
    input: ExportInput,
    job: JobHandle,
    file: JobFile,
}

impl Exporter {
    fn run(&mut self) -> Result<(), String> {
        let written = match self.input.kind {
            ExportKind::Devices => self.write_devices(),
            ExportKind::Telemetry => self.write_telemetry(),
        };
        written?;
        self.file.flush().map_err(|error| cannot_write(&error))
    }

    fn write(&mut self, text: &[u8]) -> Result<(), String> {
        if !self.program.has_room_for_jobs() {
            return Err(cannot_write(&io::ErrorKind::StorageFull.into()));
        }
        self.file
            .write_all(text)
            .map_err(|error| cannot_write(&error))
    }

    fn write_devices(&mut self) -> Result<(), String> {
        let format = match self.input.format {
            ExportFileFormat::Jsonl => ImportFormat::Jsonl,
            ExportFileFormat::Csv => ImportFormat::Csv,
        };
        let mut from = 0;
        while !self.job.is_cancelled() {
            let selection = self.selection.clone();
            let page = self.devices.export(format, from, PAGE, selection);
            let page = page.map_err(|error| error.to_string())?;
            // Each page begins with the header.
            let header = devices::export_header(format).unwrap_or_default();
            let text = match from {
                0 => &page.text[..],
                _ => page.text.strip_prefix(&*header).unwrap_or(&page.text),
            };
            let rows = text.lines().count() - usize::from(from == 0 && !header.is_empty());
            self.write(text.as_bytes())?;
            self.job.advance_by(rows as u64);
            match page.next {
                Some(next) => from = next,
                None => break,
            }
        }
        Ok(())
    }

    fn write_telemetry(&mut self) -> Result<(), String> {
        if let Some(devices) = self.input.devices.clone() {
            self.job.set_total(devices.len() as u64);
            return devices.iter().try_for_each(|device| {
                match self.devices.check_selected(device, &self.selection) {
                    Ok(()) => self.write_rows_of(device),
                    Err(error) => {
                        self.job.fail_item(device, error.to_string());
                        Ok(())
                    }
                }
            });
        }
        let mut from = 0;
        while !self.job.is_cancelled() {
            let (product, selection) = (self.input.product.clone(), self.selection.clone());
            let page = self.devices.ids(product.as_deref(), from, PAGE, selection);
            let (ids, next) = page.map_err(|error| error.to_string())?;
            for id in &ids {
                self.write_rows_of(id)?;
            }
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        Ok(())
    }

    /// Writes the rows of a device, each with its id.
    fn write_rows_of(&mut self, device: &str) -> Result<(), String> {
        if self.job.is_cancelled() {
            return Ok(());
        }
        let query = RowQuery {
            device: device.to_owned(),
            keys: self.input.keys.clone(),
            from_ms: self.input.from_ms.unwrap_or(i64::MIN / 2),
            to_ms: self.input.to_ms.unwrap_or(i64::MAX / 2),
            limit: usize::MAX,
            newest_first: false,
        };
        let telemetry = self.telemetry.clone();
        let name = serde_json::Value::from(device).to_string();
        let (mut piece, mut failure) = (Vec::new(), None);
        let read = telemetry.write_rows(&query, b'\n', &mut piece, &mut |piece| {
            let lines = std::mem::take(piece);
            failure = self.write(&with_device(&lines, &name)).err();
            failure.is_none() && !self.job.is_cancelled()
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        match read {
            Ok(_) => {
                self.write(&with_device(&piece, &name))?;
                self.job.advance();
            }
            Err(TelemetryBackendError::NoDevice(_)) => {
                let reason = "there is no such device".to_owned();
                self.job.fail_item(device, reason);
            }
            Err(TelemetryBackendError::Unavailable(detail)) => self.job.fail_item(device, detail),
            Err(TelemetryBackendError::Parameter { name, detail }) => {
                return Err(format!("{name}: {detail}"));
            }
        }
        Ok(())
    }
}

fn cannot_write(error: &io::Error) -> String {
    format!("the file cannot be written: {error}")
}

/// Adds the device to lines of rows. A row contains no line end, see `TelemetryReader::write_rows`.
pub(super) fn with_device(lines: &[u8], name: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(lines.len() + lines.len() / 4);
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        out.extend_from_slice(b"{\"device\":");
        out.extend_from_slice(name.as_bytes());
        out.push(b',');
        out.extend_from_slice(line.strip_prefix(b"{").unwrap_or(line));
    }
    out
}

async fn content(call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    let result = call.app.jobs.result(&id, &call.namespaces());
    let (file, media_type) = result.ok_or_else(|| {
        ProblemDetails::not_found(format!("There is no finished export job {id:?}."))
    })?;
    let ending = if media_type == CSV { "csv" } else { "jsonl" };
    let name = format!("export-{id}.{ending}");
    audit::record_action(&call, "export.download", Some(&id), None).await;
    file_body::download(&call, file.path().to_owned(), media_type, &name).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_get_their_device() {
        let rows = b"{\"ts_ms\":1,\"values\":{}}\n{\"ts_ms\":2,\"values\":{}}\n";
        let expected = "{\"device\":\"a\",\"ts_ms\":1,\"values\":{}}\n{\"device\":\"a\",\"ts_ms\":2,\"values\":{}}\n";
        assert_eq!(with_device(rows, "\"a\""), expected.as_bytes());
        assert_eq!(with_device(b"", "\"a\""), b"");
    }
}
