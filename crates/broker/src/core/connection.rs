//! The state of one connection: its phase, the client's settings, and the output waiting for its socket.
//!
//! It is small, since most of a million connections are idle: rarely needed state is boxed in [`ConnectionExtra`].

use hashbrown::HashMap;
use hooks::relay::RelayClose;
use hooks::{CertificateNames, PeerAddress, Permissions};
use mqtt::{ReasonCode, Version};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use super::connection_deadlines::ConnectionDeadlines;
use super::derived_queue::PublisherWait;
use super::outbox::Outbox;
use super::relay_peer::RelayPeer;
use super::retained_delivery::RetainedDelivery;
use super::session::PublicationNumber;
use super::tables::{NO_SESSION, SessionIx};
use super::timers::TimerKey;
use super::tunnel::TunnelEntry;
use scram::ServerScram;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionPhase {
    /// Only CONNECT is allowed.
    AwaitConnect,
    /// CONNECT was received; an authenticator is working or an enhanced authentication is in progress.
    Authenticating,
    Connected,
    /// Another node of the cluster has the session; all bytes pass through a tunnel.
    Tunnelled,
    /// No more packets are processed; the outbox is written, then the socket is closed.
    Closing,
}

pub(crate) struct Connection {
    /// Distinguishes this connection from earlier and later ones in the same slot.
    pub(crate) serial: u32,
    pub(crate) session: SessionIx,
    pub(crate) outbox: Outbox,
    /// The beginning of an incomplete packet, or packets that may not be processed yet.
    pub(crate) partial_packets: Vec<u8>,
    /// Bytes of this connection in the shard's `PartialPacketBudget`.
    pub(crate) partial_bytes_counted: u32,
    /// Bytes buffered by the layers below MQTT.
    pub(crate) layer_bytes: u16,
    pub(crate) deadlines: ConnectionDeadlines,
    /// Time of the oldest sampled message in the outbox, in microseconds of the monotonic clock; 0: none.
    pub(crate) sampled_us: u64,
    pub(crate) max_packet_in: u32,
    /// The client's Maximum Packet Size.
    pub(crate) max_packet_out: u32,
    /// QoS 1 and 2 messages that may be in flight to the client.
    pub(crate) window: u16,
    pub(crate) keep_alive_s: u16,
    pub(crate) listener: u16,
    pub(crate) phase: ConnectionPhase,
    pub(crate) version: Version,
    pub(crate) is_dirty: bool,
    /// Whether its socket did not take all of the last write.
    pub(crate) is_slow: bool,
    /// Whether packets wait until an earlier SUBSCRIBE is answered.
    pub(crate) is_held: bool,
    /// Whether its socket stays open for a moment after the last bytes, so that the client can read them.
    pub(crate) lingers: bool,
    /// Whether more messages may be sent once the outbox has drained.
    pub(crate) wants_pump: bool,
    /// Whether the client wants reason strings and user properties with failures.
    pub(crate) wants_problem_information: bool,
    pub(crate) peer: PeerAddress,
    /// The local address the client connected to; `None` without TCP.
    pub(crate) local_address: Option<SocketAddr>,
    /// Set if it belongs to a relay endpoint and uses plain WebSocket.
    pub(crate) relay: Option<Box<RelayPeer>>,
    pub(crate) extra: Option<Box<ConnectionExtra>>,
}

/// Reads the current address of a peer whose connection continues when the address changes.
pub(crate) type AddressSource = Arc<dyn Fn() -> SocketAddr + Send + Sync>;

#[derive(Default)]
pub(crate) struct ConnectionExtra {
    pub(crate) aliases_in: Vec<Option<Box<str>>>,
    pub(crate) aliases_out: HashMap<Box<str>, u16>,
    pub(crate) aliases_out_max: u16,
    pub(crate) retained: RetainedDelivery,
    pub(crate) rate: Option<ClientRateLimiter>,
    pub(crate) publisher_wait: PublisherWait,
    /// The CONNECT packet while its client is being authenticated, or while the connection moves to another shard.
    pub(crate) connect: Vec<u8>,
    /// The client id for which the connection has claimed the session in the cluster.
    pub(crate) claimed_client_id: Option<Arc<str>>,
    /// Set once the client is authenticated.
    pub(crate) grant: Option<ConnectionGrant>,
    pub(crate) exchange: Option<AuthExchange>,
    /// Names in the client's verified certificate.
    pub(crate) certificate: Option<Box<CertificateNames>>,
    /// Set if the address of the peer may change.
    pub(crate) address_source: Option<AddressSource>,
    /// The way to the node of the cluster that has the session.
    pub(crate) tunnel: Option<Box<TunnelEntry>>,
    /// Whether the connection comes from another node of the cluster, because the session was here.
    pub(crate) is_tunnel_exit: bool,
    /// Packet ids and numbers of messages that hooks will acknowledge.
    pub(crate) deferred_numbers: Vec<(u16, PublicationNumber)>,
    /// Closes the connection when its authentication expires.
    pub(crate) expiry_timer: Option<TimerKey>,
}

/// The outcome of a successful authentication.
#[derive(Clone, Default)]
pub(crate) struct ConnectionGrant {
    pub(crate) username: Option<Box<str>>,
    /// Replaces the client id in CONNECT.
    pub(crate) client_id: Option<Box<str>>,
    pub(crate) permissions: Option<Arc<dyn Permissions>>,
    pub(crate) expires_at_ms: Option<u64>,
    /// Method and final data for CONNACK, after an enhanced authentication.
    pub(crate) method: Option<Box<str>>,
    pub(crate) data: Vec<u8>,
}

/// An enhanced authentication in progress.
pub(crate) struct AuthExchange {
    pub(crate) scram: ServerScram,
}

/// Token buckets of one client, in messages and bytes. They are refilled on access.
pub(crate) struct ClientRateLimiter {
    messages_per_s: u32,
    bytes_per_s: u32,
    messages: f64,
    bytes: f64,
    refilled_ms: u64,
}

impl ClientRateLimiter {
    pub(crate) fn new(messages_per_s: u32, bytes_per_s: u32, now_ms: u64) -> Option<Self> {
        (messages_per_s > 0 || bytes_per_s > 0).then(|| Self {
            messages_per_s,
            bytes_per_s,
            messages: f64::from(messages_per_s),
            bytes: f64::from(bytes_per_s),
            refilled_ms: now_ms,
        })
    }

    /// Counts one received PUBLISH.
    pub(crate) fn count_message(&mut self) {
        self.messages -= 1.0;
    }

    /// Charges the bytes a client has sent and returns for how many milliseconds it is not to be read.
    pub(crate) fn charge_bytes(&mut self, bytes: usize, now_ms: u64) -> u64 {
        let elapsed_s = now_ms.saturating_sub(self.refilled_ms) as f64 / 1000.0;
        self.refilled_ms = now_ms;
        let mut wait_s: f64 = 0.0;
        for (per_s, level, taken) in [
            (self.messages_per_s, &mut self.messages, 0.0),
            (self.bytes_per_s, &mut self.bytes, bytes as f64),
        ] {
            if per_s > 0 {
                let per_s = f64::from(per_s);
                *level = (*level + elapsed_s * per_s).min(per_s) - taken;
                wait_s = wait_s.max(-*level / per_s);
            }
        }
        (wait_s * 1000.0).ceil() as u64
    }
}

impl Connection {
    pub(crate) fn new(
        serial: u32,
        listener: u16,
        peer: PeerAddress,
        max_packet_in: u32,
        now_ms: u64,
    ) -> Self {
        Self {
            serial,
            session: NO_SESSION,
            outbox: Outbox::default(),
            partial_packets: Vec::new(),
            partial_bytes_counted: 0,
            layer_bytes: 0,
            deadlines: ConnectionDeadlines::new(now_ms),
            sampled_us: 0,
            max_packet_in,
            max_packet_out: u32::MAX,
            window: 0,
            keep_alive_s: 0,
            listener,
            phase: ConnectionPhase::AwaitConnect,
            version: Version::V311,
            is_dirty: false,
            is_slow: false,
            is_held: false,
            lingers: true,
            wants_pump: false,
            wants_problem_information: false,
            peer,
            local_address: None,
            relay: None,
            extra: None,
        }
    }

    pub(crate) fn extra(&mut self) -> &mut ConnectionExtra {
        self.extra.get_or_insert_default()
    }

    /// Where the peer is now. `peer` is where it was when the connection began.
    pub(crate) fn current_peer(&self) -> PeerAddress {
        let source = self
            .extra
            .as_deref()
            .and_then(|extra| extra.address_source.as_ref());
        source.map_or(self.peer, |address| PeerAddress::Tcp(address()))
    }

    /// Whether it belongs to a relay endpoint.
    #[inline]
    pub(crate) fn is_relay(&self) -> bool {
        self.relay.is_some()
    }

    /// Bytes of the client have arrived, or its pongs may be among those that were not read during a pause.
    #[inline]
    pub(crate) fn forget_unanswered_pings(&mut self) {
        if let Some(relay) = &mut self.relay {
            relay.forget_unanswered_pings();
        }
    }

    /// Memory of an incomplete message of a relay connection.
    pub(crate) fn relay_partial_bytes(&self) -> usize {
        self.relay.as_ref().map_or(0, |relay| relay.partial_bytes())
    }

    /// Whether the connection holds bytes of an incomplete packet, or of an incomplete message of a relay connection.
    pub(crate) fn fragment_bytes(&self) -> usize {
        let of_relay = self
            .relay
            .as_ref()
            .map_or(0, |relay| relay.fragment_bytes());
        self.partial_packets.len() + of_relay
    }
}

/// The reason of a connection that is closed because of a panic in a call for it.
pub(crate) const PANIC: &str = "panic";

/// Why a connection is closed, for the client (`code`, v5 only), for hooks and for the log.
#[derive(Debug, Clone)]
pub(crate) struct CloseReason {
    /// Sent in DISCONNECT; `None`: no DISCONNECT is sent.
    pub(crate) code: Option<ReasonCode>,
    /// A short word for events and metrics.
    pub(crate) reason: &'static str,
    pub(crate) detail: Option<Rc<str>>,
    /// Whether the will is published.
    pub(crate) publishes_will: bool,
    /// The close message of a relay connection.
    pub(crate) relay: Option<Box<RelayClose>>,
}

impl CloseReason {
    pub(crate) fn new(code: ReasonCode, why: &'static str) -> Self {
        Self {
            code: Some(code),
            reason: why,
            detail: None,
            publishes_will: true,
            relay: None,
        }
    }

    pub(crate) fn without_code(why: &'static str) -> Self {
        Self {
            code: None,
            reason: why,
            detail: None,
            publishes_will: true,
            relay: None,
        }
    }

    pub(crate) fn with_relay(mut self, close: RelayClose) -> Self {
        self.relay = Some(Box::new(close));
        self
    }

    pub(crate) fn with_detail(mut self, detail: impl Into<Rc<str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}

impl From<mqtt::Error> for CloseReason {
    fn from(error: mqtt::Error) -> Self {
        Self::new(error.reason, "protocol_error").with_detail(error.to_string())
    }
}
