//! Templates of actions: compiled, filled, and bound.
#![no_main]

#[path = "../../crates/rules/tests/invariants/mod.rs"]
mod invariants;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    invariants::check_template(data);
});
