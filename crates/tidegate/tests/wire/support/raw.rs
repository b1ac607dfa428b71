//! A blocking connection that sends any bytes and reads packets, with a deadline on everything.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::{Connect, Node, Packet, Publish, Subscribe, Unsubscribe, ack, kind};

/// How long a test waits for anything the node must do at once. Generous: the machine may be busy.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// What a [`Raw`] connection runs over.
pub trait Stream: Read + Write + Send {
    fn set_timeouts(&mut self, timeout: Duration);
    /// Ends the connection without ceremony (FIN).
    fn shut(&mut self);
}

impl Stream for TcpStream {
    fn set_timeouts(&mut self, timeout: Duration) {
        self.set_read_timeout(Some(timeout)).unwrap();
        self.set_write_timeout(Some(timeout)).unwrap();
    }

    fn shut(&mut self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Stream for UnixStream {
    fn set_timeouts(&mut self, timeout: Duration) {
        self.set_read_timeout(Some(timeout)).unwrap();
        self.set_write_timeout(Some(timeout)).unwrap();
    }

    fn shut(&mut self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// A connection under the test's full control. Dropping it closes the socket without DISCONNECT.
pub struct Raw {
    stream: Box<dyn Stream>,
    /// Received and not yet taken.
    buffer: Vec<u8>,
    /// The protocol level packets are read and built with.
    pub version: u8,
}

impl Raw {
    /// A TCP connection to the node's plain listener; nothing is sent.
    pub fn open(node: &Node, version: u8) -> Raw {
        let _network = node.enter_network();
        Self::open_address(node.address("mqtt"), version)
    }

    /// A TCP connection to `host:port`; nothing is sent.
    pub fn open_address(address: &str, version: u8) -> Raw {
        let stream = TcpStream::connect(address)
            .unwrap_or_else(|error| panic!("cannot connect to {address}: {error}"));
        stream.set_nodelay(true).unwrap();
        Self::over(stream, version)
    }

    /// As [`Raw::open_address`]; `None` if nobody listens.
    pub fn try_open_address(address: &str, version: u8) -> Option<Raw> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Self::over(stream, version))
    }

    pub fn over(mut stream: impl Stream + 'static, version: u8) -> Raw {
        stream.set_timeouts(DEADLINE);
        Raw {
            stream: Box::new(stream),
            buffer: Vec::new(),
            version,
        }
    }

    /// Connects to the plain listener and requires a CONNACK with code 0.
    pub fn connect(node: &Node, connect: &Connect) -> Raw {
        Self::connect_for_connack(node, connect).0
    }

    /// As [`Raw::connect`], with the CONNACK.
    pub fn connect_for_connack(node: &Node, connect: &Connect) -> (Raw, Packet) {
        let mut raw = Self::open(node, connect.version);
        let connack = raw.hand_shake(connect);
        assert_eq!(
            connack.reason, 0,
            "the connection was rejected: {connack:?}"
        );
        (raw, connack)
    }

    /// A clean session of this protocol level with a fresh client id.
    pub fn client(node: &Node, version: u8) -> Raw {
        Self::connect(node, &Connect::new(version, super::unique("c")))
    }

    /// Sends CONNECT and reads the CONNACK, whatever its code.
    pub fn hand_shake(&mut self, connect: &Connect) -> Packet {
        self.version = connect.version;
        self.send(&connect.bytes());
        self.recv(kind::CONNACK)
    }

    /// Sends these bytes as they are. A connection the server has closed is no error here: what follows will see it.
    pub fn send(&mut self, bytes: &[u8]) {
        match self
            .stream
            .write_all(bytes)
            .and_then(|()| self.stream.flush())
        {
            Err(error) if !is_close(&error) => panic!("sending failed: {error}"),
            _ => {}
        }
    }

    /// As [`Raw::send`], but tells whether the connection still took the bytes.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream
            .write_all(bytes)
            .and_then(|()| self.stream.flush())
            .is_ok()
    }

    /// As [`Raw::send`], but waits up to `limit` for a server that does not read.
    pub fn send_patiently(&mut self, bytes: &[u8], limit: Duration) {
        self.stream.set_timeouts(limit);
        self.send(bytes);
        self.stream.set_timeouts(DEADLINE);
    }

    pub fn send_publish(&mut self, publish: &Publish) {
        self.send(&publish.bytes(self.version));
    }

    /// Publishes at QoS 0.
    pub fn publish(&mut self, topic: &str, payload: impl AsRef<[u8]>) {
        self.send_publish(&Publish::new(topic, payload));
    }

    /// Publishes at QoS 1 and waits for the PUBACK.
    pub fn publish_qos1(&mut self, topic: &str, payload: impl AsRef<[u8]>, packet_id: u16) {
        self.send_publish(&Publish::new(topic, payload).qos(1, packet_id));
        let puback = self.recv(kind::PUBACK);
        assert_eq!(puback.id(), packet_id);
        assert!(puback.reason < 0x80, "not accepted: {puback:?}");
    }

    /// Publishes at QoS 2 and goes through the whole exchange.
    pub fn publish_qos2(&mut self, topic: &str, payload: impl AsRef<[u8]>, packet_id: u16) {
        self.send_publish(&Publish::new(topic, payload).qos(2, packet_id));
        let pubrec = self.recv(kind::PUBREC);
        assert_eq!(pubrec.id(), packet_id);
        assert!(pubrec.reason < 0x80, "not accepted: {pubrec:?}");
        self.send(&ack(kind::PUBREL, packet_id));
        assert_eq!(self.recv(kind::PUBCOMP).id(), packet_id);
    }

    /// Subscribes to one filter and requires that exactly this QoS is granted. The SUBACK must come before any message.
    pub fn subscribe(&mut self, filter: &str, qos: u8) {
        let codes = self.subscribe_for_codes(&Subscribe::new(1).filter(filter, qos));
        assert_eq!(codes, [qos & 3], "SUBACK for {filter:?}");
    }

    pub fn subscribe_for_codes(&mut self, subscribe: &Subscribe) -> Vec<u8> {
        self.send(&subscribe.bytes(self.version));
        let suback = self.recv(kind::SUBACK);
        assert_eq!(suback.id(), subscribe.packet_id);
        suback.payload
    }

    /// Unsubscribes from one filter.
    pub fn unsubscribe(&mut self, filter: &str) {
        self.send(&Unsubscribe::new(2).filter(filter).bytes(self.version));
        assert_eq!(self.recv(kind::UNSUBACK).id(), 2);
    }

    /// A DISCONNECT with success, and the end of the connection.
    pub fn disconnect(mut self) {
        self.send(&[0xe0, 0x00]);
        self.expect_closed();
    }

    /// Closes the socket without DISCONNECT.
    pub fn cut(mut self) {
        self.stream.shut();
    }

    /// The next packet. Panics if none comes in time or the server closes.
    pub fn recv_packet(&mut self) -> Packet {
        match self.next_packet(DEADLINE) {
            PacketOutcome::Packet(packet) => packet,
            PacketOutcome::Nothing => panic!("no packet within {DEADLINE:?}"),
            PacketOutcome::Closed => {
                panic!("the server closed the connection instead of sending a packet")
            }
        }
    }

    /// The next packet, which must be of this kind.
    pub fn recv(&mut self, kind: u8) -> Packet {
        let packet = self.recv_packet();
        assert_eq!(packet.kind, kind, "a packet of another kind: {packet:?}");
        packet
    }

    /// The next packet, which must be exactly these bytes.
    pub fn recv_exactly(&mut self, bytes: &[u8]) {
        let packet = self.recv_packet();
        assert_eq!(packet.bytes, bytes, "{packet:?}");
    }

    /// The next packet, which must be a PUBLISH with this topic and payload. It is not acknowledged.
    pub fn recv_message(&mut self, topic: &str, payload: impl AsRef<[u8]>) -> Packet {
        let packet = self.recv(kind::PUBLISH);
        assert_eq!(
            (packet.topic.as_str(), &packet.payload[..]),
            (topic, payload.as_ref()),
            "{packet:?}"
        );
        packet
    }

    /// Answers a PUBLISH as its QoS demands; at QoS 2 through to the PUBCOMP.
    pub fn acknowledge(&mut self, publish: &Packet) {
        match publish.qos() {
            0 => {}
            1 => self.send(&ack(kind::PUBACK, publish.id())),
            _ => {
                self.send(&ack(kind::PUBREC, publish.id()));
                assert_eq!(self.recv(kind::PUBREL).id(), publish.id());
                self.send(&ack(kind::PUBCOMP, publish.id()));
            }
        }
    }

    /// The next packet if one comes within `limit`.
    pub fn try_recv(&mut self, limit: Duration) -> Option<Packet> {
        match self.next_packet(limit) {
            PacketOutcome::Packet(packet) => Some(packet),
            PacketOutcome::Nothing => None,
            PacketOutcome::Closed => panic!("the server closed the connection"),
        }
    }

    /// The next packet, or `None` if the server closed the connection.
    pub fn recv_unless_closed(&mut self) -> Option<Packet> {
        match self.next_packet(DEADLINE) {
            PacketOutcome::Packet(packet) => Some(packet),
            PacketOutcome::Closed => None,
            PacketOutcome::Nothing => {
                panic!("neither a packet nor the end of the connection within {DEADLINE:?}")
            }
        }
    }

    /// The next packet if one comes within `limit`; `None` also if the server closed the connection.
    pub fn try_recv_unless_closed(&mut self, limit: Duration) -> Option<Packet> {
        match self.next_packet(limit) {
            PacketOutcome::Packet(packet) => Some(packet),
            PacketOutcome::Closed | PacketOutcome::Nothing => None,
        }
    }

    /// A barrier: PINGREQ, and the very next packet must be the PINGRESP. Proves that nothing was sent before.
    ///
    /// What *another* client published may still be on its way between shards: let the same publisher send a second
    /// message that must arrive, and require that it is the next one.
    pub fn ping(&mut self) {
        self.send(&[0xc0, 0x00]);
        self.recv_exactly(&[0xd0, 0x00]);
    }

    /// PINGREQ, and everything that comes before the PINGRESP.
    pub fn ping_for_packets(&mut self) -> Vec<Packet> {
        self.send(&[0xc0, 0x00]);
        let mut packets = Vec::new();
        loop {
            let packet = self.recv_packet();
            if packet.kind == kind::PINGRESP {
                return packets;
            }
            packets.push(packet);
        }
    }

    /// The server must close the connection without sending anything more.
    pub fn expect_closed(&mut self) {
        let packets = self.packets_until_closed();
        assert!(
            packets.is_empty(),
            "packets before the end of the connection: {packets:?}"
        );
    }

    /// Requires that the server closes the connection; what it sent before.
    pub fn packets_until_closed(&mut self) -> Vec<Packet> {
        self.packets_until_closed_within(DEADLINE)
    }

    /// As [`Raw::packets_until_closed`], with another limit.
    pub fn packets_until_closed_within(&mut self, limit: Duration) -> Vec<Packet> {
        let deadline = Instant::now() + limit;
        let mut packets = Vec::new();
        loop {
            match self.next_packet(deadline.saturating_duration_since(Instant::now())) {
                PacketOutcome::Packet(packet) => packets.push(packet),
                PacketOutcome::Closed => return packets,
                PacketOutcome::Nothing => panic!(
                    "the server did not close the connection within {limit:?}; it sent {packets:?}"
                ),
            }
        }
    }

    /// MQTT 5: the server must send DISCONNECT with this reason code and close.
    pub fn expect_disconnect(&mut self, reason: u8) -> Packet {
        let mut packets = self.packets_until_closed();
        let last = packets
            .pop()
            .unwrap_or_else(|| panic!("closed without a DISCONNECT {reason:#04x}"));
        assert!(
            packets.is_empty(),
            "packets before the DISCONNECT: {packets:?}"
        );
        assert_eq!(
            (last.kind, last.reason),
            (kind::DISCONNECT, reason),
            "{last:?}"
        );
        last
    }

    /// The next bytes as they come, without taking packets apart; empty if the server closed.
    pub fn recv_bytes(&mut self) -> Vec<u8> {
        if self.buffer.is_empty() {
            self.fill(Instant::now() + DEADLINE);
        }
        std::mem::take(&mut self.buffer)
    }

    fn next_packet(&mut self, limit: Duration) -> PacketOutcome {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(length) = whole_packet(&self.buffer) {
                let rest = self.buffer.split_off(length);
                let bytes = std::mem::replace(&mut self.buffer, rest);
                return PacketOutcome::Packet(Packet::parse(&bytes, self.version));
            }
            match self.fill(deadline) {
                ReadOutcome::More => {}
                ReadOutcome::Nothing => return PacketOutcome::Nothing,
                ReadOutcome::Closed => {
                    assert!(
                        self.buffer.is_empty(),
                        "closed within a packet: {:02x?}",
                        self.buffer
                    );
                    return PacketOutcome::Closed;
                }
            }
        }
    }

    fn fill(&mut self, deadline: Instant) -> ReadOutcome {
        let mut chunk = [0; 65536];
        loop {
            let left = deadline
                .saturating_duration_since(Instant::now())
                .max(Duration::from_millis(1));
            self.stream.set_timeouts(left);
            let result = self.stream.read(&mut chunk);
            self.stream.set_timeouts(DEADLINE);
            match result {
                Ok(0) => return ReadOutcome::Closed,
                Ok(count) => {
                    self.buffer.extend_from_slice(&chunk[..count]);
                    return ReadOutcome::More;
                }
                Err(error) if is_close(&error) => return ReadOutcome::Closed,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    if Instant::now() >= deadline {
                        return ReadOutcome::Nothing;
                    }
                }
                Err(error) => panic!("reading failed: {error}"),
            }
        }
    }
}

enum PacketOutcome {
    Packet(Packet),
    Nothing,
    Closed,
}

enum ReadOutcome {
    More,
    Nothing,
    Closed,
}

/// The length of the packet at the front, if it is there as a whole.
pub fn whole_packet(buffer: &[u8]) -> Option<usize> {
    let mut length = 0;
    for (index, byte) in buffer.iter().skip(1).enumerate() {
        assert!(
            index < 4,
            "a remaining length of more than 4 bytes: {:02x?}",
            &buffer[..6]
        );
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            let total = 2 + index + length;
            return (buffer.len() >= total).then_some(total);
        }
    }
    None
}

fn is_close(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionAborted
            | ErrorKind::UnexpectedEof
    )
}
