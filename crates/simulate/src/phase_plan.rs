//! Phases, checked: how each connects, loads and ends.

use crate::definition::{
    DefinitionError, FaultDefinition, FaultKind, PhaseCurve, PhaseDefinition, ReconnectDefinition,
};
use crate::metrics::Assertion;
use crate::suggestion::unknown_name;

const MAX_PHASES: usize = 100;
const MAX_STEPS: usize = 1000;
const MAX_FAULTS: usize = 100;
/// A fault that is repeated more often is one that lasts.
const MIN_FAULT_INTERVAL_NS: u64 = 10_000_000;
const MAX_FACTOR: f64 = 1e6;
const MIN_CONNECT_RATE: f64 = 0.001;
const MAX_CONNECT_RATE: f64 = 1e6;
const DEFAULT_CONCURRENCY: u32 = 100;

#[derive(Clone, Debug)]
pub(crate) struct PhasePlan {
    pub(crate) name: String,
    pub(crate) end: PhaseEnd,
    /// Firmware whose campaign begins with the phase.
    pub(crate) campaign: Option<String>,
    /// Share of the devices that are to be connected.
    pub(crate) devices: f64,
    /// Connections begun per second.
    pub(crate) connect_rate: Option<PhaseCurve>,
    pub(crate) connect_concurrency: u32,
    /// Instead of that of each fleet.
    pub(crate) reconnect: Option<ReconnectDefinition>,
    pub(crate) load: PhaseCurve,
    pub(crate) burst: u32,
    pub(crate) assertions: Vec<Assertion>,
    pub(crate) faults: Vec<FaultPlan>,
}

/// Devices that fail at a time, or at several.
#[derive(Clone, Debug)]
pub(crate) struct FaultPlan {
    pub(crate) kind: FaultKind,
    /// Number of the fleet; `None`: all.
    pub(crate) fleet: Option<usize>,
    pub(crate) after_ns: u64,
    pub(crate) every_ns: Option<u64>,
    /// Share of the devices.
    pub(crate) devices: f64,
    /// Whether they are neighbours by index.
    pub(crate) is_region: bool,
    pub(crate) duration_ns: u64,
    pub(crate) offset_ms: i64,
}

/// When a phase ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PhaseEnd {
    /// Each of its devices has connected, or failed to.
    Connected,
    After {
        ns: u64,
    },
    /// Its campaign has ended, or this time is over.
    Campaign {
        limit_ns: u64,
    },
    Interrupt,
}

impl PhasePlan {
    /// The only phase of a file without phases.
    fn endless() -> Self {
        Self {
            name: "run".to_owned(),
            end: PhaseEnd::Interrupt,
            campaign: None,
            devices: 1.0,
            connect_rate: None,
            connect_concurrency: DEFAULT_CONCURRENCY,
            reconnect: None,
            load: PhaseCurve::default(),
            burst: 0,
            assertions: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Factor of all rates so long after the start of the phase.
    pub(crate) fn load_at(&self, elapsed_ns: u64) -> f64 {
        self.load.at(self.part(elapsed_ns))
    }

    /// Connections begun per second so long after the start of the phase; `None`: not limited.
    pub(crate) fn connect_rate_at(&self, elapsed_ns: u64) -> Option<f64> {
        let rate = self.connect_rate.as_ref()?;
        Some(rate.at(self.part(elapsed_ns)))
    }

    /// The part of the phase that has passed, from 0 to 1.
    fn part(&self, elapsed_ns: u64) -> f64 {
        match self.end {
            PhaseEnd::After { ns } | PhaseEnd::Campaign { limit_ns: ns } => {
                (elapsed_ns as f64 / ns.max(1) as f64).min(1.0)
            }
            PhaseEnd::Connected | PhaseEnd::Interrupt => 0.0,
        }
    }
}

/// Checks the phases of a file; a file without phases has one that lasts until it is interrupted.
pub(crate) fn compile(
    definitions: &[PhaseDefinition],
    fleets: &[&str],
    firmware: &[&str],
    errors: &mut Vec<DefinitionError>,
) -> Vec<PhasePlan> {
    if definitions.len() > MAX_PHASES {
        errors.push(DefinitionError::new(
            "phase",
            format!("at most {MAX_PHASES} phases are allowed"),
        ));
    }
    if definitions.is_empty() {
        return vec![PhasePlan::endless()];
    }
    let mut phases: Vec<PhasePlan> = Vec::with_capacity(definitions.len());
    for (number, definition) in definitions.iter().enumerate() {
        let mut error = |field: &str, message: String| {
            errors.push(DefinitionError::new(
                format!("phase[{number}].{field}"),
                message,
            ));
        };
        if phases.iter().any(|phase| phase.name == definition.name) {
            error(
                "name",
                format!("`{}` is the name of an earlier phase", definition.name),
            );
        }
        if let Some(name) = &definition.campaign
            && !firmware.contains(&name.as_str())
        {
            let message = unknown_name("firmware", name, firmware.iter().copied());
            error("campaign", message);
        }
        check_curve(definition, "load", &mut error);
        check_curve(definition, "connect_rate", &mut error);
        let concurrency = definition
            .connect_concurrency
            .unwrap_or(DEFAULT_CONCURRENCY);
        if !(1..=100_000).contains(&concurrency) {
            error(
                "connect_concurrency",
                format!("expected 1 to 100000, found {concurrency}"),
            );
        }
        let mut assertions = Vec::new();
        for (at, text) in definition.assertions.iter().enumerate() {
            match text.parse() {
                Ok(assertion) => assertions.push(assertion),
                Err(message) => error(&format!("assert[{at}]"), message),
            }
        }
        if definition.faults.len() > MAX_FAULTS {
            error("fault", format!("at most {MAX_FAULTS} faults are allowed"));
        }
        let mut faults = Vec::new();
        for (at, fault) in definition.faults.iter().enumerate() {
            faults.push(compile_fault(fault, fleets, &mut |field, message| {
                error(&format!("fault[{at}].{field}"), message);
            }));
        }
        phases.push(PhasePlan {
            name: definition.name.clone(),
            end: match (&definition.campaign, definition.duration) {
                (Some(_), duration) => PhaseEnd::Campaign {
                    limit_ns: duration.map_or(u64::MAX, |duration| duration.ns),
                },
                (None, Some(duration)) => PhaseEnd::After { ns: duration.ns },
                (None, None) => PhaseEnd::Connected,
            },
            campaign: definition.campaign.clone(),
            devices: definition.devices.0,
            connect_rate: definition.connect_rate.clone(),
            connect_concurrency: concurrency,
            reconnect: definition.reconnect.clone(),
            load: definition.load.clone(),
            burst: definition.burst,
            assertions,
            faults,
        });
    }
    phases
}

fn compile_fault(
    definition: &FaultDefinition,
    fleets: &[&str],
    error: &mut impl FnMut(&str, String),
) -> FaultPlan {
    let fleet = definition.fleet.as_ref().and_then(|name| {
        let found = fleets.iter().position(|known| known == name);
        if found.is_none() {
            error("fleet", unknown_name("fleet", name, fleets.iter().copied()));
        }
        found
    });
    if definition
        .every
        .is_some_and(|every| every.ns < MIN_FAULT_INTERVAL_NS)
    {
        error("every", "must be at least 10 ms".to_owned());
    }
    let is_state = !matches!(
        definition.kind,
        FaultKind::Disconnect | FaultKind::Close | FaultKind::Abort
    );
    if is_state && definition.duration.ns == 0 {
        error("duration", "this kind of fault needs a duration".to_owned());
    }
    if (definition.kind == FaultKind::ClockOffset) != (definition.offset_s != 0) {
        error(
            "offset_s",
            "`clock_offset` has an offset other than 0, and no other kind has one".to_owned(),
        );
    }
    FaultPlan {
        kind: definition.kind,
        fleet,
        after_ns: definition.after.ns,
        every_ns: definition.every.map(|every| every.ns),
        devices: definition.devices.0,
        is_region: definition.region,
        duration_ns: definition.duration.ns,
        offset_ms: definition.offset_s.saturating_mul(1000),
    }
}

/// Checks the `load` or the `connect_rate` of a phase.
fn check_curve(definition: &PhaseDefinition, field: &str, error: &mut impl FnMut(&str, String)) {
    let (curve, min, max, unit) = match field {
        "connect_rate" => {
            let Some(rate) = &definition.connect_rate else {
                return;
            };
            let is_constant = matches!(rate, PhaseCurve::Constant(_));
            let min = if is_constant { MIN_CONNECT_RATE } else { 0.0 };
            (rate, min, MAX_CONNECT_RATE, " connections per second")
        }
        _ => (&definition.load, 0.0, MAX_FACTOR, ""),
    };
    let mut curve = curve.clone();
    let numbers = curve.numbers_mut();
    if numbers.is_empty() || numbers.len() > MAX_STEPS {
        let message = format!("expected 1 to {MAX_STEPS} steps, found {}", numbers.len());
        error(field, message);
    }
    if numbers
        .iter()
        .any(|number| !(min..=max).contains(&**number))
    {
        error(field, format!("expected {min} to {max}{unit}"));
    }
    if !matches!(curve, PhaseCurve::Constant(_)) && definition.duration.is_none() {
        let message = "steps and ramps need a `duration` of the phase".to_owned();
        error(field, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn load_follows_factors_steps_and_ramps() {
        let phase = |load| {
            let definition = json!({"name": "a", "duration": "10s", "load": load});
            let definition = serde_json::from_value(definition).expect("well-formed");
            let mut errors = Vec::new();
            let phases = compile(&[definition], &["meters"], &["image"], &mut errors);
            assert!(errors.is_empty(), "{errors:?}");
            phases[0].clone()
        };
        let at = |phase: &PhasePlan, seconds: u64| phase.load_at(seconds * 1_000_000_000);
        assert_eq!(at(&phase(json!(2)), 5), 2.0);
        let steps = phase(json!([1, 2, 4]));
        assert_eq!(
            [0, 3, 4, 7, 10].map(|s| at(&steps, s)),
            [1.0, 1.0, 2.0, 4.0, 4.0]
        );
        let ramp = phase(json!({"from": 1, "to": 3}));
        assert_eq!([0, 5, 10, 20].map(|s| at(&ramp, s)), [1.0, 2.0, 3.0, 3.0]);
    }

    #[test]
    fn wrong_phases_are_errors() {
        let errors = |definition: serde_json::Value| {
            let definition = serde_json::from_value(definition).expect("well-formed");
            let mut errors = Vec::new();
            compile(&[definition], &["meters"], &["image"], &mut errors);
            format!("{errors:?}")
        };
        assert!(errors(json!({"name": "a", "load": [1, 2]})).contains("need a `duration`"));
        assert!(errors(json!({"name": "a", "load": -1})).contains("0 to"));
        assert!(errors(json!({"name": "a", "connect_rate": 0})).contains("connect_rate"));
        let ramp = json!({"name": "a", "connect_rate": {"from": 0, "to": 9}});
        assert!(errors(ramp).contains("need a `duration`"));
        assert!(
            errors(json!({"name": "a", "campaign": "imgae"})).contains("did you mean `image`?")
        );
        assert!(errors(json!({"name": "a", "assert": ["lots>1"]})).contains("phase[0].assert[0]"));
        let fault = |fault| errors(json!({"name": "a", "fault": [fault]}));
        assert!(fault(json!({"kind": "close", "fleet": "x"})).contains("unknown fleet `x`"));
        assert!(fault(json!({"kind": "silence"})).contains("phase[0].fault[0].duration"));
        assert!(fault(json!({"kind": "clock_offset", "duration": "1s"})).contains("offset_s"));
        assert!(fault(json!({"kind": "close", "every": "1ms"})).contains("10 ms"));
    }
}
