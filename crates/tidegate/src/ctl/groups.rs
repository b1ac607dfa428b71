//! `tidegate ctl groups`: groups of devices, who is in one, and how many.

use clap::Subcommand;

use super::commands::Limit;
use super::devices;
use super::http::{Client, encoded};
use super::objects::{Kind, Objects};
use super::show::Output;

#[derive(Subcommand)]
pub(super) enum Groups {
    #[command(flatten)]
    Objects(Objects),
    /// List the devices of one
    Devices {
        id: String,
        #[command(flatten)]
        limit: Limit,
    },
    /// How many devices one has
    Count { id: String },
}

impl Groups {
    pub(super) async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
        let of = |id: &str, what: &str| format!("/api/v1/device-groups/{}/{what}", encoded(id));
        match self {
            Self::Objects(objects) => objects.run(Kind::DeviceGroups, client, output).await,
            Self::Devices { id, limit } => {
                let rows = client.rows(&of(&id, "devices"), limit.limit).await?;
                output.rows(rows, devices::COLUMNS)
            }
            Self::Count { id } => output.one(&client.get(&of(&id, "counts")).await?),
        }
    }
}
