//! Bytes of a server, read by a client: nothing panics, and what is read can be written and reads the same again.
#![no_main]

#[path = "../../crates/mqtt/tests/invariants/mod.rs"]
mod invariants;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    invariants::check_stream(data, mqtt::Direction::FromServer);
});
