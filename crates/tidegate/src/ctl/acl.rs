//! `tidegate ctl acl`: ACL rules, what they decide, and what they have denied.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::broker_commands::take_rows;
use super::http::{ApiClient, with_query};
use super::objects::{ObjectKindArg, ObjectsCommand};
use super::output::{Column, CtlOutput, OutputFormat};
use crate::password_command;

const ACTION_COLUMNS: &[Column] = &[
    ("ACTION", "action"),
    ("TOPIC", "topic"),
    ("ALLOWED", "allowed"),
    ("DECIDED BY", "source"),
    ("RULE", "rule"),
];

#[derive(Subcommand)]
pub(super) enum AclCommand {
    #[command(flatten)]
    Objects(ObjectsCommand),
    /// Check what a client may publish and subscribe to, and which rule decides
    Check(AclCheckArgs),
    /// List publications and subscriptions that were denied
    Denied {
        /// Only those of this client
        #[arg(long, value_name = "ID")]
        client_id: Option<String>,
        /// Only topics with this text
        #[arg(long, value_name = "PART")]
        topic: Option<String>,
    },
}

#[derive(Args)]
pub(super) struct AclCheckArgs {
    client_id: String,
    /// A topic to publish on
    #[arg(long = "publish", value_name = "TOPIC")]
    publish: Vec<String>,
    /// A topic filter to subscribe to
    #[arg(long = "subscribe", value_name = "FILTER")]
    subscribe: Vec<String>,
    /// QoS of these actions
    #[arg(long, default_value_t = 0)]
    qos: u8,
    /// User name of the client
    #[arg(long, value_name = "NAME")]
    username: Option<String>,
    /// Source address of the client
    #[arg(long)]
    address: Option<String>,
    /// Try a login with these credentials
    #[arg(long)]
    try_login: bool,
    /// Listener of the login
    #[arg(long, value_name = "NAME", requires = "try_login")]
    listener: Option<String>,
    /// Read the password of the login from a file
    #[arg(long, value_name = "FILE", requires = "try_login")]
    password_file: Option<PathBuf>,
}

impl AclCheckArgs {
    async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let password = match &self.password_file {
            None => None,
            Some(file) => {
                let password = String::from_utf8(password_command::from_file(file)?);
                Some(password.context("the password is not UTF-8")?)
            }
        };
        let action = |kind: &'static str| move |topic| json!({"action": kind, "topic": topic, "qos": self.qos});
        let published = self.publish.into_iter().map(action("publish"));
        let subscribed = self.subscribe.into_iter().map(action("subscribe"));
        let mut body = json!({
            "client_id": self.client_id,
            "login": self.try_login,
            "actions": published.chain(subscribed).collect::<Vec<Value>>(),
        });
        for (field, value) in [
            ("username", self.username),
            ("password", password),
            ("address", self.address),
            ("listener", self.listener),
        ] {
            if let Some(value) = value {
                body[field] = value.into();
            }
        }
        let answer = client.post("/api/v1/access-check", &body).await?;
        if output.format == OutputFormat::Json {
            return output.print_fields(&answer);
        }
        if answer["login"].is_object() {
            output.print_fields(&answer["login"])?;
        }
        let rows = answer["actions"].as_array().cloned().unwrap_or_default();
        match rows.is_empty() {
            true => Ok(()),
            false => output.print_rows((rows, false), ACTION_COLUMNS),
        }
    }
}

impl AclCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::Objects(objects) => objects.run(ObjectKindArg::AclRules, client, output).await,
            Self::Check(arguments) => arguments.run(client, output).await,
            Self::Denied { client_id, topic } => {
                let parameters = [
                    ("client_id", client_id),
                    ("topic_contains", topic),
                    ("limit", Some("1000".to_owned())),
                ];
                let path = with_query("/api/v1/denied-actions", &parameters);
                let mut answer = client.get(&path).await?;
                let columns = [
                    ("AT", "at_ms"),
                    ("COUNT", "count"),
                    ("CLIENT", "client_id"),
                    ("USER", "username"),
                    ("ACTION", "action"),
                    ("TOPIC", "topic"),
                    ("DECIDED BY", "source"),
                    ("RULE", "rule"),
                    ("ENFORCED", "enforced"),
                ];
                output.print_rows((take_rows(&mut answer), false), &columns)
            }
        }
    }
}
