//! `tidegate ctl dashboards`: dashboards and their share links.

use clap::Subcommand;
use outbound::url_encoding::url_encode;
use serde_json::json;

use super::broker_commands::take_rows;
use super::http::ApiClient;
use super::objects::{ObjectKindArg, ObjectsCommand};
use super::output::{Column, CtlOutput};

const SHARE_COLUMNS: &[Column] = &[
    ("ID", "id"),
    ("DESCRIPTION", "description"),
    ("EXPIRES", "expires_at_ms"),
    ("CREATED", "created_at_ms"),
    ("BY", "created_by"),
];

#[derive(Subcommand)]
pub(super) enum DashboardsCommand {
    #[command(flatten)]
    Objects(ObjectsCommand),
    /// Show the data of a card
    Data { id: String, card: String },
    /// List the share links of a dashboard
    Shares { id: String },
    /// Create a share link and print its token, which permits everyone to read the dashboard
    Share {
        id: String,
        /// Purpose of the link
        #[arg(long, default_value = "")]
        description: String,
        /// End of the link in milliseconds since 1970; default: none
        #[arg(long, value_name = "MS")]
        expires_at_ms: Option<u64>,
    },
    /// Revoke a share link
    Unshare { id: String, share: String },
}

impl DashboardsCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let path = |id: &str, rest: &str| format!("/api/v1/dashboards/{}/{rest}", url_encode(id));
        match self {
            Self::Objects(objects) => objects.run(ObjectKindArg::Dashboards, client, output).await,
            Self::Data { id, card } => {
                let path = path(&id, &format!("cards/{}/data", url_encode(&card)));
                output.print_fields(&client.get(&path).await?)
            }
            Self::Shares { id } => {
                let mut answer = client.get(&path(&id, "shares")).await?;
                output.print_rows((take_rows(&mut answer), false), SHARE_COLUMNS)
            }
            Self::Share {
                id,
                description,
                expires_at_ms,
            } => {
                let body = json!({"description": description, "expires_at_ms": expires_at_ms});
                let made = client.post(&path(&id, "shares"), &body).await?;
                let (share, token) = (made["id"].as_str(), made["token"].as_str());
                let text = format!(
                    "{} was created. Its token is not shown again:\n{}",
                    share.unwrap_or_default(),
                    token.unwrap_or_default()
                );
                output.print_done(&text, &made)
            }
            Self::Unshare { id, share } => {
                let path = path(&id, &format!("shares/{}", url_encode(&share)));
                let answer = client.delete(&path).await?;
                output.print_done(&format!("{share} was revoked"), &answer)
            }
        }
    }
}
