//! Connections of clients whose session is on another node of the cluster. The node that accepted such a connection is
//! the entry of a tunnel. It passes the client's bytes to the node with the session, the exit, and the answers back. At
//! the exit the connection is like any other one.

use std::net::SocketAddr;

use super::hash_state::RandomState;
use bytes::Bytes;
use hashbrown::HashMap;
use hooks::{CertificateNames, PeerAddress};

use super::tables::ConnectionIx;

/// Bytes in each direction of a tunnel that the other end has not confirmed.
pub(crate) const TUNNEL_WINDOW: usize = 256 << 10;

/// What the exit of a tunnel needs to know of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TunnelRequest {
    /// The node with the session.
    pub(crate) node: Box<str>,
    /// The listener that accepted the connection.
    pub(crate) listener: Box<str>,
    pub(crate) peer: PeerAddress,
    pub(crate) certificate: Option<CertificateNames>,
    /// The CONNECT packet, which the exit checks as that of a new connection.
    pub(crate) connect: Bytes,
}

/// What the ends of a tunnel send to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TunnelMessage {
    // From the entry.
    Open(Box<TunnelRequest>),
    Input(Bytes),
    /// The client has got these bytes of output.
    OutputCredit(u32),
    /// The connection of the client has ended.
    EntryClosed,
    // From the exit.
    Output(Bytes),
    /// The exit has processed these bytes of input.
    InputCredit(u32),
    /// The exit has ended the connection, or does not accept it.
    ExitClosed,
}

/// The entry of a tunnel.
pub(crate) struct TunnelEntry {
    pub(super) number: u64,
    pub(super) node: Box<str>,
    /// Input that the exit has not confirmed.
    pub(super) unconfirmed_input: usize,
    /// Output that is to be confirmed when it is written.
    pub(super) unconfirmed_output: usize,
    pub(super) is_answered: bool,
}

/// The tunnels of a shard by their numbers, with connection and serial number.
#[derive(Default)]
pub(crate) struct Tunnels {
    pub(super) entries: HashMap<u64, (ConnectionIx, u32), RandomState>,
    pub(super) last_number: u64,
    /// Connections whose output is to be confirmed.
    pub(super) unconfirmed: Vec<ConnectionIx>,
}

impl Tunnels {
    /// Whether output is to be confirmed when it is written.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        !self.unconfirmed.is_empty()
    }
}

/// The text of a connection in memory between nodes.
const MEMORY: &str = "memory";

/// The text of an address between nodes; empty for a Unix socket.
pub(crate) fn address_text(peer: PeerAddress) -> String {
    match peer {
        PeerAddress::Tcp(address) => address.to_string(),
        PeerAddress::Unix => String::new(),
        PeerAddress::Memory => MEMORY.to_owned(),
    }
}

pub(crate) fn parse_address(text: &str) -> Option<PeerAddress> {
    match text {
        "" => Some(PeerAddress::Unix),
        MEMORY => Some(PeerAddress::Memory),
        text => text.parse::<SocketAddr>().ok().map(PeerAddress::Tcp),
    }
}
