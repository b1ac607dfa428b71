//! Runs the fuzzer's seeds and small changes of them in every test run. `fuzz/` contains targets for a deeper search, with
//! the same seeds and invariants.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod invariants;

use std::path::Path;

/// The seeds of a target, their prefixes, and the seeds with one byte changed.
fn for_each_input(target: &str, check: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/seeds")
        .join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut count = 0;
    for file in files {
        let seed = std::fs::read(file.unwrap().path()).unwrap();
        count += 1;
        for at in 0..=seed.len() {
            check(&seed[..at]);
        }
        for at in 0..seed.len() {
            for changed in [0, b'"', b'{', b'/', b'\\', 0xff, seed[at] ^ 1] {
                let mut input = seed.clone();
                input[at] = changed;
                check(&input);
            }
        }
    }
    assert!(count > 0, "{folder:?} has no seeds");
}

#[test]
fn messages_of_clients_hold_the_invariants() {
    for_each_input("relay_messages", invariants::check_message);
}

#[test]
fn requests_of_clients_hold_the_invariants() {
    for_each_input("relay_requests", |input| {
        invariants::check_request(&String::from_utf8_lossy(input));
    });
}
