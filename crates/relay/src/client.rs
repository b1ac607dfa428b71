//! The service's state for one connection.

use std::sync::Arc;

use hooks::relay::{
    RelayClient, RelayClose, RelayEventKind, RelayPayloadKind, RelayTraffic, RelayVerdict,
};
use namespaces::CountedConnection;
use wall_clock::now_ms;

use crate::device_messages::{
    DeviceRequest, Identity, MessageClass, RequestError, classify, response,
};
use crate::devices::{DeviceConnection, DeviceMessage, MAX_PENDING_REQUESTS, RelayDevices};
use crate::events::ConnectionEvents;
use crate::message_batch::{add_message, record_messages};
use crate::system_message::{internal_error_close, system_message};

/// Minimum interval between two warnings that the client is paused.
const PAUSE_WARNING_INTERVAL_MS: u64 = 10_000;

pub(crate) struct EndpointClient {
    events: ConnectionEvents,
    devices: Option<Arc<dyn RelayDevices>>,
    /// Set once the client has identified itself; the platform may have rejected it. Most connections are none.
    device: Option<Arc<DeviceConnection>>,
    /// The broker serves the connection.
    is_open: bool,
    shard: u16,
    /// The connection in its namespace, while it is open.
    counted: Option<CountedConnection>,
    pause_ms: u64,
    /// When the client was last told that it is paused.
    pause_warned_ms: u64,
}

impl EndpointClient {
    pub(crate) fn new(
        events: ConnectionEvents,
        devices: Option<Arc<dyn RelayDevices>>,
        (shard, counted): (u16, Option<CountedConnection>),
    ) -> Self {
        Self {
            events,
            devices,
            device: None,
            is_open: false,
            shard,
            counted,
            pause_ms: 0,
            pause_warned_ms: 0,
        }
    }

    /// Counts a message in the namespace. If that has sent too many, the client is not read for a while, and is told so.
    fn count_message(&mut self, now_ms: u64, replies: &mut Vec<String>) {
        let Some(counted) = &self.counted else {
            return;
        };
        let usage = counted.usage();
        self.pause_ms = usage.take_message(self.shard, now_ms);
        if self.pause_ms == 0 || now_ms < self.pause_warned_ms + PAUSE_WARNING_INTERVAL_MS {
            return;
        }
        self.pause_warned_ms = now_ms;
        let limit = usage.max_messages_per_s().unwrap_or_default();
        let message = format!(
            "The clients of this namespace send more than {limit} messages per second: this client is not read for a while."
        );
        replies.push(system_message(
            "warning",
            "RATE_LIMIT_WARNING",
            &message,
            now_ms,
        ));
    }

    /// Passes a message to the device platform; returns whether the platform has taken it.
    fn submit(&self, device: &Arc<DeviceConnection>, message: DeviceMessage) -> bool {
        (self.devices.as_ref()).is_some_and(|devices| devices.submit(device, message))
    }

    /// Passes the identity of the client to the platform. If the platform takes it, the connection is a device from now on.
    fn identify(&mut self, identity: Identity) -> bool {
        let known = self.device.clone();
        let device = known.unwrap_or_else(|| Arc::new(DeviceConnection::new(self.events.clone())));
        let is_taken = self.submit(&device, DeviceMessage::Identify(identity));
        if is_taken {
            self.device = Some(device);
        }
        is_taken
    }

    /// Handles what concerns the device; returns whether the message is relayed as well.
    fn handle_device_message(
        &mut self,
        payload: &[u8],
        received_ms: u64,
        replies: &mut Vec<String>,
    ) -> bool {
        let device = self.device.as_ref();
        match (classify(payload, device.is_some()), device) {
            (MessageClass::Relay, _) | (MessageClass::Data, None) => return true,
            (MessageClass::Data, Some(device)) => {
                let message = DeviceMessage::Data {
                    payload: payload.into(),
                    received_ms,
                };
                if !self.submit(device, message) {
                    let reason = "The node is overloaded";
                    replies.extend(device.not_stored_warning(reason, received_ms));
                }
                return true;
            }
            (MessageClass::Identify(identity), _) => {
                if !self.identify(identity) {
                    replies.push(busy_message("identify", received_ms));
                }
            }
            // Whose reply it would be is unknown before.
            (MessageClass::ControlAck, None) => {}
            (MessageClass::ControlAck, Some(device)) => {
                let message = DeviceMessage::ControlAck {
                    payload: payload.into(),
                    received_ms,
                };
                if !self.submit(device, message) {
                    replies.push(busy_message("control_ack", received_ms));
                }
            }
            (MessageClass::Request(request), _) => {
                replies.extend(self.handle_request(request, received_ms));
            }
            (MessageClass::Invalid(reason), _) => {
                let text = system_message("error", "INVALID_MESSAGE", &reason, received_ms);
                replies.push(text);
            }
        }
        false
    }

    /// Passes a request to the platform; returns an answer if that is not possible.
    fn handle_request(&self, request: DeviceRequest, now_ms: u64) -> Option<String> {
        let id = request.request_id.clone();
        let Some(device) = &self.device else {
            let message = "Only a device can send requests; send identify first.".to_owned();
            let code = "DEVICE_NOT_IDENTIFIED";
            return Some(response(&id, Err(RequestError { code, message }), now_ms));
        };
        let (code, message) = if !device.try_add_request() {
            let message = format!(
                "{MAX_PENDING_REQUESTS} requests of this connection wait; send further ones after a response."
            );
            ("TOO_MANY_REQUESTS", message)
        } else if self.submit(device, DeviceMessage::Request(request)) {
            return None;
        } else {
            device.remove_request();
            let message = "The node is overloaded; repeat the request later.";
            ("NODE_BUSY", message.to_owned())
        };
        Some(response(&id, Err(RequestError { code, message }), now_ms))
    }
}

fn busy_message(kind: &str, now_ms: u64) -> String {
    let message = format!("The node is overloaded; repeat {kind} later.");
    system_message("error", "NODE_BUSY", &message, now_ms)
}

impl RelayClient for EndpointClient {
    fn opened(&mut self) {
        self.is_open = true;
        let connected_ms = self.events.connection.connected_ms;
        self.events
            .emit(RelayEventKind::Connected, connected_ms, None);
    }

    fn received(
        &mut self,
        kind: RelayPayloadKind,
        payload: &[u8],
        now_ms: u64,
        replies: &mut Vec<String>,
    ) -> RelayVerdict {
        self.count_message(now_ms, replies);
        if kind == RelayPayloadKind::Text
            && self.devices.is_some()
            && !self.handle_device_message(payload, now_ms, replies)
        {
            return RelayVerdict::Consume;
        }
        let ConnectionEvents {
            endpoint,
            connection,
            ..
        } = &self.events;
        let name = connection.name();
        // Nearly all messages of relays without devices.
        let Some(device) = &self.device else {
            add_message(endpoint, name, kind, payload, now_ms);
            return RelayVerdict::Publish;
        };
        let device_name = device.device_name();
        let sender = device_name.as_ref().map_or(name, |name| name.as_str());
        add_message(endpoint, sender, kind, payload, now_ms);
        RelayVerdict::Publish
    }

    fn finish_input(&mut self) {
        record_messages();
    }

    fn take_pause_ms(&mut self) -> u64 {
        std::mem::take(&mut self.pause_ms)
    }

    fn caught_up(&mut self, dropped: u64, now_ms: u64) -> Option<String> {
        let message = format!(
            "This client reads too slowly: {dropped} messages to it were dropped, the oldest ones first."
        );
        Some(system_message(
            "warning",
            "RATE_LIMIT_WARNING",
            &message,
            now_ms,
        ))
    }

    fn internal_error(&self, now_ms: u64) -> RelayClose {
        internal_error_close("An error in the node ended this connection.", now_ms)
    }

    fn closed(&mut self, reason: &'static str, traffic: RelayTraffic) {
        let events = &self.events;
        (events.endpoint).remove_connection(events.connection.id());
        self.counted = None;
        if self.is_open {
            let kind = RelayEventKind::Disconnected { reason, traffic };
            match &self.device {
                Some(device) => device.emit(kind, now_ms()),
                None => events.emit(kind, now_ms(), None),
            }
        }
        if let (Some(device), Some(devices)) = (&self.device, &self.devices) {
            devices.closed(device, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use hooks::relay::RelayConnection;
    use serde_json::Value;

    use super::*;
    use crate::definition::EndpointDefinition;
    use crate::endpoint::{Endpoint, EndpointConnection};
    use crate::message_history::HistoryPayload;
    use crate::statistics::StatisticsCounters;

    #[derive(Default)]
    struct RecordingPlatform {
        received: Mutex<Vec<String>>,
        is_full: std::sync::atomic::AtomicBool,
    }

    impl RelayDevices for RecordingPlatform {
        fn submit(&self, connection: &Arc<DeviceConnection>, message: DeviceMessage) -> bool {
            if self.is_full.load(std::sync::atomic::Ordering::Relaxed) {
                return false;
            }
            let line = match message {
                DeviceMessage::Identify(identity) => {
                    connection.confirm_identity(&identity.device_id, "Pump", "room:d");
                    format!("{} is {}", connection.client_id(), identity.device_id)
                }
                DeviceMessage::Data { payload, .. } => {
                    format!("data {}", String::from_utf8_lossy(&payload))
                }
                DeviceMessage::ControlAck { .. } => "ack".to_owned(),
                DeviceMessage::Request(request) => format!("request {}", request.request_type),
            };
            self.received.lock().unwrap().push(line);
            true
        }

        fn closed(&self, _: &Arc<DeviceConnection>, reason: &'static str) {
            self.received
                .lock()
                .unwrap()
                .push(format!("closed {reason}"));
        }
    }

    #[derive(Default)]
    struct SentMessages(Mutex<Vec<String>>);

    impl RelayConnection for SentMessages {
        fn send_text(&self, message: String) {
            self.0.lock().unwrap().push(message);
        }

        fn close(&self, _: RelayClose) {}
    }

    struct Setup {
        platform: Arc<RecordingPlatform>,
        endpoint: Arc<Endpoint>,
        sent: Arc<SentMessages>,
        client: EndpointClient,
    }

    fn setup() -> Setup {
        let definition = EndpointDefinition::default();
        let endpoint = Arc::new(Endpoint::new(
            "room",
            definition,
            StatisticsCounters::default(),
        ));
        let (platform, sent) = (
            Arc::<RecordingPlatform>::default(),
            Arc::<SentMessages>::default(),
        );
        let peer = (hooks::PeerAddress::Unix, 0);
        let connection = EndpointConnection::new("c1", sent.clone(), peer);
        let events = ConnectionEvents::new(endpoint.clone(), connection, Arc::default());
        Setup {
            client: EndpointClient::new(events, Some(platform.clone()), (0, None)),
            platform,
            endpoint,
            sent,
        }
    }

    impl Setup {
        /// Whether the message is relayed, and the codes of the replies.
        fn send(&mut self, text: &str) -> (bool, Vec<String>) {
            let mut replies = Vec::new();
            let verdict =
                self.client
                    .received(RelayPayloadKind::Text, text.as_bytes(), 5000, &mut replies);
            self.client.finish_input();
            let code = |reply: String| {
                let reply: Value = serde_json::from_str(&reply).unwrap();
                let code = reply.get("code").unwrap_or(&reply["error"]["code"]);
                code.as_str().unwrap().to_owned()
            };
            let codes = replies.into_iter().map(code).collect();
            (verdict == RelayVerdict::Publish, codes)
        }

        fn received(&self) -> Vec<String> {
            std::mem::take(&mut self.platform.received.lock().unwrap())
        }
    }

    const IDENTIFY: &str = r#"{"type":"identify","deviceId":"d"}"#;

    #[test]
    fn data_of_devices_are_relayed_and_other_messages_of_devices_are_not() {
        let mut setup = setup();
        let data = r#"{"type":"data","data":{"t":1}}"#;
        assert_eq!(setup.send(data), (true, vec![]));
        assert!(setup.received().is_empty(), "it is not a device yet");
        assert_eq!(setup.send(IDENTIFY), (false, vec![]));
        assert_eq!(setup.send(data), (true, vec![]));
        assert_eq!(setup.send(r#"{"type":"heartbeat","t":1}"#), (true, vec![]));
        let ack = r#"{"type":"control_ack","status":"success"}"#;
        assert_eq!(setup.send(ack), (false, vec![]));
        assert_eq!(
            setup.received(),
            [
                "$relay/room/c1 is d".to_owned(),
                format!("data {data}"),
                "ack".to_owned()
            ]
        );
        let history = setup.endpoint.history(10);
        let senders: Vec<_> = history.iter().map(|entry| &*entry.sender).collect();
        assert_eq!(senders, ["Pump", "Pump", "connection c1"]);
        let texts = history.iter().map(|entry| match &entry.payload {
            HistoryPayload::Text(text) => text.contains("heartbeat"),
            HistoryPayload::BinaryBytes(_) => panic!("only texts"),
        });
        assert_eq!(texts.collect::<Vec<_>>(), [true, false, false]);
        let identified: Value = serde_json::from_str(&setup.sent.0.lock().unwrap()[0]).unwrap();
        assert_eq!(
            identified,
            serde_json::json!({"type": "identified", "deviceId": "d", "customName": "Pump", "dbDeviceId": "room:d"})
        );
        setup.client.closed("normal", RelayTraffic::default());
        assert_eq!(setup.received(), ["closed normal"]);
    }

    #[test]
    fn requests_need_a_device_and_are_limited() {
        let mut setup = setup();
        let request = r#"{"type":"request","requestId":1,"requestType":"x"}"#;
        let rejected = |code: &str| (false, vec![code.to_owned()]);
        assert_eq!(setup.send(request), rejected("DEVICE_NOT_IDENTIFIED"));
        setup.send(IDENTIFY);
        for _ in 0..MAX_PENDING_REQUESTS {
            assert_eq!(setup.send(request), (false, vec![]));
        }
        assert_eq!(setup.send(request), rejected("TOO_MANY_REQUESTS"));
        let device = setup.client.device.as_ref().unwrap();
        device.respond(&1.into(), Ok(Value::Null));
        assert_eq!(setup.send(request), (false, vec![]));
        let ack = r#"{"type":"identify","deviceId":7}"#;
        assert_eq!(setup.send(ack), rejected("INVALID_MESSAGE"));
    }

    #[test]
    fn an_overloaded_platform_is_reported_to_the_client() {
        let mut setup = setup();
        setup.send(IDENTIFY);
        let is_full = &setup.platform.is_full;
        is_full.store(true, std::sync::atomic::Ordering::Relaxed);
        let data = r#"{"t":1}"#;
        assert_eq!(setup.send(data), (true, vec!["DATA_NOT_STORED".to_owned()]));
        assert_eq!(setup.send(data), (true, vec![]), "one warning per second");
        assert_eq!(setup.send(IDENTIFY), (false, vec!["NODE_BUSY".to_owned()]));
    }

    #[test]
    fn a_client_is_told_of_an_internal_error() {
        let close = setup().client.internal_error(7);
        assert_eq!(close.code, ws::close_codes::INTERNAL_ERROR);
        assert_eq!(close.reason, "Internal server error");
        let message: Value = serde_json::from_str(&close.message.unwrap()).unwrap();
        let fields = ["type", "level", "code", "timestamp"].map(|name| message[name].clone());
        let expected = serde_json::json!(["system", "error", "INTERNAL_ERROR", 7]);
        assert_eq!(Value::from(fields.to_vec()), expected);
    }

    #[test]
    fn a_client_that_never_identified_itself_is_no_device_at_its_end() {
        let mut setup = setup();
        setup.client.closed("normal", RelayTraffic::default());
        assert!(setup.received().is_empty());
    }
}
