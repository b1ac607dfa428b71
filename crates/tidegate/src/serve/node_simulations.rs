//! Ready-made simulations that run within the node. Their devices connect to its listeners, and their products and devices are
//! created over its API.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::{
    NodeCaller, ReadyMadeSimulation, SimulationAction, SimulationBackend, SimulationCondition,
    SimulationFailure, SimulationLogLine, SimulationObserver, SimulationPhase,
    SimulationPhaseState, SimulationProgress, SimulationStage, SimulationTask,
};
use broker::BrokerHandle;
use simulate::{
    EmbeddedOptions, EmbeddedProgress, EmbeddedSimulation, Interrupt, NodeApi, NodeRequest,
    NodeTransport, PhaseSnapshotStage, RunSnapshot,
};

use crate::config::SimulationSettings;

/// The path of relay endpoints on a WebSocket listener.
const RELAY_PATH: &str = "/ws";

#[derive(Clone)]
pub(super) struct NodeSimulations(Arc<SimulationsState>);

struct SimulationsState {
    handle: BrokerHandle,
    settings: SimulationSettings,
    /// Requests the end of all runs, also of those that begin later.
    interrupt: Interrupt,
    running: Mutex<u32>,
    ended: Condvar,
}

/// Where simulated devices connect, as arguments of `--set`.
struct SimulationTargets {
    sets: Vec<String>,
    has_relay: bool,
}

impl NodeSimulations {
    pub(super) fn new(handle: BrokerHandle, settings: SimulationSettings) -> Self {
        Self(Arc::new(SimulationsState {
            handle,
            settings,
            interrupt: Interrupt::default(),
            running: Mutex::default(),
            ended: Condvar::new(),
        }))
    }

    /// Ends all runs, and waits until they have removed what they created.
    pub(super) fn stop(&self, timeout: Duration) {
        self.0.interrupt.request();
        let waiting = self
            .0
            .ended
            .wait_timeout_while(self.0.running(), timeout, |running| *running > 0);
        let (running, _) = waiting.unwrap_or_else(PoisonError::into_inner);
        if *running > 0 {
            tracing::warn!(
                "a simulation has not removed its devices in time; remove them after the next start with `tidegate ctl simulations \
                 clean`"
            );
        }
    }

    /// The listeners that simulated devices use.
    fn targets(&self) -> Result<SimulationTargets, String> {
        let listeners = self.0.handle.listeners();
        let address = |protocol: &str| {
            let mut listeners = listeners.iter();
            listeners.find_map(|listener| {
                let is_open = listener.protocol == protocol && listener.running;
                let address: SocketAddr = listener.address.parse().ok().filter(|_| is_open)?;
                Some(local_address(address))
            })
        };
        let mut sets = match (address("mqtt"), address("mqtts")) {
            (Some(address), _) => vec![format!("target.broker=mqtt://{address}")],
            // The certificate is that of this node, but hardly for its loopback address.
            (None, Some(address)) => vec![
                format!("target.broker=mqtts://{address}"),
                "target.insecure=true".to_owned(),
            ],
            (None, None) => {
                return Err(
                    "The node has no running listener with protocol mqtt or mqtts; start one."
                        .to_owned(),
                );
            }
        };
        let relay = address("ws");
        sets.extend(relay.map(|address| format!("target.relay=ws://{address}{RELAY_PATH}")));
        Ok(SimulationTargets {
            sets,
            has_relay: relay.is_some(),
        })
    }

    fn load(&self, task: &SimulationTask) -> Result<EmbeddedSimulation, String> {
        let limit = self.0.settings.max_devices;
        let options = EmbeddedOptions {
            node: NodeApi::with_transport(Arc::new(ApiTransport(task.node.clone()))),
            sets: self.targets()?.sets,
            max_devices: Some(task.max_devices.map_or(limit, |devices| devices.min(limit))),
            creates_products: true,
            keeps: false,
        };
        EmbeddedSimulation::load(&task.name, options).map_err(|error| format!("{error:#}"))
    }
}

impl SimulationsState {
    fn running(&self) -> MutexGuard<'_, u32> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a run as running until it is dropped.
struct RunningCount<'a>(&'a SimulationsState);

impl<'a> RunningCount<'a> {
    fn new(state: &'a SimulationsState) -> Self {
        *state.running() += 1;
        Self(state)
    }
}

impl Drop for RunningCount<'_> {
    fn drop(&mut self) {
        *self.0.running() -= 1;
        self.0.ended.notify_all();
    }
}

impl SimulationBackend for NodeSimulations {
    fn simulations(&self) -> Vec<ReadyMadeSimulation> {
        let settings = &self.0.settings;
        let defined = simulate::ready_made_simulations(None);
        let limited = simulate::ready_made_simulations(Some(settings.max_devices));
        let (Ok(defined), Ok(limited)) = (defined, limited) else {
            tracing::error!("a ready-made simulation is invalid; this is a bug");
            return Vec::new();
        };
        let targets = self.targets();
        let describe = |(defined, limited): (
            simulate::SimulationInfo,
            simulate::SimulationInfo,
        )| {
            let unavailable = match &targets {
                _ if settings.max_running == 0 || settings.max_devices == 0 => Some(
                    "simulations.max_running or simulations.max_devices is 0; this node runs no simulations."
                        .to_owned(),
                ),
                Err(reason) => Some(reason.clone()),
                Ok(targets) if limited.uses_relay && !targets.has_relay => Some(
                    "The node has no running listener with protocol ws; start one.".to_owned(),
                ),
                Ok(_) => None,
            };
            ReadyMadeSimulation {
                name: limited.name.to_owned(),
                description: limited.description,
                devices: limited.devices,
                defined_devices: defined.devices,
                messages_per_s: (limited.messages_per_s * 100.0).round() / 100.0,
                phases: limited.phases,
                duration_s: limited.duration_s,
                products: limited.products,
                unavailable,
            }
        };
        defined.into_iter().zip(limited).map(describe).collect()
    }

    fn max_running(&self) -> u32 {
        self.0.settings.max_running
    }

    fn run(
        &self,
        task: &SimulationTask,
        observer: &dyn SimulationObserver,
    ) -> Result<Vec<SimulationCondition>, String> {
        let _running = RunningCount::new(&self.0);
        let simulation = self.load(task)?;
        let interrupt = Interrupt::default();
        let latest = Mutex::new(SimulationProgress::default());
        let observe = |progress: EmbeddedProgress| {
            if observer.is_cancelled() || self.0.interrupt.is_requested() {
                interrupt.request();
            }
            let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
            update(&mut latest, progress);
            observer.report(latest.clone());
        };
        match task.action {
            SimulationAction::Run => {
                let conditions = simulation.run(&interrupt, &observe);
                let conditions = conditions.map_err(|error| format!("{error:#}"))?;
                let conditions = conditions.into_iter();
                Ok(conditions.map(to_condition).collect())
            }
            SimulationAction::Clean => {
                let removed = simulation.clean(&interrupt, &observe);
                removed.map_err(|error| format!("{error:#}"))?;
                Ok(Vec::new())
            }
        }
    }
}

fn to_condition(condition: simulate::ConditionResult) -> SimulationCondition {
    SimulationCondition {
        phase: condition.phase,
        condition: condition.condition,
        found: condition.found,
        holds: condition.holds,
    }
}

/// An address at which this machine reaches a listener.
fn local_address(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn update(progress: &mut SimulationProgress, change: EmbeddedProgress) {
    match change {
        EmbeddedProgress::Creating { done, total } => {
            progress.stage = SimulationStage::Creating;
            (progress.done, progress.total) = (done, total);
        }
        EmbeddedProgress::Created { .. } => {}
        EmbeddedProgress::Running(snapshot) => {
            progress.stage = SimulationStage::Running;
            set_snapshot(progress, snapshot);
        }
        EmbeddedProgress::Removing { done, total } => {
            progress.stage = SimulationStage::Removing;
            (progress.done, progress.total) = (done, total);
            (progress.connected, progress.sent_per_s) = (0, 0.0);
            // Also the one that was interrupted.
            for phase in &mut progress.phases {
                if phase.state == SimulationPhaseState::Running {
                    phase.state = SimulationPhaseState::Done;
                }
            }
        }
    }
}

fn set_snapshot(progress: &mut SimulationProgress, snapshot: RunSnapshot) {
    let phases = snapshot.phases.into_iter();
    progress.phases = phases
        .map(|phase| SimulationPhase {
            name: phase.name,
            state: match phase.stage {
                PhaseSnapshotStage::Waiting => SimulationPhaseState::Waiting,
                PhaseSnapshotStage::Running => SimulationPhaseState::Running,
                PhaseSnapshotStage::Done => SimulationPhaseState::Done,
            },
            elapsed_s: phase.elapsed_s,
            duration_s: phase.duration_s,
            progress: phase.progress,
        })
        .collect();
    progress.connected = snapshot.connected;
    progress.sent = snapshot.sent;
    progress.sent_per_s = (snapshot.sent_per_s * 10.0).round() / 10.0;
    progress.acknowledged = snapshot.acknowledged;
    progress.received = snapshot.received;
    progress.answers = snapshot.answers;
    progress.failures = snapshot.failures;
    progress.ack_p99_ms = snapshot.ack_p99_ns.map(|ns| ns as f64 / 1e6);
    let failures = snapshot.failures_by_kind.into_iter();
    progress.failures_by_kind = failures
        .map(|(kind, count)| SimulationFailure { kind, count })
        .collect();
    let lines = snapshot.log.into_iter();
    progress.log = lines
        .map(|(at_ms, text)| SimulationLogLine { at_ms, text })
        .collect();
}

/// The API of this node for a simulation.
struct ApiTransport(Arc<dyn NodeCaller>);

impl NodeTransport for ApiTransport {
    fn send(&self, request: &NodeRequest<'_>) -> anyhow::Result<(u16, String)> {
        let answer = self.0.send(
            request.method,
            request.path,
            request.body,
            request.is_creation,
        );
        answer.map_err(anyhow::Error::msg)
    }

    fn address(&self) -> String {
        String::new()
    }
}
