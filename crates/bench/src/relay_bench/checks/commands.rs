//! Commands over the HTTP API to devices of an endpoint. Each must arrive once, only at its device, and its
//! acknowledgement must be the result of the request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use serde_json::json;

use super::check_client::{CheckClient, TIMEOUT, identify};
use super::check_result::CheckResult;
use crate::host::now_ns;
use crate::metrics::latency_histogram;
use crate::relay_bench::message_template::RelayMode;
use crate::relay_bench::server::{EndpointSet, RelayServer, definition};

const DEVICES: usize = 10;
/// For each device, one after the other.
const COMMANDS: u64 = 100;

/// What one device, or the one who commands it, has seen.
struct CommandCounts {
    /// Until the device has the command; until the request has the result.
    latency: Histogram<u64>,
    right: u64,
    wrong: u64,
}

pub(super) fn run(server: &RelayServer, result: &mut CheckResult) -> anyhow::Result<()> {
    let fields = definition(RelayMode::Json, DEVICES + 1, 0);
    let mut endpoints = EndpointSet::create(server, 1, &fields)?;
    let endpoint = endpoints.ids[0].clone();
    let mut bystander = CheckClient::connect(server, &endpoint)?;
    let mut devices = Vec::new();
    for number in 0..DEVICES {
        let name = format!("device-{number}");
        endpoints.devices.push(endpoints.device_id(0, &name));
        let mut device = CheckClient::start(server, &endpoint, Some(&identify(&name)))?;
        let answer = device.receive(TIMEOUT)?;
        answer.context("no answer to identify")?;
        devices.push((device, name));
    }
    let is_over = AtomicBool::new(false);
    let (received, answered) = std::thread::scope(|scope| -> anyhow::Result<_> {
        let executing: Vec<_> = devices
            .into_iter()
            .map(|(device, name)| scope.spawn(|| execute_commands(device, name, &is_over)))
            .collect();
        let sending: Vec<_> = (endpoints.devices.iter())
            .map(|id| scope.spawn(|| send_commands(server, id)))
            .collect();
        let answered = sum(sending);
        is_over.store(true, Ordering::Release);
        Ok((sum(executing)?, answered?))
    })?;
    let leaked = bystander.receive(Duration::from_millis(10))?;
    let all = DEVICES as u64 * COMMANDS;
    result.value("commands", all as f64, "");
    let names = [
        "request to control message, p50",
        "request to control message, p99",
        "request to control message, max",
    ];
    result.latencies(names, &received.latency);
    let names = [
        "request to result, p50",
        "request to result, p99",
        "request to result, max",
    ];
    result.latencies(names, &answered.latency);
    result.expect("commands executed once and in order", received.right, all);
    result.expect("other messages to devices", received.wrong, 0);
    result.expect(
        "requests with the result of the device",
        answered.right,
        all,
    );
    result.expect("messages to a bystander", u64::from(leaked.is_some()), 0);
    Ok(())
}

fn sum(
    threads: Vec<std::thread::ScopedJoinHandle<'_, anyhow::Result<CommandCounts>>>,
) -> anyhow::Result<CommandCounts> {
    let mut sum = CommandCounts {
        latency: latency_histogram(),
        right: 0,
        wrong: 0,
    };
    for thread in threads {
        let Ok(counts) = thread.join() else {
            bail!("a thread of the check panicked; this is a bug");
        };
        let counts = counts?;
        sum.latency
            .add(&counts.latency)
            .expect("all latency histograms have the same bounds");
        sum.right += counts.right;
        sum.wrong += counts.wrong;
    }
    Ok(sum)
}

/// Answers the commands of a device until all requests have ended.
fn execute_commands(
    mut device: CheckClient,
    name: String,
    is_over: &AtomicBool,
) -> anyhow::Result<CommandCounts> {
    let mut counts = CommandCounts {
        latency: latency_histogram(),
        right: 0,
        wrong: 0,
    };
    while !is_over.load(Ordering::Acquire) {
        let Some(control) = device.receive(Duration::from_millis(50))? else {
            continue;
        };
        let received_ns = now_ns();
        let params = &control["params"];
        let is_right = control["type"] == "control"
            && control["deviceId"] == name.as_str()
            && params["number"] == counts.right;
        if !is_right {
            counts.wrong += 1;
            continue;
        }
        let sent_ns = params["sent_ns"].as_u64().unwrap_or(received_ns);
        counts.latency.saturating_record(received_ns - sent_ns);
        device.send(&json!({
            "type": "control_ack",
            "status": "success",
            "commandId": control["commandId"],
            "data": params["number"],
        }))?;
        counts.right += 1;
    }
    Ok(counts)
}

/// Sends the commands of a device, each when the one before has its result.
fn send_commands(server: &RelayServer, device_id: &str) -> anyhow::Result<CommandCounts> {
    let mut counts = CommandCounts {
        latency: latency_histogram(),
        right: 0,
        wrong: 0,
    };
    let path = format!("/api/v1/devices/{device_id}/commands");
    for number in 0..COMMANDS {
        let sent_ns = now_ns();
        let body = json!({"method": "test", "params": {"number": number, "sent_ns": sent_ns}});
        let command = server.api()?.request_json("POST", &path, Some(&body))?;
        counts.latency.saturating_record(now_ns() - sent_ns);
        let is_right = command["state"] == "success" && command["result"] == number;
        counts.right += u64::from(is_right);
        counts.wrong += u64::from(!is_right);
    }
    Ok(counts)
}
