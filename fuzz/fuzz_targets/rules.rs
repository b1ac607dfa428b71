//! Statements of rules: compiled, explained, and evaluated for a message.
#![no_main]

#[path = "../../crates/rules/tests/invariants/mod.rs"]
mod invariants;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    invariants::check_statement(data);
});
