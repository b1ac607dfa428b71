//! `identify` in the same segment as the request for the connection. Each device must be answered, once and with its
//! name, and nobody else may get anything.

use std::time::Duration;

use serde_json::json;

use super::check_client::{CheckClient, TIMEOUT, identify};
use super::check_result::CheckResult;
use crate::host::now_ns;
use crate::metrics::latency_histogram;
use crate::relay_bench::message_template::RelayMode;
use crate::relay_bench::server::{EndpointSet, RelayServer, definition};

const DEVICES: usize = 100;

pub(super) fn run(server: &RelayServer, result: &mut CheckResult) -> anyhow::Result<()> {
    let fields = definition(RelayMode::Json, DEVICES + 1, 0);
    let mut endpoints = EndpointSet::create(server, 1, &fields)?;
    let endpoint = endpoints.ids[0].clone();
    let mut observer = CheckClient::connect(server, &endpoint)?;
    let mut latency = latency_histogram();
    let mut devices = Vec::new();
    let mut answered = 0;
    for number in 0..DEVICES {
        let name = format!("device-{number}");
        endpoints.devices.push(endpoints.device_id(0, &name));
        let started_ns = now_ns();
        let mut device = CheckClient::start(server, &endpoint, Some(&identify(&name)))?;
        let answer = device.receive(TIMEOUT)?.unwrap_or_default();
        latency.saturating_record(now_ns() - started_ns);
        if answer["type"] == "identified" && answer["deviceId"] == name.as_str() {
            answered += 1;
        }
        devices.push(device);
    }
    // Everything that was sent before arrives before this message.
    observer.send(&json!({"type": "message", "data": "end"}))?;
    let mut relayed_rightly = 0;
    for device in &mut devices {
        let message = device.receive(TIMEOUT)?.unwrap_or_default();
        relayed_rightly += u64::from(message["data"] == "end");
    }
    let leaked = observer.receive(Duration::from_millis(10))?;
    let mut online = 0;
    for id in &endpoints.devices {
        let path = format!("/api/v1/devices/{id}");
        let device = server.api()?.request_json("GET", &path, None)?;
        online += u64::from(device["state"] == "online");
    }
    result.value("devices", DEVICES as f64, "");
    result.value("identified with their first message", answered as f64, "");
    let names = [
        "connected and identified, p50",
        "connected and identified, p99",
        "connected and identified, max",
    ];
    result.latencies(names, &latency);
    result.expect("devices identified", answered, DEVICES as u64);
    result.expect("devices online", online, DEVICES as u64);
    let next = "devices whose next message was the one sent to all";
    result.expect(next, relayed_rightly, DEVICES as u64);
    result.expect("messages to a bystander", u64::from(leaked.is_some()), 0);
    Ok(())
}
