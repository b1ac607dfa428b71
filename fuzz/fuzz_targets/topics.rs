//! Topic names and filters: what is valid, how a filter parses, and that two matchers agree.
#![no_main]

#[path = "../../crates/mqtt/tests/invariants/mod.rs"]
mod invariants;

libfuzzer_sys::fuzz_target!(|text: &str| {
    invariants::check_topics(text);
});
