//! Simulations that are part of the program: `tidegate simulate NAME`.

/// A file by its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadyMadeSimulation {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

macro_rules! ready_made {
    ($($name:literal),* $(,)?) => {
        &[$(ReadyMadeSimulation {
            name: $name,
            text: include_str!(concat!("../simulations/", $name, ".toml")),
        }),*]
    };
}

/// All of them, in the order of the list.
pub(crate) const READY_MADE: &[ReadyMadeSimulation] = ready_made![
    "demo",
    "weather",
    "smart-home",
    "vehicles",
    "smart-meter",
    "smart-tracker",
    "industrial-plc",
    "gateway",
    "reconnect-storm",
    "relay-room",
    "firmware-campaign",
    "report-003",
];

pub(crate) fn find(name: &str) -> Option<&'static ReadyMadeSimulation> {
    READY_MADE.iter().find(|simulation| simulation.name == name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::definition::SourceDocument;

    #[test]
    fn every_simulation_makes_messages_of_json() {
        for simulation in READY_MADE {
            let document =
                SourceDocument::parse(Path::new(simulation.name), simulation.text).unwrap();
            let (definition, plan) =
                crate::plan_compiler::compile(&document, Path::new(""), Default::default())
                    .unwrap_or_else(|errors| panic!("{errors}"));
            assert!(!definition.description.is_empty(), "{}", simulation.name);
            let mut out = Vec::new();
            crate::preview::print(&plan, 200, 0, true, &mut out).unwrap();
            let out = String::from_utf8(out).unwrap();
            assert_eq!(out.lines().count(), 200, "{}", simulation.name);
            for line in out.lines() {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                assert!(line["payload"].is_object(), "{}: {line}", simulation.name);
            }
        }
    }

    #[test]
    fn every_simulation_is_documented() {
        let text = include_str!("../../../docs/guides/simulator.md");
        for simulation in READY_MADE {
            assert!(
                text.contains(&format!("| `{}` |", simulation.name)),
                "{}",
                simulation.name
            );
        }
    }
}
