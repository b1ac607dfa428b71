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

mod command_store;
mod config;
mod downlink;
mod lifecycle;
mod open_commands;
mod record;
mod service;
mod shared_attributes;
mod validation;

#[cfg(test)]
mod lifecycle_tests;
#[cfg(test)]
mod service_tests;

pub use command_store::{CommandFilter, CommandPage};
pub use config::CommandConfig;
pub use downlink::{
    DownlinkCompletion, DownlinkOutcome, DownlinkTransport, EncodedDownlink, Recipient,
};
pub use record::{Command, CommandId, CommandKind, CommandState};
pub use service::{
    AcceptedCommand, CommandAnswer, CommandError, CommandStats, CommandWaiter, Commands, NewCommand,
};
pub use shared_attributes::push_shared_attributes;
pub use validation::{CommandAction, CommandValidationError};
