//! Compiles a simulation file to a plan, and checks it across fields.

use std::path::Path;

use crate::created_devices;
use crate::definition::{
    DefinitionError, DefinitionErrors, DeviceProtocol, FleetDefinition, FleetTransport,
    RequestKind, ResponseDefinition, SendDefinition, SendKind, SimulationDefinition,
    SourceDocument,
};
use crate::device_protocol::{JETLINKS_FIRMWARE, image_filters, message_form, request_form};
use crate::gateway_protocol::{announcement, child_message_form, child_request_form};
use crate::machine::MachineShare;
use crate::plan::{
    AnswerPlan, FleetPlan, GatewayPlan, ImageKind, ResponsePlan, SecureCredentials, SendPlan,
    SimulationPlan, UpdatePlan,
};
use crate::state::{ReplaySources, StateProgram};
use crate::suggestion::unknown_name;
use crate::template::{GatewayScope, Template, TemplateScope};
use crate::verification_plan::SendProperties;

/// Most devices of a simulation in one process.
const MAX_DEVICES: u64 = 10_000_000;
const MAX_SENDS: usize = 100;
const MAX_FLEETS: usize = 1000;
/// Messages of a connection that are not acknowledged; gateways may have as many more as they have children.
const MAX_IN_FLIGHT: usize = 100;
const MAX_IN_FLIGHT_OF_GATEWAYS: usize = 10_000;
/// Method of commands that name a file.
const FILE_METHOD: &str = "download";
/// Chunks of images fit into the packets that devices accept.
const MAX_CHUNK_BYTES: u32 = 64 * 1024;
const DEFAULT_CHUNK_BYTES: u32 = 16 * 1024;
/// An upload is one request whose body is made in memory.
const MAX_IMAGE_BYTES: u32 = 64 << 20;

/// What a run changes of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CompileOptions {
    pub(crate) machine: Option<MachineShare>,
    /// More devices are reduced to this number.
    pub(crate) max_devices: Option<u32>,
    /// Creates all products, whatever the file says.
    pub(crate) creates_products: bool,
}

/// Reads and compiles a document; `folder` is that of the file.
pub(crate) fn compile(
    document: &SourceDocument,
    folder: &Path,
    options: CompileOptions,
) -> Result<(SimulationDefinition, SimulationPlan), DefinitionErrors> {
    let mut definition = SimulationDefinition::read(document)?;
    let mut errors = Vec::new();
    let machine = options.machine;
    if options.creates_products {
        for product in definition.product.values_mut() {
            product.create = true;
        }
    }
    if let Some(max_devices) = options.max_devices {
        crate::device_limit::apply(&mut definition, max_devices);
    }
    if let Some(machine) = machine {
        machine.apply(&mut definition, &mut errors);
    }
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
    let mut gateway_filters: Vec<Vec<String>> = Vec::new();
    let secret = match created_devices::random_secret() {
        Ok(secret) => secret,
        Err(message) => {
            errors.push(DefinitionError::new("", message));
            String::new()
        }
    };
    for (number, (name, fleet)) in definition.fleet.iter().enumerate() {
        let mut compiler = FleetCompiler {
            path: format!("fleet.{name}"),
            name,
            fleet,
            secret: &secret,
            protocol: DeviceProtocol::Raw,
            transport: FleetTransport::Mqtt,
            gateway: None,
            gateway_filters: Vec::new(),
            errors: &mut errors,
        };
        compiler.gateway = compiler.find_gateway(&definition);
        compiler.protocol = compiler.find_protocol(&definition);
        compiler.transport = compiler.find_transport();
        let sources = ReplaySources {
            folder,
            target: &definition.target,
        };
        fleets.push(compiler.compile(number as u32, &sources));
        gateway_filters.push(compiler.gateway_filters);
    }
    connect_children(&mut fleets, &gateway_filters);
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
    check_firmware(&definition, &mut errors);
    created_devices::check(&definition, &mut errors);
    if machine.is_some() && !definition.firmware.is_empty() {
        errors.push(DefinitionError::new(
            "firmware",
            "firmware is installed by simulations on one machine only",
        ));
    }
    let firmware: Vec<&str> = definition.firmware.keys().map(String::as_str).collect();
    let phases = crate::phase_plan::compile(&definition.phase, &names, &firmware, &mut errors);
    let commands = crate::command_plan::compile(&definition.command, &names, &mut errors);
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
    let plan = SimulationPlan {
        seed: definition.seed,
        fleets,
        commands,
        phases,
        verification,
    };
    Ok((definition, plan))
}

/// Lets gateways subscribe to the requests to their children.
fn connect_children(fleets: &mut [FleetPlan], filters: &[Vec<String>]) {
    for child in 0..fleets.len() {
        let Some(gateway) = &fleets[child].gateway else {
            continue;
        };
        let (number, children) = (gateway.fleet, gateway.children as usize);
        let gateways = &fleets[number];
        let scope = TemplateScope {
            fleet: &gateways.name,
            product: &gateways.product,
            event: "",
            id: Some(&gateways.id),
            state: None,
            is_response: false,
            gateway: None,
            secret: None,
        };
        let subscriptions: Vec<Template> = filters[child]
            .iter()
            .map(|filter| Template::compile(filter, &scope).expect("a filter of a protocol"))
            .collect();
        let gateways = &mut fleets[number];
        gateways.subscriptions.extend(subscriptions);
        gateways.child_fleets.push(child);
        gateways.max_in_flight = MAX_IN_FLIGHT_OF_GATEWAYS.min(gateways.max_in_flight + children);
    }
}

fn image_kind(kind: RequestKind) -> Option<ImageKind> {
    match kind {
        RequestKind::Firmware => Some(ImageKind::Firmware),
        RequestKind::Software => Some(ImageKind::Software),
        _ => None,
    }
}

/// Checks the packages of a simulation.
fn check_firmware(definition: &SimulationDefinition, errors: &mut Vec<DefinitionError>) {
    for (name, firmware) in &definition.firmware {
        let mut error = |field: &str, message: String| {
            let path = format!("firmware.{name}.{field}");
            errors.push(DefinitionError::new(path, message));
        };
        let product = definition.product.get(&firmware.product);
        if !product.is_some_and(|product| product.create) {
            error(
                "product",
                format!(
                    "the table [product.{}] must exist and have create = true",
                    firmware.product
                ),
            );
        }
        if !(1..=MAX_IMAGE_BYTES).contains(&firmware.bytes) {
            error(
                "bytes",
                format!("expected 1 to {MAX_IMAGE_BYTES}, found {}", firmware.bytes),
            );
        }
    }
}

/// The fleet whose devices connect those of another one.
struct GatewayFleet<'d> {
    number: usize,
    definition: &'d FleetDefinition,
    id: Template,
    product: &'d str,
}

struct FleetCompiler<'d> {
    path: String,
    name: &'d str,
    fleet: &'d FleetDefinition,
    /// In credentials.
    secret: &'d str,
    protocol: DeviceProtocol,
    transport: FleetTransport,
    gateway: Option<GatewayFleet<'d>>,
    /// Filters that the gateway subscribes to for its children.
    gateway_filters: Vec<String>,
    errors: &'d mut Vec<DefinitionError>,
}

impl<'d> FleetCompiler<'d> {
    fn error(&mut self, field: &str, message: impl Into<String>) {
        let path = format!("{}.{field}", self.path);
        self.errors.push(DefinitionError::new(path, message));
    }

    /// The fleet of gateways, checked.
    fn find_gateway(&mut self, definition: &'d SimulationDefinition) -> Option<GatewayFleet<'d>> {
        let wanted = self.fleet.gateway.as_ref()?;
        let mut fleets = definition.fleet.iter().enumerate();
        let Some((number, (name, gateway))) = fleets.find(|(_, (name, _))| *name == wanted) else {
            let known = definition.fleet.keys().map(String::as_str);
            self.error("gateway", unknown_name("fleet", wanted, known));
            return None;
        };
        if gateway.gateway.is_some() {
            self.error(
                "gateway",
                format!("the devices of `{name}` have a gateway themselves; expected a fleet with connections"),
            );
            return None;
        }
        if gateway.count == 0
            || !self.fleet.count.is_multiple_of(gateway.count)
            || self.fleet.count == 0
        {
            self.error(
                "count",
                format!(
                    "must be a multiple of the {} gateways of `{name}`",
                    gateway.count
                ),
            );
            return None;
        }
        for (field, is_set) in [
            ("client_id", self.fleet.client_id.is_some()),
            ("username", self.fleet.username.is_some()),
            ("password", self.fleet.password.is_some()),
            ("secure_key", self.fleet.secure_key.is_some()),
            ("subscribe", !self.fleet.subscribe.is_empty()),
        ] {
            if is_set {
                self.error(
                    field,
                    "devices with a `gateway` have no connection of their own",
                );
            }
        }
        let product = gateway.product.as_deref().unwrap_or_default();
        let scope = TemplateScope {
            fleet: name,
            product,
            event: "",
            id: None,
            state: None,
            is_response: false,
            gateway: None,
            secret: None,
        };
        Some(GatewayFleet {
            number,
            definition: gateway,
            // An error is reported for the fleet of gateways.
            id: Template::compile(&gateway.id, &scope).unwrap_or_default(),
            product,
        })
    }

    /// The protocol of the connection.
    fn find_protocol(&mut self, definition: &SimulationDefinition) -> DeviceProtocol {
        let fleet = self
            .gateway
            .as_ref()
            .map_or(self.fleet, |gateway| gateway.definition);
        if let Some(product) = &self.fleet.product
            && !definition.product.contains_key(product)
        {
            let known = definition.product.keys().map(String::as_str);
            let message = match rules::nearest_name(product, known) {
                Some(near) => format!("unknown product `{product}`; did you mean `{near}`?"),
                None => format!(
                    "unknown product `{product}`; add a table [product.{product}] with `protocol`"
                ),
            };
            self.error("product", message);
        }
        let product = fleet.product.as_ref();
        product
            .and_then(|product| definition.product.get(product))
            .map_or(DeviceProtocol::Raw, |product| product.protocol)
    }

    /// The transport, checked; devices of the HTTP API use its topics whatever their own protocol is.
    fn find_transport(&mut self) -> FleetTransport {
        let default = match self.protocol {
            DeviceProtocol::Relay => FleetTransport::Relay,
            _ => FleetTransport::Mqtt,
        };
        let transport = self.fleet.transport.unwrap_or(default);
        if self.gateway.is_some() && self.fleet.transport.is_some() {
            self.error(
                "transport",
                "devices with a `gateway` have no connection of their own",
            );
        }
        let is_relay = transport == FleetTransport::Relay;
        match (transport, self.protocol) {
            (FleetTransport::Http, DeviceProtocol::Thingsboard | DeviceProtocol::Native) => {
                self.protocol = DeviceProtocol::Thingsboard;
                if self.fleet.password.is_some() || self.fleet.secure_key.is_some() {
                    self.error(
                        "password",
                        "devices over HTTP have an access token only, which is the `username`",
                    );
                }
            }
            (FleetTransport::Http, _) => self.error(
                "transport",
                "`http` needs a product with `protocol` thingsboard or native",
            ),
            (FleetTransport::Relay, DeviceProtocol::Relay | DeviceProtocol::Raw) => {}
            (FleetTransport::Relay, _) => {
                self.error(
                    "transport",
                    "`relay` needs a product with `protocol` relay, or none",
                );
            }
            (_, DeviceProtocol::Relay) => self.error(
                "transport",
                "devices with the protocol relay need the transport `relay`",
            ),
            _ => {}
        }
        if is_relay && self.fleet.endpoint.is_none() {
            self.error("endpoint", "name the relay endpoint of the devices");
        }
        if !is_relay && self.fleet.endpoint.is_some() {
            self.error("endpoint", "only the transport `relay` has endpoints");
        }
        transport
    }

    /// The QoS between a device and its server or translator.
    fn effective_qos(&self, qos: u8) -> u8 {
        match self.transport {
            FleetTransport::Mqtt => qos,
            // Each request has a response, and each message of a link an acknowledgement.
            FleetTransport::Http | FleetTransport::Link => 1,
            FleetTransport::Relay => 0,
        }
    }

    /// A template; an error yields an empty one.
    fn template(&mut self, field: &str, text: &str, scope: &TemplateScope<'_>) -> Template {
        Template::compile(text, scope).unwrap_or_else(|message| {
            self.error(field, message);
            Template::default()
        })
    }

    fn compile(&mut self, number: u32, sources: &ReplaySources<'_>) -> FleetPlan {
        let (name, fleet) = (self.name, self.fleet);
        let product = fleet.product.as_deref().unwrap_or_default();
        let identity = TemplateScope {
            fleet: name,
            product,
            event: "",
            id: None,
            state: None,
            is_response: false,
            gateway: None,
            secret: None,
        };
        let id = self.template("id", &fleet.id, &identity);
        if fleet.count > 1
            && !["{index}", "{index:"]
                .iter()
                .any(|part| fleet.id.contains(part))
        {
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
        let endpoint = fleet
            .endpoint
            .as_deref()
            .map(|text| self.template("endpoint", text, &of_device));
        let username = fleet.username.as_deref().or(match self.protocol {
            DeviceProtocol::Thingsboard | DeviceProtocol::Jetlinks | DeviceProtocol::Native => {
                Some("{id}")
            }
            DeviceProtocol::Raw | DeviceProtocol::Relay => None,
        });
        let of_credentials = TemplateScope {
            secret: Some(self.secret),
            ..of_device
        };
        let username = username.map(|text| self.template("username", text, &of_credentials));
        let password = fleet
            .password
            .as_deref()
            .map(|text| self.template("password", text, &of_credentials));
        let secure = self.compile_secure(&of_credentials);
        let display_name = fleet.name.as_deref();
        let display_name = display_name.map(|text| self.template("name", text, &of_device));
        let tags = fleet.tags.iter().map(|(name, text)| {
            let tag = self.template(&format!("tags.{name}"), text, &of_device);
            (name.clone(), tag)
        });
        let tags = tags.collect();
        let keep_alive_s = fleet.keep_alive.ns / 1_000_000_000;
        if keep_alive_s > u64::from(u16::MAX) {
            self.error("keep_alive", "expected at most 65535 s");
        }
        if u64::from(fleet.first) + u64::from(fleet.count) > u64::from(u32::MAX) {
            self.error("first", "`first` and `count` together exceed 4294967295");
        }
        self.check_qos("qos", fleet.qos);
        let state_path = format!("{}.state", self.path);
        let state = StateProgram::compile(fleet.state.iter(), &state_path, sources, self.errors);
        let gateway = self.gateway.take();
        let gateway_scope = gateway.as_ref().map(|gateway| GatewayScope {
            id: &gateway.id,
            product: gateway.product,
        });
        let of_message = TemplateScope {
            state: Some(&state),
            gateway: gateway_scope,
            ..of_device
        };
        let gateway = gateway
            .as_ref()
            .and_then(|gateway| self.compile_gateway(gateway, &of_message));
        if fleet.send.len() > MAX_SENDS {
            self.error("send", format!("at most {MAX_SENDS} sends are allowed"));
        }
        let sends = fleet.send.iter().enumerate();
        let sends: Vec<SendPlan> = sends
            .map(|(at, send)| self.compile_send(at, send, &of_message, &state))
            .collect();
        let history = created_devices::compile_history(fleet, self.protocol, &sends)
            .unwrap_or_else(|(field, message)| {
                self.error(&field, message);
                Vec::new()
            });
        let script = fleet.script.as_ref().and_then(|script| {
            if self.gateway_is_set() {
                self.error(
                    "script",
                    "devices with a `gateway` have no scripts; their gateways may have one",
                );
                return None;
            }
            let path = format!("{}.script", self.path);
            crate::script_compiler::compile(script, &path, sources.folder, &state, self.errors)
        });
        let mut subscriptions = Vec::new();
        for (at, filter) in fleet.subscribe.iter().enumerate() {
            subscriptions.push(self.template(&format!("subscribe[{at}]"), filter, &of_device));
        }
        let mut responses = Vec::new();
        let mut filters: Vec<String> = Vec::new();
        let mut updates: Vec<UpdatePlan> = Vec::new();
        for (at, response) in fleet.on.iter().enumerate() {
            if let Some(kind) = image_kind(response.kind) {
                for filter in self.compile_update(at, (response, kind), &of_message, &mut updates) {
                    if !filters.contains(&filter) {
                        subscriptions.push(self.template("on", &filter, &of_message));
                        filters.push(filter);
                    }
                }
                continue;
            }
            if response.chunk_bytes.is_some() || response.version.is_some() {
                self.error(
                    &format!("on[{at}]"),
                    "only the kinds `firmware` and `software` have `chunk_bytes` and `version`",
                );
            }
            if let Some((response, filter)) = self.compile_response(at, response, &of_message) {
                if !filters.contains(&filter) {
                    filters.push(filter);
                    subscriptions.push(response.filter.clone());
                }
                responses.push(response);
            }
        }
        if of_message.gateway.is_some() {
            self.gateway_filters = filters;
            subscriptions.clear();
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
            transport: self.transport,
            endpoint,
            identifies: self.protocol == DeviceProtocol::Relay,
            id: id.clone(),
            display_name,
            tags,
            history,
            client_id,
            username,
            password,
            secure,
            keep_alive_s: keep_alive_s as u16,
            clean_session: fleet.clean_session,
            reconnect: fleet.reconnect.clone(),
            state,
            sends,
            responses,
            updates,
            script,
            subscriptions,
            subscription_qos: self.effective_qos(fleet.qos.min(1)),
            max_in_flight: MAX_IN_FLIGHT,
            gateway,
            child_fleets: Vec::new(),
        }
    }

    /// Whether the devices have no connection of their own.
    fn gateway_is_set(&self) -> bool {
        self.fleet.gateway.is_some()
    }

    fn compile_secure(&mut self, scope: &TemplateScope<'_>) -> Option<SecureCredentials> {
        let fleet = self.fleet;
        let Some(key) = &fleet.secure_key else {
            if fleet.secure_id.is_some() {
                self.error("secure_id", "`secure_id` and `secure_key` belong together");
            }
            return None;
        };
        if fleet.username.is_some() || fleet.password.is_some() {
            self.error(
                "secure_key",
                "user name and password are made of it; remove `username` and `password`",
            );
        }
        let id = fleet.secure_id.as_deref().unwrap_or("{id}");
        Some(SecureCredentials {
            id: self.template("secure_id", id, scope),
            key: self.template("secure_key", key, scope),
        })
    }

    fn compile_gateway(
        &mut self,
        gateway: &GatewayFleet<'_>,
        scope: &TemplateScope<'_>,
    ) -> Option<GatewayPlan> {
        let (topic, payload) = match announcement(self.protocol) {
            Ok(message) => message,
            Err(message) => {
                self.error("gateway", message);
                return None;
            }
        };
        let product = match scope.product {
            // The child gets the product of its gateway.
            "" => "default",
            product => product,
        };
        let scope = TemplateScope { product, ..*scope };
        Some(GatewayPlan {
            fleet: gateway.number,
            first: gateway.definition.first,
            children: self.fleet.count / gateway.definition.count,
            announcement: (
                self.template("gateway", topic, &scope),
                self.template("gateway", payload, &scope),
            ),
        })
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
        let qos = match send.kind {
            // Acknowledged by the response.
            Some(SendKind::Request) => 1,
            _ => self.effective_qos(qos),
        };
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
        if (kind == SendKind::Request) != send.request.is_some() {
            self.error(
                &field("request"),
                "the kind `request` has the type of a request, and no other kind has one",
            );
        }
        let event = send.event.as_deref().unwrap_or_default();
        if (kind == SendKind::Event) == event.is_empty() {
            self.error(
                &field("event"),
                "the kind `event` has the name of an event, and no other kind has one",
            );
        }
        let form = match scope.gateway {
            None => message_form(self.protocol, kind),
            Some(_) => child_message_form(self.protocol, kind),
        };
        let form = match form {
            Ok(form) => form,
            Err(message) => {
                self.error(&field("kind"), message);
                return Default::default();
            }
        };
        let scope = TemplateScope { event, ..*scope };
        let topic = self.template(
            &field("topic"),
            send.topic.as_deref().unwrap_or(&form.topic),
            &scope,
        );
        if let Some(request) = &send.request {
            let parameters = send.payload.as_deref().unwrap_or("{}");
            let payload = format!(
                "{{\"requestType\":{},\"params\":{parameters}}}",
                serde_json::Value::from(request.as_str())
            );
            return (topic, self.template(&field("payload"), &payload, &scope));
        }
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

    /// A response, and the filter that the connection subscribes to for it.
    fn compile_response(
        &mut self,
        at: usize,
        response: &ResponseDefinition,
        scope: &TemplateScope<'_>,
    ) -> Option<(ResponsePlan, String)> {
        let field = |name: &str| format!("on[{at}].{name}");
        let of_answer = TemplateScope {
            is_response: true,
            ..*scope
        };
        if response.kind == RequestKind::Topic {
            return self.compile_topic_response(at, response, scope);
        }
        let form = match scope.gateway {
            None => request_form(self.protocol, response.kind).map(|form| {
                let filter = form.filter.clone();
                (form, filter)
            }),
            Some(_) => child_request_form(self.protocol, response.kind),
        };
        let (form, subscription) = match form {
            Ok(form) => form,
            Err(message) => {
                self.error(&field("kind"), message);
                return None;
            }
        };
        let topic = response.answer_topic.as_ref().unwrap_or(&form.answer_topic);
        let payload = |text: &str| format!("{}{text}{}", form.front, form.back);
        let success = payload(response.answer.as_deref().unwrap_or(form.success));
        let failure = match response.kind {
            RequestKind::File => form
                .failure
                .replace(
                    "simulated failure",
                    "the file cannot be downloaded or is damaged",
                )
                .replace("\"simulated\"", "\"download\""),
            _ => form.failure.to_owned(),
        };
        let answer = (!topic.is_empty()).then(|| AnswerPlan {
            topic: self.template(&field("answer_topic"), topic, &of_answer),
            success: self.template(&field("answer"), &success, &of_answer),
            failure: self.template(&field("answer"), &payload(&failure), &of_answer),
        });
        let method = match response.kind {
            RequestKind::File => Some(FILE_METHOD),
            _ => form.method,
        };
        let method = response.method.clone().or(method.map(str::to_owned));
        let filter = self.template(&field("topic"), &form.filter, scope);
        let plan = self.response_plan(response, scope, (filter, method, answer));
        Some((plan, subscription))
    }

    /// How images are installed; returns the filters that the device subscribes to.
    fn compile_update(
        &mut self,
        at: usize,
        (response, kind): (&ResponseDefinition, ImageKind),
        scope: &TemplateScope<'_>,
        updates: &mut Vec<UpdatePlan>,
    ) -> Vec<String> {
        let field = |name: &str| format!("on[{at}].{name}");
        if scope.gateway.is_some() {
            self.error(
                &field("kind"),
                "devices with a `gateway` install no images; they have no connection of their own",
            );
            return Vec::new();
        }
        if updates.iter().any(|update| update.kind == kind) {
            self.error(&field("kind"), "an earlier entry has the same kind");
            return Vec::new();
        }
        for (name, is_set) in [
            ("method", response.method.is_some()),
            ("topic", response.topic.is_some()),
            ("answer", response.answer.is_some()),
            ("answer_topic", response.answer_topic.is_some()),
        ] {
            if is_set {
                self.error(&field(name), "images are installed, not answered");
            }
        }
        let chunk_bytes = response.chunk_bytes.unwrap_or(DEFAULT_CHUNK_BYTES);
        if !(1..=MAX_CHUNK_BYTES).contains(&chunk_bytes) {
            self.error(
                &field("chunk_bytes"),
                format!("expected 1 to {MAX_CHUNK_BYTES}, found {chunk_bytes}"),
            );
        }
        let filters = match image_filters(self.protocol, kind) {
            Ok(filters) => filters,
            Err(message) => {
                self.error(&field("kind"), message);
                return Vec::new();
            }
        };
        let topics = match self.protocol {
            DeviceProtocol::Jetlinks => self.template(&field("kind"), JETLINKS_FIRMWARE, scope),
            _ => Template::default(),
        };
        updates.push(UpdatePlan {
            kind,
            protocol: self.protocol,
            topics,
            version: response.version.clone().unwrap_or_else(|| "0".to_owned()),
            chunk_bytes,
            delay: response.delay,
            silent: response.silent.0,
            failure: response.failure.0,
        });
        filters
    }

    /// A response to messages on any topic.
    fn compile_topic_response(
        &mut self,
        at: usize,
        response: &ResponseDefinition,
        scope: &TemplateScope<'_>,
    ) -> Option<(ResponsePlan, String)> {
        let field = |name: &str| format!("on[{at}].{name}");
        let of_answer = TemplateScope {
            is_response: true,
            ..*scope
        };
        if scope.gateway.is_some() {
            self.error(
                &field("kind"),
                "devices with a `gateway` respond to requests of their protocol only",
            );
            return None;
        }
        let Some(topic) = &response.topic else {
            self.error(&field("topic"), "`kind = \"topic\"` needs a topic filter");
            return None;
        };
        let answer = match (&response.answer_topic, &response.answer) {
            (Some(topic), Some(answer)) => {
                let payload = self.template(&field("answer"), answer, &of_answer);
                Some(AnswerPlan {
                    topic: self.template(&field("answer_topic"), topic, &of_answer),
                    success: payload.clone(),
                    failure: payload,
                })
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
        let filter = self.template(&field("topic"), topic, scope);
        let method = response.method.clone();
        let plan = self.response_plan(response, scope, (filter, method, answer));
        Some((plan, topic.clone()))
    }

    fn response_plan(
        &self,
        response: &ResponseDefinition,
        scope: &TemplateScope<'_>,
        (filter, method, answer): (Template, Option<String>, Option<AnswerPlan>),
    ) -> ResponsePlan {
        ResponsePlan {
            kind: response.kind,
            protocol: self.protocol,
            is_child: scope.gateway.is_some(),
            filter,
            method,
            delay: response.delay,
            silent: response.silent.0,
            failure: response.failure.0,
            answer,
        }
    }
}
