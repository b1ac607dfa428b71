//! Why a connection to the broker ends.

use std::io;

/// Why a connection can no longer be used.
#[derive(Debug)]
pub enum TransportError {
    /// The broker closed the connection.
    Closed,
    Io(io::Error),
    Tls(String),
    WebSocket(String),
    /// The server speaks another protocol than MQTT, and rejected or ended the connection for this reason.
    Rejected(String),
}

impl TransportError {
    /// Whether the local port was taken.
    pub fn is_address_in_use(&self) -> bool {
        let Self::Io(error) = self else {
            return false;
        };
        let kind = error.kind();
        kind == io::ErrorKind::AddrInUse || kind == io::ErrorKind::AddrNotAvailable
    }
}

impl From<io::Error> for TransportError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
