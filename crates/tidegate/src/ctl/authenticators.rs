//! `tidegate ctl authenticators`: authenticator objects and their states.

use clap::Subcommand;

use super::http::ApiClient;
use super::limit_args::LimitArgs;
use super::objects::{ObjectKindArg, ObjectsCommand};
use super::output::CtlOutput;

#[derive(Subcommand)]
pub(super) enum Authenticators {
    #[command(flatten)]
    Objects(ObjectsCommand),
    /// Show the states of authenticators in the order of evaluation
    Status {
        #[command(flatten)]
        limit: LimitArgs,
    },
}

impl Authenticators {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::Objects(objects) => {
                objects
                    .run(ObjectKindArg::Authenticators, client, output)
                    .await
            }
            Self::Status { limit } => {
                let columns = [
                    ("ID", "id"),
                    ("TYPE", "type"),
                    ("ORDER", "order"),
                    ("STATE", "state"),
                    ("ACCEPTED", "accepted"),
                    ("REJECTED", "rejected"),
                    ("NO OPINION", "ignored"),
                    ("ERRORS", "errors"),
                    ("LAST ERROR", "last_error"),
                ];
                let path = "/api/v1/authenticator-status";
                output.print_rows(client.rows(path, limit.limit).await?, &columns)
            }
        }
    }
}
