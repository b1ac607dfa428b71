//! `tidegate ctl authenticators`: their objects, and how they do.

use clap::Subcommand;

use super::commands::Limit;
use super::http::Client;
use super::objects::{Kind, Objects};
use super::show::Output;

#[derive(Subcommand)]
pub(super) enum Authenticators {
    #[command(flatten)]
    Objects(Objects),
    /// How they do, in the order in which they are asked
    Status {
        #[command(flatten)]
        limit: Limit,
    },
}

impl Authenticators {
    pub(super) async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
        match self {
            Self::Objects(objects) => objects.run(Kind::Authenticators, client, output).await,
            Self::Status { limit } => {
                let columns = [
                    ("ID", "id"),
                    ("TYPE", "type"),
                    ("ORDER", "order"),
                    ("STATE", "state"),
                    ("ACCEPTED", "accepted"),
                    ("REJECTED", "rejected"),
                    ("NO OPINION", "no_opinion"),
                    ("ERRORS", "errors"),
                    ("LAST ERROR", "last_error"),
                ];
                let path = "/api/v1/authenticator-status";
                output.rows(client.rows(path, limit.limit).await?, &columns)
            }
        }
    }
}
