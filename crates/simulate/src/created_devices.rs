//! What only devices have that a simulation creates: secrets, names, tags and a history.

use crate::definition::{
    DefinitionError, DeviceProtocol, FleetDefinition, SimulationDefinition, TimeSpan,
};
use crate::plan::{HistoryPlan, SendPlan};

/// Messages that each new device reports about the time before.
const MAX_HISTORY_ROWS: u64 = 10_000;

/// Checks what only devices can have that the simulation creates.
pub(crate) fn check(definition: &SimulationDefinition, errors: &mut Vec<DefinitionError>) {
    for (name, fleet) in &definition.fleet {
        let product = fleet.product.as_ref();
        let product = product.and_then(|product| definition.product.get(product));
        let has_secret =
            |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains("{secret}"));
        let fields = [
            ("name", fleet.name.is_some()),
            ("tags", !fleet.tags.is_empty()),
            ("history", !fleet.history.is_empty()),
            ("username", has_secret(&fleet.username)),
            ("password", has_secret(&fleet.password)),
            ("secure_key", has_secret(&fleet.secure_key)),
        ];
        let is_created = product.is_some_and(|product| product.create);
        for (field, _) in fields.iter().filter(|(_, is_set)| *is_set && !is_created) {
            errors.push(DefinitionError::new(
                format!("fleet.{name}.{field}"),
                "is for devices that the simulation creates; set create = true in the table of their product",
            ));
        }
    }
}

/// 128 random bits that only this run knows.
pub(crate) fn random_secret() -> Result<String, String> {
    use ring::rand::{SystemRandom, generate};
    let bits: [u8; 16] = generate(&SystemRandom::new())
        .map_err(|_| "the system has no random numbers".to_owned())?
        .expose();
    Ok(bits.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The history of the new devices of a fleet, who report it as their first send over the HTTP API of devices. An error names the
/// field.
pub(crate) fn compile_history(
    fleet: &FleetDefinition,
    protocol: DeviceProtocol,
    sends: &[SendPlan],
) -> Result<Vec<HistoryPlan>, (String, String)> {
    let has_token = fleet.password.is_none() && fleet.secure_key.is_none();
    let is_possible = protocol == DeviceProtocol::Thingsboard
        && has_token
        && sends.first().is_some_and(|send| send.is_telemetry);
    if !fleet.history.is_empty() && !is_possible {
        return Err((
            "history".to_owned(),
            "expected a product with `protocol` thingsboard, devices with an access token, and a first send with \
             `kind = \"telemetry\"`"
                .to_owned(),
        ));
    }
    let mut rows = 0;
    let mut history = Vec::new();
    for (at, part) in fleet.history.iter().enumerate() {
        let milliseconds = |time: TimeSpan| time.ns / 1_000_000;
        let part = HistoryPlan {
            from_ms: milliseconds(part.from),
            to_ms: milliseconds(part.to),
            every_ms: milliseconds(part.every),
        };
        if part.every_ms == 0 || part.from_ms <= part.to_ms {
            return Err((
                format!("history[{at}]"),
                "expected `from` longer ago than `to`, and `every` of at least 1ms".to_owned(),
            ));
        }
        rows += (part.from_ms - part.to_ms).div_ceil(part.every_ms);
        history.push(part);
    }
    if rows > MAX_HISTORY_ROWS {
        return Err((
            "history".to_owned(),
            format!("{rows} messages of each device; at most {MAX_HISTORY_ROWS} are allowed"),
        ));
    }
    Ok(history)
}
