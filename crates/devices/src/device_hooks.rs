//! Broker hooks for devices: identify devices among the clients of a shard, and pass their messages to the
//! pipeline.

use std::sync::Arc;

use hashbrown::HashMap;
use hooks::{
    AcceptedConnect, BackpressureCheck, Client, DurableCallback, Hooks, HooksFactory, Interest,
    MessageOrigin, MessageView, PacketFacts, PublishVerdict, carries_secret,
};
use mqtt::{QoS, SubscriptionOptions, Version};
use namespaces::{CountedConnection, NamespaceUsage};
use wall_clock::now_ms;

use crate::ingest::{
    DeviceHandle, DeviceMessage, Pipeline, SettleScope, SubmitOutcome, TelemetryProcessor,
};
use crate::protocol;
use crate::topic_permissions::PROVISION_REQUEST;

/// Identifies the clients that are devices.
pub trait DeviceClients: Send + Sync {
    /// Whether devices can exist at all. When this changes, call [`BrokerPort::refresh_hook_interest`](hooks::BrokerPort::refresh_hook_interest).
    fn is_in_use(&self) -> bool;

    /// The device of a client that was just authenticated, and the connection as its namespace counts it. Called once per
    /// connection; never waits.
    fn device_for(
        &self,
        client: &Client<'_>,
    ) -> Option<(Arc<DeviceHandle>, Option<CountedConnection>)>;

    /// The device has subscribed to this filter. Never waits.
    fn notify_subscribed(&self, device: &DeviceHandle, filter: &str) {
        let _ = (device, filter);
    }

    /// Whether a product with this id exists. Never waits.
    fn has_product(&self, id: &str) -> bool {
        let _ = id;
        true
    }

    /// The device has published a message; called every few seconds at most. Never waits.
    fn record_activity(&self, device: &DeviceHandle, now_ms: u64) {
        let _ = (device, now_ms);
    }

    /// A client that is not a device requests registration. Never waits.
    fn request_provisioning(&self, client: &Client<'_>, request: &[u8]) {
        let _ = (client, request);
    }

    /// A connection of the device has ended.
    fn notify_disconnected(
        &self,
        device: &DeviceHandle,
        client: &Client<'_>,
        reason: &'static str,
    ) {
        let _ = (device, client, reason);
    }
}

/// Which clients, besides the platform, may publish on the downlink topics of devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DownTopicPolicy {
    /// All clients, rules, connectors and API users that the access rules permit.
    pub is_open: bool,
    /// User names of clients.
    pub usernames: Box<[Box<str>]>,
}

impl DownTopicPolicy {
    /// Parses user names separated by commas; `*` permits everyone.
    #[must_use]
    pub fn parse(list: &str) -> Self {
        let names = list
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        let (open, names): (Vec<&str>, Vec<&str>) = names.partition(|name| *name == "*");
        Self {
            is_open: !open.is_empty(),
            usernames: names.into_iter().map(Into::into).collect(),
        }
    }
}

/// Hooks that pass the messages of devices to a pipeline.
pub struct DeviceHooks {
    pub pipeline: Arc<Pipeline>,
    pub clients: Arc<dyn DeviceClients>,
    pub down_topics: Arc<DownTopicPolicy>,
}

impl HooksFactory for DeviceHooks {
    fn hooks_for(&self, shard: u16) -> Box<dyn Hooks> {
        Box::new(DeviceShardHooks {
            shard,
            processor: self.pipeline.processor(),
            pipeline: self.pipeline.clone(),
            clients: self.clients.clone(),
            down_topics: self.down_topics.clone(),
            denied: 0,
            unsettled: None,
            devices: HashMap::default(),
            has_fed_full_pipeline: false,
            exceeded: None,
        })
    }
}

struct DeviceShardHooks {
    shard: u16,
    pipeline: Arc<Pipeline>,
    clients: Arc<dyn DeviceClients>,
    down_topics: Arc<DownTopicPolicy>,
    /// Number of denied messages on topics reserved for the platform.
    denied: u64,
    processor: TelemetryProcessor,
    /// What the turn in progress waits for.
    unsettled: Option<SettleScope>,
    /// The connected devices of this shard, by client id.
    devices: HashMap<Box<str>, ConnectedDevice, foldhash::fast::RandomState>,
    /// A message was passed to a saturated pipeline, so its publisher has to wait.
    has_fed_full_pipeline: bool,
    /// The namespace of the publisher sends too many messages, so the publisher has to wait.
    exceeded: Option<Arc<NamespaceUsage>>,
}

struct ConnectedDevice {
    device: Arc<DeviceHandle>,
    /// When the device was last reported as active, in seconds since 1970.
    last_activity_s: u32,
    /// The connection in its namespace.
    counted: Option<CountedConnection>,
}

/// Minimum interval between two activity reports of a device, in seconds.
const ACTIVITY_INTERVAL_S: u32 = 5;

impl Hooks for DeviceShardHooks {
    fn interest(&self) -> Interest {
        // The first device may connect before the interest is refreshed.
        let always = Interest::CONNECT | Interest::DISCONNECT;
        match self.clients.is_in_use() {
            true => {
                let messages = Interest::publish_on(protocol::FIRST_TOPIC_BYTES);
                always | messages | Interest::SUBSCRIBE | Interest::PUBLISH_GUARD
            }
            false => always,
        }
    }

    fn connected(&mut self, client: &Client<'_>, _accepted: &AcceptedConnect<'_>) {
        let before = match self.clients.device_for(client) {
            Some((handle, counted)) => {
                let device = ConnectedDevice {
                    device: handle,
                    last_activity_s: 0,
                    counted,
                };
                self.devices.insert(client.client_id.into(), device)
            }
            None if self.devices.is_empty() => None,
            None => self.devices.remove(client.client_id),
        };
        if let Some(before) = before {
            self.clients
                .notify_disconnected(&before.device, client, "taken_over");
        }
    }

    fn disconnected(&mut self, client: &Client<'_>, reason: &'static str) {
        if let Some(device) = self.devices.remove(client.client_id) {
            self.clients
                .notify_disconnected(&device.device, client, reason);
        }
    }

    fn subscribed(
        &mut self,
        client: &Client<'_>,
        filter: &str,
        _: SubscriptionOptions,
        packet: PacketFacts<'_>,
    ) {
        // The node itself has subscribed the client, to send a message that follows.
        if packet.packet_id == 0 && filter.contains("/firmware/") {
            return;
        }
        if let Some(device) = self.devices.get(client.client_id) {
            self.clients.notify_subscribed(&device.device, filter);
        }
    }

    #[inline]
    fn wants_topic(&mut self, topic: &str) -> bool {
        match self.devices.is_empty() {
            true => topic == PROVISION_REQUEST || protocol::parse_downlink_topic(topic).is_some(),
            false => protocol::may_be_device_topic(topic) || protocol::is_firmware_downlink(topic),
        }
    }

    fn denies_publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> bool {
        let Some(downward) = protocol::parse_downlink_topic(message.topic) else {
            return false;
        };
        if self.down_topics.is_open
            || (downward.product).is_some_and(|product| !self.clients.has_product(product))
        {
            return false;
        }
        let may_publish = origin.client.is_some_and(|client| {
            match self.devices.contains_key(client.client_id) {
                true => downward.is_bidirectional,
                // A device chooses its own user name.
                false => client.username.is_some_and(|username| {
                    let mut allowed = self.down_topics.usernames.iter();
                    allowed.any(|allowed| **allowed == *username)
                }),
            }
        });
        if may_publish {
            return false;
        }
        self.denied += 1;
        if self.denied.is_power_of_two() {
            tracing::warn!(
                topic = message.topic,
                client_id = origin.client.map(|client| client.client_id),
                denied = self.denied,
                "message denied; only the platform publishes on downlink topics of devices, see devices.downlink_topic_publishers"
            );
        }
        true
    }

    #[inline]
    fn rejects_publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> bool {
        let Some(client) = origin.client else {
            return false;
        };
        let Some(device) = self.devices.get(client.client_id) else {
            return false;
        };
        let device_ref = device.device.as_device_ref();
        if self
            .pipeline
            .would_reject(&mut self.processor, device_ref, message.topic)
        {
            return true;
        }
        // Others are slowed, see `publish`.
        client.version == Version::V5
            && device.counted.as_ref().is_some_and(|counted| {
                let (shard, now_ms) = (self.shard, message.received_ms);
                !counted.usage().try_take_message(shard, now_ms)
            })
    }

    fn publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> PublishVerdict {
        // Messages that the node itself publishes there are for devices, not from them.
        let Some(client) = origin.client else {
            return PublishVerdict::Continue;
        };
        let Some(device) = self.devices.get_mut(client.client_id) else {
            if message.topic == PROVISION_REQUEST {
                self.clients.request_provisioning(&client, message.payload);
                // The payload contains a secret.
                return PublishVerdict::Stop;
            }
            return PublishVerdict::Continue;
        };
        let qos = message.qos;
        let now_s = (message.received_ms / 1000) as u32;
        if now_s.abs_diff(device.last_activity_s) >= ACTIVITY_INTERVAL_S {
            device.last_activity_s = now_s;
            self.clients
                .record_activity(&device.device, message.received_ms);
        }
        // Such messages cannot be rejected, at least not without closing the connection.
        if (qos == QoS::AtMostOnce || client.version != Version::V5)
            && let Some(counted) = &device.counted
            && counted
                .usage()
                .take_message(self.shard, message.received_ms)
                > 0
        {
            self.exceeded = Some(counted.usage().clone());
        }
        // Other clients must not receive what a device publishes there.
        let is_for_node_alone = protocol::parse_downlink_topic(message.topic)
            .is_some_and(|downward| downward.is_bidirectional)
            || carries_secret(message.topic);
        let message = DeviceMessage {
            sender: device.device.as_device_ref(),
            topic: message.topic,
            payload: message.payload,
            received_ms: message.received_ms as i64,
        };
        let admission = self.pipeline.submit(&mut self.processor, &message);
        if admission != SubmitOutcome::Accepted && qos != QoS::AtMostOnce {
            return PublishVerdict::Reject;
        }
        self.has_fed_full_pipeline |= self.pipeline.is_saturated();
        let must_wait = self.has_fed_full_pipeline || self.exceeded.is_some();
        match self.processor.is_unsettled() || must_wait {
            _ if is_for_node_alone => PublishVerdict::Stop,
            true => PublishVerdict::ContinueAndCollect,
            false => PublishVerdict::Continue,
        }
    }

    fn has_consumed(&mut self, message: &MessageView<'_>) -> bool {
        protocol::parse_device_topic(message.topic).is_some()
            && self.devices.contains_key(message.from_client_id)
    }

    fn has_unsettled_work(&mut self) -> bool {
        let unsettled = self.processor.take_unsettled();
        self.unsettled = self.unsettled.max(unsettled);
        unsettled.is_some()
    }

    fn notify_when_durable(&mut self, done: DurableCallback) {
        match self.unsettled.take() {
            Some(scope) => self.pipeline.settle(scope, done),
            None => done(),
        }
    }

    fn take_backpressure(&mut self) -> Option<BackpressureCheck> {
        let is_fed = std::mem::take(&mut self.has_fed_full_pipeline);
        let pipeline = is_fed.then(|| self.pipeline.clone());
        let exceeded = self.exceeded.take();
        if pipeline.is_none() && exceeded.is_none() {
            return None;
        }
        Some(Box::new(move || {
            pipeline.as_ref().is_some_and(|it| it.is_saturated())
                || (exceeded.as_ref()).is_some_and(|usage| usage.is_over_message_limit(now_ms()))
        }))
    }
}

#[cfg(test)]
mod tests {
    use hooks::PeerAddress;
    use series::{DeviceNo, KeyId, Point};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::ingest::{
        NoOutputs, PipelineConfig, ProductNo, ProductProfile, StorageError, TelemetryStorage,
    };
    use crate::{DeviceId, ProductId};

    #[derive(Default)]
    struct Rows(Mutex<Vec<(u32, i64)>>);

    impl TelemetryStorage for Rows {
        fn reserve_key(
            &self,
            _: &str,
            _: &mut dyn FnMut(u32) -> bool,
        ) -> Result<Option<KeyId>, StorageError> {
            Ok(Some(KeyId(0)))
        }

        fn commit_keys(&self) -> Result<(), StorageError> {
            Ok(())
        }

        fn has_key(&self, _: KeyId) -> bool {
            true
        }

        fn append(&self, no: DeviceNo, ts_ms: i64, _: &[Point<'_>]) -> Result<(), StorageError> {
            self.0.lock().unwrap().push((no.0, ts_ms));
            Ok(())
        }
    }

    /// Clients whose names are numbers are devices.
    #[derive(Default)]
    struct Numbers(AtomicBool);

    impl DeviceClients for Numbers {
        fn is_in_use(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }

        fn has_product(&self, id: &str) -> bool {
            id == "p"
        }

        fn device_for(
            &self,
            client: &Client<'_>,
        ) -> Option<(Arc<DeviceHandle>, Option<CountedConnection>)> {
            let no = client.client_id.parse().ok()?;
            let handle = DeviceHandle {
                no: DeviceNo(no),
                product: ProductNo(0),
                id: DeviceId::new(client.client_id).ok()?,
            };
            Some((Arc::new(handle), None))
        }
    }

    fn client(client_id: &str) -> Client<'_> {
        Client {
            client_id,
            username: None,
            peer: Some(PeerAddress::Unix),
            last_address: None,
            local_address: None,
            version: Version::V311,
            connection: Default::default(),
        }
    }

    fn publish(hooks: &mut dyn Hooks, from: Option<&str>, topic: &str) -> PublishVerdict {
        let message = MessageView::from_client(from.unwrap_or_default(), topic, b"{\"a\":1}", 7);
        let origin = MessageOrigin {
            client: from.map(client),
            ..MessageOrigin::default()
        };
        let is_wanted = hooks.wants_topic(topic);
        let interest = hooks.interest();
        assert!(
            !is_wanted || !interest.contains(Interest::PUBLISH) || interest.may_want_topic(topic)
        );
        match is_wanted {
            true => hooks.publish(&message, &origin),
            false => PublishVerdict::Continue,
        }
    }

    #[test]
    fn only_messages_of_devices_are_stored() {
        let rows = Arc::new(Rows::default());
        let profile = ProductProfile::permissive(ProductId::new("p").unwrap());
        let pipeline = Pipeline::open(
            &PipelineConfig::default(),
            vec![(ProductNo(0), profile)],
            rows.clone(),
            Arc::new(NoOutputs),
            Arc::new(NoOutputs),
        );
        let clients = Arc::new(Numbers::default());
        let factory = DeviceHooks {
            pipeline: pipeline.unwrap(),
            clients: clients.clone(),
            down_topics: Arc::new(DownTopicPolicy::parse("backend, other")),
        };
        let mut hooks = factory.hooks_for(0);
        assert!(!hooks.interest().contains(Interest::PUBLISH));
        clients.0.store(true, Ordering::Relaxed);
        assert!(hooks.interest().contains(Interest::PUBLISH));
        let telemetry = "v1/devices/me/telemetry";
        assert!(!hooks.wants_topic(telemetry), "there is no device yet");
        let connect = mqtt::Connect {
            version: Version::V311,
            clean_start: true,
            keep_alive_s: 0,
            client_id: "",
            username: None,
            password: None,
            will: None,
            properties: mqtt::Properties::EMPTY,
            is_bridge: false,
        };
        for client_id in ["5", "somebody"] {
            let accepted = AcceptedConnect {
                session_present: false,
                connect: &connect,
                keep_alive_s: 0,
                session_expiry_s: 0,
                listener: "mqtt",
                is_superuser: false,
            };
            hooks.connected(&client(client_id), &accepted);
        }
        for (from, topic) in [
            (Some("5"), telemetry),
            (Some("somebody"), telemetry),
            (None, telemetry),
            (Some("5"), "v2/other"),
            (Some("5"), "v1/devices/me/other"),
        ] {
            assert_eq!(publish(&mut *hooks, from, topic), PublishVerdict::Continue);
        }
        let denies = |hooks: &mut dyn Hooks, from: Option<Client<'_>>, topic: &str| {
            let message = MessageView::from_client("", topic, b"{}", 7);
            let origin = MessageOrigin {
                client: from,
                ..MessageOrigin::default()
            };
            hooks.wants_topic(topic) && hooks.denies_publish(&message, &origin)
        };
        let named = |client_id, username| Client {
            username: Some(username),
            ..client(client_id)
        };
        let call = "v1/devices/me/rpc/request/1";
        let own = "tg/5/down/command/1";
        for (from, topic, is_denied) in [
            (Some(client("somebody")), call, true),
            (Some(client("somebody")), own, true),
            (Some(client("somebody")), "/p/5/function/invoke", true),
            (Some(client("somebody")), "/other/5/function/invoke", false),
            (Some(client("somebody")), "/p/5/properties/report", false),
            (Some(named("somebody", "backend")), call, false),
            (Some(named("somebody", "else")), call, true),
            // Rules, bridges, the API.
            (None, call, true),
            (None, telemetry, false),
            (Some(client("5")), call, false),
            (Some(client("5")), own, true),
            // A device that has chosen the name of a user.
            (Some(named("5", "backend")), own, true),
        ] {
            let name = from.map(|client| client.client_id);
            assert_eq!(
                denies(&mut *hooks, from, topic),
                is_denied,
                "{name:?} {topic}"
            );
        }
        hooks.disconnected(&client("5"), "normal");
        assert!(
            denies(&mut *hooks, None, call),
            "no device is needed for that"
        );
        assert!(!hooks.wants_topic(telemetry));
        assert_eq!(*rows.0.lock().unwrap(), [(5, 7)]);
    }
}
