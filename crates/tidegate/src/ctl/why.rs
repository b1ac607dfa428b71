//! `tidegate ctl why`: records what happens to messages, and prints it.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Map, Value, json};

use super::http::{ApiClient, with_query};
use super::output::{CtlOutput, OutputFormat, format_date, print_text};

/// Time between two requests for new steps.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Args)]
pub(crate) struct WhyArgs {
    /// Messages on topics that this filter matches, such as plant/#; default: all topics
    #[arg(value_name = "FILTER")]
    topic_filter: Option<String>,
    /// Messages that this client publishes or that are for it
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// Seconds to record
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// End after this many steps
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
    /// Print the previous recording instead of starting one
    #[arg(long)]
    last: bool,
}

impl WhyArgs {
    /// Prints one line per step of a message; JSON with --json.
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let mut printer = StepPrinter {
            filters: [
                ("matches_filter", self.topic_filter.clone()),
                ("client_id", self.client_id.clone()),
            ],
            printed: 0,
            left: self.count,
            next: None,
            is_json: output.format == OutputFormat::Json,
        };
        if self.last {
            return printer.print_new(client).await;
        }
        let mut recording = Map::from_iter([("duration_s".to_owned(), json!(self.seconds))]);
        for (field, value) in [
            ("topic_filter", self.topic_filter),
            ("client_id", self.client_id),
        ] {
            recording.extend(value.map(|value| (field.to_owned(), value.into())));
        }
        let path = "/api/v1/message-recording";
        client.put(path, &Value::Object(recording), None).await?;
        let end = Instant::now() + Duration::from_secs(self.seconds);
        while Instant::now() < end && printer.left != Some(0) {
            tokio::time::sleep(POLL_INTERVAL).await;
            printer.print_new(client).await?;
        }
        client.delete(path).await?;
        printer.print_new(client).await
    }
}

struct StepPrinter {
    filters: [(&'static str, Option<String>); 2],
    /// Number of the last step that was printed.
    printed: u64,
    /// Number of steps still to print; `None`: no limit.
    left: Option<u64>,
    /// Cursor of the page that is continued.
    next: Option<String>,
    is_json: bool,
}

impl StepPrinter {
    /// Prints the steps after the last one that was printed.
    async fn print_new(&mut self, client: &ApiClient) -> anyhow::Result<()> {
        loop {
            let [topic, client_id] = self.filters.clone();
            let limit = ("limit", Some("1000".to_owned()));
            let page = ("after", self.next.clone());
            let path = with_query("/api/v1/message-trace", &[topic, client_id, limit, page]);
            let answer = client.get(&path).await?;
            for step in answer["data"].as_array().into_iter().flatten() {
                let number = step["number"].as_u64().unwrap_or(0);
                if number <= self.printed || self.left == Some(0) {
                    continue;
                }
                self.printed = number;
                self.left = self.left.map(|left| left - 1);
                match self.is_json {
                    true => print_text(&format!("{step}\n"))?,
                    false => print_text(&step_line(step))?,
                }
            }
            match answer["next"].as_str() {
                Some(next) => self.next = Some(next.to_owned()),
                // The last page is read again until it is full.
                None => return Ok(()),
            }
        }
    }
}

/// Time, message, topic, and what happened.
fn step_line(step: &Value) -> String {
    let text = |field: &str| step[field].as_str().unwrap_or("-");
    let rules = || {
        let names = step["rules"].as_array().into_iter().flatten();
        let names: Vec<_> = names.filter_map(Value::as_str).collect();
        names.join(", ")
    };
    let what = match text("step") {
        "received" => format!(
            "received from {}, QoS {}, {} bytes",
            text("publisher"),
            step["qos"],
            step["payload_bytes"]
        ),
        "denied" => format!("denied to {}", text("publisher")),
        "rules" => format!("evaluated by the rules {}", rules()),
        "queued" => format!("queued for {}, which is not connected", text("subscriber")),
        "sent" => format!("sent to {}, QoS {}", text("subscriber"), step["qos"]),
        "acknowledged" => format!("acknowledged by {}", text("subscriber")),
        "dropped" if step["subscriber"].is_null() => format!("dropped: {}", text("reason")),
        _ => format!("dropped for {}: {}", text("subscriber"), text("reason")),
    };
    let at = format_date(step["at_ms"].as_u64().unwrap_or(0));
    let (message, topic) = (text("message_id"), text("topic"));
    format!("{at}  {message}  {topic}  {what}\n")
}
