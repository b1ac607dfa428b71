//! Sends notifications of alarms: rows to sinks, messages to the broker.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use broker::BrokerHandle;
use broker::control::{ControlError, PublishRequest};
use connect::{ConnectorService, PushOutcome};
use devices::Registry;
use devices::alarm::{AlarmEvent, DurableCallback, NotificationTransport, endpoint_alert};
use relay::RelayService;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::node_cluster::NodeCluster;

/// Maximum number of messages waiting to be published.
const MAX_WAITING: usize = 10_000;
const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(super) struct NodeNotificationTransport {
    sinks: ConnectorService,
    relay: RelayService,
    registry: Registry,
    /// The other nodes with connections of relay endpoints.
    cluster: OnceLock<NodeCluster>,
    /// The number of this transport as a producer of rows; locked, because alarms are processed on several threads.
    producer: Arc<Mutex<u16>>,
    messages: mpsc::Sender<NotificationJob>,
    /// Present until the broker runs.
    receiver: Mutex<Option<mpsc::Receiver<NotificationJob>>>,
}

enum NotificationJob {
    Message(PublishRequest),
    /// Calls the callback when all earlier messages are published and all rows are in their files.
    NotifyWhenDurable(DurableCallback),
}

impl NodeNotificationTransport {
    /// `producer` must not be used by others.
    pub(super) fn new(
        sinks: ConnectorService,
        producer: u16,
        (relay, registry): (RelayService, Registry),
    ) -> Self {
        let (messages, waiting) = mpsc::channel(MAX_WAITING);
        Self {
            sinks,
            relay,
            registry,
            cluster: OnceLock::new(),
            producer: Arc::new(Mutex::new(producer)),
            messages,
            receiver: Mutex::new(Some(waiting)),
        }
    }

    /// Sends alerts also to the connections of relay endpoints at other nodes. To be called once.
    pub(super) fn set_cluster(&self, cluster: NodeCluster) {
        let _ = self.cluster.set(cluster);
    }

    /// Starts publishing. Must be called within the runtime.
    pub(super) fn start(&self, handle: BrokerHandle) {
        let mut waiting = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut waiting) = waiting.take() else {
            return;
        };
        let (sinks, producer) = (self.sinks.clone(), Arc::clone(&self.producer));
        tokio::spawn(async move {
            while let Some(letter) = waiting.recv().await {
                let publication = match letter {
                    NotificationJob::Message(publication) => publication,
                    NotificationJob::NotifyWhenDurable(done) => {
                        let producer = producer.lock().unwrap_or_else(PoisonError::into_inner);
                        sinks.settle(*producer, done);
                        continue;
                    }
                };
                publish_with_retry(&handle, publication).await;
            }
        });
    }
}

/// Publishes a message. While the store rejects it, the message is retried; later ones would be
/// rejected as well.
async fn publish_with_retry(handle: &BrokerHandle, publication: PublishRequest) {
    let mut has_waited = false;
    while let Err(rejection) = handle.publish(publication.clone()).await {
        let can_pass = matches!(
            rejection,
            ControlError::StoreUnavailable | ControlError::Unavailable
        );
        if !std::mem::replace(&mut has_waited, can_pass) {
            let topic = &publication.topic;
            tracing::warn!(topic, %rejection, "publishing a notification failed; discarded");
        }
        if !can_pass {
            return;
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

impl NotificationTransport for NodeNotificationTransport {
    fn write_to_sink(&self, name: &str, row: &Map<String, Value>) -> Result<(), String> {
        let none = || format!("there is no sink {name:?}");
        let sink = self.sinks.sink(name).ok_or_else(none)?;
        if self.sinks.is_full(sink) {
            return Err(format!("the sink {name:?} is full"));
        }
        let producer = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
        match self.sinks.push(sink, *producer, |out| out.json_fields(row)) {
            PushOutcome::Queued | PushOutcome::Blocked => Ok(()),
            PushOutcome::Dropped => Err(format!("the sink {name:?} is full")),
            PushOutcome::Unknown => Err(none()),
        }
    }

    fn publish(&self, topic: &str, payload: Vec<u8>, qos: u8, retain: bool) -> Result<(), String> {
        let publication = PublishRequest {
            topic: topic.to_owned(),
            payload: payload.into(),
            qos,
            retain,
            is_utf8: true,
            content_type: Some("application/json".to_owned()),
            ..PublishRequest::default()
        };
        let sent = self
            .messages
            .try_send(NotificationJob::Message(publication));
        sent.map_err(|_| {
            format!("the limit of {MAX_WAITING} messages waiting to be published is reached")
        })
    }

    fn send_to_endpoint(&self, endpoint: &str, event: &AlarmEvent) -> Result<(), String> {
        let none = || format!("there is no relay endpoint {endpoint:?}");
        let namespace = self.relay.namespace_of(endpoint).ok_or_else(none)?;
        if namespace != event.alarm.namespace {
            return Err(format!(
                "the relay endpoint {endpoint:?} belongs to another namespace"
            ));
        }
        let device = self.registry.device(&event.alarm.device);
        // Without its device, an alert has no name and no threshold.
        let device = device.ok().flatten();
        let alert = endpoint_alert(endpoint, event, device.as_deref()).to_string();
        self.relay.send_to_all(endpoint, &alert).ok_or_else(none)?;
        if let Some(cluster) = self.cluster.get() {
            cluster.send_to_relay_connections(endpoint, &alert);
        }
        Ok(())
    }

    fn settle(&self, done: DurableCallback) {
        // If the queue is full the callback is dropped; the caller retries.
        let _ = self
            .messages
            .try_send(NotificationJob::NotifyWhenDurable(done));
    }
}
