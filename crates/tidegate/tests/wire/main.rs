//! Behaviour over the wire: the real program is started, and the tests use raw sockets with packets built by hand. Thus
//! they also verify the codec independently.
//!
//! `TIDEGATE_TEST_BROKER=host:port` (and `TIDEGATE_TEST_BROKER_WS=host:port`) points the raw tests at another
//! broker that is already running; tests that need the process of the node are skipped then.

// The workspace allows unwrap in `#[test]` functions; this binary is tests and what they stand on.
#![allow(clippy::unwrap_used)]

mod api;
mod auth;
mod certificates;
mod cluster;
mod devices;
mod disk_full;
mod durable;
mod extensions;
mod files;
mod floods;
mod interop;
mod listeners;
mod mqtt3;
mod mqtt5;
mod overload;
mod quic_client;
mod relay;
mod rules;
mod sessions;
mod support;
