//! A simulation, checked and compiled: what previews and runs use.

use crate::command_plan::CommandPlan;
use crate::definition::{DeviceProtocol, FleetTransport, RequestKind, SendStart, TimeRange};
use crate::phase_plan::{PhaseEnd, PhasePlan};
use crate::random::RandomKey;
use crate::script::ScriptPlan;
use crate::state::{DeviceState, StateProgram};
use crate::template::{NO_STAMP, RenderInput, RequestView, Template};
use crate::verification_plan::VerificationPlan;
use wall_clock::now_ms;

#[derive(Debug)]
pub(crate) struct SimulationPlan {
    pub(crate) seed: u64,
    pub(crate) fleets: Vec<FleetPlan>,
    pub(crate) commands: Vec<CommandPlan>,
    pub(crate) phases: Vec<PhasePlan>,
    pub(crate) verification: Option<VerificationPlan>,
}

#[derive(Debug)]
pub(crate) struct FleetPlan {
    pub(crate) name: String,
    /// Empty if it has none.
    pub(crate) product: String,
    pub(crate) number: u32,
    /// Devices of the fleets before it.
    pub(crate) devices_before: u32,
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) transport: FleetTransport,
    /// Relay endpoint.
    pub(crate) endpoint: Option<Template>,
    /// Whether connections to a relay endpoint identify themselves as devices.
    pub(crate) identifies: bool,
    pub(crate) id: Template,
    /// Name and tags of devices that are created.
    pub(crate) display_name: Option<Template>,
    pub(crate) tags: Vec<(String, Template)>,
    pub(crate) history: Vec<HistoryPlan>,
    pub(crate) client_id: Template,
    pub(crate) username: Option<Template>,
    pub(crate) password: Option<Template>,
    pub(crate) secure: Option<SecureCredentials>,
    pub(crate) keep_alive_s: u16,
    pub(crate) clean_session: bool,
    pub(crate) reconnect: crate::definition::ReconnectDefinition,
    pub(crate) state: StateProgram,
    pub(crate) sends: Vec<SendPlan>,
    pub(crate) responses: Vec<ResponsePlan>,
    /// Images that the devices install: at most one plan for firmware and one for software.
    pub(crate) updates: Vec<UpdatePlan>,
    pub(crate) script: Option<FleetScript>,
    /// Templates of topic filters.
    pub(crate) subscriptions: Vec<Template>,
    pub(crate) subscription_qos: u8,
    /// Messages of a connection that are not acknowledged; more are not sent.
    pub(crate) max_in_flight: usize,
    /// Set for devices without a connection of their own.
    pub(crate) gateway: Option<GatewayPlan>,
    /// Numbers of the fleets whose devices are connected by these gateways.
    pub(crate) child_fleets: Vec<usize>,
}

/// The script of a fleet.
#[derive(Debug)]
pub(crate) struct FleetScript {
    pub(crate) plan: ScriptPlan,
    /// All values of a device as a JSON object.
    pub(crate) state: Template,
}

/// Values that a new device reports about the time before, beginning and ending so long before now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HistoryPlan {
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
    pub(crate) every_ms: u64,
}

/// JetLinks' `secureId` and `secureKey`.
#[derive(Debug)]
pub(crate) struct SecureCredentials {
    pub(crate) id: Template,
    pub(crate) key: Template,
}

/// How the devices of a fleet are connected by gateways.
#[derive(Debug)]
pub(crate) struct GatewayPlan {
    /// Number of the fleet of gateways.
    pub(crate) fleet: usize,
    /// Index of the first gateway.
    pub(crate) first: u32,
    /// Children of each gateway in this fleet.
    pub(crate) children: u32,
    /// Message of the gateway that a child is connected.
    pub(crate) announcement: (Template, Template),
}

impl GatewayPlan {
    /// Index of the gateway of the child at this position of its fleet.
    #[inline]
    pub(crate) fn index_of(&self, number: u32) -> u32 {
        self.first + number / self.children
    }
}

#[derive(Debug)]
pub(crate) struct SendPlan {
    pub(crate) interval_ns: u64,
    pub(crate) jitter_ns: u64,
    pub(crate) start: SendStart,
    pub(crate) random_devices: Option<u32>,
    /// What is compared to detect a change; `None`: each message is sent.
    pub(crate) watch: Option<Template>,
    pub(crate) topic: Template,
    pub(crate) payload: Template,
    pub(crate) qos: u8,
    pub(crate) retain: bool,
    /// Whether a node stores its values with the time `{now}`.
    pub(crate) is_telemetry: bool,
}

/// How a request is recognised and answered.
#[derive(Debug)]
pub(crate) struct ResponsePlan {
    pub(crate) kind: RequestKind,
    pub(crate) protocol: DeviceProtocol,
    /// Whether the request arrives at the gateway of the device.
    pub(crate) is_child: bool,
    /// Template of the filter that the topic matches.
    pub(crate) filter: Template,
    pub(crate) method: Option<String>,
    pub(crate) delay: TimeRange,
    pub(crate) silent: f64,
    pub(crate) failure: f64,
    /// Topic, and payloads of success and failure; `None`: there is no answer.
    pub(crate) answer: Option<AnswerPlan>,
}

/// How devices install images of one kind.
#[derive(Debug)]
pub(crate) struct UpdatePlan {
    pub(crate) kind: ImageKind,
    pub(crate) protocol: DeviceProtocol,
    /// Begin of the topics of JetLinks' protocol.
    pub(crate) topics: Template,
    /// What devices run at first.
    pub(crate) version: String,
    pub(crate) chunk_bytes: u32,
    /// Time of an installation.
    pub(crate) delay: TimeRange,
    /// Share of the installations whose result is not reported, and of those that fail.
    pub(crate) silent: f64,
    pub(crate) failure: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageKind {
    Firmware,
    Software,
}

impl ImageKind {
    /// What is installed after a request of this kind; `None` for requests that are answered.
    pub(crate) fn of_request(kind: RequestKind) -> Option<Self> {
        match kind {
            RequestKind::Firmware => Some(Self::Firmware),
            RequestKind::Software => Some(Self::Software),
            _ => None,
        }
    }

    /// In topics and names of attributes.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Firmware => "fw",
            Self::Software => "sw",
        }
    }
}

#[derive(Debug)]
pub(crate) struct AnswerPlan {
    pub(crate) topic: Template,
    pub(crate) success: Template,
    pub(crate) failure: Template,
}

impl FleetPlan {
    /// The key of the device with this index.
    pub(crate) fn key(&self, seed: u64, index: u32) -> RandomKey {
        RandomKey::of_device(seed, self.number, index)
    }

    /// The id, user name or password of a device, none of which contains values.
    pub(crate) fn identity_text(&self, template: &Template, seed: u64, index: u32) -> String {
        let mut text = Vec::new();
        let input = RenderInput {
            index,
            gateway_index: 0,
            device: DeviceState {
                key: self.key(seed, index),
                step: 0,
                elapsed_ns: 0,
                wall_ms: now_ms(),
                cells: &[],
            },
            program: &self.state,
            request: RequestView::default(),
            stamp: &NO_STAMP,
        };
        template.render(&input, &mut text);
        String::from_utf8(text).expect("templates are UTF-8")
    }
}

impl FleetPlan {
    /// The id of the device at a position of the fleet in the API of the node.
    pub(crate) fn device_id(&self, seed: u64, at: u32) -> String {
        let text = |template| self.identity_text(template, seed, self.first + at);
        match &self.endpoint {
            Some(endpoint) => format!("{}:{}", text(endpoint), text(&self.client_id)),
            None => text(&self.id),
        }
    }

    /// Messages of all its devices per second, without responses and changes of load.
    pub(crate) fn messages_per_s(&self) -> f64 {
        let rates = self.sends.iter().map(|send| {
            let devices = send.random_devices.unwrap_or(self.count);
            f64::from(devices) * 1e9 / send.interval_ns as f64
        });
        rates.sum()
    }
}

impl SimulationPlan {
    /// Sum of the durations of all phases; `None`: one of them has no end of its own. Phases that end when devices are connected do
    /// not count.
    pub(crate) fn duration_ns(&self) -> Option<u64> {
        let durations = self.phases.iter().map(|phase| match phase.end {
            PhaseEnd::Connected => Some(0),
            PhaseEnd::After { ns } => Some(ns),
            PhaseEnd::Campaign { limit_ns } => Some(limit_ns).filter(|ns| *ns != u64::MAX),
            PhaseEnd::Interrupt => None,
        });
        durations.sum()
    }

    /// What the fleets and the verification use, each once.
    pub(crate) fn transports(&self) -> Vec<FleetTransport> {
        let of_fleets = self.fleets.iter().map(|fleet| fleet.transport);
        let of_verification = self.verification.as_ref().map(|_| FleetTransport::Mqtt);
        let mut transports: Vec<FleetTransport> = Vec::new();
        for transport in of_fleets.chain(of_verification) {
            if !transports.contains(&transport) {
                transports.push(transport);
            }
        }
        transports
    }

    /// Devices with a connection of their own.
    pub(crate) fn connections(&self) -> u64 {
        let fleets = self.fleets.iter().filter(|fleet| fleet.gateway.is_none());
        fleets.map(|fleet| u64::from(fleet.count)).sum()
    }

    /// Sockets of the devices that are connected at a time: those over HTTP may have two long polls besides their
    /// requests.
    pub(crate) fn sockets(&self) -> u64 {
        let shares = self.phases.iter().map(|phase| phase.devices);
        let share = shares.fold(0.0, f64::max);
        let fleets = self.fleets.iter().filter(|fleet| fleet.gateway.is_none());
        let sockets = fleets.map(|fleet| {
            let of_device = match fleet.transport {
                FleetTransport::Http => 3,
                FleetTransport::Mqtt | FleetTransport::Relay | FleetTransport::Link => 1,
            };
            (f64::from(fleet.count) * share).ceil() as u64 * of_device
        });
        sockets.sum()
    }

    /// Devices of all fleets.
    pub(crate) fn devices(&self) -> u64 {
        self.fleets.iter().map(|fleet| u64::from(fleet.count)).sum()
    }
}
