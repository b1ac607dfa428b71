//! Compiles a simulation file to a plan, and checks it across fields.

use std::path::Path;

use crate::created_devices;
use crate::definition::{DefinitionError, DefinitionErrors, SimulationDefinition, SourceDocument};
use crate::fleet_compiler::FleetCompiler;
use crate::machine::MachineShare;
use crate::plan::{FleetPlan, SimulationPlan};
use crate::state::ReplaySources;
use crate::template::{Template, TemplateScope};
use crate::verification_plan::SendProperties;

/// Most devices of a simulation in one process.
const MAX_DEVICES: u64 = 10_000_000;
const MAX_FLEETS: usize = 1000;
/// Messages of the connection of a gateway that are not acknowledged: those of other devices, and one for each child.
const MAX_IN_FLIGHT_OF_GATEWAYS: usize = 10_000;
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
        let sources = ReplaySources {
            folder,
            target: &definition.target,
        };
        let compiler = FleetCompiler::new(&definition, (name, fleet), &secret, &mut errors);
        let (fleet, filters) = compiler.compile(number as u32, &sources);
        fleets.push(fleet);
        gateway_filters.push(filters);
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
