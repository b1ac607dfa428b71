//! Commands to devices: connects `devices::command` and the clients of the broker.

use std::sync::{Arc, OnceLock};

use broker::BrokerHandle;
use broker::control::{ControlError, DirectDelivery, PublishRequest};
use devices::DeviceNo;
use devices::command::{
    Command, CommandConfig, Commands, DownlinkCompletion, DownlinkOutcome, DownlinkTransport,
    EncodedDownlink, push_shared_attributes,
};
use devices::platform::Platform;
use engine::{DeviceEvent, DeviceEventKind, Engine};
use hooks::relay::RELAY_TOPIC_PREFIX;
use hooks::{MetricFamily, MetricKind};
use relay::RelayService;
use serde_json::json;
use store::Store;
use tokio::sync::mpsc;

use super::client_subscription::subscribe_for_client;
use super::node_devices::NodeDevices;
use super::pipeline_outputs::NodePipelineOutputs;

/// Maximum number of command events waiting for rules.
const MAX_QUEUED_RULE_EVENTS: usize = 4096;

/// The commands of the node.
#[derive(Clone)]
pub(super) struct NodeCommands {
    pub(super) commands: Commands,
    clients: Arc<CommandDownlinkTransport>,
}

impl NodeCommands {
    pub(super) fn open(
        store: &Store,
        devices: &NodeDevices,
        config: CommandConfig,
        runtime: tokio::runtime::Handle,
    ) -> Result<Self, store::StoreError> {
        let clients = Arc::new(CommandDownlinkTransport {
            devices: devices.clone(),
            node: OnceLock::new(),
            runtime,
        });
        let registry = devices.registry.clone();
        let tables = store.objects().tables();
        let commands = Commands::open(tables, registry.clone(), clients.clone(), config)?;
        push_shared_attributes(&registry, clients.clone());
        let arriving = commands.clone();
        devices.states.add_observer(Box::new(move |change| {
            if change.is_online {
                arriving.resume_device(change.device.no);
            }
        }));
        Ok(Self { commands, clients })
    }

    /// Sends messages to devices, once the broker runs.
    pub(super) fn transport(&self) -> Arc<dyn DownlinkTransport> {
        self.clients.clone()
    }

    /// Connects the commands to the broker, so that they can be sent.
    pub(super) fn start(
        &self,
        broker: BrokerHandle,
        platform: Platform,
        others: Arc<NodePipelineOutputs>,
        relay: RelayService,
    ) {
        let node = ConnectedNode {
            broker,
            platform,
            others,
            relay,
        };
        // Only the first call has an effect.
        let _ = self.clients.node.set(node);
    }

    /// Forwards the events of commands to rules. Must be called within the runtime.
    pub(super) fn forward_to_rules(&self, engine: Engine) {
        let (sent, mut waiting) = mpsc::channel::<Command>(MAX_QUEUED_RULE_EVENTS);
        let shown_to = engine.clone();
        tokio::spawn(async move {
            while let Some(command) = waiting.recv().await {
                let (id, text) = (command.id.0.to_string(), json!(command).to_string());
                let at_ms = command.finished_at_ms.or(command.sent_at_ms);
                let at_ms = at_ms.unwrap_or(command.created_at_ms);
                let event = DeviceEvent {
                    product_id: &command.product,
                    key: Some(&id),
                    value: rules::Value::Json(&text),
                    ..DeviceEvent::new(DeviceEventKind::Command, &command.device, at_ms)
                };
                shown_to.handle_device_event(event).await;
            }
        });
        self.commands.add_observer(Box::new(move |command| {
            if engine.wants_device_events() && sent.try_send(command.clone()).is_err() {
                let id = command.id.0;
                tracing::warn!(id, "rule event queue is full; a command event is discarded");
            }
        }));
    }

    pub(super) fn metrics(&self) -> Vec<MetricFamily> {
        let stats = self.commands.stats();
        let counter = MetricFamily::counter;
        let gauge = |name, help, value: u64| MetricFamily::gauge(name, help, value as f64);
        let ended = (stats.ended.iter()).map(|(state, count)| (state.as_str(), *count as f64));
        vec![
            counter(
                "commands_total",
                "Commands to devices accepted.",
                stats.taken,
            ),
            counter(
                "commands_sent_total",
                "Commands handed to connections of devices, including retries.",
                stats.sent,
            ),
            MetricFamily::by_label(
                "commands_ended_total",
                "Commands ended, by result.",
                MetricKind::Counter,
                "state",
                ended,
            ),
            counter(
                "commands_unmatched_responses_total",
                "Responses of devices to unknown or ended commands.",
                stats.unmatched,
            ),
            counter(
                "commands_errors_total",
                "Failed reads and writes of commands.",
                stats.write_errors,
            ),
            gauge("commands_open", "Open commands.", stats.open),
            gauge(
                "commands_finished",
                "Ended commands that are stored.",
                stats.finished,
            ),
            gauge(
                "commands_waiting_requests",
                "Waiting callers and devices.",
                stats.waiting,
            ),
        ]
    }
}

/// Sends commands to the clients of devices.
struct CommandDownlinkTransport {
    devices: NodeDevices,
    /// Set when the broker runs.
    node: OnceLock<ConnectedNode>,
    runtime: tokio::runtime::Handle,
}

struct ConnectedNode {
    broker: BrokerHandle,
    platform: Platform,
    others: Arc<NodePipelineOutputs>,
    relay: RelayService,
}

fn downlink_outcome(sent: Result<Option<DirectDelivery>, ControlError>) -> DownlinkOutcome {
    match sent {
        Ok(None) => DownlinkOutcome::Unreachable,
        Ok(Some(sent)) => DownlinkOutcome::Sent {
            expects_ack: sent.is_ack_tracked,
        },
        Err(rejection @ ControlError::InvalidField { .. }) => {
            DownlinkOutcome::Rejected(rejection.to_string())
        }
        Err(rejection) => DownlinkOutcome::RetryLater(rejection.to_string()),
    }
}

impl DownlinkTransport for CommandDownlinkTransport {
    fn client_of(&self, device: DeviceNo) -> Option<Box<str>> {
        self.node.get()?.platform.client_of(device)
    }

    fn alias_of(&self, device: DeviceNo) -> Option<Box<str>> {
        self.node.get()?.platform.alias_of(device)
    }

    fn is_online(&self, device: DeviceNo) -> bool {
        self.devices.states.is_online(device)
    }

    fn send(
        &self,
        client_id: &str,
        downlink: EncodedDownlink,
        done: DownlinkCompletion,
        acked: Box<dyn FnOnce() + Send>,
    ) {
        let Some(node) = self.node.get() else {
            return done.complete(DownlinkOutcome::RetryLater(
                "the node is starting".to_owned(),
            ));
        };
        let broker = &node.broker;
        let log = node.others.pending_log_entry(&downlink);
        let done = move |sent| {
            let handed = downlink_outcome(sent);
            if matches!(handed, DownlinkOutcome::Sent { .. }) {
                log.write();
            }
            done.complete(handed);
        };
        if client_id.starts_with(RELAY_TOPIC_PREFIX) {
            let is_sent = node.relay.send_to_client(client_id, downlink.payload);
            let sent = DirectDelivery {
                qos: 0,
                is_ack_tracked: false,
            };
            return done(Ok(is_sent.then_some(sent)));
        }
        let publication = PublishRequest {
            topic: downlink.topic,
            payload: downlink.payload.into(),
            qos: 1,
            ..PublishRequest::default()
        };
        if !downlink.needs_subscription {
            broker.send_to_connected_client(client_id, publication, done, acked);
            return;
        }
        let (broker, client_id) = (broker.clone(), client_id.to_owned());
        self.runtime.spawn(async move {
            let filter = publication.topic.clone();
            match subscribe_for_client(&broker, &client_id, filter, 1).await {
                None => done(Ok(None)),
                Some(Err(rejection)) => done(Err(rejection)),
                Some(Ok(_)) => {
                    broker.send_to_connected_client(&client_id, publication, done, acked)
                }
            }
        });
    }
}
