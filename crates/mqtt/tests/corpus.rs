//! Runs the fuzzer's seeds and many small changes of them in every test run, so that fixed findings stay
//! fixed.
//!
//! `fuzz/` contains targets for a deeper search, with the same seeds and invariants.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod invariants;
mod seeds;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mqtt::{Direction, Packet};

const BOTH: [Direction; 2] = [Direction::FromClient, Direction::FromServer];

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/seeds")
        .join(target)
}

/// All seed files of a target: generated ones and those added by hand.
fn files(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = folder(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn the_seeds_are_those_that_the_generator_writes() {
    for seed in seeds::all() {
        let path = folder(seed.target).join(&seed.name);
        let found = std::fs::read(&path).unwrap_or_default();
        assert!(
            found == seed.bytes,
            "{} is out of date: cargo run -p tidegate-mqtt --example seed_corpus -- fuzz/seeds",
            path.display()
        );
    }
}

#[test]
fn the_seeds_are_valid_and_have_every_packet() {
    for direction in BOTH {
        let mut kinds = BTreeSet::new();
        let seeds = seeds::all();
        for seed in seeds
            .iter()
            .filter(|seed| seed.target == seeds::target_of(direction))
        {
            let (version, mut rest) = seed.bytes.split_first().unwrap();
            let version = invariants::VERSIONS[usize::from(*version)];
            while let Some(frame) = mqtt::split_frame(rest, u32::MAX).unwrap() {
                rest = &rest[frame.len..];
                let packet = Packet::decode(frame, version, direction);
                let packet = packet.unwrap_or_else(|error| panic!("{}: {error}", seed.name));
                kinds.insert(packet.packet_type() as u8);
            }
            assert!(rest.is_empty(), "{}", seed.name);
        }
        let expected = seeds::kinds(direction)
            .iter()
            .map(|&kind| kind as u8)
            .collect();
        assert_eq!(kinds, expected);
    }
}

#[test]
fn every_seed_and_every_change_of_one_byte_is_read_or_rejected() {
    for direction in BOTH {
        for (_, bytes) in files(seeds::target_of(direction)) {
            invariants::check_stream(&bytes, direction);
            // Long seeds are concatenations of the short ones: skip them.
            if bytes.len() < 400 {
                for changed in changes(&bytes) {
                    invariants::check_stream(&changed, direction);
                }
            }
        }
    }
}

#[test]
fn every_topic_seed_and_every_change_of_one_byte_is_read_or_rejected() {
    for (_, bytes) in files(seeds::TOPICS) {
        for changed in changes(&bytes).chain([bytes.clone()]) {
            if let Ok(text) = std::str::from_utf8(&changed) {
                invariants::check_topics(text);
            }
        }
    }
}

/// Changes at each position: boundary values, a byte inserted, a byte removed, truncation.
fn changes(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    const VALUES: [u8; 12] = [0, 1, 2, 3, 0x7f, 0x80, 0xff, b'/', b'+', b'#', b'$', 0x26];
    (0..bytes.len()).flat_map(move |at| {
        let set = VALUES.into_iter().chain([
            bytes[at] ^ 1,
            bytes[at].wrapping_add(1),
            bytes[at].wrapping_sub(1),
        ]);
        let set = set.map(move |value| {
            let mut changed = bytes.to_vec();
            changed[at] = value;
            changed
        });
        let inserted = [&bytes[..at], &[0], &bytes[at..]].concat();
        let removed = [&bytes[..at], &bytes[at + 1..]].concat();
        set.chain([inserted, removed, bytes[..at].to_vec()])
    })
}
