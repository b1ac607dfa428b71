//! `tidegate ctl jobs`: work that outlives its request.

use clap::Subcommand;
use outbound::url_encoding::url_encode;

use super::broker_commands::take_rows;
use super::http::ApiClient;
use super::output::CtlOutput;

#[derive(Subcommand)]
pub(super) enum JobsCommand {
    /// List jobs, newest first
    List,
    /// Show a job with its progress
    Show { id: String },
    /// Cancel a job that is running
    Cancel { id: String },
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
            Self::Show { id } => output.print_fields(&client.get(&path(&id)).await?),
            Self::Cancel { id } => {
                let path = format!("{}/cancel", path(&id));
                let answer = client.post_empty(&path).await?;
                output.print_done(&format!("{id} is to end"), &answer)
            }
        }
    }
}
