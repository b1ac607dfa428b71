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
}
