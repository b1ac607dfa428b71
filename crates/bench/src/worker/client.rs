//! The clients a worker drives: their connections, and what they are for.

use crate::flow_window::{AckWindow, SubscriberProgress};
use crate::packets::PublishTemplate;
use crate::payload_stamp::PayloadStamp;
use crate::transport::BrokerConnection;

/// What a connection is for; the number is an index into the worker's publishers or subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionRole {
    Subscriber(u32),
    Publisher(u32),
    /// Only connects and stays.
    Idle,
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// Not dialled yet.
    New,
    /// TCP is being set up.
    Dialing,
    /// CONNECT is on its way (under it, TLS and WebSocket handshakes).
    Greeting,
    /// So many SUBACKs are missing.
    Subscribing(usize),
    Ready,
    /// DISCONNECT is sent, the broker is to close the connection.
    Leaving,
    Closed,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct BenchConnection {
    pub(crate) transport: Option<BrokerConnection>,
    pub(crate) role: ConnectionRole,
    pub(crate) state: ConnectionState,
    /// When dialling began.
    pub(crate) started_ns: u64,
    /// The front of a packet that is not whole yet; at most [`super::receiving::MAX_BUFFERED_PACKET_BYTES`].
    pub(crate) partial: Vec<u8>,
    /// The rest of a large message, which is counted and not kept.
    pub(crate) large: Option<LargeMessage>,
}

/// A message too large to be kept until it is whole.
#[derive(Debug)]
pub(crate) struct LargeMessage {
    pub(crate) missing_bytes: usize,
    pub(crate) qos: u8,
    pub(crate) id: u16,
    pub(crate) stamp: Option<PayloadStamp>,
}

impl BenchConnection {
    pub(crate) fn new(role: ConnectionRole) -> Self {
        Self {
            transport: None,
            role,
            state: ConnectionState::New,
            started_ns: 0,
            partial: Vec::new(),
            large: None,
        }
    }
}

/// A client that publishes.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// Index of its connection.
    pub(crate) connection: usize,
    pub(crate) template: PublishTemplate,
    /// Messages sent; also the sequence number of the next.
    pub(crate) sent: u64,
    pub(crate) progress: SubscriberProgress,
    pub(crate) acks: AckWindow,
    /// Most messages in flight at QoS 1 and 2.
    pub(crate) max_in_flight: u64,
    /// PUBRELs that go out with the next messages.
    pub(crate) control: Vec<u8>,
    /// Whether it stands in the line of those that may have something to send.
    pub(crate) is_queued: bool,
    /// Whether it has someone to publish to, and a connection.
    pub(crate) is_active: bool,
    /// For noticing lost messages: progress at the last look, and since when it has been the same.
    pub(crate) seen_floor: u64,
    pub(crate) seen_since_ns: u64,
}

/// A client that subscribes.
#[derive(Debug)]
pub(crate) struct Subscriber {
    /// Its group, counted within the worker.
    pub(crate) group: usize,
    /// Its number within the group.
    pub(crate) member: usize,
    /// Its first checker in the worker's list; one for each publisher of the group.
    pub(crate) first_checker: usize,
    /// When its last message came, in `offline`.
    pub(crate) served_ns: Option<u64>,
}
