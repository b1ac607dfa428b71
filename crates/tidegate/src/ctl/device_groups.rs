//! `tidegate ctl device-groups`: device groups, their members and counts.

use clap::Subcommand;

use outbound::url_encoding::url_encode;

use super::devices;
use super::http::ApiClient;
use super::limit_args::LimitArgs;
use super::objects::{ObjectKindArg, ObjectsCommand};
use super::output::CtlOutput;

#[derive(Subcommand)]
pub(super) enum DeviceGroupsCommand {
    #[command(flatten)]
    Objects(ObjectsCommand),
    /// List the devices of a group
    Devices {
        id: String,
        #[command(flatten)]
        limit: LimitArgs,
    },
    /// Count the devices of a group
    Count { id: String },
}

impl DeviceGroupsCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let of = |id: &str, what: &str| format!("/api/v1/device-groups/{}/{what}", url_encode(id));
        match self {
            Self::Objects(objects) => {
                objects
                    .run(ObjectKindArg::DeviceGroups, client, output)
                    .await
            }
            Self::Devices { id, limit } => {
                let rows = client.rows(&of(&id, "devices"), limit.limit).await?;
                output.print_rows(rows, devices::COLUMNS)
            }
            Self::Count { id } => output.print_fields(&client.get(&of(&id, "counts")).await?),
        }
    }
}
