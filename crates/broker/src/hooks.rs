//! What may hang on the broker: a trait called on the shard, synchronously, at each point of a client's and a
//! message's life. The broker knows these points, not who listens.
//!
//! An implementation says once which points it wants ([`Hooks::interest`]); the others cost nothing, not even a call.
//! Anything that waits is answered with [`Authentication::Pending`], or goes through a bounded queue of the
//! implementation's own: a hook that blocks stops its shard.

use std::future::Future;
use std::net::SocketAddr;
use std::ops::BitOr;
use std::pin::Pin;
use std::sync::Arc;

use mqtt::{Connect, Properties, QoS, ReasonCode, SubscriptionOptions, Version};

mod chain;
mod outgoing_messages;

pub use crate::core::message::MessageView;
pub use crate::scram::ScramCredential;
pub use chain::HookChain;
pub use outgoing_messages::{MessageDraft, MessageDraftView, OutgoingMessages, OutgoingPosition};

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
    /// A CONNECT that is refused.
    pub const CONNECT_REFUSED: Self = Self(1 << 11);
    /// Sessions that begin and end.
    pub const SESSION: Self = Self(1 << 12);
    /// What clients may do or may not, whoever decided it.
    pub const AUTHORIZATION_DECIDED: Self = Self(1 << 13);
    /// QoS 1 and 2 messages that wait for a client without a connection.
    pub const QUEUE: Self = Self(1 << 14);
    /// Messages that may be denied whoever publishes them, besides what authorisation says.
    pub const PUBLISH_GUARD: Self = Self(1 << 15);

    pub fn contains(self, point: Self) -> bool {
        self.0 & point.0 == point.0
    }

    /// Whether any of the points is in it.
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

/// Where a client comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAddress {
    /// The client's address; behind a proxy that says so, the one the proxy saw.
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

/// Whether messages on a topic carry a secret between a device and the node, so that nobody else hears of them: no rule, and
/// no subscriber.
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
    /// None once the session is without a connection.
    pub peer: Option<PeerAddress>,
    /// The address that a session without a connection was connected from last, if the node has not been restarted since.
    pub last_address: Option<SocketAddr>,
    /// The node's address that it is connected to; `None`: it is not, or not over TCP.
    pub local_address: Option<&'a SocketAddr>,
    pub version: Version,
    /// Of its connection, or the last one.
    pub connection: ConnectionInfo,
}

/// What is known of a connection that has been let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionInfo {
    /// Milliseconds since 1970; 0: not let in yet.
    pub connected_ms: u64,
    /// 0 once the connection is gone.
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

/// Credentials as a client showed them.
pub struct Credentials<'a> {
    pub client: Client<'a>,
    pub password: Option<&'a [u8]>,
    /// What the client's certificate says, if it showed one that was verified.
    pub certificate: Option<&'a CertificateNames>,
    /// The method of an enhanced authentication, which the broker conducts; its outcome is told with
    /// [`Hooks::enhanced_auth_succeeded`].
    pub method: Option<&'a str>,
    pub listener: &'a str,
    /// Whether the listener lets clients in that show nothing.
    pub allows_anonymous: bool,
    /// Whether the listener takes the certificate's common name as the user name.
    pub common_name_as_username: bool,
    pub keep_alive_s: u16,
    pub clean_start: bool,
}

/// A client that was not let in.
#[derive(Debug, Clone, Copy)]
pub struct RefusedConnect<'a> {
    /// What it said of itself, as far as it could be read.
    pub client_id: Option<&'a str>,
    pub username: Option<&'a str>,
    pub peer: PeerAddress,
    /// The node's address that it came to; `None`: it was not over TCP.
    pub local_address: Option<SocketAddr>,
    pub listener: &'a str,
    pub code: ReasonCode,
    /// What it sent, if that was a whole CONNECT. With its password.
    pub connect: Option<&'a Connect<'a>>,
}

/// How a client was let in.
#[derive(Clone, Copy)]
pub struct AcceptedConnect<'a> {
    pub session_present: bool,
    /// What it sent. With its password.
    pub connect: &'a Connect<'a>,
    /// What holds, which may be less than it asked for.
    pub keep_alive_s: u16,
    pub session_expiry_s: u32,
    pub listener: &'a str,
    /// It may do everything.
    pub is_superuser: bool,
}

/// Where a message comes from that is published.
#[derive(Debug, Clone, Copy, Default)]
pub struct MessageOrigin<'a> {
    /// The client that sent it; `None`: the node itself, such as a delayed message or one of the API.
    pub client: Option<Client<'a>>,
    /// Of its PUBLISH; 0: it had none.
    pub packet_id: u16,
    pub dup: bool,
    /// Of a message that hooks have asked for, see [`MessageDraft`]; else 0.
    pub tag: u64,
}

/// What hooks may know of a SUBSCRIBE, an UNSUBSCRIBE or an acknowledgement.
#[derive(Debug, Clone, Copy)]
pub struct PacketFacts<'a> {
    /// 0: there was no packet.
    pub packet_id: u16,
    pub properties: Properties<'a>,
}

impl PacketFacts<'_> {
    /// The control plane has done it, or the node itself.
    pub const NONE: Self = Self {
        packet_id: 0,
        properties: Properties::EMPTY,
    };
}

/// The answer to an authentication.
pub enum Authentication {
    /// Not for this hook to say: the users of the configuration and the listener's rule for anonymous clients decide.
    Ignore,
    Allow(Box<ClientGrant>),
    Deny(ReasonCode),
    /// The answer comes later; the client waits, the shard does not.
    Pending(Pin<Box<dyn Future<Output = Authentication>>>),
}

impl Authentication {
    /// Let in with what the client said of itself.
    pub fn allow() -> Self {
        Self::Allow(Box::default())
    }
}

/// What a client is given that is let in.
#[derive(Default)]
pub struct ClientGrant {
    /// Its name from now on; `None`: the one it gave.
    pub username: Option<Box<str>>,
    /// It proved no name: it has none, whatever it gave.
    pub is_anonymous: bool,
    /// Its client id from now on; `None`: the one it gave.
    pub client_id: Option<Box<str>>,
    /// Asked before each PUBLISH and SUBSCRIBE; `None`: [`Hooks::authorize`] is, if that is wanted.
    pub permissions: Option<Arc<dyn Permissions>>,
    /// When its connection is closed (milliseconds since 1970), such as the end of a token's life.
    pub expires_at_ms: Option<u64>,
}

/// What one client may do. Lives with its session, goes with it from shard to shard, and answers at once.
pub trait Permissions: Send + Sync {
    fn check(&self, client: &Client<'_>, action: &ClientAction<'_>) -> Authorization;

    /// Whether it may do everything, whatever the rules.
    fn is_superuser(&self) -> bool {
        false
    }

    /// The device the client is, if it is one of a registry.
    fn device(&self) -> Option<ClientDevice<'_>> {
        None
    }

    /// Which rules decide about an action, in a word; asked only if somebody listens to [`Interest::AUTHORIZATION_DECIDED`].
    fn decision_source(
        &self,
        client: &Client<'_>,
        action: &ClientAction<'_>,
    ) -> Option<&'static str> {
        let _ = (client, action);
        None
    }
}

/// Which device a client is.
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
    /// Deny and end the connection.
    Disconnect,
}

/// Whether a message goes on to its subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishVerdict {
    Continue,
    /// It goes on, and [`Hooks::take_outgoing`] and [`Hooks::take_backpressure`] are asked when it has gone.
    ContinueAndCollect,
    /// It ends here; its publisher is answered as if it had been delivered.
    Stop,
    /// It ends here, and is not accepted: what would keep it has no room now. Its publisher is told so with reason 0x97; before version 5
    /// its connection is closed.
    Refuse,
    /// It ends here: nobody who publishes it may do so, see [`Hooks::denies_publish`]. Its publisher is told so with reason 0x87.
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

/// Which acknowledgement of a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckKind {
    PubAck,
    PubRec,
    PubComp,
}

/// See [`Hooks::notify_when_durable`].
pub type DurableCallback = Box<dyn FnOnce() + Send + Sync>;

/// Whether a publisher still has to wait, see [`Hooks::take_backpressure`]. Asked every millisecond: has to be quick.
pub type BackpressureCheck = Box<dyn Fn() -> bool + Send + Sync>;

/// One shard's listener to what happens on it. Every method does nothing by default.
pub trait Hooks {
    /// The points this implementation wants, asked at start, and again when somebody begins or ceases to listen to
    /// events.
    fn interest(&self) -> Interest {
        Interest::NONE
    }

    fn authenticate(&mut self, credentials: &Credentials<'_>) -> Authentication {
        let _ = credentials;
        Authentication::Ignore
    }

    /// A client has proven by an enhanced authentication that it is the user of these credentials. Asked with
    /// [`Interest::AUTHENTICATE`]; `Ignore` lets it in.
    fn enhanced_auth_succeeded(&mut self, credentials: &Credentials<'_>) -> Authentication {
        let _ = credentials;
        Authentication::Ignore
    }

    /// A client could not prove by an enhanced authentication that it is this user. Told with
    /// [`Interest::AUTHENTICATE`].
    fn enhanced_auth_failed(&mut self, username: &str, peer: PeerAddress) {
        let _ = (username, peer);
    }

    /// Whether there may be users besides those of the configuration that log in by SCRAM-SHA-256. Asked with
    /// [`Interest::AUTHENTICATE`].
    fn offers_scram(&self) -> bool {
        false
    }

    /// What proves a user by SCRAM-SHA-256, besides the users of the configuration. Asked with
    /// [`Interest::AUTHENTICATE`].
    fn scram_credential(&mut self, username: &str) -> Option<ScramCredential> {
        let _ = username;
        None
    }

    /// A client is not let in; whoever decided it.
    fn connect_refused(&mut self, refused: &RefusedConnect<'_>) {
        let _ = refused;
    }

    /// Whether a client may do something whose session has no permissions of its own.
    fn authorize(&mut self, client: &Client<'_>, action: &ClientAction<'_>) -> Authorization {
        let _ = (client, action);
        Authorization::Allow
    }

    /// It was decided whether a client may do something; `source` says which rules did, if they say it.
    fn authorized(
        &mut self,
        client: &Client<'_>,
        action: &ClientAction<'_>,
        answer: Authorization,
        source: Option<&'static str>,
    ) {
        let _ = (client, action, answer, source);
    }

    /// The client is connected; its CONNACK is on its way.
    fn connected(&mut self, client: &Client<'_>, accepted: &AcceptedConnect<'_>) {
        let _ = (client, accepted);
    }

    /// The connection is gone. `reason` is a short word such as `normal`, `keep_alive_timeout`, `taken_over`, or `discarded`
    /// if the one that took over begins a new session.
    fn disconnected(&mut self, client: &Client<'_>, reason: &'static str) {
        let _ = (client, reason);
    }

    fn session_created(&mut self, client_id: &str) {
        let _ = client_id;
    }

    /// The session is gone, and with it what waited in it.
    fn session_ended(&mut self, client_id: &str) {
        let _ = client_id;
    }

    /// `packet` is the SUBSCRIBE; what the control plane subscribes has none.
    fn subscribed(
        &mut self,
        client: &Client<'_>,
        filter: &str,
        options: SubscriptionOptions,
        packet: PacketFacts<'_>,
    ) {
        let _ = (client, filter, options, packet);
    }

    /// `options` are those of the subscription that has ended; `packet` is the UNSUBSCRIBE, if there was one.
    fn unsubscribed(
        &mut self,
        client: &Client<'_>,
        filter: &str,
        options: SubscriptionOptions,
        packet: PacketFacts<'_>,
    ) {
        let _ = (client, filter, options, packet);
    }

    /// Whether [`Hooks::publish`] wants to be told of messages on a topic. Asked before anything is made ready for it, so that
    /// a message nobody here wants costs next to nothing.
    fn wants_topic(&mut self, topic: &str) -> bool {
        let _ = topic;
        true
    }

    /// Whether a message must not be published: it is neither retained nor delivered, no hook is told of it, and its publisher gets
    /// 0x87. Asked with [`Interest::PUBLISH_GUARD`] before [`Hooks::publish`], for topics that [`Hooks::wants_topic`] wants, whatever the
    /// message comes from.
    fn denies_publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> bool {
        let _ = (message, origin);
        false
    }

    /// Whether a QoS 1 or 2 message is refused as by `PublishVerdict::RejectClient`. Asked of all hooks before the first is told, so that none has
    /// made anything of a message that its publisher will send again.
    fn refuses_publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> bool {
        let _ = (message, origin);
        false
    }

    /// A message was accepted from a client, or from the broker itself (wills, delayed messages, the API).
    fn publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> PublishVerdict {
        let _ = (message, origin);
        PublishVerdict::Continue
    }

    /// A message was put on its way to one subscriber's socket. `packet_id` is 0 for QoS 0.
    fn delivered(&mut self, client: &Client<'_>, message: &MessageView<'_>, packet_id: u16) {
        let _ = (client, message, packet_id);
    }

    /// A subscriber has acknowledged a message with this packet.
    fn acked(
        &mut self,
        client: &Client<'_>,
        message: &MessageView<'_>,
        packet: PacketFacts<'_>,
        kind: AckKind,
    ) {
        let _ = (client, message, packet, kind);
    }

    /// A QoS 1 or 2 message waits for a client without a connection.
    fn queued(&mut self, client: &Client<'_>, message: &MessageView<'_>) {
        let _ = (client, message);
    }

    /// A message was dropped for one subscriber, or for all (`client` is `None`). `origin` has the publisher if the message was dropped
    /// when it came in; a message that its publisher may not publish is dropped for the publisher itself.
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

    /// Messages to publish because of what was told. Asked until there are none, at once after [`PublishVerdict::ContinueAndCollect`], and
    /// else when the shard is done with what a client has sent. They are told to [`Hooks::publish`] like all others.
    fn take_outgoing(&mut self) -> Option<OutgoingMessages> {
        None
    }

    /// Gets back what [`Hooks::take_outgoing`] gave, published, for its allocation.
    fn recycle_outgoing(&mut self, outgoing: OutgoingMessages) {
        let _ = outgoing;
    }

    /// Whether something that came of what was told in this turn is not safe yet, so that the answers of this turn have to wait for
    /// it. Asked like [`Hooks::take_outgoing`], before [`Hooks::take_backpressure`]; heeded where there is a store, whose turns answers wait for.
    fn has_unsettled_work(&mut self) -> bool {
        false
    }

    /// The turn is over in which [`Hooks::has_unsettled_work`] said so. Calls `done`, from any thread, when all that came of it is safe; to
    /// drop it is to call nobody, and the answers wait for ever.
    fn notify_when_durable(&mut self, done: DurableCallback) {
        done();
    }

    /// What the publisher of what was told since this was asked last is to wait for, because something behind this implementation takes
    /// no more of it. Asked like [`Hooks::take_outgoing`]. Others are not made to wait.
    fn take_backpressure(&mut self) -> Option<BackpressureCheck> {
        None
    }

    /// A message of [`Hooks::take_outgoing`] is not published: too many come of one message, see
    /// [`BrokerLimits::max_derived_messages`](crate::config::BrokerLimits::max_derived_messages).
    fn outgoing_dropped(&mut self, topic: &str, tag: u64) {
        let _ = (topic, tag);
    }

    /// Every ten seconds, or a little later: time for what has to be done on the shard's own thread now and then. Has to be quick.
    fn housekeeping(&mut self) {}
}

/// No hooks.
pub struct NoHooks;

impl Hooks for NoHooks {}

/// Makes the hooks of each shard; called on the shard's own thread, so that they need not be `Send`.
pub trait HooksFactory: Send + Sync {
    fn hooks_for(&self, shard: u16) -> Box<dyn Hooks>;
}

impl HooksFactory for NoHooks {
    fn hooks_for(&self, _shard: u16) -> Box<dyn Hooks> {
        Box::new(NoHooks)
    }
}
