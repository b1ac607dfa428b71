//! `tidegate ctl` commands for clients, sessions, subscriptions, messages and settings.

use std::path::PathBuf;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use outbound::url_encoding::url_encode;
use serde_json::{Value, json};

use super::http::{ApiClient, with_query};
use super::limit_args::LimitArgs;
use super::output::{Column, CtlOutput};

const CLIENT_COLUMNS: &[Column] = &[
    ("CLIENT ID", "client_id"),
    ("USER", "username"),
    ("CONNECTED", "connected"),
    ("VERSION", "protocol_version"),
    ("ADDRESS", "peer_address"),
    ("LISTENER", "listener"),
    ("SUBSCRIPTIONS", "subscriptions"),
    ("QUEUED", "queued_messages"),
    ("SINCE", "connected_at_ms"),
];

#[derive(Args)]
pub(super) struct ClientFilterArgs {
    /// Only client ids that contain this
    #[arg(long, value_name = "PART")]
    contains: Option<String>,
    /// Only clients of this user
    #[arg(long, value_name = "NAME")]
    username: Option<String>,
    #[command(flatten)]
    limit: LimitArgs,
}

#[derive(Subcommand)]
pub(super) enum ClientsCommand {
    /// List clients
    List(ClientFilterArgs),
    /// Show a client
    Show { client_id: String },
    /// End a client's connection and session
    Disconnect { client_id: String },
}

impl ClientsCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::List(filter) => {
                list_clients("/api/v1/clients", filter, &[], client, output).await
            }
            Self::Show { client_id } => output.print_fields(
                &client
                    .get(&format!("/api/v1/clients/{}", url_encode(&client_id)))
                    .await?,
            ),
            Self::Disconnect { client_id } => {
                let answer = client
                    .delete(&format!("/api/v1/clients/{}", url_encode(&client_id)))
                    .await?;
                output.print_done(
                    &format!("{client_id} is disconnected, its session has ended"),
                    &answer,
                )
            }
        }
    }
}

async fn list_clients(
    path: &str,
    filter: ClientFilterArgs,
    more: &[(&str, Option<String>)],
    client: &ApiClient,
    output: &CtlOutput,
) -> anyhow::Result<()> {
    let mut parameters = vec![
        ("client_id_contains", filter.contains),
        ("username", filter.username),
    ];
    parameters.extend_from_slice(more);
    let rows = client
        .rows(&with_query(path, &parameters), filter.limit.limit)
        .await?;
    let columns = columns_with_node(&rows.0, CLIENT_COLUMNS);
    output.print_rows(rows, &columns)
}

/// The columns of rows that have a node only in a cluster.
pub(super) fn columns_with_node(rows: &[Value], columns: &[Column]) -> Vec<Column> {
    let mut columns = columns.to_vec();
    if rows.iter().any(|row| row["node"].is_string()) {
        columns.insert(1, ("NODE", "node"));
    }
    columns
}

#[derive(Subcommand)]
pub(super) enum SessionsCommand {
    /// List sessions
    List {
        #[command(flatten)]
        filter: ClientFilterArgs,
        /// Only sessions of disconnected clients
        #[arg(long)]
        disconnected: bool,
    },
    /// Show a session
    Show { client_id: String },
    /// Discard the session of a disconnected client
    Discard { client_id: String },
    /// List queued messages of a session
    Queue {
        client_id: String,
        #[command(flatten)]
        limit: LimitArgs,
    },
    /// Delete the queued messages of a session
    ClearQueue { client_id: String },
}

impl SessionsCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let of = |client_id: &str| format!("/api/v1/sessions/{}", url_encode(client_id));
        match self {
            Self::List {
                filter,
                disconnected,
            } => {
                let more = [("connected", disconnected.then(|| "false".to_owned()))];
                list_clients("/api/v1/sessions", filter, &more, client, output).await
            }
            Self::Show { client_id } => output.print_fields(&client.get(&of(&client_id)).await?),
            Self::Discard { client_id } => {
                let answer = client.delete(&of(&client_id)).await?;
                output.print_done(&format!("the session of {client_id} has ended"), &answer)
            }
            Self::Queue { client_id, limit } => {
                let (rows, has_more) = client
                    .rows(&format!("{}/queue", of(&client_id)), limit.limit)
                    .await?;
                let rows = rows.into_iter().map(flatten_message).collect();
                let columns = [
                    ("POSITION", "position"),
                    ("PACKET ID", "packet_id"),
                    ("TOPIC", "topic"),
                    ("QOS", "qos"),
                    ("PAYLOAD", "payload"),
                    ("PUBLISHED", "published_at_ms"),
                ];
                output.print_rows((rows, has_more), &columns)
            }
            Self::ClearQueue { client_id } => {
                let answer = client.delete(&format!("{}/queue", of(&client_id))).await?;
                output.print_done(
                    &format!("{} messages were deleted", answer["removed"]),
                    &answer,
                )
            }
        }
    }
}

/// Moves the fields of `message` to the level of the fields around it.
fn flatten_message(mut row: Value) -> Value {
    if let (Value::Object(message), Some(fields)) = (row["message"].take(), row.as_object_mut()) {
        fields.remove("message");
        fields.extend(message);
    }
    row
}

#[derive(Args)]
pub(super) struct SubscriptionFilterArgs {
    /// Exactly this filter
    #[arg(long, value_name = "FILTER")]
    filter: Option<String>,
    /// Filters that match this topic
    #[arg(long, value_name = "TOPIC")]
    matches: Option<String>,
    #[command(flatten)]
    limit: LimitArgs,
}

#[derive(Subcommand)]
pub(super) enum SubscriptionsCommand {
    /// List subscriptions
    List {
        /// Only subscriptions of this client
        #[arg(long, value_name = "ID")]
        client_id: Option<String>,
        #[command(flatten)]
        filter: SubscriptionFilterArgs,
    },
    /// Subscribe on behalf of a client
    Add {
        client_id: String,
        topic_filter: String,
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
        qos: u8,
    },
    /// Unsubscribe on behalf of a client
    Remove {
        client_id: String,
        topic_filter: String,
    },
}

impl SubscriptionsCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let of =
            |client_id: &str| format!("/api/v1/sessions/{}/subscriptions", url_encode(client_id));
        match self {
            Self::List { client_id, filter } => {
                let parameters = [
                    ("client_id", client_id),
                    ("topic_filter", filter.filter),
                    ("matches_topic", filter.matches),
                ];
                let path = with_query("/api/v1/subscriptions", &parameters);
                let columns = [
                    ("CLIENT ID", "client_id"),
                    ("FILTER", "topic_filter"),
                    ("QOS", "qos"),
                    ("SHARD", "shard"),
                ];
                let rows = client.rows(&path, filter.limit.limit).await?;
                let columns = columns_with_node(&rows.0, &columns);
                output.print_rows(rows, &columns)
            }
            Self::Add {
                client_id,
                topic_filter,
                qos,
            } => {
                let body = json!({"topic_filter": topic_filter, "qos": qos});
                let answer = client.post(&of(&client_id), &body).await?;
                let granted = &answer["granted_qos"];
                output.print_done(
                    &format!("{client_id} is subscribed to {topic_filter} with QoS {granted}"),
                    &answer,
                )
            }
            Self::Remove {
                client_id,
                topic_filter,
            } => {
                let path = format!("{}/{}", of(&client_id), url_encode(&topic_filter));
                let answer = client.delete(&path).await?;
                output.print_done(
                    &format!("{client_id} is no longer subscribed to {topic_filter}"),
                    &answer,
                )
            }
        }
    }
}

#[derive(Args)]
pub(super) struct TopicsArgs {
    #[command(flatten)]
    filter: SubscriptionFilterArgs,
}

impl TopicsArgs {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let parameters = [
            ("topic_filter", self.filter.filter),
            ("matches_topic", self.filter.matches),
        ];
        let path = with_query("/api/v1/topics", &parameters);
        let columns = [
            ("FILTER", "topic_filter"),
            ("SUBSCRIBERS", "subscribers"),
            ("SHARDS", "shards"),
        ];
        output.print_rows(client.rows(&path, self.filter.limit.limit).await?, &columns)
    }
}

#[derive(Subcommand)]
pub(super) enum RetainedCommand {
    /// List retained messages
    List {
        /// Only topics that this filter matches
        #[arg(long, value_name = "FILTER")]
        filter: Option<String>,
        #[command(flatten)]
        limit: LimitArgs,
    },
    /// Show a retained message with its payload
    Show { topic: String },
    /// Delete a retained message
    Delete { topic: String },
}

impl RetainedCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::List { filter, limit } => {
                let path = with_query("/api/v1/retained-messages", &[("matches_filter", filter)]);
                let columns = [
                    ("TOPIC", "topic"),
                    ("QOS", "qos"),
                    ("BYTES", "payload_bytes"),
                    ("PUBLISHED", "published_at_ms"),
                    ("EXPIRES", "expires_at_ms"),
                    ("PUBLISHER", "publisher"),
                ];
                output.print_rows(client.rows(&path, limit.limit).await?, &columns)
            }
            Self::Show { topic } => output.print_fields(
                &client
                    .get(&format!("/api/v1/retained-messages/{}", url_encode(&topic)))
                    .await?,
            ),
            Self::Delete { topic } => {
                let answer = client
                    .delete(&format!("/api/v1/retained-messages/{}", url_encode(&topic)))
                    .await?;
                output.print_done(
                    &format!("the retained message of {topic} was deleted"),
                    &answer,
                )
            }
        }
    }
}

#[derive(Args)]
pub(super) struct PublishArgs {
    /// Topic
    #[arg(short, long)]
    topic: String,
    /// Payload as text
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file")]
    message: Option<String>,
    /// File with the payload
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// Retain the message
    #[arg(short, long)]
    retain: bool,
    /// Seconds after which the message is no longer delivered
    #[arg(long, value_name = "SECONDS")]
    expiry: Option<u32>,
}

impl PublishArgs {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let (payload, encoding) = match &self.file {
            Some(file) => {
                let bytes = std::fs::read(file)
                    .with_context(|| format!("cannot read {}", file.display()))?;
                (STANDARD.encode(bytes), "base64")
            }
            None => (self.message.unwrap_or_default(), "text"),
        };
        let body = json!({
            "topic": self.topic, "payload": payload, "payload_encoding": encoding, "qos": self.qos,
            "retain": self.retain, "message_expiry_s": self.expiry,
        });
        let answer = client.post("/api/v1/publish", &body).await?;
        let note = match answer["has_subscribers"] == true {
            true => "published",
            false => "published; there are no matching subscribers",
        };
        output.print_done(note, &answer)
    }
}

/// The rows of a list that is always complete.
pub(super) fn take_rows(answer: &mut Value) -> Vec<Value> {
    match answer["data"].take() {
        Value::Array(rows) => rows,
        _ => Vec::new(),
    }
}

#[derive(Subcommand)]
pub(super) enum SettingsCommand {
    /// List settings
    List {
        /// Only keys that contain this
        part: Option<String>,
        /// Only settings that can change at run time
        #[arg(long)]
        changeable: bool,
    },
    /// Show a setting with its meaning
    Show { key: String },
    /// Change a setting, also for later starts: KEY VALUE, or KEY=VALUE as in other commands
    Set {
        #[arg(value_name = "KEY")]
        key: String,
        value: Option<String>,
    },
    /// Revert a setting to its configured value
    Reset { key: String },
}

impl SettingsCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let of = |key: &str| format!("/api/v1/settings/{}", url_encode(key));
        match self {
            Self::List { part, changeable } => {
                let parameters = [
                    ("key_contains", part),
                    ("changeable", changeable.then(|| "true".to_owned())),
                ];
                let mut answer = client
                    .get(&with_query("/api/v1/settings", &parameters))
                    .await?;
                let columns = [
                    ("KEY", "key"),
                    ("VALUE", "value"),
                    ("FROM", "origin"),
                    ("CHANGEABLE", "changeable"),
                ];
                output.print_rows((take_rows(&mut answer), false), &columns)
            }
            Self::Show { key } => output.print_fields(&client.get(&of(&key)).await?),
            Self::Set { key, value } => {
                let (key, value) = match value {
                    Some(value) => {
                        let value = super::objects::parse_value(&key, &value)?;
                        (key, value)
                    }
                    None => super::objects::parse_assignment(&key)?,
                };
                let body = json!({"value": value});
                let answer = client.put(&of(&key), &body, None).await?;
                output.print_done(&format!("{key} is {}", answer["value"]), &answer)
            }
            Self::Reset { key } => {
                let answer = client.delete(&of(&key)).await?;
                let text = format!("{key} is {}, as configured", answer["value"]);
                output.print_done(&text, &answer)
            }
        }
    }
}

#[derive(Args)]
pub(super) struct AuditArgs {
    /// Only actions of this operator or API key
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// Only actions with this prefix, such as operator. or login
    #[arg(long, value_name = "START")]
    action: Option<String>,
    /// Only actions on this object, client or topic
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Only actions of the last hours
    #[arg(long, value_name = "N")]
    hours: Option<u32>,
    /// Maximum number of rows, newest first; 0: all
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

impl AuditArgs {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let from_ms = self.hours.map(|hours| {
            let range_ms = u64::from(hours) * 3_600_000;
            wall_clock::now_ms().saturating_sub(range_ms).to_string()
        });
        let parameters = [
            ("actor", self.actor),
            ("action", self.action),
            ("subject", self.subject),
            ("from_ms", from_ms),
        ];
        let path = with_query("/api/v1/audit-log", &parameters);
        let columns = [
            ("AT", "at_ms"),
            ("ACTOR", "actor"),
            ("ADDRESS", "address"),
            ("ACTION", "action"),
            ("SUBJECT", "subject"),
            ("VERSION", "version_after"),
        ];
        output.print_rows(client.rows(&path, self.limit).await?, &columns)
    }
}

pub(super) async fn status(client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
    output.print_fields(&client.get("/api/v1/node").await?)
}

pub(super) async fn whoami(client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
    output.print_fields(&client.get("/api/v1/me").await?)
}

pub(super) async fn log_level(
    level: Option<String>,
    client: &ApiClient,
    output: &CtlOutput,
) -> anyhow::Result<()> {
    let path = "/api/v1/log-level";
    let answer = match level {
        Some(level) => client.put(path, &json!({"level": level}), None).await?,
        None => client.get(path).await?,
    };
    output.print_done(answer["level"].as_str().unwrap_or_default(), &answer)
}
