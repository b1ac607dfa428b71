//! Requests for a relay endpoint with an access key: target, origin and sub-protocols, one in each line.
#![no_main]

#[path = "../../crates/relay/tests/invariants/mod.rs"]
#[allow(dead_code, reason = "another target checks messages")]
mod invariants;

libfuzzer_sys::fuzz_target!(|text: &str| {
    invariants::check_request(text);
});
