//! Commands: what devices are told to do, and what came of it.
//!
//! A command is in the store before anybody is told that it was taken. It waits there until its device is where it would hear it,
//! goes out in order, and stays for a while after its end, whichever that is:
//!
//! ```text
//!            told            the device's client              it answers
//!  pending ───────▶ sent ───────────────────────▶ acknowledged ─────────▶ success, failed
//!   │   ▲            │ │        has it (QoS 1)         │
//!   │   └────────────┘ │                               │
//!   │    another try   │       no answer in time       │
//!   ▼                  └──────────────┬────────────────┘
//!  expired                            ▼
//!                                  timeout
//! ```
//!
//! and from everywhere before the end to `cancelled`. One way commands succeed when they are sent, or with QoS 1 when the
//! device's client has said that it has them.

mod attributes;
mod book;
mod check;
mod config;
mod life;
mod open;
mod reach;
mod record;
mod service;

#[cfg(test)]
mod life_tests;
#[cfg(test)]
mod service_tests;

pub use attributes::follow_shared;
pub use book::{CommandFilter, CommandPage};
pub use check::{NotAccepted, Wanted};
pub use config::CommandConfig;
pub use reach::{Handed, Handover, Letter, Reach, Recipient};
pub use record::{Command, CommandId, CommandKind, CommandState};
pub use service::{Answer, CommandError, CommandStats, Commands, Request, Taken, Waiting};
