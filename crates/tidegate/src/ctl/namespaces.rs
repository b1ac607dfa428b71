//! `tidegate ctl namespaces`: namespaces and their use of quotas.

use clap::Subcommand;

use super::http::{ApiClient, percent_encode};
use super::objects::{ObjectKindArg, ObjectsCommand};
use super::output::{Column, CtlOutput};

const USAGE_COLUMNS: &[Column] = &[("QUOTA", "quota"), ("USED", "used"), ("LIMIT", "limit")];

#[derive(Subcommand)]
pub(super) enum NamespacesCommand {
    #[command(flatten)]
    Objects(ObjectsCommand),
    /// Show how much of its quotas a namespace uses
    Usage { id: String },
}

impl NamespacesCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::Objects(objects) => objects.run(ObjectKindArg::Namespaces, client, output).await,
            Self::Usage { id } => {
                let path = format!("/api/v1/namespaces/{}/usage", percent_encode(&id));
                output.print_rows(client.rows(&path, 0).await?, USAGE_COLUMNS)
            }
        }
    }
}
