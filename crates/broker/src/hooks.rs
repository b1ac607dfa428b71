//! Extension points of the broker: [`Hooks`] is called synchronously on the shard at each point of a client's and a
//! message's life. The broker does not depend on the implementations.
//!
//! An implementation declares once which points it wants ([`Hooks::interest`]); other points cost nothing, not even a
//! call. Blocking work is answered with [`Authentication::Pending`] or goes through a bounded queue of the
//! implementation: a hook that blocks stops its shard.

use std::future::Future;
use std::net::SocketAddr;
use std::ops::BitOr;
use std::pin::Pin;
use std::sync::Arc;

use mqtt::{Connect, Properties, QoS, ReasonCode, SubscriptionOptions, Version};

mod chain;
mod outgoing_messages;

pub use crate::core::message::MessageView;
pub use chain::HookChain;
pub use outgoing_messages::{MessageDraft, MessageDraftView, OutgoingMessages, OutgoingPosition};
pub use scram::ScramCredential;

/// A set of hook points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest(u32);

impl Interest {
    pub const NONE: Self = Self(0);
    pub const AUTHENTICATE: Self = Self(1);
    pub const AUTHORIZE: Self = Self(1 << 1);
    pub const CONNECT: Self = Self(1 << 2);
    pub const DISCONNECT: Self = Self(1 << 3);
    pub const SUBSCRIBE: Self = Self(1 << 4);
    pub const UNSUBSCRIBE: Self = Self(1 << 5);
    pub const PUBLISH: Self = Self(1 << 6);
    pub const DELIVER: Self = Self(1 << 7);
    pub const ACK: Self = Self(1 << 8);
    pub const DROP: Self = Self(1 << 9);
    pub const PING: Self = Self(1 << 10);
    /// Refused CONNECT packets.
    pub const CONNECT_REFUSED: Self = Self(1 << 11);
    /// Sessions that begin and end.
    pub const SESSION: Self = Self(1 << 12);
    /// Authorization decisions, whichever component made them.
    pub const AUTHORIZATION_DECIDED: Self = Self(1 << 13);
    /// QoS 1 and 2 messages that wait for a client without a connection.
    pub const QUEUE: Self = Self(1 << 14);
    /// Messages that hooks may deny for any publisher, in addition to authorization.
    pub const PUBLISH_GUARD: Self = Self(1 << 15);

    pub fn contains(self, point: Self) -> bool {
        self.0 & point.0 == point.0
    }

    /// Whether the set contains any of the points.
    pub fn intersects(self, points: Self) -> bool {
        self.0 & points.0 != 0
    }
}

impl BitOr for Interest {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Where a client connects from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAddress {
    /// The client's address; behind a proxy that reports it, the address the proxy saw.
    Tcp(SocketAddr),
    Unix,
}

impl std::fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PeerAddress::Tcp(address) => address.fmt(f),
            PeerAddress::Unix => f.write_str("unix"),
        }
    }
}

/// Whether messages on a topic carry a secret between a device and the node. Such messages reach no rule and no
/// subscriber.
#[inline]
#[must_use]
pub fn carries_secret(topic: &str) -> bool {
    matches!(
        topic,
        "v1/devices/me/claim" | "v1/gateway/claim" | "/provision/request" | "/provision/response"
    )
}

/// The client a hook is called for.
#[derive(Debug, Clone, Copy)]
pub struct Client<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    /// `None` while the session has no connection.
    pub peer: Option<PeerAddress>,
    /// The address of the last connection of a session without a connection, if the node has not been restarted since.
    pub last_address: Option<SocketAddr>,
    /// The node's address that the client is connected to; `None` without a connection or without TCP.
    pub local_address: Option<&'a SocketAddr>,
    pub version: Version,
    /// The current connection, or the last one.
    pub connection: ConnectionInfo,
}

/// Properties of a connection that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionInfo {
    /// Milliseconds since 1970; 0: not accepted yet.
    pub connected_ms: u64,
    /// 0 after the connection has closed.
    pub keep_alive_s: u16,
    pub clean_start: bool,
    pub session_expiry_s: u32,
}

/// The names in a client's certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// The first common name of the subject.
    pub common_name: Option<Box<str>>,
    /// The subject alternative names that are DNS names, mail addresses, URIs or IP addresses, in their order.
    pub alternative_names: Box<[Box<str>]>,
}

/// Credentials presented by a client.
pub struct Credentials<'a> {
    pub client: Client<'a>,
    pub password: Option<&'a [u8]>,
    /// Names in the client's certificate, if it presented one that was verified.
    pub certificate: Option<&'a CertificateNames>,
    /// The method of an enhanced authentication, which the broker conducts; it reports success with
    /// [`Hooks::enhanced_auth_succeeded`].
    pub method: Option<&'a str>,
    pub listener: &'a str,
    /// Whether the listener accepts clients without credentials.
    pub allows_anonymous: bool,
    /// Whether the listener uses the certificate's common name as the user name.
    pub common_name_as_username: bool,
    pub keep_alive_s: u16,
    pub clean_start: bool,
}

/// A client that was refused.
#[derive(Debug, Clone, Copy)]
pub struct RefusedConnect<'a> {
    /// The client id it sent, if it could be read.
    pub client_id: Option<&'a str>,
    pub username: Option<&'a str>,
    pub peer: PeerAddress,
    /// The node's address that the client connected to; `None` without TCP.
    pub local_address: Option<SocketAddr>,
    pub listener: &'a str,
    pub code: ReasonCode,
    /// Its CONNECT packet, password included, if a complete one was received.
    pub connect: Option<&'a Connect<'a>>,
}

/// The terms on which a client was accepted.
#[derive(Clone, Copy)]
pub struct AcceptedConnect<'a> {
    pub session_present: bool,
    /// Its CONNECT packet, password included.
    pub connect: &'a Connect<'a>,
    /// The value in effect, which may be smaller than the value requested.
    pub keep_alive_s: u16,
    pub session_expiry_s: u32,
    pub listener: &'a str,
    /// The client may do everything.
    pub is_superuser: bool,
}

/// The origin of a published message.
#[derive(Debug, Clone, Copy, Default)]
pub struct MessageOrigin<'a> {
    /// The client that sent it; `None`: the node itself, such as a delayed message or one from the API.
    pub client: Option<Client<'a>>,
    /// Packet id of its PUBLISH; 0: none.
    pub packet_id: u16,
    pub dup: bool,
    /// Tag of a message requested by hooks, see [`MessageDraft`]; otherwise 0.
    pub tag: u64,
}

/// Facts about a SUBSCRIBE, an UNSUBSCRIBE or an acknowledgement, as passed to hooks.
#[derive(Debug, Clone, Copy)]
pub struct PacketFacts<'a> {
    /// 0: there was no packet.
    pub packet_id: u16,
    pub properties: Properties<'a>,
}

impl PacketFacts<'_> {
    /// The control plane or the node itself acted; there was no packet.
    pub const NONE: Self = Self {
        packet_id: 0,
        properties: Properties::EMPTY,
    };
}

/// The result of an authentication.
pub enum Authentication {
    /// This hook does not decide: the users of the configuration and the listener's rule for anonymous clients apply.
    Ignore,
    Allow(Box<ClientGrant>),
    Deny(ReasonCode),
    /// The result comes later. The client waits; the shard does not.
    Pending(Pin<Box<dyn Future<Output = Authentication>>>),
}

impl Authentication {
    /// Accepts the client with the names it sent.
    pub fn allow() -> Self {
        Self::Allow(Box::default())
    }
}

/// What an accepted client is granted.
#[derive(Default)]
pub struct ClientGrant {
    /// Its user name from now on; `None`: the one it sent.
    pub username: Option<Box<str>>,
    /// The client proved no user name: it has none, whatever it sent.
    pub is_anonymous: bool,
    /// Its client id from now on; `None`: the one it sent.
    pub client_id: Option<Box<str>>,
    /// Checked before each PUBLISH and SUBSCRIBE; `None`: [`Hooks::authorize`] decides, if a hook wants it.
    pub permissions: Option<Arc<dyn Permissions>>,
    /// When its connection is closed (milliseconds since 1970), for example at the end of a token's life.
    pub expires_at_ms: Option<u64>,
}

/// The permissions of one client. They belong to its session, move with it between shards, and must not block.
pub trait Permissions: Send + Sync {
    fn check(&self, client: &Client<'_>, action: &ClientAction<'_>) -> Authorization;

    /// Whether the client may do everything, regardless of the rules.
    fn is_superuser(&self) -> bool {
        false
    }

    /// The device that the client is, if it is a registered device.
    fn device(&self) -> Option<ClientDevice<'_>> {
        None
    }

    /// Short name of the rules that decide about an action; called only with [`Interest::AUTHORIZATION_DECIDED`].
    fn decision_source(
        &self,
        client: &Client<'_>,
        action: &ClientAction<'_>,
    ) -> Option<&'static str> {
        let _ = (client, action);
        None
    }
}

/// The device that a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientDevice<'a> {
    pub id: &'a str,
    pub product: &'a str,
}

/// What a client wants to do.
#[derive(Debug, Clone, Copy)]
pub enum ClientAction<'a> {
    Publish {
        topic: &'a str,
        qos: QoS,
        retain: bool,
    },
    Subscribe {
        filter: &'a str,
        options: SubscriptionOptions,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authorization {
    Allow,
    Deny,
    /// Deny and close the connection.
    Disconnect,
}

/// Whether a message goes on to its subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishVerdict {
    Continue,
    /// It is delivered; then [`Hooks::take_outgoing`] and [`Hooks::take_backpressure`] are called.
    ContinueAndCollect,
    /// It is not delivered; its publisher is answered as if it had been.
    Stop,
    /// It is not delivered and not accepted because a queue or store has no room for it. Its publisher gets reason
    /// 0x97; before version 5 its connection is closed.
    Refuse,
    /// It is not delivered because no client may publish it, see [`Hooks::denies_publish`]. Its publisher gets reason
    /// 0x87.
    Deny,
}

/// Why a message did not reach a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    NoSubscribers,
    QueueFull,
    Expired,
    TooLarge,
    NoLocal,
    NotAuthorized,
    /// The session ended before the message was acknowledged.
    SessionEnded,
    /// A QoS 0 message for a session without a connection.
    Offline,
}

impl DropReason {
    pub fn as_str(self) -> &'static str {
        match self {
            DropReason::NoSubscribers => "no_subscribers",
            DropReason::QueueFull => "queue_full",
            DropReason::Expired => "expired",
            DropReason::TooLarge => "too_large",
            DropReason::NoLocal => "no_local",
            DropReason::NotAuthorized => "not_authorized",
            DropReason::SessionEnded => "session_ended",
            DropReason::Offline => "offline",
        }
    }
}

/// The kind of a subscriber's acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckKind {
    PubAck,
    PubRec,
    PubComp,
}

/// See [`Hooks::notify_when_durable`].
pub type DurableCallback = Box<dyn FnOnce() + Send + Sync>;

/// Returns whether a publisher still has to wait, see [`Hooks::take_backpressure`]. It is called every millisecond and
/// must be fast.
pub type BackpressureCheck = Box<dyn Fn() -> bool + Send + Sync>;

/// Call-backs for the events of one shard. Every method does nothing by default.
pub trait Hooks {
    /// The points this implementation wants. Called at start, and again when the first event subscriber arrives or the
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

    /// Called when a client is refused, whichever component decided it.
    fn connect_refused(&mut self, refused: &RefusedConnect<'_>) {
        let _ = refused;
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

    /// Called when the client is connected; its CONNACK is on its way.
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

    /// Whether [`Hooks::publish`] wants messages on a topic. Called before any preparation, so that a message that no
    /// hook wants costs almost nothing.
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

    /// Whether a QoS 1 or 2 message is refused as by [`PublishVerdict::Refuse`]. All hooks are asked before the first
    /// one processes the message, so that none has acted on a message that its publisher will send again.
    fn refuses_publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> bool {
        let _ = (message, origin);
        false
    }

    /// Called for a message accepted from a client or from the broker itself (wills, delayed messages, the API).
    fn publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> PublishVerdict {
        let _ = (message, origin);
        PublishVerdict::Continue
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

    /// Messages that the hook wants published because of earlier calls. Called until it returns `None`: at once after
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
    /// [`BrokerLimits::max_derived_messages`](crate::config::BrokerLimits::max_derived_messages).
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
}

impl HooksFactory for NoHooks {
    fn hooks_for(&self, _shard: u16) -> Box<dyn Hooks> {
        Box::new(NoHooks)
    }
}
