//! Topics and payloads of devices, in every protocol: the topic is the first line.
#![no_main]

use devices::protocol::{self, ControlMessage, KeySlot, MessageVisitor, RawValue, RowInfo};
use libfuzzer_sys::fuzz_target;

/// Guesses keys by their places, as the pipeline does.
#[derive(Default)]
struct KeyGuesses {
    written: Vec<Vec<u8>>,
}

impl<'a> MessageVisitor<'a> for KeyGuesses {
    fn predict_key(&mut self, place: usize, rest: &[u8]) -> Option<(usize, KeySlot)> {
        let written = self.written.get(place)?;
        rest.starts_with(written)
            .then_some((written.len(), place as KeySlot))
    }

    fn resolve_key(&mut self, place: usize, written: &[u8], _: &str) -> KeySlot {
        if place == self.written.len() {
            self.written.push(written.to_vec());
        }
        place as KeySlot
    }

    fn visit_value(&mut self, _: KeySlot, _: RawValue<'a>) {}

    fn finish_row(&mut self, _: RowInfo) {}

    fn discard_row(&mut self) {}

    fn visit_control_message(&mut self, _: ControlMessage<'a>) {}
}

fuzz_target!(|data: &[u8]| {
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else {
        return;
    };
    let (Ok(topic), payload) = (std::str::from_utf8(&data[..end]), &data[end + 1..]) else {
        return;
    };
    let Some(route) = protocol::parse_device_topic(topic) else {
        return;
    };
    let arena = bumpalo::Bump::new();
    let mut guesses = KeyGuesses::default();
    let first = protocol::decode_message(&route, payload, &arena, &mut guesses);
    let again = protocol::decode_message(&route, payload, &arena, &mut guesses);
    assert_eq!(first, again, "remembered keys do not change the result");
});
