//! The [`Hooks`] that an implementation provides for each shard.

use std::sync::Arc;

use mqtt::SubscriptionOptions;
use scram::ScramCredential;

use crate::authentication::{Authentication, Credentials};
use crate::authorization::{Authorization, ClientAction};
use crate::client::{AcceptedConnect, Client, PeerAddress, RejectedConnect};
use crate::interest::Interest;
use crate::message::{
    AckKind, DropReason, MessageOrigin, MessageView, PacketFacts, PublishVerdict,
};
use crate::outgoing_messages::OutgoingMessages;
use crate::relay::RelayService;

/// See [`Hooks::notify_when_durable`].
pub type DurableCallback = Box<dyn FnOnce() + Send + Sync>;

/// Returns whether a publisher still has to wait, see [`Hooks::take_backpressure`]. It is called every millisecond and
/// must be fast.
pub type BackpressureCheck = Box<dyn Fn() -> bool + Send + Sync>;

/// Call-backs for the events of one shard. Every method does nothing by default.
pub trait Hooks {
    /// The hook points that this implementation uses. Called at start, and again when the first event subscriber arrives or the
    /// last one leaves.
    fn interest(&self) -> Interest {
        Interest::NONE
    }

    fn authenticate(&mut self, credentials: &Credentials<'_>) -> Authentication {
        let _ = credentials;
        Authentication::Ignore
    }

    /// Called when a client has proven by an enhanced authentication that it is the user of these credentials. Requires
    /// [`Interest::AUTHENTICATE`]; `Ignore` accepts the client.
    fn enhanced_auth_succeeded(&mut self, credentials: &Credentials<'_>) -> Authentication {
        let _ = credentials;
        Authentication::Ignore
    }

    /// Called when a client failed to prove by an enhanced authentication that it is this user. Requires
    /// [`Interest::AUTHENTICATE`].
    fn enhanced_auth_failed(&mut self, username: &str, peer: PeerAddress) {
        let _ = (username, peer);
    }

    /// Whether there may be users besides those of the configuration that log in by SCRAM-SHA-256. Requires
    /// [`Interest::AUTHENTICATE`].
    fn offers_scram(&self) -> bool {
        false
    }

    /// The SCRAM-SHA-256 credential of a user that is not in the configuration. Requires [`Interest::AUTHENTICATE`].
    fn scram_credential(&mut self, username: &str) -> Option<ScramCredential> {
        let _ = username;
        None
    }

    /// Called when a client is rejected, whichever component decided it.
    fn connect_rejected(&mut self, rejected: &RejectedConnect<'_>) {
        let _ = rejected;
    }

    /// Decides whether a client may do something, for clients whose session has no permissions of its own.
    fn authorize(&mut self, client: &Client<'_>, action: &ClientAction<'_>) -> Authorization {
        let _ = (client, action);
        Authorization::Allow
    }

    /// Called after each authorization decision; `source` names the rules that decided, if they report it.
    fn authorized(
        &mut self,
        client: &Client<'_>,
        action: &ClientAction<'_>,
        answer: Authorization,
        source: Option<&'static str>,
    ) {
        let _ = (client, action, answer, source);
    }

    /// Called when the client is connected; its CONNACK is in the outbox.
    fn connected(&mut self, client: &Client<'_>, accepted: &AcceptedConnect<'_>) {
        let _ = (client, accepted);
    }

    /// Called when the connection has closed. `reason` is a short word such as `normal`, `keep_alive_timeout`,
    /// `taken_over`, or `discarded` if the connection that took over begins a new session.
    fn disconnected(&mut self, client: &Client<'_>, reason: &'static str) {
        let _ = (client, reason);
    }

    fn session_created(&mut self, client_id: &str) {
        let _ = client_id;
    }

    /// Called when the session has ended; its waiting messages are discarded.
    fn session_ended(&mut self, client_id: &str) {
        let _ = client_id;
    }

    /// Called for each new subscription. `packet` is the SUBSCRIBE; a subscription made by the control plane has none.
    fn subscribed(
        &mut self,
        client: &Client<'_>,
        filter: &str,
        options: SubscriptionOptions,
        packet: PacketFacts<'_>,
    ) {
        let _ = (client, filter, options, packet);
    }

    /// Called for each ended subscription with its `options`; `packet` is the UNSUBSCRIBE, if there was one.
    fn unsubscribed(
        &mut self,
        client: &Client<'_>,
        filter: &str,
        options: SubscriptionOptions,
        packet: PacketFacts<'_>,
    ) {
        let _ = (client, filter, options, packet);
    }

    /// Whether [`Hooks::publish`] wants messages on a topic. Called with [`Interest::PUBLISH`] before any preparation, for
    /// topics that [`Interest::may_want_topic`] selects, so that a message that no hook wants costs almost nothing.
    fn wants_topic(&mut self, topic: &str) -> bool {
        let _ = topic;
        true
    }

    /// Whether a message must not be published. A denied message is neither retained nor delivered, no hook receives
    /// it, and its publisher gets 0x87. Called with [`Interest::PUBLISH_GUARD`] before [`Hooks::publish`], for topics
    /// that [`Hooks::wants_topic`] accepts, for every origin.
    fn denies_publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> bool {
        let _ = (message, origin);
        false
    }

    /// Whether a QoS 1 or 2 message is rejected as by [`PublishVerdict::Reject`]. All hooks are asked before the first
    /// one processes the message, so that none has acted on a message that its publisher will send again.
    fn rejects_publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> bool {
        let _ = (message, origin);
        false
    }

    /// Called for a message accepted from a client or from the broker itself (wills, delayed messages, the API).
    fn publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> PublishVerdict {
        let _ = (message, origin);
        PublishVerdict::Continue
    }

    /// Whether a message had an effect here, such as a stored row or a rule that matched. Asked only for a message that
    /// reached no subscriber, after [`Hooks::publish`]: it does not count as dropped then.
    fn has_consumed(&mut self, message: &MessageView<'_>) -> bool {
        let _ = message;
        false
    }

    /// Called when a message is written to one subscriber's outbox. `packet_id` is 0 for QoS 0.
    fn delivered(&mut self, client: &Client<'_>, message: &MessageView<'_>, packet_id: u16) {
        let _ = (client, message, packet_id);
    }

    /// Called when a subscriber has acknowledged a message with this packet.
    fn acked(
        &mut self,
        client: &Client<'_>,
        message: &MessageView<'_>,
        packet: PacketFacts<'_>,
        kind: AckKind,
    ) {
        let _ = (client, message, packet, kind);
    }

    /// Called when a QoS 1 or 2 message waits for a client without a connection.
    fn queued(&mut self, client: &Client<'_>, message: &MessageView<'_>) {
        let _ = (client, message);
    }

    /// Called when a message is dropped for one subscriber, or for all (`client` is `None`). `origin` has the publisher
    /// if the message was dropped on arrival; a message denied to its publisher is reported as dropped for that
    /// publisher.
    fn dropped(
        &mut self,
        client: Option<&Client<'_>>,
        message: &MessageView<'_>,
        origin: &MessageOrigin<'_>,
        why: DropReason,
    ) {
        let _ = (client, message, origin, why);
    }

    fn ping(&mut self, client: &Client<'_>) {
        let _ = client;
    }

    /// Messages that the hook publishes because of earlier calls. Called until it returns `None`: at once after
    /// [`PublishVerdict::ContinueAndCollect`], otherwise after the input of a client is processed. Their publication
    /// calls [`Hooks::publish`] like any other.
    fn take_outgoing(&mut self) -> Option<OutgoingMessages> {
        None
    }

    /// Returns the published batch of [`Hooks::take_outgoing`], so that its allocation is reused.
    fn recycle_outgoing(&mut self, outgoing: OutgoingMessages) {
        let _ = outgoing;
    }

    /// Whether work caused in this turn is not durable yet, so that the answers of this turn have to wait for it.
    /// Called like [`Hooks::take_outgoing`], before [`Hooks::take_backpressure`]. It has an effect only with a store,
    /// since only then do answers wait for turns.
    fn has_unsettled_work(&mut self) -> bool {
        false
    }

    /// Called at the end of a turn in which [`Hooks::has_unsettled_work`] returned true. Calls `done`, from any thread,
    /// when the work is durable. If `done` is dropped without a call, the answers wait for ever.
    fn notify_when_durable(&mut self, done: DurableCallback) {
        done();
    }

    /// Backpressure on the publisher whose messages were passed to this hook since the last call, because a component
    /// behind the hook has no room. Called like [`Hooks::take_outgoing`]. Other publishers do not wait.
    fn take_backpressure(&mut self) -> Option<BackpressureCheck> {
        None
    }

    /// Called when a message of [`Hooks::take_outgoing`] is not published because too many derive from one message, see
    /// the setting `limits.max_derived_messages`.
    fn outgoing_dropped(&mut self, topic: &str, tag: u64) {
        let _ = (topic, tag);
    }

    /// Called about every ten seconds for periodic work on the shard's own thread. It must be fast.
    fn housekeeping(&mut self) {}
}

/// Hooks that do nothing.
pub struct NoHooks;

impl Hooks for NoHooks {}

/// Creates the hooks of each shard. Called on the shard's own thread, so that they need not be `Send`.
pub trait HooksFactory: Send + Sync {
    fn hooks_for(&self, shard: u16) -> Box<dyn Hooks>;

    /// The relay endpoints of the node, if it has any. Called once, at start.
    fn relay_service(&self) -> Option<Arc<dyn RelayService>> {
        None
    }
}

impl HooksFactory for NoHooks {
    fn hooks_for(&self, _shard: u16) -> Box<dyn Hooks> {
        Box::new(NoHooks)
    }
}
