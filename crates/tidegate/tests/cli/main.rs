//! The command line as its users meet it: the real program is started, its clients talk to its node, and what
//! they write and how they end is looked at.

// The workspace allows unwrap in `#[test]` functions; this binary is tests and what they stand on.
#![allow(clippy::unwrap_used)]

mod carriers;
mod commands;
mod ctl;
mod demo;
mod device_files;
mod documentation;
mod link;
mod login;
mod messages;
mod program;
mod reports;
mod serve;
mod sessions;
mod simulate;
mod simulate_in_memory;
mod simulate_protocols;
mod simulate_updates;
mod simulations;
