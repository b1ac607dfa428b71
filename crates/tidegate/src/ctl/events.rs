//! `tidegate ctl events`: prints the event stream until it ends or is interrupted.

use clap::Args;
use http_body_util::BodyExt as _;
use serde_json::Value;

use super::http::{ApiClient, with_query};
use super::output::{format_date, print_text};

/// Maximum length of a line of a stream, in bytes.
const MAX_LINE_BYTES: usize = 1 << 20;

#[derive(Args)]
pub(super) struct EventsArgs {
    /// Only these types, such as connected,disconnected
    #[arg(long, value_name = "TYPES")]
    types: Option<String>,
    /// Only events of this client
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// End after this many events
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
}

impl EventsArgs {
    /// Prints one line per event: JSON with --json; otherwise the time first, then the fields.
    pub(super) async fn run(self, client: &ApiClient) -> anyhow::Result<()> {
        let parameters = [("types", self.types), ("client_id", self.client_id)];
        let path = with_query("/api/v1/events", &parameters);
        print_stream(client, &path, self.count, event_line).await
    }
}

/// Prints the items of a stream, formatted by `format_item`, up to the given number.
pub(super) async fn print_stream(
    client: &ApiClient,
    path: &str,
    count: Option<u64>,
    format_item: impl Fn(&str) -> String,
) -> anyhow::Result<()> {
    let mut body = client.stream(path).await?;
    let mut left = count;
    let mut buffered: Vec<u8> = Vec::new();
    while left != Some(0) {
        let Some(frame) = body.frame().await else {
            anyhow::bail!("the node ended the stream");
        };
        let frame = frame.map_err(|error| client.unreachable_error(error))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        buffered.extend_from_slice(&data);
        while let Some(end) = buffered.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffered.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(json) = line.trim_end().strip_prefix("data: ")
                && left != Some(0)
            {
                print_text(&format_item(json))?;
                left = left.map(|left| left - 1);
            }
        }
        anyhow::ensure!(
            buffered.len() <= MAX_LINE_BYTES,
            "the node sent a line without an end"
        );
    }
    Ok(())
}

fn event_line(json: &str) -> String {
    let Ok(Value::Object(mut event)) = serde_json::from_str(json) else {
        return format!("{json}\n");
    };
    let at_ms = event
        .remove("at_ms")
        .and_then(|at| at.as_u64())
        .unwrap_or(0);
    let name = event.remove("event").unwrap_or_default();
    let name = name.as_str().unwrap_or_default();
    format!(
        "{}  {name:13} {}\n",
        format_date(at_ms),
        Value::Object(event)
    )
}
