//! What tests of several crates need and no program does. It contains children that do not outlive the test, real
//! servers on ports of their own, certificates for them, and a network that can be made slow or cut. Only ever a
//! dev-dependency.
//!
//! A failure in this crate means that a test cannot continue: it panics with the reason.

mod certificates;
mod parquet;
pub mod processes;
mod programs;
mod proxy;
mod server;
mod split_network;

pub use certificates::{CertificateAuthority, TlsIdentity};
pub use parquet::query_parquet;
pub use programs::{find_chromium, find_program};
pub use proxy::{Proxy, ProxyMode};
pub use server::{DATABASE, NatsClient, PASSWORD, Rows, ServerKind, TestServer, USER, free_port};
pub use split_network::{NetworkGuard, NetworkMachine, SplitNetwork};

/// Says that the current test does not run. Written past libtest's capture, so that it is seen when the test
/// "passes"; `cargo xtask test` counts these lines.
pub fn report_skipped(why: &str) {
    use std::io::Write;
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("?");
    let _ = std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes());
}
