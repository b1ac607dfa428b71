//! Reports as bytes that are written once and changed in place: the packet identifier, the time, and some digits of the values.

use super::args::DeviceProtocol;

/// As in the messages of a weather station.
const KEYS: [&str; 10] = [
    "temperature",
    "humidity",
    "pressure",
    "voltage",
    "current",
    "light",
    "co2",
    "noise",
    "speed",
    "battery",
];
const TIME_DIGITS: usize = 13;
const VALUE_DIGITS: usize = 3;

pub(super) fn key(number: usize) -> String {
    match KEYS.get(number) {
        Some(key) => (*key).to_owned(),
        None => format!("value{number}"),
    }
}

/// A PUBLISH of one device.
pub(super) struct ReportTemplate {
    bytes: Vec<u8>,
    packet_id_at: Option<usize>,
    time_at: usize,
    values_at: Vec<usize>,
}

impl ReportTemplate {
    pub(super) fn new(
        protocol: DeviceProtocol,
        product: &str,
        device: &str,
        keys: usize,
        qos: u8,
    ) -> Self {
        const TIME: &str = "0000000000000";
        let values: Vec<String> = (0..keys)
            .map(|number| format!("\"{}\":2{number}.000", key(number)))
            .collect();
        let values = values.join(",");
        let (topic, payload) = match protocol {
            DeviceProtocol::Jetlinks => (
                format!("/{product}/{device}/properties/report"),
                format!("{{\"timestamp\":{TIME},\"properties\":{{{values}}}}}"),
            ),
            DeviceProtocol::Thingsboard | DeviceProtocol::Both => (
                "v1/devices/me/telemetry".to_owned(),
                format!("{{\"ts\":{TIME},\"values\":{{{values}}}}}"),
            ),
        };
        let id_bytes = if qos > 0 { 2 } else { 0 };
        let mut bytes = vec![0x30 | qos << 1];
        let mut rest = 2 + topic.len() + id_bytes + payload.len();
        loop {
            let more = if rest > 127 { 0x80 } else { 0 };
            bytes.push((rest & 127) as u8 | more);
            rest >>= 7;
            if rest == 0 {
                break;
            }
        }
        bytes.extend((topic.len() as u16).to_be_bytes());
        bytes.extend(topic.as_bytes());
        let packet_id_at = (qos > 0).then_some(bytes.len());
        bytes.resize(bytes.len() + id_bytes, 0);
        let start = bytes.len();
        let time_at = start + payload.find(TIME).expect("it was put there");
        let values_at = payload
            .match_indices(".000")
            .map(|(at, _)| start + at + 1)
            .collect();
        bytes.extend(payload.as_bytes());
        Self {
            bytes,
            packet_id_at,
            time_at,
            values_at,
        }
    }

    /// Appends the report of this time.
    pub(super) fn write(&mut self, packet_id: u16, ts_ms: u64, number: u64, out: &mut Vec<u8>) {
        if let Some(at) = self.packet_id_at {
            self.bytes[at..at + 2].copy_from_slice(&packet_id.to_be_bytes());
        }
        digits(
            &mut self.bytes[self.time_at..self.time_at + TIME_DIGITS],
            ts_ms,
        );
        for (nth, at) in self.values_at.iter().enumerate() {
            let value = number / 8 * (nth as u64 + 1) % 1000;
            digits(&mut self.bytes[*at..*at + VALUE_DIGITS], value);
        }
        out.extend_from_slice(&self.bytes);
    }
}

fn digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_form_of_its_protocol() {
        let mut template = ReportTemplate::new(DeviceProtocol::Jetlinks, "p", "d", 12, 1);
        let mut out = Vec::new();
        template.write(7, 1_795_291_200_123, 8, &mut out);
        let (packet, used) = (&out[..], out.len());
        assert_eq!(packet[0], 0x32);
        // Longer than 127 bytes, so that its length takes two.
        let length = usize::from(packet[1] & 127) | usize::from(packet[2]) << 7;
        assert_eq!(length + 3, used);
        let topic = "/p/d/properties/report";
        let rest = &packet[5..];
        assert_eq!(&rest[..topic.len()], topic.as_bytes());
        assert_eq!(rest[topic.len()..topic.len() + 2], [0, 7]);
        let payload: serde_json::Value = serde_json::from_slice(&rest[topic.len() + 2..]).unwrap();
        assert_eq!(payload["timestamp"], 1_795_291_200_123_u64);
        assert_eq!(payload["properties"]["temperature"], 20.001);
        assert_eq!(payload["properties"]["value11"], 211.012);
        assert_eq!(payload["properties"].as_object().unwrap().len(), 12);
    }
}
