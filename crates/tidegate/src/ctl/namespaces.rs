//! `tidegate ctl namespaces`: namespaces and their use of quotas.

use clap::Subcommand;

use outbound::url_encoding::url_encode;

use super::http::ApiClient;
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
                let path = format!("/api/v1/namespaces/{}/usage", url_encode(&id));
                let usage = client.get(&path).await?;
                let rows = usage["data"].as_array().cloned().unwrap_or_default();
                output.print_rows((rows, false), USAGE_COLUMNS)
            }
        }
    }
}
