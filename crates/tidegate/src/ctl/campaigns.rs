//! `tidegate ctl campaigns`: firmware campaigns.

use clap::Subcommand;
use outbound::url_encoding::url_encode;
use serde_json::{Value, json};

use super::http::{ApiClient, name_missing_nodes, with_query};
use super::limit_args::LimitArgs;
use super::objects::FieldsArgs;
use super::output::{Column, CtlOutput};

const CAMPAIGNS: &str = "/api/v1/firmware-campaigns";
const COLUMNS: &[Column] = &[
    ("CAMPAIGN", "id"),
    ("NAMESPACE", "namespace"),
    ("PACKAGE", "package"),
    ("STATUS", "status"),
    ("WAVE", "wave"),
    ("COUNTS", "counts"),
    ("REASON", "reason"),
    ("CHANGED", "changed_at_ms"),
];
const DEVICE_COLUMNS: &[Column] = &[
    ("DEVICE", "device"),
    ("WAVE", "wave"),
    ("STATE", "state"),
    ("ATTEMPTS", "attempts"),
    ("CHANGED", "changed_at_ms"),
    ("ERROR", "error"),
];

#[derive(Subcommand)]
pub(super) enum CampaignsCommand {
    /// List campaigns, newest first
    List {
        /// Only of this namespace
        #[arg(long)]
        namespace: Option<String>,
    },
    /// Show a campaign
    Show { id: String },
    /// Begin a campaign, such as `campaigns add package=pump-2-1 'waves=[{"percent": 10}]'`
    Add {
        #[arg(value_name = "NAME=VALUE")]
        assignments: Vec<String>,
        #[command(flatten)]
        fields: FieldsArgs,
    },
    /// List the devices of a campaign and their results
    Devices {
        id: String,
        #[command(flatten)]
        limit: LimitArgs,
    },
    /// Pause a campaign: no further devices are notified
    Pause { id: String },
    /// Continue a paused or halted campaign
    Resume { id: String },
    /// End a campaign
    Cancel { id: String },
    /// Delete a campaign that has ended
    Delete { id: String },
}

fn path_of(id: &str, what: &str) -> String {
    format!("{CAMPAIGNS}/{}{what}", url_encode(id))
}

impl CampaignsCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let (id, action) = match self {
            Self::List { namespace } => {
                let path = with_query(CAMPAIGNS, &[("namespace", namespace)]);
                let listed = client.get(&path).await?;
                name_missing_nodes(&listed);
                let rows = listed["data"].as_array().cloned().unwrap_or_default();
                let mut columns = COLUMNS.to_vec();
                if rows.iter().any(|row| row["node"].is_string()) {
                    columns.insert(1, ("NODE", "node"));
                }
                return output.print_rows((rows, false), &columns);
            }
            Self::Show { id } => {
                return output.print_fields(&client.get(&path_of(&id, "")).await?);
            }
            Self::Add {
                assignments,
                fields,
            } => {
                let definition = Value::Object(fields.fields(&assignments)?);
                let made = client.post(CAMPAIGNS, &definition).await?;
                return output.print_fields(&made);
            }
            Self::Devices { id, limit } => {
                let rows = client.rows(&path_of(&id, "/devices"), limit.limit).await?;
                return output.print_rows(rows, DEVICE_COLUMNS);
            }
            Self::Delete { id } => {
                let answer = client.delete(&path_of(&id, "")).await?;
                return output.print_done(&format!("the campaign {id} was deleted"), &answer);
            }
            Self::Pause { id } => (id, "/pause"),
            Self::Resume { id } => (id, "/resume"),
            Self::Cancel { id } => (id, "/cancel"),
        };
        let campaign = client.post(&path_of(&id, action), &json!({})).await?;
        output.print_fields(&campaign)
    }
}
