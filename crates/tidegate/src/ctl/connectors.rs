//! `tidegate ctl connectors`, `sinks` and `sources`: objects, connection tests, states and dead
//! letters.

use clap::{Args, Subcommand};
use outbound::url_encoding::url_encode;
use serde_json::{Value, json};

use super::http::ApiClient;
use super::limit_args::LimitArgs;
use super::objects::{ObjectKindArg, ObjectsCommand};
use super::output::{Column, CtlOutput};

#[derive(Subcommand)]
pub(super) enum ConnectorsCommand {
    #[command(flatten)]
    Objects(ObjectsCommand),
    /// Test the connection of a connector with its credentials
    Test { name: String },
    /// Show the states of connectors
    Status {
        #[command(flatten)]
        limit: LimitArgs,
    },
    /// List connector types
    Types,
}

impl ConnectorsCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::Objects(objects) => objects.run(ObjectKindArg::Connectors, client, output).await,
            Self::Test { name } => {
                let path = format!("/api/v1/connectors/{}/test", url_encode(&name));
                let outcome = client.post_empty(&path).await?;
                let detail = outcome["detail"].as_str().unwrap_or_default();
                if outcome["is_reachable"] == false {
                    anyhow::bail!("{name} cannot be reached: {detail}");
                }
                output.print_done(&format!("{name} answers: {detail}"), &outcome)
            }
            Self::Status { limit } => {
                let columns = [
                    ("CONNECTOR", "name"),
                    ("TYPE", "type"),
                    ("SINKS", "sinks"),
                    ("FAILING", "is_failing"),
                ];
                list_statuses("connector-status", &columns, limit.limit, client, output).await
            }
            Self::Types => {
                let answer = client.get("/api/v1/connector-types").await?;
                let types = answer["data"].as_array().cloned().unwrap_or_default();
                output.print_rows((types, false), &[("TYPE", "type"), ("FOR", "title")])
            }
        }
    }
}

#[derive(Subcommand)]
pub(super) enum SinksCommand {
    #[command(flatten)]
    Objects(ObjectsCommand),
    /// Test the connection of a sink and check its statement, without writing a row
    Test { name: String },
    /// Show the states of sinks, or of one
    Status {
        name: Option<String>,
        #[command(flatten)]
        limit: LimitArgs,
    },
    /// Manage rows that could not be written
    #[command(subcommand)]
    DeadLetters(DeadLettersCommand),
}

#[derive(Subcommand)]
pub(super) enum DeadLettersCommand {
    /// List dead letters, oldest first
    List {
        sink: String,
        #[command(flatten)]
        limit: LimitArgs,
    },
    /// Queue dead letters again
    Replay(DeadLetterSelectionArgs),
    /// Delete dead letters
    Discard(DeadLetterSelectionArgs),
}

#[derive(Args)]
pub(super) struct DeadLetterSelectionArgs {
    sink: String,
    /// Only these ids; default: all
    #[arg(value_name = "ID", value_parser = parse_dead_letter_id)]
    ids: Vec<u64>,
}

fn parse_dead_letter_id(text: &str) -> Result<u64, String> {
    let expected = "expected the number of a dead letter, such as 17; `tidegate ctl sinks dead-letters list SINK` shows the numbers";
    text.parse().map_err(|_| expected.to_owned())
}

impl SinksCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::Objects(objects) => objects.run(ObjectKindArg::Sinks, client, output).await,
            Self::Test { name } => {
                let path = format!("/api/v1/sinks/{}/test", url_encode(&name));
                let outcome = client.post_empty(&path).await?;
                let detail = outcome["detail"].as_str().unwrap_or_default();
                if outcome["is_reachable"] == false {
                    anyhow::bail!("{name} cannot be written: {detail}");
                }
                output.print_done(&format!("{name} can be written: {detail}"), &outcome)
            }
            Self::Status {
                name: Some(name), ..
            } => {
                let path = format!("/api/v1/sinks/{}/status", url_encode(&name));
                output.print_fields(&flatten_metrics(client.get(&path).await?))
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
                list_statuses("sink-status", &columns, limit.limit, client, output).await
            }
            Self::DeadLetters(letters) => letters.run(client, output).await,
        }
    }
}

impl DeadLettersCommand {
    async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let path = |sink: &str| format!("/api/v1/sinks/{}/dead-letters", url_encode(sink));
        let (chosen, doing, done) = match self {
            Self::List { sink, limit } => {
                let columns = [
                    ("ID", "id"),
                    ("AT", "at_ms"),
                    ("ATTEMPTS", "attempts"),
                    ("ERROR", "error"),
                    ("ROW", "row"),
                ];
                return output.print_rows(client.rows(&path(&sink), limit.limit).await?, &columns);
            }
            Self::Replay(chosen) => (chosen, "replay", "queued again"),
            Self::Discard(chosen) => (chosen, "discard", "discarded"),
        };
        let path = format!("{}/{doing}", path(&chosen.sink));
        let answer = match chosen.ids.is_empty() {
            true => client.post_empty(&path).await?,
            false => client.post(&path, &json!({"ids": chosen.ids})).await?,
        };
        output.print_done(&format!("{} {done}", answer["count"]), &answer)
    }
}

#[derive(Subcommand)]
pub(super) enum SourcesCommand {
    #[command(flatten)]
    Objects(ObjectsCommand),
    /// Show the states of sources
    Status {
        #[command(flatten)]
        limit: LimitArgs,
    },
}

impl SourcesCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::Objects(objects) => objects.run(ObjectKindArg::Sources, client, output).await,
            Self::Status { limit } => {
                let columns = [
                    ("SOURCE", "name"),
                    ("CONNECTOR", "connector"),
                    ("STATE", "state"),
                    ("RECEIVED", "received"),
                    ("FAILURES", "failures"),
                    ("LAST ERROR", "last_error"),
                ];
                list_statuses("source-status", &columns, limit.limit, client, output).await
            }
        }
    }
}

pub(super) async fn list_statuses(
    what: &str,
    columns: &[Column],
    limit: usize,
    client: &ApiClient,
    output: &CtlOutput,
) -> anyhow::Result<()> {
    let (rows, has_more) = client.rows(&format!("/api/v1/{what}"), limit).await?;
    let rows = rows.into_iter().map(flatten_metrics).collect();
    output.print_rows((rows, has_more), columns)
}

/// Moves metrics to the level of the fields around them.
fn flatten_metrics(mut row: Value) -> Value {
    if let (Value::Object(metrics), Some(fields)) = (row["metrics"].take(), row.as_object_mut()) {
        fields.extend(metrics);
    }
    if let Some(fields) = row.as_object_mut() {
        fields.remove("metrics");
    }
    row
}
