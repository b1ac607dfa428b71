//! Commands to devices: connects the API, `devices::command` and the clients of the broker.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::{
    CommandBackend, CommandOperation, CommandPage, CommandQuery, CommandReceipt, CommandRequest,
    DeviceBackendError,
};
use broker::BrokerHandle;
use broker::control::{ControlError, DirectDelivery, PublishRequest, SubscriptionRequest};
use broker::info::{MetricFamily, MetricKind, MetricSample, MetricValue};
use devices::command::{
    Command, CommandAction, CommandConfig, CommandError, CommandFilter, CommandId, CommandState,
    Commands, DownlinkCompletion, DownlinkOutcome, DownlinkTransport, EncodedDownlink, NewCommand,
    push_shared_attributes,
};
use devices::platform::Platform;
use devices::{Device, DeviceNo};
use engine::{DeviceEvent, DeviceEventKind, Engine};
use serde_json::{Value, json};
use store::Store;
use tokio::sync::mpsc;

use super::node_devices::{NodeDevices, to_backend_error};
use super::pipeline_outputs::NodePipelineOutputs;

/// Tolerance for the clock of a waiting request.
const WAIT_GRACE: Duration = Duration::from_millis(250);

/// Maximum number of command events waiting for rules.
const MAX_QUEUED_RULE_EVENTS: usize = 4096;

/// The commands of the node.
#[derive(Clone)]
pub(super) struct NodeCommands {
    pub(super) commands: Commands,
    devices: NodeDevices,
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
        Ok(Self {
            commands,
            devices: devices.clone(),
            clients,
        })
    }

    /// Connects the commands to the broker, so that they can be sent.
    pub(super) fn start(
        &self,
        broker: BrokerHandle,
        platform: Platform,
        others: Arc<NodePipelineOutputs>,
    ) {
        // Only the first call has an effect.
        let _ = self.clients.node.set((broker, platform, others));
    }

    /// Forwards the events of commands to rules. Must be called within the runtime.
    pub(super) fn forward_to_rules(&self, engine: Engine) {
        let (told, mut waiting) = mpsc::channel::<Command>(MAX_QUEUED_RULE_EVENTS);
        let shown_to = engine.clone();
        tokio::spawn(async move {
            while let Some(command) = waiting.recv().await {
                let (id, text) = (command.id.0.to_string(), command_view(&command).to_string());
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
            if engine.wants_device_events() && told.try_send(command.clone()).is_err() {
                let id = command.id.0;
                tracing::warn!(id, "rule event queue is full; a command event is discarded");
            }
        }));
    }

    fn device(&self, id: &str) -> Result<Arc<Device>, DeviceBackendError> {
        let device = self.devices.registry.device(id).map_err(to_backend_error)?;
        device.ok_or_else(|| DeviceBackendError::NotFound(format!("There is no device {id:?}.")))
    }

    pub(super) fn metrics(&self) -> Vec<MetricFamily> {
        let stats = self.commands.stats();
        let family = |name, kind, help, samples: Vec<MetricSample>| MetricFamily {
            name,
            help,
            kind,
            samples,
        };
        let one = |name, kind, help, value: u64| {
            let sample = MetricSample {
                labels: Vec::new(),
                value: MetricValue::Number(value as f64),
            };
            family(name, kind, help, vec![sample])
        };
        let ended = stats.ended.iter().map(|(state, count)| MetricSample {
            labels: vec![("state", state.as_str().to_owned())],
            value: MetricValue::Number(*count as f64),
        });
        use MetricKind::{Counter, Gauge};
        vec![
            one(
                "commands_total",
                Counter,
                "Commands to devices accepted.",
                stats.taken,
            ),
            one(
                "commands_sent_total",
                Counter,
                "Commands handed to connections of devices, including retries.",
                stats.sent,
            ),
            family(
                "commands_ended_total",
                Counter,
                "Commands ended, by result.",
                ended.collect(),
            ),
            one(
                "commands_unmatched_answers_total",
                Counter,
                "Responses of devices to unknown or ended commands.",
                stats.unmatched,
            ),
            one(
                "commands_errors_total",
                Counter,
                "Failed reads and writes of commands.",
                stats.write_errors,
            ),
            one("commands_open", Gauge, "Open commands.", stats.open),
            one(
                "commands_finished",
                Gauge,
                "Ended commands that are stored.",
                stats.finished,
            ),
            one(
                "commands_waiting",
                Gauge,
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
    node: OnceLock<(BrokerHandle, Platform, Arc<NodePipelineOutputs>)>,
    runtime: tokio::runtime::Handle,
}

fn downlink_outcome(told: Result<Option<DirectDelivery>, ControlError>) -> DownlinkOutcome {
    match told {
        Ok(None) => DownlinkOutcome::Unreachable,
        Ok(Some(told)) => DownlinkOutcome::Sent {
            expects_ack: told.is_ack_tracked,
        },
        Err(refusal @ ControlError::InvalidField { .. }) => {
            DownlinkOutcome::Rejected(refusal.to_string())
        }
        Err(refusal) => DownlinkOutcome::RetryLater(refusal.to_string()),
    }
}

impl DownlinkTransport for CommandDownlinkTransport {
    fn client_of(&self, device: DeviceNo) -> Option<Box<str>> {
        let (_, platform, _) = self.node.get()?;
        platform.client_of(device)
    }

    fn is_online(&self, device: DeviceNo) -> bool {
        self.devices.states.is_online(device)
    }

    fn send(
        &self,
        client_id: &str,
        letter: EncodedDownlink,
        done: DownlinkCompletion,
        acked: Box<dyn FnOnce() + Send>,
    ) {
        let Some((broker, _, others)) = self.node.get() else {
            return done.complete(DownlinkOutcome::RetryLater(
                "the node is starting".to_owned(),
            ));
        };
        let log = others.pending_log_entry(&letter);
        let done = move |told| {
            let handed = downlink_outcome(told);
            if matches!(handed, DownlinkOutcome::Sent { .. }) {
                log.write();
            }
            done.complete(handed);
        };
        let publication = PublishRequest {
            topic: letter.topic,
            payload: letter.payload.into(),
            qos: 1,
            ..PublishRequest::default()
        };
        if !letter.needs_subscription {
            broker.send_to_connected_client(client_id, publication, done, acked);
            return;
        }
        let (broker, client_id) = (broker.clone(), client_id.to_owned());
        self.runtime.spawn(async move {
            let subscription = SubscriptionRequest {
                topic_filter: publication.topic.clone(),
                qos: 1,
                no_local: false,
                retain_as_published: false,
                retain_handling: 2,
            };
            match broker.subscribe(&client_id, subscription).await {
                None => done(Ok(None)),
                Some(Err(refusal)) => done(Err(refusal)),
                Some(Ok(_)) => {
                    broker.send_to_connected_client(&client_id, publication, done, acked)
                }
            }
        });
    }
}

fn command_error(error: CommandError) -> DeviceBackendError {
    match error {
        CommandError::NotAccepted(refused) if refused.is_unknown_function => {
            let detail = refused.detail;
            DeviceBackendError::NotFound(format!("The function does not exist: {detail}."))
        }
        CommandError::NotAccepted(refused) => DeviceBackendError::Field {
            field: refused.field,
            detail: refused.detail,
        },
        CommandError::NotFound(id) => {
            DeviceBackendError::NotFound(format!("There is no command {}.", id.0))
        }
        CommandError::Full(why) => DeviceBackendError::Conflict(format!("{why}.")),
        CommandError::Ended(state) => {
            let state = state.as_str();
            DeviceBackendError::Conflict(format!("The command has already ended: {state}."))
        }
        CommandError::Registry(error) => to_backend_error(error),
        CommandError::Store(error) => DeviceBackendError::Unavailable(format!("{error}.")),
    }
}

pub(super) fn command_view(command: &Command) -> Value {
    json!(command)
}

impl CommandBackend for NodeCommands {
    fn send_command(&self, request: CommandRequest) -> Result<CommandReceipt, DeviceBackendError> {
        let device = self.device(&request.device)?;
        let is_here = self.devices.states.is_online(device.no);
        let wanted = match request.operation {
            CommandOperation::Call { method, params } => CommandAction::Call { method, params },
            CommandOperation::Invoke { function, params } => {
                CommandAction::Invoke { function, params }
            }
            CommandOperation::Read(keys) => CommandAction::Read { keys },
            CommandOperation::Write(values) => CommandAction::Write { values },
        };
        let wish = NewCommand {
            action: wanted,
            one_way: request.one_way,
            timeout_ms: request.timeout_ms,
            expires_in_s: request.expires_in_s,
            retries: request.retries,
            by: request.requested_by,
        };
        let taken = self
            .commands
            .request(&device, wish, request.waits && is_here);
        let taken = taken.map_err(command_error)?;
        let most = Duration::from_millis(taken.command.timeout_ms) + WAIT_GRACE;
        let end = taken.waiter.map(|mut waiting| -> api::CommandCompletion {
            Box::pin(async move {
                let ended = tokio::time::timeout(most, waiting.end()).await;
                ended.ok().flatten().map(|command| command_view(&command))
            })
        });
        Ok(CommandReceipt {
            id: taken.command.id.0,
            value: command_view(&taken.command),
            end,
        })
    }

    fn get(&self, id: u64) -> Result<Option<Value>, DeviceBackendError> {
        let found = self.commands.get(CommandId(id));
        let found = found.map_err(|error| command_error(error.into()))?;
        Ok(found.map(|command| command_view(&command)))
    }

    fn list(&self, query: &CommandQuery) -> Result<CommandPage, DeviceBackendError> {
        let device = query.device.as_deref().map(|id| self.device(id));
        let states = query.states.iter();
        let filter = CommandFilter {
            device: device.transpose()?.map(|device| device.no),
            states: states
                .filter_map(|state| CommandState::parse(state))
                .collect(),
        };
        let before = query.before.map(CommandId);
        let page = self.commands.list(&filter, before, query.limit);
        let page = page.map_err(|error| command_error(error.into()))?;
        Ok(CommandPage {
            rows: page.commands.iter().map(command_view).collect(),
            next: page.next.map(|id| id.0),
        })
    }

    fn cancel(&self, id: u64, who: &str) -> Result<Value, DeviceBackendError> {
        let cancelled = self.commands.cancel(CommandId(id), who);
        Ok(command_view(&cancelled.map_err(command_error)?))
    }
}
