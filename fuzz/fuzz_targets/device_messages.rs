//! Topics and payloads of devices, in every dialect: the topic is the first line.
#![no_main]

use devices::dialect::{self, Ears, Raw, RowInfo, Said, Slot};
use libfuzzer_sys::fuzz_target;

/// Guesses keys by their places, as the pipeline does.
#[derive(Default)]
struct Guesses {
    written: Vec<Vec<u8>>,
}

impl<'a> Ears<'a> for Guesses {
    fn guess(&mut self, place: usize, rest: &[u8]) -> Option<(usize, Slot)> {
        let written = self.written.get(place)?;
        rest.starts_with(written).then_some((written.len(), place as Slot))
    }

    fn key(&mut self, place: usize, written: &[u8], _: &str) -> Slot {
        if place == self.written.len() {
            self.written.push(written.to_vec());
        }
        place as Slot
    }

    fn value(&mut self, _: Slot, _: Raw<'a>) {}

    fn row(&mut self, _: RowInfo) {}

    fn discard(&mut self) {}

    fn said(&mut self, _: Said<'a>) {}
}

fuzz_target!(|data: &[u8]| {
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else {
        return;
    };
    let (Ok(topic), payload) = (std::str::from_utf8(&data[..end]), &data[end + 1..]) else {
        return;
    };
    let Some(route) = dialect::route(topic) else {
        return;
    };
    let arena = bumpalo::Bump::new();
    let mut guesses = Guesses::default();
    let first = dialect::read(&route, payload, &arena, &mut guesses);
    let again = dialect::read(&route, payload, &arena, &mut guesses);
    assert_eq!(first, again, "what is remembered changes nothing");
});
