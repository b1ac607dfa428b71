//! Commands to devices: the API's wishes to `devices::command`, and its messages to the clients of the broker.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::{
    CommandQuery, CommandRequest, CommandRows, CommandTools, CommandWish, DeviceProblem,
    TakenCommand,
};
use broker::Handle;
use broker::control::{NewSubscription, Publication, Refusal, Told};
use broker::info::{MetricFamily, MetricKind, MetricSample, MetricValue};
use devices::command::{
    Command, CommandConfig, CommandError, CommandFilter, CommandId, CommandState, Commands, Handed,
    Handover, Letter, Reach, Request, Wanted, follow_shared,
};
use devices::platform::Platform;
use devices::{Device, DeviceNo};
use engine::{DeviceEvent, DeviceEventKind, Engine};
use serde_json::{Value, json};
use store::Store;
use tokio::sync::mpsc;

use super::devices::{Devices, problem};
use super::outside::Others;

/// What the clock of a waiting request may be late.
const GRACE: Duration = Duration::from_millis(250);

/// Changes of commands that may wait for rules.
const MAX_TOLD: usize = 4096;

/// The commands of a node.
#[derive(Clone)]
pub(super) struct NodeCommands {
    pub(super) commands: Commands,
    devices: Devices,
    clients: Arc<Clients>,
}

impl NodeCommands {
    pub(super) fn open(
        store: &Store,
        devices: &Devices,
        config: CommandConfig,
        runtime: tokio::runtime::Handle,
    ) -> Result<Self, store::Error> {
        let clients = Arc::new(Clients {
            devices: devices.clone(),
            node: OnceLock::new(),
            runtime,
        });
        let registry = devices.registry.clone();
        let tables = store.objects().tables();
        let commands = Commands::open(tables, registry.clone(), clients.clone(), config)?;
        follow_shared(&registry, clients.clone());
        let arriving = commands.clone();
        devices.states.on_change(Box::new(move |change| {
            if change.is_online {
                arriving.arrived(change.device.no);
            }
        }));
        Ok(Self {
            commands,
            devices: devices.clone(),
            clients,
        })
    }

    /// From now on clients can be told something.
    pub(super) fn start(&self, broker: Handle, platform: Platform, others: Arc<Others>) {
        // The first ones stay.
        let _ = self.clients.node.set((broker, platform, others));
    }

    /// Shows rules what becomes of commands. To be called within the runtime.
    pub(super) fn tell_rules(&self, engine: Engine) {
        let (told, mut waiting) = mpsc::channel::<Command>(MAX_TOLD);
        let shown_to = engine.clone();
        tokio::spawn(async move {
            while let Some(command) = waiting.recv().await {
                let (id, text) = (command.id.0.to_string(), shown(&command).to_string());
                let at_ms = command.finished_at_ms.or(command.sent_at_ms);
                let at_ms = at_ms.unwrap_or(command.created_at_ms);
                let event = DeviceEvent {
                    product_id: &command.product,
                    key: Some(&id),
                    value: rules::Value::Json(&text),
                    ..DeviceEvent::new(DeviceEventKind::Command, &command.device, at_ms)
                };
                shown_to.take_device(event).await;
            }
        });
        self.commands.on_change(Box::new(move |command| {
            if engine.wants_device_events() && told.try_send(command.clone()).is_err() {
                let id = command.id.0;
                tracing::warn!(
                    id,
                    "rules do not see what became of a command: too many wait"
                );
            }
        }));
    }

    fn device(&self, id: &str) -> Result<Arc<Device>, DeviceProblem> {
        let device = self.devices.registry.device(id).map_err(problem)?;
        device.ok_or_else(|| DeviceProblem::NotFound(format!("There is no device {id:?}.")))
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
                "Commands to devices that were taken.",
                stats.taken,
            ),
            one(
                "commands_sent_total",
                Counter,
                "Commands that were handed to connections of devices, each time counted.",
                stats.sent,
            ),
            family(
                "commands_ended_total",
                Counter,
                "Commands that have ended, by how they did.",
                ended.collect(),
            ),
            one(
                "commands_unmatched_answers_total",
                Counter,
                "Answers of devices to commands that nobody waits for.",
                stats.unmatched,
            ),
            one(
                "commands_errors_total",
                Counter,
                "Times that something about a command could not be read or written.",
                stats.write_errors,
            ),
            one(
                "commands_open",
                Gauge,
                "Commands that have not ended.",
                stats.open,
            ),
            one(
                "commands_finished",
                Gauge,
                "Commands that are kept after their end.",
                stats.finished,
            ),
            one(
                "commands_waiting",
                Gauge,
                "Callers and devices that wait.",
                stats.waiting,
            ),
        ]
    }
}

/// The clients of the broker, as far as they are devices.
struct Clients {
    devices: Devices,
    /// Once it runs.
    node: OnceLock<(Handle, Platform, Arc<Others>)>,
    runtime: tokio::runtime::Handle,
}

fn handed(told: Result<Option<Told>, Refusal>) -> Handed {
    match told {
        Ok(None) => Handed::NotHeard,
        Ok(Some(told)) => Handed::Sent {
            is_watched: told.is_watched,
        },
        Err(refusal @ Refusal::Invalid { .. }) => Handed::Never(refusal.to_string()),
        Err(refusal) => Handed::Later(refusal.to_string()),
    }
}

impl Reach for Clients {
    fn client_of(&self, device: DeviceNo) -> Option<Box<str>> {
        let (_, platform, _) = self.node.get()?;
        platform.client_of(device)
    }

    fn is_online(&self, device: DeviceNo) -> bool {
        self.devices.states.is_online(device)
    }

    fn tell(
        &self,
        client_id: &str,
        letter: Letter,
        done: Handover,
        acked: Box<dyn FnOnce() + Send>,
    ) {
        let Some((broker, _, others)) = self.node.get() else {
            return done.done(Handed::Later("the node is starting".to_owned()));
        };
        let log = others.log_of(&letter);
        let done = move |told| {
            let handed = handed(told);
            if matches!(handed, Handed::Sent { .. }) {
                log.write();
            }
            done.done(handed);
        };
        let publication = Publication {
            topic: letter.topic,
            payload: letter.payload.into(),
            qos: 1,
            ..Publication::default()
        };
        if !letter.subscribes {
            broker.tell_watched(client_id, publication, done, acked);
            return;
        }
        let (broker, client_id) = (broker.clone(), client_id.to_owned());
        self.runtime.spawn(async move {
            let subscription = NewSubscription {
                topic_filter: publication.topic.clone(),
                qos: 1,
                no_local: false,
                retain_as_published: false,
                retain_handling: 2,
            };
            match broker.subscribe(&client_id, subscription).await {
                None => done(Ok(None)),
                Some(Err(refusal)) => done(Err(refusal)),
                Some(Ok(_)) => broker.tell_watched(&client_id, publication, done, acked),
            }
        });
    }
}

fn command_problem(error: CommandError) -> DeviceProblem {
    match error {
        CommandError::NotAccepted(refused) if refused.is_unknown_function => {
            let detail = refused.detail;
            DeviceProblem::NotFound(format!("There is no such function: {detail}."))
        }
        CommandError::NotAccepted(refused) => DeviceProblem::Field {
            field: refused.field,
            detail: refused.detail,
        },
        CommandError::NotFound(id) => {
            DeviceProblem::NotFound(format!("There is no command {}.", id.0))
        }
        CommandError::Full(why) => DeviceProblem::Conflict(format!("{why}.")),
        CommandError::Ended(state) => {
            let state = state.as_str();
            DeviceProblem::Conflict(format!("The command has ended already: {state}."))
        }
        CommandError::Registry(error) => problem(error),
        CommandError::Store(error) => DeviceProblem::Unavailable(format!("{error}.")),
    }
}

pub(super) fn shown(command: &Command) -> Value {
    json!(command)
}

impl CommandTools for NodeCommands {
    fn request(&self, request: CommandRequest) -> Result<TakenCommand, DeviceProblem> {
        let device = self.device(&request.device)?;
        let is_here = self.devices.states.is_online(device.no);
        let wanted = match request.wish {
            CommandWish::Call { method, params } => Wanted::Call { method, params },
            CommandWish::Invoke { function, params } => Wanted::Invoke { function, params },
            CommandWish::Read(keys) => Wanted::Read { keys },
            CommandWish::Write(values) => Wanted::Write { values },
        };
        let wish = Request {
            wanted,
            one_way: request.one_way,
            timeout_ms: request.timeout_ms,
            expires_in_s: request.expires_in_s,
            retries: request.retries,
            by: request.by,
        };
        let taken = self
            .commands
            .request(&device, wish, request.waits && is_here);
        let taken = taken.map_err(command_problem)?;
        let most = Duration::from_millis(taken.command.timeout_ms) + GRACE;
        let end = taken.waiting.map(|mut waiting| -> api::CommandEnd {
            Box::pin(async move {
                let ended = tokio::time::timeout(most, waiting.end()).await;
                ended.ok().flatten().map(|command| shown(&command))
            })
        });
        Ok(TakenCommand {
            id: taken.command.id.0,
            value: shown(&taken.command),
            end,
        })
    }

    fn get(&self, id: u64) -> Result<Option<Value>, DeviceProblem> {
        let found = self.commands.get(CommandId(id));
        let found = found.map_err(|error| command_problem(error.into()))?;
        Ok(found.map(|command| shown(&command)))
    }

    fn list(&self, query: &CommandQuery) -> Result<CommandRows, DeviceProblem> {
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
        let page = page.map_err(|error| command_problem(error.into()))?;
        Ok(CommandRows {
            rows: page.commands.iter().map(shown).collect(),
            next: page.next.map(|id| id.0),
        })
    }

    fn cancel(&self, id: u64, who: &str) -> Result<Value, DeviceProblem> {
        let cancelled = self.commands.cancel(CommandId(id), who);
        Ok(shown(&cancelled.map_err(command_problem)?))
    }
}
