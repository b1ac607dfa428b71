//! `tidegate ctl files` and `tidegate ctl transfers`: files that devices and people have sent.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use hyper::header::HeaderName;
use hyper::{HeaderMap, Method, body::Bytes};
use outbound::url_encoding::url_encode;
use serde_json::{Value, json};

use super::broker_commands::columns_with_node;
use super::download;
use super::error::CtlError;
use super::http::{ApiClient, with_query};
use super::limit_args::LimitArgs;
use super::output::{Column, CtlOutput};

const FILE_COLUMNS: &[Column] = &[
    ("FILE", "id"),
    ("NAME", "name"),
    ("SIZE", "size"),
    ("SENDER", "sender"),
    ("NAMESPACE", "namespace"),
    ("RECEIVED", "completed_at_ms"),
    ("EXPIRES", "expires_at_ms"),
    ("EXPORTS", "exported"),
];
const TRANSFER_COLUMNS: &[Column] = &[
    ("TRANSFER", "id"),
    ("NAME", "name"),
    ("BYTES", "received_bytes"),
    ("SIZE", "size"),
    ("PAUSED", "is_paused"),
    ("SENDER", "sender"),
    ("NAMESPACE", "namespace"),
    ("BEGUN", "created_at_ms"),
    ("EXPIRES", "expires_at_ms"),
];
const TUS: &str = "/api/v1/tus";
const UPLOAD_OFFSET: &str = "upload-offset";
/// Bytes that are sent in one request.
const PIECE_BYTES: usize = 8 << 20;

#[derive(Args)]
pub(super) struct FileSelection {
    /// Only of this device, client or operator
    #[arg(long, value_name = "ID")]
    owner: Option<String>,
    /// Only of devices of this product
    #[arg(long)]
    product: Option<String>,
    /// Only of this namespace
    #[arg(long)]
    namespace: Option<String>,
    #[command(flatten)]
    limit: LimitArgs,
}

#[derive(Subcommand)]
pub(super) enum FilesCommand {
    /// List complete files, newest first
    List {
        #[command(flatten)]
        selection: FileSelection,
        /// Only with an export in this state: waiting, running, complete or failed
        #[arg(long, value_name = "STATE", value_parser = ["waiting", "running", "complete", "failed"])]
        export: Option<String>,
    },
    /// Show a file
    Show { id: String },
    /// Write a file of the node to a file here
    Download {
        id: String,
        /// Path to write to [default: the name of the file, in the current directory]
        file: Option<PathBuf>,
    },
    /// Send a file to the node
    Upload {
        file: PathBuf,
        /// Name on the node [default: the name of the file]
        #[arg(long)]
        name: Option<String>,
        #[arg(long)]
        namespace: Option<String>,
        /// Continue this transfer instead of beginning one
        #[arg(long, value_name = "ID")]
        resume: Option<String>,
    },
    /// Print a link that downloads a file without a login
    Link {
        id: String,
        /// Validity in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
        expires_in: u64,
    },
    /// Export a file to a sink with the format content, or repeat a failed export
    Export { id: String, sink: String },
    /// Cancel an export of a file, or remove one that has ended from the list
    CancelExport { id: String, sink: String },
    /// Delete a file
    Delete { id: String },
}

#[derive(Subcommand)]
pub(super) enum TransfersCommand {
    /// List transfers that are not complete, newest first
    List(FileSelection),
    /// Show which bytes of a transfer were received and are missing
    Status { id: String },
    /// Pause a transfer: it rejects segments and does not expire
    Pause { id: String },
    /// Resume a paused transfer
    Resume { id: String },
    /// Cancel a transfer
    Cancel { id: String },
}

/// A header field that every request of tus has.
fn tus_version() -> (HeaderName, &'static str) {
    (HeaderName::from_static("tus-resumable"), "1.0.0")
}

fn path_of(id: &str, what: &str) -> String {
    format!("/api/v1/files/{}{what}", url_encode(id))
}

fn path_of_export(id: &str, sink: &str) -> String {
    path_of(id, &format!("/exports/{}", url_encode(sink)))
}

/// The exports of a file, as `archive: failed`.
fn exports_text(exports: &Value) -> String {
    let exports = exports.as_array().into_iter().flatten();
    let texts = exports.map(|export| {
        let text = |name: &str| export[name].as_str().unwrap_or_default().to_owned();
        format!("{}: {}", text("sink"), text("state"))
    });
    texts.collect::<Vec<_>>().join(", ")
}

impl FileSelection {
    async fn rows(
        self,
        state: &str,
        export: Option<String>,
        client: &ApiClient,
    ) -> Result<(Vec<Value>, bool), CtlError> {
        let parameters = [
            ("state", Some(state.to_owned())),
            ("owner", self.owner),
            ("product", self.product),
            ("namespace", self.namespace),
            ("export", export),
        ];
        let path = with_query("/api/v1/files", &parameters);
        let (mut rows, has_more) = client.rows(&path, self.limit.limit).await?;
        for row in &mut rows {
            let owner = &row["owner"];
            let kind = owner["kind"].as_str().unwrap_or_default();
            let sender = format!("{kind} {}", owner["id"].as_str().unwrap_or_default());
            let namespace = owner["namespace"].clone();
            row["sender"] = sender.into();
            row["namespace"] = namespace;
            row["exported"] = exports_text(&row["exports"]).into();
        }
        Ok((rows, has_more))
    }
}

impl FilesCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::List { selection, export } => {
                let rows = selection.rows("complete", export, client).await?;
                let columns = columns_with_node(&rows.0, FILE_COLUMNS);
                output.print_rows(rows, &columns)
            }
            Self::Show { id } => output.print_fields(&client.get(&path_of(&id, "")).await?),
            Self::Download { id, file } => download(client, &id, file).await,
            Self::Upload {
                file,
                name,
                namespace,
                resume,
            } => {
                let id = match resume {
                    Some(id) => id,
                    None => begin(client, &file, name, namespace).await?,
                };
                let sent = send(client, &file, &id).await;
                sent.with_context(|| {
                    format!("the transfer is not complete; continue it with --resume {id}")
                })?;
                let info = client.get(&path_of(&id, "")).await?;
                output.print_fields(&info)
            }
            Self::Link { id, expires_in } => {
                let body = json!({"expires_in_s": expires_in});
                let link = client.post(&path_of(&id, "/links"), &body).await?;
                let path = link["path"].as_str().unwrap_or_default();
                output.print_done(&client.url_of(path), &link)
            }
            Self::Export { id, sink } => {
                let answer = client.post_empty(&path_of_export(&id, &sink)).await?;
                output.print_done(&format!("the export of {id} to {sink} is queued"), &answer)
            }
            Self::CancelExport { id, sink } => {
                let answer = client.delete(&path_of_export(&id, &sink)).await?;
                output.print_done(
                    &format!("the export of {id} to {sink} is cancelled"),
                    &answer,
                )
            }
            Self::Delete { id } => {
                let answer = client.delete(&path_of(&id, "")).await?;
                output.print_done(&format!("the file {id} was deleted"), &answer)
            }
        }
    }
}

impl TransfersCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::List(selection) => {
                let rows = selection.rows("receiving", None, client).await?;
                let columns = columns_with_node(&rows.0, TRANSFER_COLUMNS);
                output.print_rows(rows, &columns)
            }
            Self::Status { id } => {
                output.print_fields(&client.get(&path_of(&id, "/status")).await?)
            }
            Self::Pause { id } => {
                let paused = client.post(&path_of(&id, "/pause"), &json!({})).await?;
                output.print_done(&format!("the transfer {id} was paused"), &paused)
            }
            Self::Resume { id } => {
                let resumed = client.post(&path_of(&id, "/resume"), &json!({})).await?;
                output.print_done(&format!("the transfer {id} was resumed"), &resumed)
            }
            Self::Cancel { id } => {
                let answer = client.delete(&path_of(&id, "")).await?;
                output.print_done(&format!("the transfer {id} was cancelled"), &answer)
            }
        }
    }
}

async fn download(client: &ApiClient, id: &str, file: Option<PathBuf>) -> anyhow::Result<()> {
    let file = match file {
        Some(file) => file,
        None => {
            let info = client.get(&path_of(id, "")).await?;
            PathBuf::from(info["name"].as_str().unwrap_or(id))
        }
    };
    let body = client.stream(&path_of(id, "/content")).await?;
    let shown = file.display();
    let saved = download::save(body, &file, false).await;
    let bytes = saved.with_context(|| format!("cannot save {shown}"))?;
    eprintln!("{shown}: {bytes} bytes");
    Ok(())
}

/// Begins a transfer and returns its id.
async fn begin(
    client: &ApiClient,
    file: &Path,
    name: Option<String>,
    namespace: Option<String>,
) -> anyhow::Result<String> {
    let shown = file.display();
    let size = std::fs::metadata(file).with_context(|| format!("cannot read {shown}"))?;
    let own_name = file
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let Some(name) = name.or(own_name) else {
        bail!("{shown} has no name; give one with --name");
    };
    let (length, metadata) = (
        size.len().to_string(),
        format!("filename {}", STANDARD.encode(name)),
    );
    let fields = [
        tus_version(),
        (HeaderName::from_static("upload-length"), length.as_str()),
        (
            HeaderName::from_static("upload-metadata"),
            metadata.as_str(),
        ),
    ];
    let path = with_query(TUS, &[("namespace", namespace)]);
    let begun = client
        .send_for_fields(Method::POST, &path, None, &fields)
        .await?;
    let location = text(&begun, "location")?;
    let id = location.rsplit('/').next().unwrap_or_default();
    Ok(id.to_owned())
}

fn text<'h>(fields: &'h HeaderMap, name: &str) -> anyhow::Result<&'h str> {
    let value = fields.get(name).and_then(|value| value.to_str().ok());
    value.with_context(|| format!("the response has no {name}"))
}

fn offset_in(fields: &HeaderMap) -> anyhow::Result<u64> {
    let offset = text(fields, UPLOAD_OFFSET)?.parse();
    offset.context("the response has no valid Upload-Offset")
}

/// Sends what the node has not received yet.
async fn send(client: &ApiClient, file: &Path, id: &str) -> anyhow::Result<()> {
    let cannot = || format!("cannot read {}", file.display());
    let path = format!("{TUS}/{}", url_encode(id));
    let state = client
        .send_for_fields(Method::HEAD, &path, None, &[tus_version()])
        .await?;
    let mut offset = offset_in(&state)?;
    let mut source = File::open(file).with_context(cannot)?;
    let size = source.metadata().with_context(cannot)?.len();
    let announced = text(&state, "upload-length")?;
    if announced != size.to_string() {
        bail!(
            "the transfer is of a file of {announced} bytes, and {} has {size}",
            file.display()
        );
    }
    source.seek(SeekFrom::Start(offset)).with_context(cannot)?;
    while offset < size {
        let mut piece = Vec::new();
        let taken = (&mut source)
            .take(PIECE_BYTES as u64)
            .read_to_end(&mut piece);
        if taken.with_context(cannot)? == 0 {
            bail!("{} has become shorter", file.display());
        }
        let at = offset.to_string();
        let fields = [
            tus_version(),
            (HeaderName::from_static(UPLOAD_OFFSET), at.as_str()),
        ];
        let body = Some(("application/offset+octet-stream", Bytes::from(piece)));
        let sent = client
            .send_for_fields(Method::PATCH, &path, body, &fields)
            .await?;
        offset = offset_in(&sent)?;
    }
    Ok(())
}
