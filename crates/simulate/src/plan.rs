//! A simulation, checked and compiled: what previews and runs use.

use std::path::Path;

use crate::definition::{
    DefinitionError, DefinitionErrors, DeviceProtocol, FleetDefinition, RequestKind,
    ResponseDefinition, SendDefinition, SendKind, SendStart, SimulationDefinition, SourceDocument,
    TimeRange,
};
use crate::device_protocol::{message_form, request_form};
use crate::phase_plan::PhasePlan;
use crate::random::RandomKey;
use crate::state::{DeviceState, StateProgram};
use crate::suggestion::unknown_name;
use crate::template::{NO_STAMP, RenderInput, RequestView, Template, TemplateScope};
use crate::verification_plan::{SendProperties, VerificationPlan};
use wall_clock::now_ms;

/// Most devices of a simulation in one process.
const MAX_DEVICES: u64 = 10_000_000;
const MAX_SENDS: usize = 100;
const MAX_FLEETS: usize = 1000;

#[derive(Debug)]
pub(crate) struct SimulationPlan {
    pub(crate) seed: u64,
    pub(crate) fleets: Vec<FleetPlan>,
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
    pub(crate) id: Template,
    pub(crate) client_id: Template,
    pub(crate) username: Option<Template>,
    pub(crate) password: Option<Template>,
    pub(crate) keep_alive_s: u16,
    pub(crate) clean_session: bool,
    pub(crate) reconnect: crate::definition::ReconnectDefinition,
    pub(crate) state: StateProgram,
    pub(crate) sends: Vec<SendPlan>,
    pub(crate) responses: Vec<ResponsePlan>,
    /// Templates of topic filters.
    pub(crate) subscriptions: Vec<Template>,
    pub(crate) subscription_qos: u8,
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
    /// Template of the filter that the topic matches.
    pub(crate) filter: Template,
    pub(crate) method: Option<String>,
    pub(crate) delay: TimeRange,
    pub(crate) silent: f64,
    pub(crate) failure: f64,
    /// Topic, and payloads of success and failure; `None`: there is no answer.
    pub(crate) answer: Option<AnswerPlan>,
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

impl SimulationPlan {
    /// Reads and compiles a document; `folder` is that of the file.
    pub(crate) fn compile(
        document: &SourceDocument,
        folder: &Path,
    ) -> Result<(SimulationDefinition, Self), DefinitionErrors> {
        let definition = SimulationDefinition::read(document)?;
        let mut errors = Vec::new();
        if definition.fleet.is_empty() {
            errors.push(DefinitionError::new(
                "",
                "no devices; add a table such as [fleet.meters] with `count`",
            ));
        }
        if definition.fleet.len() > MAX_FLEETS {
            errors.push(DefinitionError::new(
                "fleet",
                format!("at most {MAX_FLEETS} fleets are allowed"),
            ));
        }
        let mut fleets = Vec::new();
        for (number, (name, fleet)) in definition.fleet.iter().enumerate() {
            let mut compiler = FleetCompiler {
                path: format!("fleet.{name}"),
                name,
                fleet,
                protocol: DeviceProtocol::Raw,
                errors: &mut errors,
            };
            compiler.protocol = compiler.find_protocol(&definition);
            fleets.push(compiler.compile(number as u32, folder));
        }
        let mut devices: u64 = 0;
        for fleet in &mut fleets {
            // More devices than the limit below are refused.
            fleet.devices_before = devices as u32;
            devices += u64::from(fleet.count);
        }
        if devices > MAX_DEVICES {
            errors.push(DefinitionError::new(
                "fleet",
                format!("{devices} devices; one process simulates at most {MAX_DEVICES}"),
            ));
        }
        let names: Vec<&str> = definition.fleet.keys().map(String::as_str).collect();
        let phases = crate::phase_plan::compile(&definition.phase, &names, &mut errors);
        let verification = definition.verify.as_ref().map(|verify| {
            let version = definition.target.version.into();
            let mut sends = fleets.iter().flat_map(|fleet| &fleet.sends);
            let properties = SendProperties {
                have_stamp: sends.clone().any(|send| send.payload.has_stamp()),
                have_telemetry: sends.any(|send| send.is_telemetry),
            };
            crate::verification_plan::compile(verify, version, properties, &mut errors)
        });
        if !errors.is_empty() {
            return Err(document.errors(errors));
        }
        let plan = Self {
            seed: definition.seed,
            fleets,
            phases,
            verification,
        };
        Ok((definition, plan))
    }

    /// Devices of all fleets.
    pub(crate) fn devices(&self) -> u64 {
        self.fleets.iter().map(|fleet| u64::from(fleet.count)).sum()
    }
}

struct FleetCompiler<'d> {
    path: String,
    name: &'d str,
    fleet: &'d FleetDefinition,
    protocol: DeviceProtocol,
    errors: &'d mut Vec<DefinitionError>,
}

impl FleetCompiler<'_> {
    fn error(&mut self, field: &str, message: impl Into<String>) {
        let path = format!("{}.{field}", self.path);
        self.errors.push(DefinitionError::new(path, message));
    }

    fn find_protocol(&mut self, definition: &SimulationDefinition) -> DeviceProtocol {
        let Some(product) = &self.fleet.product else {
            return DeviceProtocol::Raw;
        };
        match definition.product.get(product) {
            Some(product) => product.protocol,
            None => {
                let known = definition.product.keys().map(String::as_str);
                let message = match rules::nearest_name(product, known) {
                    Some(near) => format!("unknown product `{product}`; did you mean `{near}`?"),
                    None => format!(
                        "unknown product `{product}`; add a table [product.{product}] with `protocol`"
                    ),
                };
                self.error("product", message);
                DeviceProtocol::Raw
            }
        }
    }

    /// A template; an error yields an empty one.
    fn template(&mut self, field: &str, text: &str, scope: &TemplateScope<'_>) -> Template {
        Template::compile(text, scope).unwrap_or_else(|message| {
            self.error(field, message);
            Template::default()
        })
    }

    fn compile(mut self, number: u32, folder: &Path) -> FleetPlan {
        let (name, fleet) = (self.name, self.fleet);
        let product = fleet.product.as_deref().unwrap_or_default();
        let identity = TemplateScope {
            fleet: name,
            product,
            event: "",
            id: None,
            state: None,
            is_response: false,
        };
        let id = self.template("id", &fleet.id, &identity);
        if fleet.count > 1 && !fleet.id.contains("{index}") {
            self.error(
                "id",
                "must contain {index}, so that devices have different ids",
            );
        }
        let of_device = TemplateScope {
            id: Some(&id),
            ..identity
        };
        let client_id = self.template(
            "client_id",
            fleet.client_id.as_deref().unwrap_or("{id}"),
            &of_device,
        );
        let username = fleet.username.as_deref().or(match self.protocol {
            DeviceProtocol::Thingsboard | DeviceProtocol::Jetlinks | DeviceProtocol::Native => {
                Some("{id}")
            }
            DeviceProtocol::Raw => None,
        });
        let username = username.map(|text| self.template("username", text, &of_device));
        let password = fleet
            .password
            .as_deref()
            .map(|text| self.template("password", text, &of_device));
        let keep_alive_s = fleet.keep_alive.ns / 1_000_000_000;
        if keep_alive_s > u64::from(u16::MAX) {
            self.error("keep_alive", "expected at most 65535 s");
        }
        if u64::from(fleet.first) + u64::from(fleet.count) > u64::from(u32::MAX) {
            self.error("first", "`first` and `count` together exceed 4294967295");
        }
        self.check_qos("qos", fleet.qos);
        let state_path = format!("{}.state", self.path);
        let state = StateProgram::compile(fleet.state.iter(), &state_path, folder, self.errors);
        let of_message = TemplateScope {
            state: Some(&state),
            ..of_device
        };
        if fleet.send.len() > MAX_SENDS {
            self.error("send", format!("at most {MAX_SENDS} sends are allowed"));
        }
        let sends = fleet.send.iter().enumerate();
        let sends = sends
            .map(|(at, send)| self.compile_send(at, send, &of_message, &state))
            .collect();
        let mut subscriptions = Vec::new();
        for (at, filter) in fleet.subscribe.iter().enumerate() {
            subscriptions.push(self.template(&format!("subscribe[{at}]"), filter, &of_device));
        }
        let mut responses = Vec::new();
        let mut filters: Vec<&str> = Vec::new();
        for (at, response) in fleet.on.iter().enumerate() {
            if let Some((response, filter)) = self.compile_response(at, response, &of_message) {
                if !filters.contains(&filter) {
                    filters.push(filter);
                    subscriptions.push(response.filter.clone());
                }
                responses.push(response);
            }
        }
        // Those for one method are tried before those for any.
        responses.sort_by_key(|response: &ResponsePlan| response.method.is_none());
        FleetPlan {
            name: name.to_owned(),
            product: product.to_owned(),
            number,
            devices_before: 0,
            first: fleet.first,
            count: fleet.count,
            id: id.clone(),
            client_id,
            username,
            password,
            keep_alive_s: keep_alive_s as u16,
            clean_session: fleet.clean_session,
            reconnect: fleet.reconnect.clone(),
            state,
            sends,
            responses,
            subscriptions,
            subscription_qos: fleet.qos.min(1),
        }
    }

    fn check_qos(&mut self, field: &str, qos: u8) {
        if qos > 2 {
            self.error(field, format!("expected 0, 1 or 2, found {qos}"));
        }
    }

    fn compile_send(
        &mut self,
        at: usize,
        send: &SendDefinition,
        scope: &TemplateScope<'_>,
        state: &StateProgram,
    ) -> SendPlan {
        let field = |name: &str| format!("send[{at}].{name}");
        if send.every.ns == 0 {
            self.error(&field("every"), "must be above 0");
        }
        if send.jitter >= send.every && send.jitter.ns > 0 {
            self.error(&field("jitter"), "must be shorter than `every`");
        }
        let qos = send.qos.unwrap_or(self.fleet.qos);
        self.check_qos(&field("qos"), qos);
        if send.random_devices == Some(0) {
            self.error(&field("random_devices"), "must be at least 1");
        }
        let values = self.value_numbers(&field("values"), &send.values, state);
        let watch = (!send.on_change.is_empty()).then(|| {
            let numbers = self.value_numbers(&field("on_change"), &send.on_change, state);
            let mut watch = Template::default();
            watch.push_object(state, numbers.into_iter());
            watch
        });
        let (topic, payload) = self.compile_message(at, send, scope, (state, values));
        SendPlan {
            interval_ns: send.every.ns.max(1),
            jitter_ns: send.jitter.ns,
            start: send.start,
            random_devices: send.random_devices,
            watch,
            topic,
            payload,
            qos,
            retain: send.retain,
            is_telemetry: send.kind == Some(SendKind::Telemetry) && send.payload.is_none(),
        }
    }

    fn value_numbers(&mut self, field: &str, names: &[String], state: &StateProgram) -> Vec<usize> {
        let mut numbers = Vec::new();
        for name in names {
            match state.find(name) {
                Some(number) => numbers.push(number),
                None => {
                    let known = state.names().iter().map(String::as_str);
                    self.error(field, unknown_name("value", name, known));
                }
            }
        }
        numbers
    }

    fn compile_message(
        &mut self,
        at: usize,
        send: &SendDefinition,
        scope: &TemplateScope<'_>,
        (state, values): (&StateProgram, Vec<usize>),
    ) -> (Template, Template) {
        let field = |name: &str| format!("send[{at}].{name}");
        let Some(kind) = send.kind else {
            let (Some(topic), Some(payload)) = (&send.topic, &send.payload) else {
                self.error(
                    &format!("send[{at}]"),
                    "expected `topic` and `payload`, or `kind`",
                );
                return Default::default();
            };
            let topic = self.template(&field("topic"), topic, scope);
            return (topic, self.template(&field("payload"), payload, scope));
        };
        let event = send.event.as_deref().unwrap_or_default();
        if (kind == SendKind::Event) == event.is_empty() {
            self.error(
                &field("event"),
                "the kind `event` has the name of an event, and no other kind has one",
            );
        }
        let form = match message_form(self.protocol, kind) {
            Ok(form) => form,
            Err(message) => {
                self.error(&field("kind"), message);
                return Default::default();
            }
        };
        let scope = TemplateScope { event, ..*scope };
        let topic = self.template(
            &field("topic"),
            send.topic.as_deref().unwrap_or(form.topic),
            &scope,
        );
        if let Some(payload) = &send.payload {
            return (topic, self.template(&field("payload"), payload, &scope));
        }
        if state.names().is_empty() {
            self.error(
                &field("kind"),
                "the fleet has no values to send; add a table `state`",
            );
        }
        let mut payload = self.template(&field("kind"), form.front, &scope);
        let all = 0..state.names().len();
        if values.is_empty() {
            payload.push_object(state, all);
        } else {
            payload.push_object(state, values.into_iter());
        }
        payload.push_text(form.back);
        (topic, payload)
    }

    /// A response, and its filter as written.
    fn compile_response<'d>(
        &mut self,
        at: usize,
        response: &'d ResponseDefinition,
        scope: &TemplateScope<'_>,
    ) -> Option<(ResponsePlan, &'d str)> {
        let field = |name: &str| format!("on[{at}].{name}");
        let of_answer = TemplateScope {
            is_response: true,
            ..*scope
        };
        let (filter, method, answer): (&'d str, _, _) = if response.kind == RequestKind::Topic {
            let Some(topic) = &response.topic else {
                self.error(&field("topic"), "`kind = \"topic\"` needs a topic filter");
                return None;
            };
            let answer = match (&response.answer_topic, &response.answer) {
                (Some(topic), Some(answer)) => {
                    Some((topic.as_str(), answer.as_str(), answer.as_str()))
                }
                (None, None) => None,
                _ => {
                    self.error(
                        &format!("on[{at}]"),
                        "`answer_topic` and `answer` belong together",
                    );
                    None
                }
            };
            (topic, response.method.clone(), answer)
        } else {
            let form = match request_form(self.protocol, response.kind) {
                Ok(form) => form,
                Err(message) => {
                    self.error(&field("kind"), message);
                    return None;
                }
            };
            let success = response.answer.as_deref().unwrap_or(form.success);
            let topic = response
                .answer_topic
                .as_deref()
                .unwrap_or(form.answer_topic);
            let answer = (!topic.is_empty()).then_some((topic, success, form.failure));
            let method = response.method.clone().or(form.method.map(str::to_owned));
            (form.filter, method, answer)
        };
        let answer = answer.map(|(topic, success, failure)| AnswerPlan {
            topic: self.template(&field("answer_topic"), topic, &of_answer),
            success: self.template(&field("answer"), success, &of_answer),
            failure: self.template(&field("answer"), failure, &of_answer),
        });
        let plan = ResponsePlan {
            kind: response.kind,
            protocol: self.protocol,
            filter: self.template(&field("topic"), filter, scope),
            method,
            delay: response.delay,
            silent: response.silent.0,
            failure: response.failure.0,
            answer,
        };
        Some((plan, filter))
    }
}
