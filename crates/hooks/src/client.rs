//! The client that a hook is called for: its address, connection and certificate, and its CONNECT packet.

use std::net::SocketAddr;

use mqtt::{Connect, ReasonCode, Version};

/// Where a client connects from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAddress {
    /// The client's address; behind a proxy that reports it, the address the proxy saw.
    Tcp(SocketAddr),
    Unix,
    /// In the process of the node.
    Memory,
}

impl std::fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PeerAddress::Tcp(address) => address.fmt(f),
            PeerAddress::Unix => f.write_str("unix"),
            PeerAddress::Memory => f.write_str("memory"),
        }
    }
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

/// A client that was rejected.
#[derive(Debug, Clone, Copy)]
pub struct RejectedConnect<'a> {
    /// The client id it sent, if it could be read.
    pub client_id: Option<&'a str>,
    pub username: Option<&'a str>,
    pub peer: PeerAddress,
    /// The node's address that the client connected to; `None` without TCP.
    pub local_address: Option<SocketAddr>,
    pub listener: &'a str,
    pub code: ReasonCode,
    /// Why it was rejected, as a sentence without its full stop.
    pub detail: Option<&'a str>,
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
