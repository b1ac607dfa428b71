//! The broker as hook implementations see it outside their hook calls.

use mqtt::ReasonCode;

use crate::message::PublishTicket;
use crate::outgoing_messages::OutgoingMessages;

/// A running broker. Its methods may be called from any thread and do not wait for the shards.
pub trait BrokerPort: Send + Sync {
    /// Publishes messages that a hook implementation has created outside its hook calls, like messages of
    /// [`Hooks::take_outgoing`](crate::Hooks::take_outgoing), and then calls `done` on the publishing shard. Batches
    /// with the same `order_key` are published in the order of the calls. A stopping broker does not
    /// call `done`.
    fn publish_outgoing(
        &self,
        order_key: u64,
        outgoing: OutgoingMessages,
        done: Box<dyn FnOnce() + Send>,
    );

    /// Acknowledges a message that a hook has answered with [`PublishVerdict::Defer`](crate::PublishVerdict::Defer). It
    /// has no effect if the connection has closed; then the client sends the message again.
    fn acknowledge(&self, ticket: PublishTicket, reason: ReasonCode);

    /// Makes the shards read [`Hooks::interest`](crate::Hooks::interest) again before they handle the next request.
    fn refresh_hook_interest(&self);
}
