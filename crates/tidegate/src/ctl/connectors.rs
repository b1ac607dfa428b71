//! `tidegate ctl connectors`, `sinks` and `sources`: their objects, whether a system is reached, how they do, and what
//! could not be written.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::commands::Limit;
use super::http::{Client, encoded};
use super::objects::{Kind, Objects};
use super::show::{Column, Output};

#[derive(Subcommand)]
pub(super) enum Connectors {
    #[command(flatten)]
    Objects(Objects),
    /// Reach the system behind one with its credentials
    Test { name: String },
    /// How they do
    Status {
        #[command(flatten)]
        limit: Limit,
    },
    /// The types of connectors there are
    Types,
}

impl Connectors {
    pub(super) async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
        match self {
            Self::Objects(objects) => objects.run(Kind::Connectors, client, output).await,
            Self::Test { name } => {
                let path = format!("/api/v1/connectors/{}/test", encoded(&name));
                let outcome = client.ask(&path).await?;
                let detail = outcome["detail"].as_str().unwrap_or_default();
                if outcome["is_reached"] == false {
                    anyhow::bail!("{name} cannot be reached: {detail}");
                }
                output.done(&format!("{name} answers: {detail}"), &outcome)
            }
            Self::Status { limit } => {
                let columns = [
                    ("CONNECTOR", "name"),
                    ("TYPE", "type"),
                    ("SINKS", "sinks"),
                    ("FAILING", "is_failing"),
                ];
                list("connector-status", &columns, limit.limit, client, output).await
            }
            Self::Types => {
                let answer = client.get("/api/v1/connector-types").await?;
                let types = answer["data"].as_array().cloned().unwrap_or_default();
                output.rows((types, false), &[("TYPE", "type"), ("FOR", "title")])
            }
        }
    }
}

#[derive(Subcommand)]
pub(super) enum Sinks {
    #[command(flatten)]
    Objects(Objects),
    /// Reach the system behind one and check its statement, without writing a row
    Test { name: String },
    /// How they do, or one does
    Status {
        name: Option<String>,
        #[command(flatten)]
        limit: Limit,
    },
    /// Rows that could not be written
    #[command(subcommand)]
    DeadLetters(DeadLetters),
}

#[derive(Subcommand)]
pub(super) enum DeadLetters {
    /// List them, the oldest first
    List {
        sink: String,
        #[command(flatten)]
        limit: Limit,
    },
    /// Queue them again
    Replay(Chosen),
    /// Throw them away
    Discard(Chosen),
}

#[derive(Args)]
pub(super) struct Chosen {
    sink: String,
    /// Only these; all if none is named
    #[arg(value_name = "ID")]
    ids: Vec<u64>,
}

impl Sinks {
    pub(super) async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
        match self {
            Self::Objects(objects) => objects.run(Kind::Sinks, client, output).await,
            Self::Test { name } => {
                let path = format!("/api/v1/sinks/{}/test", encoded(&name));
                let outcome = client.ask(&path).await?;
                let detail = outcome["detail"].as_str().unwrap_or_default();
                if outcome["is_reached"] == false {
                    anyhow::bail!("{name} cannot be written: {detail}");
                }
                output.done(&format!("{name} can be written: {detail}"), &outcome)
            }
            Self::Status {
                name: Some(name), ..
            } => {
                let path = format!("/api/v1/sinks/{}/status", encoded(&name));
                output.one(&flat(client.get(&path).await?))
            }
            Self::Status { name: None, limit } => {
                let columns = [
                    ("SINK", "name"),
                    ("CONNECTOR", "connector"),
                    ("STATE", "state"),
                    ("CIRCUIT", "circuit"),
                    ("QUEUED", "queued"),
                    ("SENT", "sent"),
                    ("RETRIED", "retried"),
                    ("DEAD LETTERS", "dead_letters"),
                    ("FAILING SINCE", "failing_since_ms"),
                    ("LAST ERROR", "last_error"),
                ];
                list("sink-status", &columns, limit.limit, client, output).await
            }
            Self::DeadLetters(letters) => letters.run(client, output).await,
        }
    }
}

impl DeadLetters {
    async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
        let path = |sink: &str| format!("/api/v1/sinks/{}/dead-letters", encoded(sink));
        let (chosen, doing, done) = match self {
            Self::List { sink, limit } => {
                let columns = [
                    ("ID", "id"),
                    ("AT", "at_ms"),
                    ("ATTEMPTS", "attempts"),
                    ("ERROR", "error"),
                    ("ROW", "row"),
                ];
                return output.rows(client.rows(&path(&sink), limit.limit).await?, &columns);
            }
            Self::Replay(chosen) => (chosen, "replay", "queued again"),
            Self::Discard(chosen) => (chosen, "discard", "thrown away"),
        };
        let path = format!("{}/{doing}", path(&chosen.sink));
        let answer = match chosen.ids.is_empty() {
            true => client.ask(&path).await?,
            false => client.post(&path, &json!({"ids": chosen.ids})).await?,
        };
        output.done(&format!("{} {done}", answer["count"]), &answer)
    }
}

#[derive(Subcommand)]
pub(super) enum Sources {
    #[command(flatten)]
    Objects(Objects),
    /// How they do
    Status {
        #[command(flatten)]
        limit: Limit,
    },
}

impl Sources {
    pub(super) async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
        match self {
            Self::Objects(objects) => objects.run(Kind::Sources, client, output).await,
            Self::Status { limit } => {
                let columns = [
                    ("SOURCE", "name"),
                    ("CONNECTOR", "connector"),
                    ("STATE", "state"),
                    ("RECEIVED", "received"),
                    ("FAILURES", "failures"),
                    ("LAST ERROR", "last_error"),
                ];
                list("source-status", &columns, limit.limit, client, output).await
            }
        }
    }
}

pub(super) async fn list(
    what: &str,
    columns: &[Column],
    limit: usize,
    client: &Client,
    output: &Output,
) -> anyhow::Result<()> {
    let (rows, has_more) = client.rows(&format!("/api/v1/{what}"), limit).await?;
    let rows = rows.into_iter().map(flat).collect();
    output.rows((rows, has_more), columns)
}

/// Metrics beside the fields around them.
fn flat(mut row: Value) -> Value {
    if let (Value::Object(metrics), Some(fields)) = (row["metrics"].take(), row.as_object_mut()) {
        fields.extend(metrics);
    }
    if let Some(fields) = row.as_object_mut() {
        fields.remove("metrics");
    }
    row
}
