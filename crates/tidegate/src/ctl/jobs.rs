//! `tidegate ctl jobs`: work that outlives its request.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Subcommand, ValueEnum};
use outbound::url_encoding::url_encode;
use serde_json::{Value, json};

use super::broker_commands::take_rows;
use super::error::CtlError;
use super::http::ApiClient;
use super::output::CtlOutput;
use super::{backup_files, download};

/// Pauses between two questions about a job.
const FIRST_POLL: Duration = Duration::from_millis(50);
const LAST_POLL: Duration = Duration::from_secs(1);
/// A file is read into memory to be sent.
const MAX_SENT_BYTES: u64 = 1 << 30;

#[derive(Subcommand)]
pub(super) enum JobsCommand {
    /// List jobs, newest first
    List,
    /// Show a job with its progress
    Show { id: String },
    /// Cancel a job that is running
    Cancel { id: String },
    /// Import a file of devices or telemetry as a job, and wait for its end
    Import {
        kind: DataKind,
        /// Lines of JSON, or CSV of devices if the name ends in .csv
        file: PathBuf,
        /// Reject devices that exist instead of replacing them
        #[arg(long)]
        create_only: bool,
        /// Print the job instead of waiting
        #[arg(long)]
        no_wait: bool,
    },
    /// Export devices or telemetry to a file
    Export {
        kind: DataKind,
        /// Lines of JSON, or CSV of devices if the name ends in .csv
        file: PathBuf,
        /// Only telemetry of devices of this product
        #[arg(long)]
        product: Option<String>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DataKind {
    Devices,
    Telemetry,
}

impl DataKind {
    fn name(self) -> &'static str {
        match self {
            Self::Devices => "devices",
            Self::Telemetry => "telemetry",
        }
    }
}

async fn import(
    client: &ApiClient,
    output: &CtlOutput,
    (kind, file): (DataKind, &Path),
    (create_only, no_wait): (bool, bool),
) -> anyhow::Result<()> {
    if create_only && kind == DataKind::Telemetry {
        let detail =
            "--create-only is for devices; telemetry that exists is replaced by equal rows";
        return Err(CtlError::Usage(detail.into()).into());
    }
    let shown = file.display();
    let size = std::fs::metadata(file).map_or(0, |file| file.len());
    if size > MAX_SENT_BYTES {
        bail!(
            "{shown} has {size} bytes; expected at most {MAX_SENT_BYTES}. Send it with curl, or divide it"
        );
    }
    let media_type = match backup_files::is_csv(file)? {
        true => "text/csv",
        false => "application/x-ndjson",
    };
    let content = std::fs::read(file).with_context(|| format!("cannot read {shown}"))?;
    let mode = if create_only { "&create_only=true" } else { "" };
    let path = format!("/api/v1/imports?kind={}{mode}", kind.name());
    let job = client.post_file(&path, media_type, content).await?;
    if no_wait {
        return output.print_fields(&job);
    }
    let job = wait_for_success(client, job).await?;
    let failures = job["failures"].as_array().cloned().unwrap_or_default();
    for failure in &failures {
        let text = |field: &str| failure[field].as_str().unwrap_or_default().to_owned();
        eprintln!("{}: {}", text("subject"), text("reason"));
    }
    let (done, failed) = (&job["done"], &job["failed"]);
    output.print_done(&format!("{done} lines processed, {failed} rejected"), &job)?;
    match job["failed"].as_u64() {
        Some(0) => Ok(()),
        _ => bail!("{failed} lines were rejected"),
    }
}

async fn export(
    client: &ApiClient,
    output: &CtlOutput,
    (kind, file): (DataKind, &Path),
    product: Option<String>,
) -> anyhow::Result<()> {
    let format = match backup_files::is_csv(file)? {
        true => "csv",
        false => "jsonl",
    };
    let input = json!({"kind": kind.name(), "format": format, "product": product});
    let job = client.post("/api/v1/exports", &input).await?;
    let job = wait_for_success(client, job).await?;
    let id = job["id"].as_str().unwrap_or_default();
    let body = client
        .stream(&format!("/api/v1/exports/{}/content", url_encode(id)))
        .await?;
    let saved = download::save(body, file, false).await;
    let bytes = saved.with_context(|| format!("cannot write {}", file.display()))?;
    output.print_done(
        &format!("{bytes} bytes written to {}", file.display()),
        &job,
    )
}

/// Waits until a job has ended well.
pub(super) async fn wait_for_success(client: &ApiClient, job: Value) -> anyhow::Result<Value> {
    let job = wait_for_end(client, job).await?;
    match job["state"].as_str() {
        Some("done") => Ok(job),
        Some("failed") => bail!("{}", job["error"].as_str().unwrap_or("the job has failed")),
        _ => bail!("the job was cancelled"),
    }
}

/// Asks until a job has ended.
async fn wait_for_end(client: &ApiClient, mut job: Value) -> anyhow::Result<Value> {
    let id = job["id"].as_str().unwrap_or_default().to_owned();
    let path = format!("/api/v1/jobs/{}", url_encode(&id));
    let (mut pause, is_shown) = (FIRST_POLL, std::io::stderr().is_terminal());
    while job["state"] == "running" {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_POLL);
        job = client.get(&path).await?;
        if is_shown {
            let total = job["total"].as_u64().map(|total| format!(" of {total}"));
            let total = total.unwrap_or_default();
            eprint!("\r{}{total} ...", job["done"]);
        }
    }
    if is_shown {
        eprintln!();
    }
    Ok(job)
}

impl JobsCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let path = |id: &str| format!("/api/v1/jobs/{}", url_encode(id));
        match self {
            Self::List => {
                let columns = [
                    ("ID", "id"),
                    ("KIND", "kind"),
                    ("SUBJECT", "subject"),
                    ("STATE", "state"),
                    ("DONE", "done"),
                    ("TOTAL", "total"),
                    ("FAILED", "failed"),
                    ("BY", "created_by"),
                    ("STARTED", "started_at_ms"),
                ];
                let mut answer = client.get("/api/v1/jobs").await?;
                output.print_rows((take_rows(&mut answer), false), &columns)
            }
            Self::Import {
                kind,
                file,
                create_only,
                no_wait,
            } => import(client, output, (kind, &file), (create_only, no_wait)).await,
            Self::Export {
                kind,
                file,
                product,
            } => export(client, output, (kind, &file), product).await,
            Self::Show { id } => output.print_fields(&client.get(&path(&id)).await?),
            Self::Cancel { id } => {
                let path = format!("{}/cancel", path(&id));
                let answer = client.post_empty(&path).await?;
                output.print_done(&format!("{id} is to end"), &answer)
            }
        }
    }
}
