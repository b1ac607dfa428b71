//! A connection to a node that may be killed at any moment.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::{Connect, Packet, Props, kind, whole_packet};

/// Far longer than any answer takes while the node lives.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// The node was killed.
#[derive(Debug)]
pub(crate) struct ConnectionLost;

pub(crate) struct ClientLine {
    stream: TcpStream,
    buffer: Vec<u8>,
    version: u8,
}

/// CONNECT for a session that stays.
pub(crate) fn lasting(version: u8, name: &str) -> Connect {
    let connect = Connect::new(version, name).persistent();
    match version {
        5 => connect.properties(Props::new().u32(0x11, 3600)),
        _ => connect,
    }
}

impl ClientLine {
    /// Connects; whether there was a session. The node may refuse nobody.
    pub(crate) fn open(
        address: &str,
        connect: &Connect,
    ) -> Result<(ClientLine, bool), ConnectionLost> {
        let stream = TcpStream::connect(address).map_err(|_| ConnectionLost)?;
        stream.set_nodelay(true).map_err(|_| ConnectionLost)?;
        let mut line = ClientLine {
            stream,
            buffer: Vec::new(),
            version: connect.version,
        };
        line.send(&connect.bytes())?;
        let connack = line.wait_for(kind::CONNACK)?;
        assert_eq!(connack.reason, 0, "refused: {connack:?}");
        Ok((line, connack.session_present))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), ConnectionLost> {
        self.stream.write_all(bytes).map_err(|_| ConnectionLost)
    }

    /// The next packet, if one comes within `limit`.
    pub(crate) fn poll(&mut self, limit: Duration) -> Result<Option<Packet>, ConnectionLost> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(length) = whole_packet(&self.buffer) {
                let packet = Packet::parse(&self.buffer[..length], self.version);
                self.buffer.drain(..length);
                assert_ne!(packet.kind, kind::DISCONNECT, "{packet:?}");
                return Ok(Some(packet));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let left = left.max(Duration::from_millis(1));
            self.stream
                .set_read_timeout(Some(left))
                .map_err(|_| ConnectionLost)?;
            let mut chunk = [0; 16384];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ConnectionLost),
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    if Instant::now() >= deadline {
                        return Ok(None);
                    }
                }
                Err(_) => return Err(ConnectionLost),
            }
        }
    }

    /// The next packet, which must be of this kind.
    pub(crate) fn wait_for(&mut self, kind: u8) -> Result<Packet, ConnectionLost> {
        let Some(packet) = self.poll(LIMIT)? else {
            panic!("no packet of kind {kind} within {LIMIT:?}");
        };
        assert_eq!(packet.kind, kind, "{packet:?}");
        Ok(packet)
    }

    /// DISCONNECT, which leaves the session behind.
    pub(crate) fn leave(mut self) -> Result<(), ConnectionLost> {
        self.send(&[0xe0, 0])?;
        while self.poll(LIMIT)?.is_some() {}
        Ok(())
    }
}
