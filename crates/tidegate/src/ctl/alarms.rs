//! `tidegate ctl alarms`, `notifications` and `node-alarm-rules`: alarms, their notifications, and
//! the rules of the node's own alarms.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use outbound::url_encoding::url_encode;
use serde_json::{Value, json};

use super::events;
use super::http::{ApiClient, with_query};
use super::limit_args::LimitArgs;
use super::objects::{ObjectKindArg, ObjectsCommand};
use super::output::{Column, CtlOutput, format_date};

const COLUMNS: &[Column] = &[
    ("ALARM", "id"),
    ("SEVERITY", "severity"),
    ("STATE", "state"),
    ("DEVICE", "deviceId"),
    ("TYPE", "type"),
    ("RAISED", "raised_at_ms"),
    ("DETAILS", "details"),
];

#[derive(Subcommand)]
pub(super) enum AlarmsCommand {
    /// List alarms, newest first
    List(AlarmListArgs),
    /// Show an alarm
    Show {
        #[arg(value_parser = parse_alarm_id)]
        id: u64,
    },
    /// Acknowledge one or several alarms
    Ack {
        #[arg(required = true, value_parser = parse_alarm_id)]
        ids: Vec<u64>,
    },
    /// Clear one or several alarms, regardless of their conditions
    Clear {
        #[arg(required = true, value_parser = parse_alarm_id)]
        ids: Vec<u64>,
    },
    /// Comment an alarm
    Comment {
        #[arg(value_parser = parse_alarm_id)]
        id: u64,
        /// Text of the comment
        text: String,
    },
    /// Delete one or several alarms
    Delete {
        #[arg(required = true, value_parser = parse_alarm_id)]
        ids: Vec<u64>,
    },
    /// Count alarms
    Count,
    /// Print alarm changes as they happen
    Watch {
        #[command(flatten)]
        wanted: AlarmFilterArgs,
        /// End after this many changes
        #[arg(short = 'n', long, value_name = "N")]
        count: Option<u64>,
    },
}

fn parse_alarm_id(text: &str) -> Result<u64, String> {
    let expected =
        "expected the number of an alarm, such as 17; `tidegate ctl alarms list` shows the numbers";
    text.parse().map_err(|_| expected.to_owned())
}

#[derive(Args)]
pub(super) struct AlarmFilterArgs {
    /// Only alarms of this device, and those propagated to it
    #[arg(long, value_name = "ID")]
    device: Option<String>,
    /// Only alarms of devices of this product
    #[arg(long, value_name = "ID")]
    product: Option<String>,
    /// Only alarms of this type
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Only these severities, such as CRITICAL,MAJOR
    #[arg(long, value_name = "SEVERITIES")]
    severity: Option<String>,
}

#[derive(Args)]
pub(super) struct AlarmListArgs {
    #[command(flatten)]
    wanted: AlarmFilterArgs,
    /// Only these states, such as ACTIVE_UNACK,ACTIVE_ACK
    #[arg(long, value_name = "STATES")]
    state: Option<String>,
    /// Only alarms that are not cleared
    #[arg(long, conflicts_with = "state")]
    active: bool,
    #[command(flatten)]
    limit: LimitArgs,
}

impl AlarmFilterArgs {
    fn query_parameters(self) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("device", self.device),
            ("product", self.product),
            ("type", self.kind),
            ("severity", self.severity),
        ]
    }
}

impl AlarmsCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let one = |id: u64| format!("/api/v1/alarms/{id}");
        match self {
            Self::List(arguments) => arguments.run(client, output).await,
            Self::Show { id } => output.print_fields(&client.get(&one(id)).await?),
            Self::Ack { ids } => {
                for id in ids {
                    let path = format!("{}/acknowledge", one(id));
                    let alarm = client.post_empty(&path).await?;
                    output.print_done(&format!("alarm {id} was acknowledged"), &alarm)?;
                }
                Ok(())
            }
            Self::Clear { ids } => {
                for id in ids {
                    let alarm = client.post_empty(&format!("{}/clear", one(id))).await?;
                    output.print_done(&format!("alarm {id} was cleared"), &alarm)?;
                }
                Ok(())
            }
            Self::Comment { id, text } => {
                let path = format!("{}/comments", one(id));
                let alarm = client.post(&path, &json!({"text": text})).await?;
                output.print_done(&format!("alarm {id} has a new comment"), &alarm)
            }
            Self::Delete { ids } => {
                for id in ids {
                    let answer = client.delete(&one(id)).await?;
                    output.print_done(&format!("alarm {id} was deleted"), &answer)?;
                }
                Ok(())
            }
            Self::Count => output.print_fields(&client.get("/api/v1/alarm-counts").await?),
            Self::Watch { wanted, count } => {
                let path = with_query("/api/v1/alarm-events", &wanted.query_parameters());
                events::print_stream(client, &path, count, alarm_line).await
            }
        }
    }
}

impl AlarmListArgs {
    async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let mut parameters = self.wanted.query_parameters();
        let active = self.active.then(|| "ACTIVE_UNACK,ACTIVE_ACK".to_owned());
        parameters.push(("state", self.state.or(active)));
        let path = with_query("/api/v1/alarms", &parameters);
        output.print_rows(client.rows(&path, self.limit.limit).await?, COLUMNS)
    }
}

fn alarm_line(json: &str) -> String {
    let Ok(event) = serde_json::from_str::<Value>(json) else {
        return format!("{json}\n");
    };
    let at_ms = event["at_ms"].as_u64().unwrap_or(0);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let alarm = &event["alarm"];
    if alarm.is_null() {
        return format!("{}  {event}\n", format_date(at_ms));
    }
    format!(
        "{}  {:16} {:13} {} {} {}: {}\n",
        format_date(at_ms),
        text(&event["event"]),
        text(&alarm["severity"]),
        alarm["id"],
        text(&alarm["deviceId"]),
        text(&alarm["type"]),
        text(&alarm["details"]),
    )
}

#[derive(Subcommand)]
pub(super) enum NotificationsCommand {
    #[command(flatten)]
    Objects(ObjectsCommand),
    /// Show counters of notifications
    Status,
    /// Send a test notification about a fictitious alarm
    Test { name: String },
}

impl NotificationsCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::Objects(objects) => {
                objects
                    .run(ObjectKindArg::Notifications, client, output)
                    .await
            }
            Self::Status => {
                let columns = [
                    ("NOTIFICATION", "name"),
                    ("SENT", "sent"),
                    ("SUPPRESSED", "suppressed"),
                    ("FAILED", "failed"),
                ];
                let mut answer = client.get("/api/v1/notification-status").await?;
                let rows = match answer["data"].take() {
                    Value::Array(rows) => rows,
                    _ => Vec::new(),
                };
                output.print_rows((rows, false), &columns)
            }
            Self::Test { name } => {
                let path = format!("/api/v1/notifications/{}/test", url_encode(&name));
                let answer = client.post_empty(&path).await?;
                output.print_done(&format!("{name} was sent"), &answer)
            }
        }
    }
}

#[derive(Subcommand)]
pub(super) enum NodeAlarmRulesCommand {
    /// Print the rules in the form that `set` accepts
    Show,
    /// Replace the rules by those of a file: a JSON array, or an object with it in `rules`
    Set { file: PathBuf },
    /// Restore the default rules
    Reset,
}

impl NodeAlarmRulesCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        const PATH: &str = "/api/v1/node-alarm-rules";
        match self {
            Self::Show => super::output::print_text(&format!("{:#}\n", client.get(PATH).await?)),
            Self::Set { file } => {
                let shown = file.display();
                let text = std::fs::read_to_string(&file);
                let text = text.with_context(|| format!("cannot read {shown}"))?;
                let read: Value =
                    serde_json::from_str(&text).with_context(|| format!("{shown} is not JSON"))?;
                let body = match read {
                    Value::Array(rules) => json!({"rules": rules}),
                    other => other,
                };
                let answer = client.put(PATH, &body, None).await?;
                output.print_done("the rules of the node's own alarms were changed", &answer)
            }
            Self::Reset => {
                let answer = client.delete(PATH).await?;
                output.print_done("the default rules were restored", &answer)
            }
        }
    }
}
