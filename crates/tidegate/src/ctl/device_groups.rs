//! `tidegate ctl device-groups`: device groups, their members and counts.

use clap::Subcommand;
use outbound::url_encoding::url_encode;
use serde_json::{Value, json};

use super::devices;
use super::http::ApiClient;
use super::limit_args::LimitArgs;
use super::objects::{ObjectKindArg, ObjectsCommand, parse_value};
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
    /// Call a method of all devices of a group, as a job
    Send {
        id: String,
        method: String,
        /// Parameters, as JSON or text
        params: Option<String>,
        /// Seconds that a command waits for a device that is not connected
        #[arg(long, value_name = "N")]
        expires_in_s: Option<u64>,
    },
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
            Self::Send {
                id,
                method,
                params,
                expires_in_s,
            } => {
                let params = params.as_deref();
                let params = params.map_or(Ok(Value::Null), |text| parse_value("params", text))?;
                let body = json!({
                    "method": method, "params": params, "expires_in_s": expires_in_s,
                });
                let job = client.post(&of(&id, "commands"), &body).await?;
                let text = format!(
                    "{0} has begun; `tidegate ctl jobs show {0}` shows its progress",
                    job["id"].as_str().unwrap_or_default()
                );
                output.print_done(&text, &job)
            }
            Self::Count { id } => output.print_fields(&client.get(&of(&id, "counts")).await?),
        }
    }
}
