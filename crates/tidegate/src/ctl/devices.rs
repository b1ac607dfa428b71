//! `tidegate ctl devices`: single devices, and import and export of many.

use std::fs::File;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Read as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use outbound::url_encoding::url_encode;
use serde_json::{Value, json};

use super::backup_files;
use super::error::CtlError;
use super::http::{ApiClient, with_query};
use super::import_files::{ImportCheckpoint, RejectsFile, rejection_line};
use super::limit_args::LimitArgs;
use super::objects::{FieldsArgs, parse_assignment, put_object, update_object};
use super::output::{Column, CtlOutput};

/// Size of the pieces of a file, each sent in one request.
const BATCH_BYTES: usize = 2 << 20;
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
pub(super) const COLUMNS: &[Column] = &[
    ("DEVICE", "id"),
    ("PRODUCT", "product"),
    ("NAME", "name"),
    ("GROUP", "group"),
    ("STATE", "state"),
    ("LAST SEEN", "last_seen_at_ms"),
];

#[derive(Subcommand)]
pub(super) enum DevicesCommand {
    /// List devices
    List(DeviceListArgs),
    /// Show a device
    Show { id: String },
    /// Create a device; its token is printed once
    Add(DeviceAddArgs),
    /// Change fields of a device, such as `name="Boiler 3" group=east enabled=false`; other fields
    /// are kept
    Set {
        id: String,
        #[arg(value_name = "NAME=VALUE")]
        assignments: Vec<String>,
        #[command(flatten)]
        fields: FieldsArgs,
    },
    /// Replace the access token of a device; the new token is printed once, the old one becomes
    /// invalid
    NewToken {
        id: String,
        /// Also replace credentials of other types
        #[arg(long)]
        replace_all: bool,
    },
    /// Delete a device
    Delete { id: String },
    /// Count devices, in total and per product
    Count,
    /// Show or set attributes of a device
    Attributes {
        id: String,
        #[arg(value_enum, default_value = "server")]
        scope: AttributeScopeArg,
        /// Attributes to set, as JSON or text; `KEY=null` removes one
        #[arg(value_name = "KEY=VALUE")]
        assignments: Vec<String>,
    },
    /// List the firmware packages that a device is to install
    Firmware { id: String },
    /// List events reported by a device, newest first
    Events {
        id: String,
        /// Only events of this id
        #[arg(long)]
        event: Option<String>,
        /// Maximum number of events
        #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        count: u32,
    },
    /// Create or replace the devices of a file: CSV with a header line, or a JSON object per line
    Import(DeviceImportArgs),
    /// Write all devices to a file, without secrets
    Export(DeviceExportArgs),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum AttributeScopeArg {
    Client,
    Shared,
    Server,
}

#[derive(Args)]
pub(super) struct DeviceListArgs {
    #[arg(long)]
    product: Option<String>,
    #[arg(long)]
    group: Option<String>,
    /// Only devices with this tag
    #[arg(long, value_name = "KEY=VALUE")]
    tag: Option<String>,
    /// Only devices of this gateway
    #[arg(long)]
    parent: Option<String>,
    /// notActive, online or offline
    #[arg(long)]
    state: Option<String>,
    /// Only devices with this in their id or name
    #[arg(long, value_name = "PART")]
    contains: Option<String>,
    #[command(flatten)]
    limit: LimitArgs,
}

#[derive(Args)]
pub(super) struct DeviceAddArgs {
    /// Id of the new device
    id: String,
    #[arg(long)]
    product: String,
    /// Display name
    #[arg(long)]
    name: Option<String>,
    /// Value of the field `group`, which device groups can select
    #[arg(long)]
    group: Option<String>,
    #[arg(long)]
    parent: Option<String>,
    #[arg(long = "tag", value_name = "KEY=VALUE")]
    tags: Vec<String>,
    /// Credentials instead of a generated token, as JSON: '[{"type":"password"}]'
    #[arg(long, value_name = "JSON")]
    credentials: Option<String>,
}

#[derive(Args)]
pub(super) struct DeviceImportArgs {
    file: PathBuf,
    /// Continue an interrupted import of this file after the last line that the node has on disk
    #[arg(long, conflicts_with = "from_line")]
    resume: bool,
    /// Start at this line
    #[arg(long, value_name = "LINE", default_value_t = 1)]
    from_line: u64,
    /// File for rejected lines, as JSON lines of `line`, `field` and `reason` [default:
    /// FILE.rejects]
    #[arg(long, value_name = "FILE")]
    rejects: Option<PathBuf>,
    /// Reject devices that exist instead of replacing them
    #[arg(long)]
    create_only: bool,
}

#[derive(Args)]
pub(super) struct DeviceExportArgs {
    /// File name ending in .csv for CSV, or in .jsonl or .ndjson for JSON lines
    file: PathBuf,
}

impl DevicesCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let path_of = |id: &str| format!("/api/v1/devices/{}", url_encode(id));
        match self {
            Self::List(arguments) => arguments.run(client, output).await,
            Self::Show { id } => output.print_fields(&client.get(&path_of(&id)).await?),
            Self::Add(arguments) => arguments.run(client, output).await,
            Self::Set {
                id,
                assignments,
                fields,
            } => {
                let changes = fields.fields(&assignments)?;
                let changed = update_object(client, &path_of(&id), changes).await?;
                match changed["issued"].is_null() {
                    true => output.print_done(&format!("device {id} was changed"), &changed),
                    false => output.print_fields(&changed),
                }
            }
            Self::NewToken { id, replace_all } => {
                let path = path_of(&id);
                let current = client.get_versioned(&path).await?;
                let others = other_credential_types(&current.value);
                if !others.is_empty() && !replace_all {
                    let others = others.join(", ");
                    let text = format!(
                        "device {id} also has credentials of other types ({others}), which a new token would replace; \
                         add --replace-all if that is meant"
                    );
                    return Err(CtlError::Usage(text).into());
                }
                let changes = [("credentials".to_owned(), json!([{"type": "token"}]))];
                let changed =
                    put_object(client, &path, current, changes.into_iter().collect()).await?;
                let token = changed["issued"][0]["token"].as_str().unwrap_or_default();
                output.print_done(
                    &format!("{id} has a new token. It is not shown again:\n{token}"),
                    &changed,
                )
            }
            Self::Delete { id } => {
                let answer = client.delete(&path_of(&id)).await?;
                output.print_done(&format!("device {id} was deleted"), &answer)
            }
            Self::Count => output.print_fields(&client.get("/api/v1/device-counts").await?),
            Self::Attributes {
                id,
                scope,
                assignments,
            } => {
                let scope = match scope {
                    AttributeScopeArg::Client => "client",
                    AttributeScopeArg::Shared => "shared",
                    AttributeScopeArg::Server => "server",
                };
                let path = format!("{}/attributes/{scope}", path_of(&id));
                if assignments.is_empty() {
                    let mut answer = client.get(&path).await?;
                    let rows = match answer["data"].take() {
                        Value::Array(rows) => rows,
                        _ => Vec::new(),
                    };
                    let columns = &[
                        ("KEY", "key"),
                        ("VALUE", "value"),
                        ("CHANGED", "updated_at_ms"),
                    ];
                    return output.print_rows((rows, false), columns);
                }
                let mut values = serde_json::Map::new();
                for assignment in &assignments {
                    let (key, value) = parse_assignment(assignment)?;
                    values.insert(key, value);
                }
                let answer = client.put(&path, &Value::Object(values), None).await?;
                output.print_done(&format!("attributes of {id} were set"), &answer)
            }
            Self::Firmware { id } => {
                let rows = client.get(&format!("{}/firmware", path_of(&id))).await?;
                let rows = rows["data"].as_array().cloned().unwrap_or_default();
                let columns = &[
                    ("TYPE", "type"),
                    ("PACKAGE", "package"),
                    ("TITLE", "title"),
                    ("VERSION", "version"),
                    ("STATE", "state"),
                    ("RUNS", "current_version"),
                    ("ASSIGNED TO", "assigned_to"),
                    ("ID", "target"),
                ];
                output.print_rows((rows, false), columns)
            }
            Self::Events { id, event, count } => {
                let parameters = [("event", event), ("count", Some(count.to_string()))];
                let path = with_query(&format!("{}/events", path_of(&id)), &parameters);
                let mut answer = client.get(&path).await?;
                let rows = match answer["events"].take() {
                    Value::Array(rows) => rows,
                    _ => Vec::new(),
                };
                let columns = &[
                    ("NUMBER", "number"),
                    ("TIME", "ts_ms"),
                    ("EVENT", "event"),
                    ("DATA", "data"),
                ];
                output.print_rows((rows, false), columns)
            }
            Self::Import(arguments) => arguments.run(client, output).await,
            Self::Export(arguments) => arguments.run(client).await,
        }
    }
}

/// The types of a device's credentials other than tokens.
fn other_credential_types(device: &Value) -> Vec<&str> {
    let credentials = device["credentials"].as_array();
    let types = credentials.into_iter().flatten();
    types
        .filter_map(|credential| credential["type"].as_str())
        .filter(|kind| *kind != "token")
        .collect()
}

impl DeviceListArgs {
    async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let parameters = [
            ("product", self.product),
            ("group", self.group),
            ("tag", self.tag),
            ("parent", self.parent),
            ("state", self.state),
            ("text", self.contains),
        ];
        let path = with_query("/api/v1/devices", &parameters);
        output.print_rows(client.rows(&path, self.limit.limit).await?, COLUMNS)
    }
}

impl DeviceAddArgs {
    async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let mut tags = serde_json::Map::new();
        for tag in &self.tags {
            let (key, value) = tag
                .split_once('=')
                .with_context(|| format!("expected KEY=VALUE, found {tag:?}"))?;
            tags.insert(key.to_owned(), value.into());
        }
        let mut device = json!({"id": self.id, "product": self.product, "tags": tags});
        for (field, text) in [
            ("name", self.name),
            ("group", self.group),
            ("parent", self.parent),
        ] {
            if let Some(text) = text {
                device[field] = text.into();
            }
        }
        if let Some(credentials) = &self.credentials {
            device["credentials"] =
                serde_json::from_str(credentials).context("--credentials is not JSON")?;
        }
        output.print_fields(&client.post("/api/v1/devices", &device).await?)
    }
}

/// Prints the progress of an import.
struct ImportProgress {
    started: Instant,
    last_printed: Instant,
    bytes: u64,
    all_bytes: u64,
    lines: u64,
}

impl ImportProgress {
    fn print_progress(&mut self, is_last: bool) {
        if !std::io::stderr().is_terminal()
            || (!is_last && self.last_printed.elapsed() < PROGRESS_INTERVAL)
        {
            return;
        }
        self.last_printed = Instant::now();
        let seconds = self.started.elapsed().as_secs_f64().max(0.001);
        let share = self.bytes as f64 / self.all_bytes.max(1) as f64;
        let left_s = seconds * (1.0 - share) / share.max(0.001);
        let rate = self.lines as f64 / seconds;
        eprint!(
            "\r{} lines, {rate:.0} lines/s, {:.0} %, {left_s:.0} s to go   ",
            self.lines,
            share * 100.0
        );
        if is_last {
            eprintln!();
        }
        // A closed terminal is harmless here.
        let _ = std::io::stderr().flush();
    }
}

impl DeviceImportArgs {
    async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let shown = self.file.display().to_string();
        let file = File::open(&self.file).with_context(|| format!("cannot open {shown}"))?;
        let all_bytes = file.metadata().map_or(0, |metadata| metadata.len());
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let is_csv = backup_files::is_csv(&self.file)?;
        let media_type = match is_csv {
            true => "text/csv",
            false => "application/x-ndjson",
        };
        let mut progress = ImportProgress {
            started: Instant::now(),
            last_printed: Instant::now(),
            bytes: 0,
            all_bytes,
            lines: 0,
        };
        let mut line = 1;
        let mut head = Vec::new();
        if is_csv {
            reader.read_until(b'\n', &mut head)?;
            progress.bytes += head.len() as u64;
            line = 2;
        }
        let mut checkpoint = ImportCheckpoint::for_file(&self.file, all_bytes);
        let from_line = match self.resume {
            false => self.from_line,
            true => checkpoint.read()?,
        };
        let mut rejects = RejectsFile::new(&self.file, self.rejects.as_deref(), self.resume);
        let mut sums = [0_u64; 3];
        // A checkpoint exists, at which --resume continues.
        let mut is_resumable = self.resume;
        let (mut has_devices, mut is_header_checked) = (false, false);
        loop {
            let (piece, lines) =
                read_batch(&mut reader, is_csv).with_context(|| format!("cannot read {shown}"))?;
            // The node checks the header line of a file without devices, too.
            if piece.is_empty() && (!is_csv || is_header_checked) {
                break;
            }
            is_header_checked = true;
            has_devices |= !piece.is_empty();
            progress.bytes += piece.len() as u64;
            if line + lines <= from_line {
                line += lines;
                continue;
            }
            let path = with_query(
                "/api/v1/device-import",
                &[
                    ("first_line", Some(line.to_string())),
                    ("create_only", self.create_only.then(|| "true".to_owned())),
                ],
            );
            let body = [&head[..], &piece].concat();
            let answer = client.post_file(&path, media_type, body).await;
            let answer = answer.with_context(|| {
                match is_resumable {
                    true => format!(
                        "the lines from {line} on are not imported; remove the cause and run the command again with --resume"
                    ),
                    false => "nothing is imported; remove the cause and run the command again".to_owned(),
                }
            })?;
            for (sum, field) in sums.iter_mut().zip(["created", "updated", "rejected"]) {
                *sum += answer[field].as_u64().unwrap_or(0);
            }
            rejects.add(
                answer["rejections"]
                    .as_array()
                    .map_or(&[][..], Vec::as_slice),
            )?;
            line += lines;
            checkpoint.write(line)?;
            is_resumable = true;
            progress.lines += lines;
            progress.print_progress(false);
        }
        progress.print_progress(true);
        checkpoint.remove();
        if !has_devices {
            bail!("{shown} contains no devices; nothing is imported");
        }
        let (first_rejections, rejects) = rejects.finish();
        for rejection in &first_rejections {
            eprintln!("{}", rejection_line(rejection));
        }
        let [created, updated, rejected] = sums;
        let seconds = progress.started.elapsed().as_secs_f64();
        output.print_done(
            &format!(
                "{created} devices created, {updated} replaced, {rejected} lines rejected; {seconds:.1} s"
            ),
            &json!({"created": created, "updated": updated, "rejected": rejected, "rejections": first_rejections, "rejects": rejects,
                "next_line": line, "seconds": seconds}),
        )?;
        match rejected {
            0 => Ok(()),
            count => bail!(
                "{count} lines were rejected; they are listed in {}",
                rejects.unwrap_or_default()
            ),
        }
    }
}

/// Reads whole lines, or whole records of CSV, whose fields may contain line breaks.
fn read_batch(reader: &mut BufReader<File>, is_csv: bool) -> std::io::Result<(Vec<u8>, u64)> {
    let mut piece = Vec::with_capacity(BATCH_BYTES + 4096);
    let (mut lines, mut quotes) = (0, 0);
    loop {
        let before = piece.len();
        // The node rejects an incomplete line.
        let read = reader
            .by_ref()
            .take(8 * BATCH_BYTES as u64)
            .read_until(b'\n', &mut piece)?;
        if read == 0 {
            return Ok((piece, lines));
        }
        lines += 1;
        quotes += piece[before..].iter().filter(|byte| **byte == b'"').count();
        let is_whole = !is_csv || quotes % 2 == 0;
        if is_whole && piece.len() >= BATCH_BYTES {
            return Ok((piece, lines));
        }
    }
}

impl DeviceExportArgs {
    async fn run(self, client: &ApiClient) -> anyhow::Result<()> {
        let shown = self.file.display().to_string();
        let is_csv = backup_files::is_csv(&self.file)?;
        let accept = match is_csv {
            true => "text/csv",
            false => "application/x-ndjson",
        };
        let mut file = File::create(&self.file).with_context(|| format!("cannot write {shown}"))?;
        let (mut from, mut lines) = (0_u64, 0);
        loop {
            let path = format!("/api/v1/device-export?from={from}&count=20000");
            let (piece, next) = client.get_export_page(&path, accept).await?;
            // Each piece of CSV starts with the header line.
            let skipped = match is_csv && from > 0 {
                true => piece
                    .iter()
                    .position(|byte| *byte == b'\n')
                    .map_or(0, |at| at + 1),
                false => 0,
            };
            file.write_all(&piece[skipped..])
                .with_context(|| format!("cannot write {shown}"))?;
            lines += piece[skipped..]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count();
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        eprintln!("{lines} lines written to {shown}, without secrets.");
        Ok(())
    }
}
