//! Carriers of links: TCP, TLS, WebSocket, Unix sockets and QUIC.
//!
//! [`CarrierConnector`] opens carriers to a [`CarrierAddress`], [`CarrierListener`] accepts them. Each is a byte stream
//! that implements [`link::net::Carrier`], like the carriers in memory of [`link::net::MemoryNetwork`].

mod address;
mod connector;
mod listener;
mod quic;
mod tcp;
mod websocket;

pub use address::{AddressError, CarrierAddress, Transport};
pub use connector::CarrierConnector;
pub use listener::{AcceptedCarrier, CarrierListener, PendingCarrier};
pub use quic::{QuicTarget, open_quic_stream};
pub use tcp::configure_tcp;

/// Any carrier.
pub type BoxedCarrier = Box<dyn link::net::Carrier>;

/// The ALPN protocol of carriers over TLS and QUIC.
pub const ALPN: &[u8] = b"tidegate-link/1";
/// The sub-protocol of carriers over WebSocket.
pub const WEBSOCKET_SUBPROTOCOL: &str = "tidegate-link";
