//! The interface between the broker and what attaches to it.
//!
//! [`Hooks`] is called synchronously on the shard at each point of a client's and a message's life. An implementation
//! declares once which points it uses ([`Hooks::interest`]); other points cost nothing, not even a call. Blocking work
//! is answered with [`Authentication::Pending`] or goes through a bounded queue of the implementation: a hook that
//! blocks stops its shard. [`BrokerPort`] is the opposite direction: what an implementation requests from the broker
//! outside its hook calls.
//!
//! The crate also contains what several implementations need and the broker's control plane reads:
//! [metric families](MetricFamily) and counters of [failed attempts](failed_attempts). It knows neither the broker nor
//! any implementation, so that both are compiled in parallel.

mod authentication;
mod authorization;
mod broker_port;
mod chain;
mod client;
pub mod failed_attempts;
mod hooks;
mod interest;
mod message;
mod metric_family;
mod outgoing_messages;
pub mod relay;

pub use authentication::{Authentication, ClientGrant, Credentials, UserConfig};
pub use authorization::{AccessDecision, Authorization, ClientAction, ClientDevice, Permissions};
pub use broker_port::BrokerPort;
pub use chain::HookChain;
pub use client::{
    AcceptedConnect, CertificateNames, Client, ConnectionInfo, PeerAddress, RejectedConnect,
};
pub use hooks::{BackpressureCheck, DurableCallback, Hooks, HooksFactory, NoHooks};
pub use interest::Interest;
pub use message::{
    AckKind, DropReason, MessageOrigin, MessageView, NEVER_MS, PacketFacts, PublishTicket,
    PublishVerdict, carries_secret, str_from_utf8,
};
pub use metric_family::{MetricFamily, MetricKind, MetricSample, MetricValue};
pub use outgoing_messages::{MessageDraft, MessageDraftView, OutgoingMessages, OutgoingPosition};
