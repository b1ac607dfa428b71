//! Commands to devices: their life cycle, storage and results.
//!
//! A command is stored before its acceptance is reported. It waits in the store until its device is reachable, is
//! sent in order, and is retained for some time after it has finished:
//!
//! ```text
//!            sent              client has                   device
//!  pending ───────▶ sent ───────────────────────▶ acknowledged ─────────▶ success, failed
//!   │   ▲            │ │     acknowledged (QoS 1)      │       replied
//!   │   └────────────┘ │                               │
//!   │      retry       │       no reply in time        │
//!   ▼                  └──────────────┬────────────────┘
//!  expired                            ▼
//!                                  timeout
//! ```
//!
//! A command can become `cancelled` from every state that is not final. One-way commands succeed when they are sent
//! or, with QoS 1, when the client of the device has acknowledged them.

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
    AcceptedCommand, CommandAnswer, CommandError, CommandOffer, CommandStats, CommandWaiter,
    Commands, NewCommand,
};
pub use shared_attributes::{push_shared_attributes, send_to_device};
pub use validation::{CommandAction, CommandValidationError};
