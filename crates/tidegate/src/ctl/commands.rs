//! Looking at clients, sessions, subscriptions, messages, listeners and settings, and steering them.

use std::path::PathBuf;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::http::{Client, encoded, with_query};
use super::show::{Column, Output};

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
pub(super) struct Limit {
    /// Rows at most; 0: all
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(super) limit: usize,
}

#[derive(Args)]
pub(super) struct ClientFilter {
    /// Only client ids with this in them
    #[arg(long, value_name = "PART")]
    contains: Option<String>,
    /// Only this user's
    #[arg(long, value_name = "NAME")]
    username: Option<String>,
    #[command(flatten)]
    limit: Limit,
}

#[derive(Subcommand)]
pub(super) enum Clients {
    /// List them
    List(ClientFilter),
    /// Show one
    Show { client_id: String },
    /// End its connection and its session
    Kick { client_id: String },
}

impl Clients {
    pub(super) async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
        match self {
            Self::List(filter) => {
                list_clients("/api/v1/clients", filter, &[], client, output).await
            }
            Self::Show { client_id } => output.one(
                &client
                    .get(&format!("/api/v1/clients/{}", encoded(&client_id)))
                    .await?,
            ),
            Self::Kick { client_id } => {
                let answer = client
                    .delete(&format!("/api/v1/clients/{}", encoded(&client_id)))
                    .await?;
                output.done(
                    &format!("{client_id} is disconnected, its session has ended"),
                    &answer,
                )
            }
        }
    }
}

async fn list_clients(
    path: &str,
    filter: ClientFilter,
    more: &[(&str, Option<String>)],
    client: &Client,
    output: &Output,
) -> anyhow::Result<()> {
    let mut parameters = vec![
        ("client_id_contains", filter.contains),
        ("username", filter.username),
    ];
    parameters.extend_from_slice(more);
    let rows = client
        .rows(&with_query(path, &parameters), filter.limit.limit)
        .await?;
    output.rows(rows, CLIENT_COLUMNS)
}

#[derive(Subcommand)]
pub(super) enum Sessions {
    /// List them
    List {
        #[command(flatten)]
        filter: ClientFilter,
        /// Only those whose client is away
        #[arg(long)]
        away: bool,
    },
    /// Show one
    Show { client_id: String },
    /// End the session of a client that is away
    Discard { client_id: String },
    /// List what waits for a session
    Queue {
        client_id: String,
        #[command(flatten)]
        limit: Limit,
    },
    /// Throw away what waits for a session
    ClearQueue { client_id: String },
}

impl Sessions {
    pub(super) async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
        let of = |client_id: &str| format!("/api/v1/sessions/{}", encoded(client_id));
        match self {
            Self::List { filter, away } => {
                let more = [("connected", away.then(|| "false".to_owned()))];
                list_clients("/api/v1/sessions", filter, &more, client, output).await
            }
            Self::Show { client_id } => output.one(&client.get(&of(&client_id)).await?),
            Self::Discard { client_id } => {
                let answer = client.delete(&of(&client_id)).await?;
                output.done(&format!("the session of {client_id} has ended"), &answer)
            }
            Self::Queue { client_id, limit } => {
                let (rows, has_more) = client
                    .rows(&format!("{}/queue", of(&client_id)), limit.limit)
                    .await?;
                let rows = rows.into_iter().map(flat).collect();
                let columns = [
                    ("POSITION", "position"),
                    ("PACKET ID", "packet_id"),
                    ("TOPIC", "topic"),
                    ("QOS", "qos"),
                    ("PAYLOAD", "payload"),
                    ("PUBLISHED", "published_at_ms"),
                ];
                output.rows((rows, has_more), &columns)
            }
            Self::ClearQueue { client_id } => {
                let answer = client.delete(&format!("{}/queue", of(&client_id))).await?;
                output.done(
                    &format!("{} messages are thrown away", answer["removed"]),
                    &answer,
                )
            }
        }
    }
}

/// The fields of `message` beside those around it.
fn flat(mut row: Value) -> Value {
    if let (Value::Object(message), Some(fields)) = (row["message"].take(), row.as_object_mut()) {
        fields.remove("message");
        fields.extend(message);
    }
    row
}

#[derive(Args)]
pub(super) struct FilterOfFilters {
    /// Exactly this filter
    #[arg(long, value_name = "FILTER")]
    filter: Option<String>,
    /// Filters that match this topic
    #[arg(long, value_name = "TOPIC")]
    matches: Option<String>,
    #[command(flatten)]
    limit: Limit,
}

#[derive(Subcommand)]
pub(super) enum Subscriptions {
    /// List them
    List {
        /// Only this client's
        #[arg(long, value_name = "ID")]
        client_id: Option<String>,
        #[command(flatten)]
        filter: FilterOfFilters,
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

impl Subscriptions {
    pub(super) async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
        let of = |client_id: &str| format!("/api/v1/sessions/{}/subscriptions", encoded(client_id));
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
                output.rows(client.rows(&path, filter.limit.limit).await?, &columns)
            }
            Self::Add {
                client_id,
                topic_filter,
                qos,
            } => {
                let body = json!({"topic_filter": topic_filter, "qos": qos});
                let answer = client.post(&of(&client_id), &body).await?;
                let granted = &answer["granted_qos"];
                output.done(
                    &format!("{client_id} is subscribed to {topic_filter} with QoS {granted}"),
                    &answer,
                )
            }
            Self::Remove {
                client_id,
                topic_filter,
            } => {
                let path = format!("{}/{}", of(&client_id), encoded(&topic_filter));
                let answer = client.delete(&path).await?;
                output.done(
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
    filter: FilterOfFilters,
}

impl TopicsArgs {
    pub(super) async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
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
        output.rows(client.rows(&path, self.filter.limit.limit).await?, &columns)
    }
}

#[derive(Subcommand)]
pub(super) enum Retained {
    /// List them
    List {
        /// Only topics this filter matches
        #[arg(long, value_name = "FILTER")]
        filter: Option<String>,
        #[command(flatten)]
        limit: Limit,
    },
    /// Show one with its payload
    Show { topic: String },
    /// Delete one
    Delete { topic: String },
}

impl Retained {
    pub(super) async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
        match self {
            Self::List { filter, limit } => {
                let path = with_query("/api/v1/retained", &[("matches_filter", filter)]);
                let columns = [
                    ("TOPIC", "topic"),
                    ("QOS", "qos"),
                    ("BYTES", "payload_bytes"),
                    ("PUBLISHED", "published_at_ms"),
                    ("EXPIRES", "expires_at_ms"),
                    ("PUBLISHER", "publisher"),
                ];
                output.rows(client.rows(&path, limit.limit).await?, &columns)
            }
            Self::Show { topic } => output.one(
                &client
                    .get(&format!("/api/v1/retained/{}", encoded(&topic)))
                    .await?,
            ),
            Self::Delete { topic } => {
                let answer = client
                    .delete(&format!("/api/v1/retained/{}", encoded(&topic)))
                    .await?;
                output.done(&format!("nothing is retained at {topic} any more"), &answer)
            }
        }
    }
}

#[derive(Args)]
pub(super) struct PublishArgs {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// The message as text
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file")]
    message: Option<String>,
    /// The message is what this file holds
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// Keep it for those who subscribe later
    #[arg(short, long)]
    retain: bool,
    /// Seconds after which it is no longer delivered
    #[arg(long, value_name = "SECONDS")]
    expiry: Option<u32>,
}

impl PublishArgs {
    pub(super) async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
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
            false => "published; nobody subscribes to it now",
        };
        output.done(note, &answer)
    }
}

#[derive(Subcommand)]
pub(super) enum Listeners {
    /// List them
    List,
    /// Let a stopped one listen again
    Start { name: String },
    /// Stop one until it is started again, or the node is
    Stop {
        name: String,
        /// Send its clients away, too
        #[arg(long)]
        disconnect_clients: bool,
    },
}

impl Listeners {
    pub(super) async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
        match self {
            Self::List => {
                let mut answer = client.get("/api/v1/listeners").await?;
                let columns = [
                    ("NAME", "name"),
                    ("PROTOCOL", "protocol"),
                    ("ADDRESS", "address"),
                    ("RUNNING", "running"),
                    ("CONNECTIONS", "connections"),
                    ("MAX", "max_connections"),
                ];
                output.rows((whole(&mut answer), false), &columns)
            }
            Self::Start { name } => {
                let answer = client
                    .ask(&format!("/api/v1/listeners/{}/start", encoded(&name)))
                    .await?;
                output.done(&format!("{name} listens"), &answer)
            }
            Self::Stop {
                name,
                disconnect_clients,
            } => {
                let path = format!("/api/v1/listeners/{}/stop", encoded(&name));
                let body = json!({"disconnect_clients": disconnect_clients});
                let answer = client.post(&path, &body).await?;
                output.done(&format!("{name} no longer listens"), &answer)
            }
        }
    }
}

/// The rows of a list that is always whole.
fn whole(answer: &mut Value) -> Vec<Value> {
    match answer["data"].take() {
        Value::Array(rows) => rows,
        _ => Vec::new(),
    }
}

#[derive(Subcommand)]
pub(super) enum Settings {
    /// List them
    List {
        /// Only keys with this in them
        part: Option<String>,
        /// Only those that can change while the node runs
        #[arg(long)]
        changeable: bool,
    },
    /// Show one with what it means
    Show { key: String },
    /// Change one until the node stops
    Set { key: String, value: String },
}

impl Settings {
    pub(super) async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
        let of = |key: &str| format!("/api/v1/settings/{}", encoded(key));
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
                output.rows((whole(&mut answer), false), &columns)
            }
            Self::Show { key } => output.one(&client.get(&of(&key)).await?),
            Self::Set { key, value } => {
                let body = json!({"value": super::objects::value_of(&key, &value)?});
                let answer = client.put(&of(&key), &body, None).await?;
                output.done(
                    &format!("{key} is {} until the node stops", answer["value"]),
                    &answer,
                )
            }
        }
    }
}

#[derive(Args)]
pub(super) struct AuditArgs {
    /// Only what this operator or API key did
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// Only actions that begin so, such as operator. or login
    #[arg(long, value_name = "START")]
    action: Option<String>,
    /// Only what was done to this object, client or topic
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Rows at most, the newest; 0: all
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

impl AuditArgs {
    pub(super) async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
        let parameters = [
            ("who", self.who),
            ("action", self.action),
            ("subject", self.subject),
        ];
        let path = with_query("/api/v1/audit", &parameters);
        let columns = [
            ("AT", "at_ms"),
            ("WHO", "who"),
            ("FROM", "from"),
            ("ACTION", "action"),
            ("SUBJECT", "subject"),
            ("VERSION", "version_after"),
        ];
        output.rows(client.rows(&path, self.limit).await?, &columns)
    }
}

pub(super) async fn status(client: &Client, output: &Output) -> anyhow::Result<()> {
    output.one(&client.get("/api/v1/node").await?)
}

pub(super) async fn whoami(client: &Client, output: &Output) -> anyhow::Result<()> {
    output.one(&client.get("/api/v1/me").await?)
}

pub(super) async fn log_level(
    level: Option<String>,
    client: &Client,
    output: &Output,
) -> anyhow::Result<()> {
    let path = "/api/v1/log-level";
    let answer = match level {
        Some(level) => client.put(path, &json!({"level": level}), None).await?,
        None => client.get(path).await?,
    };
    output.done(answer["level"].as_str().unwrap_or_default(), &answer)
}
