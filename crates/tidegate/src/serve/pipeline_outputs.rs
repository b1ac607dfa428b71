//! Distributes device messages and stored rows to all consumers. A new consumer gets a field in
//! [`NodePipelineOutputs`] and a line in the methods that concern it. All methods run on shards and
//! workers and never block.

use std::sync::Arc;

use broker::BrokerHandle;
use broker::control::PublishRequest;
use devices::DeviceNo;
use devices::command::{Commands, EncodedDownlink, Recipient};
use devices::ingest::{DeviceRef, PipelineOutputs, ProductProfile, SettleScope};
use devices::protocol::{ControlMessage, DeviceProtocol};
use hooks::DurableCallback;
use series::Point;
use wall_clock::now_ms;

use super::alarms::AlarmInputs;
use super::chain_publisher::ChainPublisher;
use super::device_sinks::DeviceSinks;
use super::firmware_reports::FirmwareReports;

pub(super) struct NodePipelineOutputs {
    sinks: DeviceSinks,
    commands: Commands,
    chains: Arc<ChainPublisher>,
    alarms: AlarmInputs,
    firmware: FirmwareReports,
}

impl NodePipelineOutputs {
    pub(super) fn new(
        alarming: AlarmInputs,
        sinks: DeviceSinks,
        commands: Commands,
        firmware: FirmwareReports,
    ) -> Self {
        Self {
            firmware,
            commands,
            sinks,
            chains: Arc::new(ChainPublisher::new()),
            alarms: alarming,
        }
    }

    pub(super) fn sinks(&self) -> &DeviceSinks {
        &self.sinks
    }

    /// The log entry of a downlink, to be written once it is sent.
    pub(super) fn pending_log_entry(
        self: &Arc<Self>,
        downlink: &EncodedDownlink,
    ) -> PendingLogEntry {
        let written = |to: &Recipient| LoggedDownlink {
            outputs: self.clone(),
            recipient: to.clone(),
            topic: downlink.topic.clone(),
            payload: downlink.payload.clone(),
        };
        PendingLogEntry(downlink.log_recipient.as_ref().map(written))
    }

    /// Wakes devices that wait for a command over HTTP, so that they check again; `None`: all of
    /// them.
    pub(super) fn wake_command_pollers(&self, device: Option<DeviceNo>) {
        self.commands.wake_pollers(device);
    }

    /// Starts publishing. Must be called within the runtime.
    pub(super) fn start(&self, handle: BrokerHandle) {
        self.chains.start(handle);
    }
}

/// A message to a device for the log of its product, if the product has one.
pub(super) struct PendingLogEntry(Option<LoggedDownlink>);

struct LoggedDownlink {
    outputs: Arc<NodePipelineOutputs>,
    recipient: Recipient,
    topic: String,
    payload: String,
}

impl PendingLogEntry {
    /// Writes the entry after the message was sent. Never blocks.
    pub(super) fn write(self) {
        if let Some(written) = self.0 {
            let sinks = &written.outputs.sinks;
            let (topic, payload) = (&written.topic, written.payload.as_bytes());
            sinks.push_downlink_log(&written.recipient, topic, payload, now_ms() as i64);
        }
    }
}

/// Whether a subscription to this filter makes the client a receiver for child devices.
fn may_match_gateway_topics(filter: &str) -> bool {
    filter.starts_with("v1/gateway/") || filter.contains("/child/") || filter.ends_with('#')
}

/// Whether messages about firmware may match this filter.
fn may_match_firmware_topics(filter: &str) -> bool {
    filter.contains("/firmware/") || filter.ends_with(['#', '+'])
}

impl PipelineOutputs for NodePipelineOutputs {
    fn wants_rows(&self) -> bool {
        self.alarms.alarms.is_in_use()
            || self.alarms.events.has_rules()
            || self.sinks.wants_rows()
            || self.firmware.is_in_use()
    }

    fn publish_row(
        &self,
        speaker: DeviceRef<'_>,
        profile: &ProductProfile,
        ts_ms: i64,
        points: &[Point<'_>],
    ) {
        // Other chains decide themselves when alarms are evaluated.
        if profile.has_alarms && profile.chain.only_saves() {
            self.evaluate_alarms(speaker, profile, ts_ms, points);
        }
        self.firmware.observe_row(speaker.no, points);
        let events = &self.alarms.events;
        if events.has_rules() {
            events.push_stored_row(speaker.id, profile.product.as_str(), ts_ms, points);
        }
        self.sinks.push_row(speaker, profile, ts_ms, points);
    }

    fn handle_control_message(
        &self,
        _by: DeviceRef<'_>,
        about: DeviceRef<'_>,
        _: DeviceProtocol,
        message: &ControlMessage<'_>,
        now_ms: i64,
    ) {
        if let ControlMessage::Reply(replied) = message {
            let now_ms = now_ms.max(0) as u64;
            self.commands.submit_reply(about.no, replied, now_ms);
        }
        if let ControlMessage::Firmware { step, json } = message {
            self.firmware.receive(about.no, step, json);
        }
        if let ControlMessage::Event {
            id,
            ts_ms,
            data_json,
        } = message
            && self.alarms.events.has_rules()
        {
            self.alarms
                .handle_device_event(about, id, ts_ms.unwrap_or(now_ms), data_json);
        }
    }

    fn log_message(
        &self,
        by: DeviceRef<'_>,
        profile: &ProductProfile,
        topic: &str,
        payload: &[u8],
        now_ms: i64,
    ) {
        self.sinks
            .push_device_log(by, profile, (topic, payload), now_ms);
    }

    fn notify_reachable(&self, device: DeviceRef<'_>, filter: Option<&str>) {
        self.commands.resume_device(device.no);
        // Most devices are not gateways.
        if filter.is_some_and(may_match_gateway_topics) {
            self.commands.resume_children(device.no);
        }
        if filter.is_none_or(may_match_firmware_topics) {
            self.firmware.notify_reachable(device.no);
        }
    }

    fn evaluate_alarms(
        &self,
        speaker: DeviceRef<'_>,
        profile: &ProductProfile,
        ts_ms: i64,
        points: &[Point<'_>],
    ) {
        if profile.has_alarms {
            self.alarms.observe_telemetry(speaker.no, ts_ms, points);
        }
    }

    fn republish(&self, topic: &str, payload: &[u8], qos: u8, retain: bool) {
        self.chains.publish(PublishRequest {
            topic: topic.to_owned(),
            payload: payload.to_vec().into(),
            qos,
            retain,
            ..PublishRequest::default()
        });
    }

    fn write_to_sink(&self, name: &str, row: rules::Value<'_>) {
        self.sinks.push_chain_row(name, row);
    }

    fn is_unsettled(&self) -> bool {
        self.alarms.alarms.is_unsettled() || self.sinks.is_unsettled()
    }

    fn settle(&self, scope: SettleScope, done: DurableCallback) {
        let sinks = self.sinks.settle_later();
        let (chains, commands) = (Arc::clone(&self.chains), self.commands.clone());
        let replied = Box::new(move || match scope {
            SettleScope::Stored => done(),
            SettleScope::Published => chains.settle(done),
        });
        let written = Box::new(move || commands.settle(replied));
        self.alarms.alarms.settle(Box::new(move || sinks(written)));
    }

    fn is_full(&self) -> bool {
        self.chains.is_full()
            || self.alarms.alarms.is_full()
            || self.alarms.events.is_full()
            || self.sinks.is_full()
            || self.commands.is_full()
    }
}
