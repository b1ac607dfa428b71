//! The end of a translator towards its device: packets of MQTT 5 through a pipe in memory.
//!
//! The device side of the pipe is in [`mod@crate::run`]; it treats the translator like a broker.

use std::sync::Arc;

use mqtt::{
    Ack, ConnAck, Direction, Packet, Properties, Publish, QoS, ReasonCode, SubAck, Version,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::Mutex;

/// Version of the packets in the pipe, whichever `target.version` is: its acknowledgements have reason codes.
pub(crate) const LOCAL_VERSION: Version = Version::V5;
/// A device sends no longer packet.
const MAX_PACKET_BYTES: u32 = 1 << 20;

/// What the device logs in with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeviceLogin {
    pub(super) client_id: String,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
}

/// A packet of the device.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DevicePacket {
    Connect(DeviceLogin),
    Subscribe {
        packet_id: u16,
        filters: Vec<String>,
    },
    Publish(DeviceMessage),
    /// The device ends the connection, or has closed it.
    End,
}

/// A message of the device.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DeviceMessage {
    pub(super) topic: String,
    pub(super) payload: Vec<u8>,
    pub(super) retain: bool,
    /// 0: the device expects no acknowledgement.
    pub(super) packet_id: u16,
}

/// Splits a pipe to a device.
pub(super) fn split(pipe: DuplexStream) -> (LocalReader, LocalWriter) {
    let (reader, writer) = tokio::io::split(pipe);
    let reader = LocalReader {
        pipe: reader,
        received: Vec::new(),
    };
    (reader, LocalWriter(Arc::new(Mutex::new(writer))))
}

/// Reads the packets of a device.
#[derive(Debug)]
pub(super) struct LocalReader {
    pipe: ReadHalf<DuplexStream>,
    received: Vec<u8>,
}

impl LocalReader {
    /// The login of the device, which is its first packet; `None`: it has closed the connection.
    pub(super) async fn login(&mut self) -> Option<DeviceLogin> {
        match self.next().await {
            DevicePacket::Connect(login) => Some(login),
            _ => None,
        }
    }

    /// The next packet that needs handling. Cancelling loses nothing.
    pub(super) async fn next(&mut self) -> DevicePacket {
        loop {
            while let Some(packet) = self.take_packet() {
                if let Some(packet) = packet {
                    return packet;
                }
            }
            match self.pipe.read_buf(&mut self.received).await {
                Ok(0) | Err(_) => return DevicePacket::End,
                Ok(_) => {}
            }
        }
    }

    /// `None`: there is no complete packet. `Some(None)`: it needs no handling.
    fn take_packet(&mut self) -> Option<Option<DevicePacket>> {
        let (packet, len) = match mqtt::split_frame(&self.received, MAX_PACKET_BYTES) {
            Ok(None) => return None,
            Ok(Some(frame)) => {
                let len = frame.len;
                (read(frame), len)
            }
            // The device is part of this program; an invalid packet cannot be continued after.
            Err(_) => (Some(DevicePacket::End), self.received.len()),
        };
        self.received.drain(..len);
        Some(packet)
    }
}

fn read(frame: mqtt::Frame<'_>) -> Option<DevicePacket> {
    let Ok(packet) = Packet::decode(frame, LOCAL_VERSION, Direction::FromClient) else {
        return Some(DevicePacket::End);
    };
    match packet {
        Packet::Connect(connect) => Some(DevicePacket::Connect(DeviceLogin {
            client_id: connect.client_id.to_owned(),
            username: connect.username.map(str::to_owned),
            password: connect
                .password
                .map(|password| String::from_utf8_lossy(password).into_owned()),
        })),
        Packet::Subscribe(subscribe) => Some(DevicePacket::Subscribe {
            packet_id: subscribe.packet_id,
            filters: subscribe
                .filters
                .iter()
                .map(|filter| filter.filter.to_owned())
                .collect(),
        }),
        Packet::Publish(message) => Some(DevicePacket::Publish(DeviceMessage {
            topic: message.topic.to_owned(),
            payload: message.payload.to_vec(),
            retain: message.retain,
            packet_id: message.packet_id,
        })),
        Packet::Disconnect(_) => Some(DevicePacket::End),
        // Acknowledgements of messages that are sent with QoS 0, and pings, which nobody waits for.
        _ => None,
    }
}

/// Writes packets for a device. Clones write to the same one.
#[derive(Debug, Clone)]
pub(super) struct LocalWriter(Arc<Mutex<WriteHalf<DuplexStream>>>);

impl LocalWriter {
    /// Reports that the device is logged in.
    pub(super) async fn accept_login(&self) {
        self.write(&Packet::ConnAck(ConnAck {
            session_present: false,
            code: ReasonCode::SUCCESS,
            properties: Properties::EMPTY,
        }))
        .await;
    }

    pub(super) async fn accept_subscriptions(&self, packet_id: u16, count: usize) {
        self.answer_subscriptions(packet_id, &vec![0; count]).await;
    }

    /// Reports the result of a SUBSCRIBE packet: a reason code for each filter.
    pub(super) async fn answer_subscriptions(&self, packet_id: u16, codes: &[u8]) {
        self.write(&Packet::SubAck(SubAck {
            packet_id,
            properties: Properties::EMPTY,
            codes,
        }))
        .await;
    }

    /// Acknowledges a message of the device, unless it expects no acknowledgement.
    pub(super) async fn acknowledge(&self, packet_id: u16, reason: ReasonCode) {
        if packet_id > 0 {
            self.write(&Packet::PubAck(Ack {
                packet_id,
                reason,
                properties: Properties::EMPTY,
            }))
            .await;
        }
    }

    /// Passes a message to the device. Waits while the device does not read.
    pub(super) async fn publish(&self, topic: &str, payload: &[u8]) {
        self.write(&Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            packet_id: 0,
            properties: Properties::EMPTY,
            payload,
        }))
        .await;
    }

    /// Ends the connection of the device.
    pub(super) async fn close(&self) {
        // The device may have closed it already.
        let _ = self.0.lock().await.shutdown().await;
    }

    async fn write(&self, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(LOCAL_VERSION, &mut bytes);
        // A device that has closed its end is noticed by the reader.
        let _ = self.0.lock().await.write_all(&bytes).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn packets_of_a_device_are_read_in_pieces() {
        let (mut device, pipe) = tokio::io::duplex(1024);
        let (mut reader, writer) = split(pipe);
        let mut bytes = Vec::new();
        let message = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "a/b",
            packet_id: 7,
            properties: Properties::EMPTY,
            payload: b"text",
        };
        Packet::PingReq.encode(LOCAL_VERSION, &mut bytes);
        Packet::Publish(message).encode(LOCAL_VERSION, &mut bytes);
        let reading = tokio::spawn(async move {
            let first = reader.next().await;
            (first, reader.next().await)
        });
        for byte in bytes {
            device.write_all(&[byte]).await.expect("the pipe is open");
        }
        device
            .write_all(&[0xe0, 0])
            .await
            .expect("the pipe is open");
        let expected = DeviceMessage {
            topic: "a/b".to_owned(),
            payload: b"text".to_vec(),
            retain: false,
            packet_id: 7,
        };
        let read = reading.await.expect("no panic");
        assert_eq!(read, (DevicePacket::Publish(expected), DevicePacket::End));
        writer.acknowledge(7, ReasonCode::QUOTA_EXCEEDED).await;
        let mut answer = [0; 5];
        device.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(answer, [0x40, 3, 0, 7, 0x97]);
    }
}
