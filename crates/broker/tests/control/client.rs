//! A minimal MQTT 5 client for these tests.

use std::io::{Read, Write};
use std::net::TcpStream;

use mqtt::{
    Ack, Connect, Direction, Packet, Properties, PropertiesBuf, Property, Publish, QoS, ReasonCode,
    SubscribeBuf, SubscriptionOptions, Version,
};

use crate::DEADLINE;

/// A socket, or a pipe in memory.
pub(crate) trait ClientStream: Read + Write {}

impl<S: Read + Write> ClientStream for S {}

pub(crate) struct Client {
    socket: Box<dyn ClientStream>,
    buffer: Vec<u8>,
}

/// A received packet, as far as the tests examine it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReceivedPacket {
    Message {
        topic: String,
        payload: Vec<u8>,
        qos: QoS,
        retain: bool,
        packet_id: u16,
    },
    Disconnect(ReasonCode),
    /// The connection has closed.
    End,
    Other(&'static str),
}

impl Client {
    /// Connects; a session that is not clean lasts for an hour.
    pub(crate) fn connect(address: &str, client_id: &str, clean: bool) -> Self {
        let mut client = Self::open(address, client_id, clean);
        assert_eq!(client.next(), ReceivedPacket::Other("CONNACK"));
        client
    }

    /// Connects a client with a Receive Maximum of two.
    pub(crate) fn connect_slow(address: &str, client_id: &str, clean: bool) -> Self {
        let mut properties = PropertiesBuf::new();
        properties.push(Property::ReceiveMaximum(2));
        if !clean {
            properties.push(Property::SessionExpiryInterval(3600));
        }
        let mut client = Self::open_with(address, client_id, clean, &properties);
        assert_eq!(client.next(), ReceivedPacket::Other("CONNACK"));
        client
    }

    /// Connects without waiting for an answer.
    pub(crate) fn open(address: &str, client_id: &str, clean: bool) -> Self {
        let mut properties = PropertiesBuf::new();
        if !clean {
            properties.push(Property::SessionExpiryInterval(3600));
        }
        Self::open_with(address, client_id, clean, &properties)
    }

    /// As [`Client::open`], on a connection that exists.
    pub(crate) fn open_on(
        socket: impl ClientStream + 'static,
        client_id: &str,
        clean: bool,
    ) -> Self {
        let mut properties = PropertiesBuf::new();
        if !clean {
            properties.push(Property::SessionExpiryInterval(3600));
        }
        Self::log_in(Box::new(socket), client_id, clean, &properties)
    }

    fn open_with(address: &str, client_id: &str, clean: bool, properties: &PropertiesBuf) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        Self::log_in(Box::new(socket), client_id, clean, properties)
    }

    fn log_in(
        socket: Box<dyn ClientStream>,
        client_id: &str,
        clean: bool,
        properties: &PropertiesBuf,
    ) -> Self {
        let mut client = Self {
            socket,
            buffer: Vec::new(),
        };
        let connect = Connect {
            version: Version::V5,
            is_bridge: false,
            clean_start: clean,
            keep_alive_s: 60,
            properties: properties.as_properties(),
            client_id,
            will: None,
            username: None,
            password: None,
        };
        client.send(&Packet::Connect(connect));
        client
    }

    fn send(&mut self, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(Version::V5, &mut bytes);
        self.socket.write_all(&bytes).unwrap();
    }

    pub(crate) fn subscribe(&mut self, filter: &str, qos: QoS) {
        let mut subscribe = SubscribeBuf::new(1);
        let options = SubscriptionOptions {
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: 0,
        };
        subscribe.push(filter, options);
        let mut bytes = Vec::new();
        subscribe.encode(Properties::EMPTY, Version::V5, &mut bytes);
        self.socket.write_all(&bytes).unwrap();
        assert_eq!(self.next(), ReceivedPacket::Other("SUBACK"));
    }

    /// Publishes at QoS 1 and waits for the answer.
    pub(crate) fn publish(&mut self, topic: &str, payload: &[u8], retain: bool) {
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain,
            topic,
            packet_id: 1,
            properties: Properties::EMPTY,
            payload,
        };
        let mut bytes = Vec::new();
        publish.encode(Version::V5, &mut bytes);
        self.socket.write_all(&bytes).unwrap();
        assert_eq!(self.next(), ReceivedPacket::Other("PUBACK"));
    }

    pub(crate) fn ack(&mut self, packet_id: u16) {
        self.send(&Packet::PubAck(Ack {
            packet_id,
            reason: ReasonCode::SUCCESS,
            properties: Properties::EMPTY,
        }));
    }

    /// Receives the next message and acknowledges it at QoS 1.
    pub(crate) fn message(&mut self) -> (String, Vec<u8>) {
        match self.next() {
            ReceivedPacket::Message {
                topic,
                payload,
                qos,
                packet_id,
                ..
            } => {
                if qos == QoS::AtLeastOnce {
                    self.ack(packet_id);
                }
                (topic, payload)
            }
            other => panic!("expected a message, got {other:?}"),
        }
    }

    pub(crate) fn next(&mut self) -> ReceivedPacket {
        loop {
            if let Some(frame) = mqtt::split_frame(&self.buffer, u32::MAX).unwrap() {
                let len = frame.len;
                let packet = Packet::decode(frame, Version::V5, Direction::FromServer).unwrap();
                let got = match packet {
                    Packet::Publish(publish) => ReceivedPacket::Message {
                        topic: publish.topic.to_owned(),
                        payload: publish.payload.to_vec(),
                        qos: publish.qos,
                        retain: publish.retain,
                        packet_id: publish.packet_id,
                    },
                    Packet::Disconnect(disconnect) => ReceivedPacket::Disconnect(disconnect.reason),
                    Packet::ConnAck(_) => ReceivedPacket::Other("CONNACK"),
                    Packet::SubAck(_) => ReceivedPacket::Other("SUBACK"),
                    Packet::PubAck(_) => ReceivedPacket::Other("PUBACK"),
                    _ => ReceivedPacket::Other("something else"),
                };
                self.buffer.drain(..len);
                return got;
            }
            let mut piece = [0; 4096];
            match self.socket.read(&mut piece) {
                Ok(0) => return ReceivedPacket::End,
                Ok(len) => self.buffer.extend_from_slice(&piece[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return ReceivedPacket::End;
                }
                Err(error) => panic!("reading: {error}"),
            }
        }
    }

    /// Closes the connection without a DISCONNECT.
    pub(crate) fn drop_connection(self) {
        drop(self);
    }
}
