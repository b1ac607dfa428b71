//! Units of keys that no thing model describes, by the names that devices commonly use.

/// The unit of a key, if its name is a common one. Upper and lower case are the same.
#[must_use]
pub fn default_unit(key: &str) -> Option<&'static str> {
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
