//! `tidegate ctl people` and `invites`: operators with their bans, and the codes for registration.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use outbound::url_encoding::url_encode;
use serde_json::{Map, Value, json};

use super::error::CtlError;
use super::http::ApiClient;
use super::objects::{FieldsArgs, ObjectKindArg, ObjectsCommand};
use super::output::{Column, CtlOutput};
use crate::password_command;

const CODE_COLUMNS: &[Column] = &[("ID", "id"), ("CODE", "code")];

#[derive(Subcommand)]
pub(super) enum PeopleCommand {
    #[command(flatten)]
    Objects(ObjectsCommand),
    /// Ban an operator: revoke its tokens, reject its logins, close its relay endpoints
    Ban {
        username: String,
        /// Why; the operator sees it
        #[arg(long)]
        reason: String,
        /// End of the ban in milliseconds since 1970; default: none
        #[arg(long, value_name = "MS")]
        until_ms: Option<u64>,
    },
    /// End the ban of an operator
    Unban { username: String },
}

impl PeopleCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let path = |username: &str, action: &str| {
            format!("/api/v1/operators/{}/{action}", url_encode(username))
        };
        match self {
            Self::Objects(objects) => objects.run(ObjectKindArg::Operators, client, output).await,
            Self::Ban {
                username,
                reason,
                until_ms,
            } => {
                let body = json!({"reason": reason, "until_ms": until_ms});
                let answer = client.post(&path(&username, "ban"), &body).await?;
                output.print_done(&format!("{username} was banned"), &answer)
            }
            Self::Unban { username } => {
                let answer = client.post_empty(&path(&username, "unban")).await?;
                output.print_done(&format!("{username} is no longer banned"), &answer)
            }
        }
    }
}

#[derive(Args)]
pub(super) struct ChangePasswordArgs {
    /// File with the new password [default: it is prompted for]
    #[arg(long, value_name = "FILE")]
    new_password_file: Option<PathBuf>,
}

impl ChangePasswordArgs {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let Some(current) = client.login_password() else {
            let text = "a password belongs to an operator: give --login NAME; to set that of another operator, see \
                        `tidegate ctl operators set`";
            return Err(CtlError::Usage(text.into()).into());
        };
        let password = match &self.new_password_file {
            Some(file) => password_command::from_file(file)?,
            None => password_command::prompt("New password: ")?,
        };
        let password = String::from_utf8(password).context("the password is not UTF-8")?;
        let body = json!({"current_password": current, "password": password});
        let answer = client.put("/api/v1/me/password", &body, None).await?;
        output.print_done("the password was changed", &answer)
    }
}

#[derive(Subcommand)]
pub(super) enum InvitesCommand {
    #[command(flatten)]
    Objects(ObjectsCommand),
    /// Create several invites and print their codes
    Batch {
        /// Number of invites, at most 50
        count: u32,
        #[arg(value_name = "NAME=VALUE")]
        assignments: Vec<String>,
        #[command(flatten)]
        fields: FieldsArgs,
    },
}

impl InvitesCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::Objects(objects) => objects.run(ObjectKindArg::Invites, client, output).await,
            Self::Batch {
                count,
                assignments,
                fields,
            } => {
                let mut body: Map<String, Value> = fields.fields(&assignments)?;
                body.insert("count".to_owned(), count.into());
                let made = client
                    .post("/api/v1/invite-batches", &Value::Object(body))
                    .await?;
                let rows = made["data"].as_array().cloned().unwrap_or_default();
                output.print_rows((rows, false), CODE_COLUMNS)
            }
        }
    }
}
