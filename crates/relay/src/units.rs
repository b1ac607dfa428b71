//! Units of keys that no thing model describes: those of the endpoint, or the usual ones of common names.

use std::collections::BTreeMap;

/// The unit of a key. `own` are the units of the endpoint; an empty one means that the key has none. Upper and lower case
/// are the same.
pub(crate) fn unit_of<'u>(own: &'u BTreeMap<String, String>, key: &str) -> Option<&'u str> {
    match own.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)) {
        Some((_, unit)) => (!unit.is_empty()).then_some(unit.as_str()),
        None => default_unit(key),
    }
}

/// The unit of a key, if its name is a common one.
fn default_unit(key: &str) -> Option<&'static str> {
    Some(match &*key.to_ascii_lowercase() {
        "temperature" | "temp" | "t" => "°C",
        "humidity" | "humi" | "h" => "%",
        "voltage" | "volt" | "v" => "V",
        "current" | "curr" | "i" => "A",
        "pressure" | "press" | "p" => "Pa",
        "power" | "pwr" | "w" => "W",
        "energy" => "kWh",
        "speed" | "velocity" => "m/s",
        "distance" | "dist" => "m",
        "weight" | "mass" => "kg",
        "brightness" | "lux" => "lx",
        "angle" => "°",
        "frequency" | "freq" => "Hz",
        "time" | "duration" => "s",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_the_endpoint_replace_usual_ones() {
        let own = [("T", "K"), ("flow", "l/min"), ("v", "")];
        let own = own
            .map(|(key, unit)| (key.to_owned(), unit.to_owned()))
            .into();
        let units = ["t", "Flow", "V", "volt", "n"].map(|key| unit_of(&own, key));
        assert_eq!(units, [Some("K"), Some("l/min"), None, Some("V"), None]);
    }

    /// The table of the reference page is the promise.
    #[test]
    fn the_documented_keys_have_the_documented_units() {
        let page = include_str!("../../../docs/reference/relay.md");
        let (_, table) = page.split_once("| keys | unit |\n|---|---|\n").unwrap();
        let rows = table.lines().take_while(|line| line.starts_with('|'));
        let mut keys = 0;
        for row in rows {
            let mut cells = row.trim_matches('|').split('|').map(str::trim);
            let (names, unit) = (cells.next().unwrap(), cells.next().unwrap());
            for key in names.split(", ").map(|name| name.trim_matches('`')) {
                for key in [key.to_owned(), key.to_uppercase()] {
                    assert_eq!(unit_of(&BTreeMap::new(), &key), Some(unit), "{key}");
                }
                keys += 1;
            }
        }
        assert_eq!(keys, 32);
    }
}
