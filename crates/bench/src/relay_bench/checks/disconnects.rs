//! A hundred connections that end without a close frame: resets, ends of the stream, and clients that answer no ping. The
//! statistics must be right within five seconds, and what remains must work.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;

use super::check_client::{CheckClient, TIMEOUT};
use super::check_result::CheckResult;
use crate::relay_bench::message_template::RelayMode;
use crate::relay_bench::server::{EndpointSet, RelayServer, definition};

const REMAINING: usize = 50;
const RESET: usize = 40;
const ENDED: usize = 30;
const SILENT: usize = 30;
const VANISHING: usize = RESET + ENDED + SILENT;
/// Clients that answer no ping are disconnected after three of these.
const PING_INTERVAL_S: u64 = 1;
const LIMIT: Duration = Duration::from_secs(5);

pub(super) fn run(server: &RelayServer, result: &mut CheckResult) -> anyhow::Result<()> {
    let all = REMAINING + VANISHING;
    let mut fields = definition(RelayMode::Direct, all, 0);
    fields["ping_interval_s"] = json!(PING_INTERVAL_S);
    let endpoints = EndpointSet::create(server, 1, &fields)?;
    let connect = |count: usize| -> anyhow::Result<Vec<CheckClient>> {
        (0..count)
            .map(|_| CheckClient::connect(server, &endpoints.ids[0]))
            .collect()
    };
    // A client that never reads answers no ping, so these come last.
    let mut remaining = connect(REMAINING)?;
    let (reset, ended) = (connect(RESET)?, connect(ENDED)?);
    let silent = connect(SILENT)?;
    let number = |name: &str| -> anyhow::Result<u64> {
        Ok(endpoints.status(0)?[name].as_u64().unwrap_or(u64::MAX))
    };
    result.expect(
        "connections before",
        number("current_connections")?,
        all as u64,
    );
    let started = Instant::now();
    for client in reset {
        client.reset()?;
    }
    drop(ended);
    let mut tcp_right_ms = None;
    let mut current = u64::MAX;
    while current != REMAINING as u64 && started.elapsed() < LIMIT {
        for client in &mut remaining {
            // Answers pings; no message was sent.
            let message = client.receive(Duration::ZERO)?;
            result.expect("messages before", u64::from(message.is_some()), 0);
        }
        current = number("current_connections")?;
        if current <= (REMAINING + SILENT) as u64 {
            tcp_right_ms.get_or_insert(started.elapsed().as_secs_f64() * 1e3);
        }
    }
    let right_ms = started.elapsed().as_secs_f64() * 1e3;
    drop(silent);
    for (sender, client) in remaining.iter_mut().enumerate() {
        client.send(&json!({ "sender": sender }))?;
    }
    let mut delivered = 0;
    for (receiver, client) in remaining.iter_mut().enumerate() {
        // Each message once: a repeated one may stand for another that was lost.
        let mut senders = BTreeSet::new();
        for _ in 0..REMAINING - 1 {
            let message = client.receive(TIMEOUT)?.unwrap_or_default();
            senders.extend(message["sender"].as_u64());
        }
        senders.remove(&(receiver as u64));
        delivered += senders.len() as u64;
    }
    result.value("connections before", all as f64, "");
    result.value("broken connections", VANISHING as f64, "");
    result.value("connections afterwards", current as f64, "");
    if let Some(ms) = tcp_right_ms {
        result.value("resets and ended streams counted after", ms, "ms");
    }
    result.value("statistics right after", right_ms, "ms");
    result.expect("connections afterwards", current, REMAINING as u64);
    result.expect(
        "connections in total",
        number("total_connections")?,
        all as u64,
    );
    result.expect(
        "messages in total",
        number("total_messages")?,
        REMAINING as u64,
    );
    let expected = (REMAINING * (REMAINING - 1)) as u64;
    result.expect("messages delivered afterwards", delivered, expected);
    Ok(())
}
