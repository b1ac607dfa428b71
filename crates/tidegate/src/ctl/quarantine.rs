//! `tidegate ctl quarantine`: damaged files that the node was started without.

use clap::Subcommand;
use outbound::url_encoding::url_encode;

use super::broker_commands::take_rows;
use super::http::ApiClient;
use super::output::CtlOutput;

#[derive(Subcommand)]
pub(super) enum QuarantineCommand {
    /// List damaged data, with the reason and what is lost
    List,
    /// Delete damaged files, after examination
    Delete { id: String },
}

impl QuarantineCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::List => {
                let columns = [
                    ("ID", "id"),
                    ("AT", "at_ms"),
                    ("PART", "part"),
                    ("REASON", "reason"),
                    ("LOST", "lost"),
                ];
                let mut answer = client.get("/api/v1/quarantine").await?;
                output.print_rows((take_rows(&mut answer), false), &columns)
            }
            Self::Delete { id } => {
                let path = format!("/api/v1/quarantine/{}", url_encode(&id));
                let answer = client.delete(&path).await?;
                output.print_done(&format!("{id} was deleted"), &answer)
            }
        }
    }
}
