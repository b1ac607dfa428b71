//! A smaller fleet of the same kind, for a run within a node.

use crate::definition::SimulationDefinition;

/// Reduces the devices of all fleets in proportion to at most `max_devices`, and the devices that send at random with them. Each
/// fleet keeps at least one device, and gateways have as many children as each other.
pub(crate) fn apply(definition: &mut SimulationDefinition, max_devices: u32) {
    let devices: u64 = definition
        .fleet
        .values()
        .map(|fleet| u64::from(fleet.count))
        .sum();
    if devices <= u64::from(max_devices) {
        return;
    }
    let scale = |count: u32| {
        let scaled = u64::from(count) * u64::from(max_devices) / devices;
        // Not above `count`.
        (scaled as u32).max(1)
    };
    let gateways: Vec<(String, u32)> = definition
        .fleet
        .iter()
        .map(|(name, fleet)| (name.clone(), scale(fleet.count)))
        .collect();
    for fleet in definition.fleet.values_mut() {
        let gateway = fleet.gateway.as_ref();
        let gateway = gateways.iter().find(|(name, _)| Some(name) == gateway);
        fleet.count = match gateway {
            Some((_, gateways)) => gateways * (scale(fleet.count) / gateways).max(1),
            None => scale(fleet.count),
        };
        for send in &mut fleet.send {
            send.random_devices = send.random_devices.map(scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::definition::SourceDocument;

    fn counts(max_devices: u32) -> (u32, u32, u32, Option<u32>) {
        let text = r#"
[fleet.children]
gateway = "gateways"
count = 600
[fleet.gateways]
count = 6
[fleet.meters]
count = 394
send = [{ every = "1s", random_devices = 100, topic = "t", payload = "" }]
"#;
        let document = SourceDocument::parse(Path::new("a.toml"), text).expect("TOML");
        let mut definition = SimulationDefinition::read(&document).expect("well-formed");
        apply(&mut definition, max_devices);
        let count = |name: &str| definition.fleet[name].count;
        let random = definition.fleet["meters"].send[0].random_devices;
        (
            count("children"),
            count("gateways"),
            count("meters"),
            random,
        )
    }

    #[test]
    fn fleets_shrink_in_proportion() {
        assert_eq!(counts(1000), (600, 6, 394, Some(100)));
        assert_eq!(counts(500), (300, 3, 197, Some(50)));
        assert_eq!(counts(1), (1, 1, 1, Some(1)));
    }
}
