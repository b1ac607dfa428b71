//! `tidegate ctl backups`: backups with telemetry, which the node makes while it runs.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use outbound::url_encoding::url_encode;

use super::broker_commands::take_rows;
use super::download;
use super::http::ApiClient;
use super::jobs;
use super::output::CtlOutput;

#[derive(Subcommand)]
pub(super) enum BackupsCommand {
    /// List the backups on the node
    List,
    /// Back up configuration, devices and telemetry, and wait for the end
    Create {
        /// Print the job instead of waiting
        #[arg(long)]
        no_wait: bool,
    },
    /// Write a backup to a file; it contains password hashes and credentials
    Download {
        id: String,
        /// Output file, which must not exist
        file: PathBuf,
    },
    /// Check that a backup on the node is complete and undamaged, and wait for the end
    Verify { id: String },
    /// Delete a backup on the node
    Delete { id: String },
}

fn path(id: &str) -> String {
    format!("/api/v1/backups/{}", url_encode(id))
}

impl BackupsCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::List => {
                let columns = [
                    ("ID", "id"),
                    ("CREATED", "created_at_ms"),
                    ("BYTES", "bytes"),
                ];
                let mut answer = client.get("/api/v1/backups").await?;
                output.print_rows((take_rows(&mut answer), false), &columns)
            }
            Self::Create { no_wait } => {
                let job = client.post_empty("/api/v1/backups").await?;
                if no_wait {
                    return output.print_fields(&job);
                }
                let job = jobs::wait_for_success(client, job).await?;
                let id = job["subject"].as_str().unwrap_or_default();
                output.print_done(&format!("{id} is complete"), &job)
            }
            Self::Download { id, file } => {
                let body = client.stream(&format!("{}/content", path(&id))).await?;
                let bytes = download::save(body, &file, false)
                    .await
                    .with_context(|| format!("cannot write {}", file.display()))?;
                let done = format!("{bytes} bytes written to {}", file.display());
                output.print_done(&done, &serde_json::json!({"id": id, "bytes": bytes}))
            }
            Self::Verify { id } => {
                let job = client.post_empty(&format!("{}/verify", path(&id))).await?;
                let job = jobs::wait_for_success(client, job).await?;
                output.print_done(&format!("{id} is complete and undamaged"), &job)
            }
            Self::Delete { id } => {
                let answer = client.delete(&path(&id)).await?;
                output.print_done(&format!("{id} was deleted"), &answer)
            }
        }
    }
}
