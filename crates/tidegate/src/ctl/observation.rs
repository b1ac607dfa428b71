//! `tidegate ctl messages`, `published-topics`, `rejected-connections`, `history` and `limits`: what
//! happens at the node.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::broker_commands::take_rows;
use super::events::print_stream;
use super::http::{ApiClient, with_query};
use super::limit_args::LimitArgs;
use super::output::{CtlOutput, OutputFormat, format_date};

#[derive(Subcommand)]
pub(super) enum MessagesCommand {
    /// Print messages as they are published
    Watch(WatchArgs),
}

#[derive(Args)]
pub(super) struct WatchArgs {
    /// Messages on topics that this filter matches, such as plant/#
    #[arg(
        value_name = "FILTER",
        required_unless_present = "client_id",
        conflicts_with = "client_id"
    )]
    topic_filter: Option<String>,
    /// Messages that this client publishes and receives
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// Maximum number of messages per second; others are only counted
    #[arg(long, value_name = "N")]
    max_per_s: Option<u32>,
    /// End after this many lines
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
}

impl MessagesCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let Self::Watch(arguments) = self;
        let parameters = [
            ("topic_filter", arguments.topic_filter),
            ("client_id", arguments.client_id),
            ("max_per_s", arguments.max_per_s.map(|max| max.to_string())),
        ];
        let path = with_query("/api/v1/messages/live", &parameters);
        let line: fn(&str) -> String = match output.format {
            OutputFormat::Json => |json| format!("{json}\n"),
            OutputFormat::Table => message_line,
        };
        print_stream(client, &path, arguments.count, line).await
    }
}

/// A message on one line: time, direction, topic, payload.
fn message_line(json: &str) -> String {
    let Ok(event) = serde_json::from_str::<Value>(json) else {
        return format!("{json}\n");
    };
    let at = format_date(event["at_ms"].as_u64().unwrap_or(0));
    if event["event"] != "message" {
        let (name, count) = (event["event"].as_str(), &event["count"]);
        return format!("{at}  {}: {count} messages\n", name.unwrap_or_default());
    }
    let text = |field: &str| event[field].as_str().unwrap_or_default();
    let payload = match text("payload_encoding") {
        "text" => Value::from(text("payload")).to_string(),
        encoding => format!("{encoding}:{}", text("payload")),
    };
    let rest = match event["is_truncated"].as_bool() {
        Some(true) => format!(" ... {} bytes", event["payload_bytes"]),
        _ => String::new(),
    };
    let (direction, topic) = (text("direction"), text("topic"));
    format!("{at}  {direction:9}  {topic}  {payload}{rest}\n")
}

#[derive(Args)]
pub(super) struct PublishedTopicsArgs {
    /// Topic whose direct children are shown; default: the first levels
    #[arg(value_name = "TOPIC")]
    parent: Option<String>,
    /// Only whole topics with this text
    #[arg(long, value_name = "PART")]
    contains: Option<String>,
    #[command(flatten)]
    limit: LimitArgs,
}

impl PublishedTopicsArgs {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let parameters = [("parent", self.parent), ("contains", self.contains)];
        let path = with_query("/api/v1/published-topics", &parameters);
        let columns = [
            ("TOPIC", "topic"),
            ("TOPICS", "topics"),
            ("MESSAGES", "messages"),
            ("PER SECOND", "messages_per_s"),
            ("LAST", "last_at_ms"),
            ("PAYLOAD", "payload"),
        ];
        let (mut rows, has_more) = client.rows(&path, self.limit.limit).await?;
        if output.format == OutputFormat::Table {
            for row in &mut rows {
                row["payload"] = row["last"]["payload"].take();
            }
        }
        output.print_rows((rows, has_more), &columns)
    }
}

#[derive(Args)]
pub(super) struct RejectedConnectionsArgs {
    /// Only clients with this in their id
    #[arg(long, value_name = "PART")]
    client_id: Option<String>,
    /// Only this user
    #[arg(long, value_name = "NAME")]
    username: Option<String>,
    /// Only this IP address
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
}

impl RejectedConnectionsArgs {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let parameters = [
            ("client_id_contains", self.client_id),
            ("username", self.username),
            ("address", self.address),
            ("limit", Some("1000".to_owned())),
        ];
        let path = with_query("/api/v1/rejected-connections", &parameters);
        let mut answer = client.get(&path).await?;
        let columns = [
            ("AT", "at_ms"),
            ("COUNT", "count"),
            ("CLIENT", "client_id"),
            ("USER", "username"),
            ("ADDRESS", "address"),
            ("LISTENER", "listener"),
            ("STEP", "step"),
            ("REASON", "reason"),
        ];
        output.print_rows((take_rows(&mut answer), false), &columns)
    }
}

#[derive(Args)]
pub(super) struct HistoryArgs {
    /// Names of metrics; default: lists all of them
    #[arg(value_name = "METRIC")]
    metrics: Vec<String>,
    /// Time range until now, in hours
    #[arg(long, value_name = "N", default_value_t = 24)]
    hours: u32,
    /// Length of an interval in seconds
    #[arg(long, value_name = "N", default_value_t = 3600)]
    interval_s: u32,
}

impl HistoryArgs {
    /// Prints the averages, one line per interval and one column per metric.
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        if self.metrics.is_empty() {
            let mut answer = client.get("/api/v1/node/metrics").await?;
            let columns = [("METRIC", "name"), ("RATE", "is_rate"), ("HELP", "help")];
            return output.print_rows((take_rows(&mut answer), false), &columns);
        }
        let range_ms = u64::from(self.hours) * 3_600_000;
        let from_ms = wall_clock::now_ms().saturating_sub(range_ms);
        let interval_ms = u64::from(self.interval_s) * 1000;
        let parameters = [
            ("metrics", Some(self.metrics.join(","))),
            ("from_ms", Some(from_ms.to_string())),
            ("interval_ms", Some(interval_ms.to_string())),
        ];
        let table = client
            .get(&with_query("/api/v1/node/history", &parameters))
            .await?;
        if output.format == OutputFormat::Json {
            return output.print_fields(&table);
        }
        let times = table["ts_ms"].as_array().cloned().unwrap_or_default();
        let mut lines = format!("{:20}  {}\n", "FROM", self.metrics.join("  "));
        for (at, start) in times.iter().enumerate() {
            let start = format_date(start.as_u64().unwrap_or(0));
            lines.push_str(&format!("{start:20}"));
            for (column, name) in self.metrics.iter().enumerate() {
                let value = match table["columns"][column]["avg"][at].as_f64() {
                    Some(value) => format!("{value:.2}"),
                    None => "-".to_owned(),
                };
                lines.push_str(&format!("  {value:>width$}", width = name.len()));
            }
            lines.push('\n');
        }
        super::output::print_text(&lines)
    }
}

pub(super) async fn limits(client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
    let columns = [
        ("SETTING", "setting"),
        ("USED", "used"),
        ("LIMIT", "limit"),
        ("UTILISATION", "utilisation"),
        ("UNIT", "unit"),
    ];
    let mut answer = client.get("/api/v1/limits").await?;
    output.print_rows((take_rows(&mut answer), false), &columns)
}
