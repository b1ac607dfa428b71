//! The part of a simulation that one of several machines runs: `--machines 2/4`.

use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::definition::{DefinitionError, SimulationDefinition};

const MAX_MACHINES: u32 = 1000;

/// One of several machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MachineShare {
    /// From 1.
    pub(crate) number: u32,
    pub(crate) count: u32,
}

impl FromStr for MachineShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/');
        let numbers = numbers.and_then(|(number, count)| {
            Some((number.parse::<u32>().ok()?, count.parse::<u32>().ok()?))
        });
        match numbers {
            Some((number, count)) if (1..=count).contains(&number) && count <= MAX_MACHINES => {
                Ok(Self { number, count })
            }
            _ => Err(format!(
                "expected NUMBER/COUNT, such as 2/4 for the second of four machines, with at most {MAX_MACHINES} machines"
            )),
        }
    }
}

impl MachineShare {
    /// The part of `count` things that belongs to this machine.
    fn range(self, count: u32) -> Range<u32> {
        let at =
            |number: u32| (u64::from(count) * u64::from(number) / u64::from(self.count)) as u32;
        at(self.number - 1)..at(self.number)
    }

    /// Reduces fleets, rates and concurrency to this machine.
    pub(crate) fn apply(
        self,
        definition: &mut SimulationDefinition,
        errors: &mut Vec<DefinitionError>,
    ) {
        let whole = definition.fleet.clone();
        for (name, fleet) in &mut definition.fleet {
            let gateways = fleet.gateway.as_ref().and_then(|name| whole.get(name));
            let range = match gateways {
                None => self.range(fleet.count),
                Some(gateways) => {
                    // A remainder is an error of the fleet, which is reported when it is compiled.
                    let children = fleet.count / gateways.count.max(1);
                    let range = self.range(gateways.count);
                    range.start * children..range.end * children
                }
            };
            if range.is_empty() {
                errors.push(DefinitionError::new(
                    format!("fleet.{name}.count"),
                    format!("too few devices for {} machines", self.count),
                ));
            }
            fleet.first = fleet.first.saturating_add(range.start);
            fleet.count = range.len() as u32;
            for (at, send) in fleet.send.iter_mut().enumerate() {
                let Some(random) = &mut send.random_devices else {
                    continue;
                };
                let part = self.range(*random).len() as u32;
                if part == 0 {
                    errors.push(DefinitionError::new(
                        format!("fleet.{name}.send[{at}].random_devices"),
                        format!("too few for {} machines", self.count),
                    ));
                }
                *random = part;
            }
        }
        for command in &mut definition.command {
            command.rate /= f64::from(self.count);
        }
        for phase in &mut definition.phase {
            if let Some(rate) = &mut phase.connect_rate {
                for number in rate.numbers_mut() {
                    *number /= f64::from(self.count);
                }
            }
            if let Some(concurrency) = &mut phase.connect_concurrency {
                *concurrency = concurrency.div_ceil(self.count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::definition::{PhaseCurve, SourceDocument};

    const TEXT: &str = r#"
[fleet.gateways]
count = 5
[fleet.children]
gateway = "gateways"
count = 15
first = 100
[fleet.meters]
count = 10
send = [{ every = "1s", random_devices = 7, topic = "t", payload = "" }]
[[phase]]
name = "a"
connect_rate = { from = 30, to = 60 }
connect_concurrency = 100
"#;

    #[test]
    fn machines_share_all_devices() {
        let document = SourceDocument::parse(Path::new("a.toml"), TEXT).expect("TOML");
        let mut next = (0, 100, 0, 0);
        for number in 1..=3 {
            let mut definition = SimulationDefinition::read(&document).expect("well-formed");
            let mut errors = Vec::new();
            MachineShare { number, count: 3 }.apply(&mut definition, &mut errors);
            assert!(errors.is_empty(), "{errors:?}");
            let fleet = |name: &str| definition.fleet[name].clone();
            let (gateways, children, meters) =
                (fleet("gateways"), fleet("children"), fleet("meters"));
            assert_eq!(gateways.first, next.0);
            assert_eq!(children.first, next.1);
            assert_eq!(meters.first, next.2);
            assert_eq!(children.count, gateways.count * 3);
            next.0 += gateways.count;
            next.1 += children.count;
            next.2 += meters.count;
            next.3 += meters.send[0].random_devices.expect("set");
            let ramp = PhaseCurve::Ramp {
                from: 10.0,
                to: 20.0,
            };
            assert_eq!(definition.phase[0].connect_rate, Some(ramp));
            assert_eq!(definition.phase[0].connect_concurrency, Some(34));
        }
        assert_eq!(next, (5, 115, 10, 7));
    }

    #[test]
    fn too_many_machines_are_an_error() {
        let document = SourceDocument::parse(Path::new("a.toml"), TEXT).expect("TOML");
        let mut definition = SimulationDefinition::read(&document).expect("well-formed");
        let mut errors = Vec::new();
        MachineShare {
            number: 1,
            count: 9,
        }
        .apply(&mut definition, &mut errors);
        let paths: Vec<&str> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "fleet.children.count",
                "fleet.gateways.count",
                "fleet.meters.send[0].random_devices"
            ]
        );
        for wrong in ["", "1", "0/2", "3/2", "a/b", "1/1001"] {
            assert!(wrong.parse::<MachineShare>().is_err(), "{wrong}");
        }
    }
}
