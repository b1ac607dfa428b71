//! Messages of clients of relay endpoints, in every mode: what the node takes, and what receivers get.
#![no_main]

#[path = "../../crates/relay/tests/invariants/mod.rs"]
#[allow(dead_code, reason = "another target checks requests")]
mod invariants;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    invariants::check_message(data);
});
