//! The address that a request comes from.

use std::net::IpAddr;

/// The address a connection comes from; the server adds it to each request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerIp(pub(crate) IpAddr);
