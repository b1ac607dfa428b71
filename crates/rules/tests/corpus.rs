//! Runs the fuzzer's seeds and many small mutations of them in every test run, so that bugs once found by
//! fuzzing do not return.

mod invariants;

use std::path::{Path, PathBuf};

fn seeds(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/seeds")
        .join(target);
    let mut seeds: Vec<_> = std::fs::read_dir(&folder)
        .expect("the folder of the seeds")
        .map(|entry| {
            let path = entry.expect("a file").path();
            let bytes = std::fs::read(&path).expect("readable");
            (path, bytes)
        })
        .collect();
    seeds.sort();
    assert!(seeds.len() >= 5, "{}", folder.display());
    seeds
}

/// The seed itself, then variants with each byte removed, doubled, or replaced.
fn changes(seed: &[u8], check: impl Fn(&[u8])) {
    check(seed);
    let mut changed = Vec::with_capacity(seed.len() + 1);
    for at in 0..seed.len() {
        check(&seed[..at]);
        changed.clear();
        changed.extend_from_slice(seed);
        changed.remove(at);
        check(&changed);
        changed.insert(at, seed[at]);
        changed.insert(at, seed[at]);
        check(&changed);
        changed.remove(at);
        for byte in [
            0, b'\'', b'"', b'(', b')', b'[', b'.', b'-', b'}', b'9', b'a', 0x80,
        ] {
            changed[at] = byte;
            check(&changed);
        }
    }
}

#[test]
fn statements() {
    for (_, seed) in seeds("rules") {
        changes(&seed, invariants::check_statement);
    }
}

#[test]
fn templates() {
    for (_, seed) in seeds("rule_templates") {
        changes(&seed, invariants::check_template);
    }
}
