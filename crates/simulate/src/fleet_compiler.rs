//! Compiles a fleet of a simulation file to a plan.

mod responses;
mod sends;
mod updates;

use crate::created_devices;
use crate::definition::{
    DefinitionError, DeviceProtocol, FleetDefinition, FleetTransport, SimulationDefinition,
};
use crate::gateway_protocol::announcement;
use crate::plan::{
    FleetPlan, GatewayPlan, ImageKind, ResponsePlan, SecureCredentials, SendPlan, UpdatePlan,
};
use crate::state::{ReplaySources, StateProgram};
use crate::suggestion::unknown_name;
use crate::template::{GatewayScope, Template, TemplateScope};

const MAX_SENDS: usize = 100;
/// Messages of a connection that are not acknowledged.
const MAX_IN_FLIGHT: usize = 100;

/// The fleet whose devices connect those of another one.
struct GatewayFleet<'d> {
    number: usize,
    definition: &'d FleetDefinition,
    id: Template,
    product: &'d str,
}

/// Checks one fleet, and makes its plan. Errors are collected, so that a file is corrected at once.
pub(crate) struct FleetCompiler<'d> {
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
    /// `secret` is a part of the credentials of created devices.
    pub(crate) fn new(
        definition: &'d SimulationDefinition,
        (name, fleet): (&'d str, &'d FleetDefinition),
        secret: &'d str,
        errors: &'d mut Vec<DefinitionError>,
    ) -> Self {
        let mut compiler = Self {
            path: format!("fleet.{name}"),
            name,
            fleet,
            secret,
            protocol: DeviceProtocol::Raw,
            transport: FleetTransport::Mqtt,
            gateway: None,
            gateway_filters: Vec::new(),
            errors,
        };
        compiler.gateway = compiler.find_gateway(definition);
        compiler.protocol = compiler.find_protocol(definition);
        compiler.transport = compiler.find_transport();
        compiler
    }

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

    /// The plan of the fleet with this number, and the filters that its gateways subscribe to for it.
    pub(crate) fn compile(
        mut self,
        number: u32,
        sources: &ReplaySources<'_>,
    ) -> (FleetPlan, Vec<String>) {
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
            if let Some(kind) = ImageKind::of_request(response.kind) {
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
        let plan = FleetPlan {
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
        };
        (plan, self.gateway_filters)
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
}
