//! The packets of the control stream on their way to the shard. Sans-io, except for the clock.
//!
//! Without data streams, bytes are passed on as they arrive, as on other listeners, so that all limits of the shard
//! apply. With data streams, a packet is passed on when it is complete, so that packets of others do not wait for it.

use std::time::Duration;

use mqtt::frame_len;
use tokio::time::{Instant, sleep_until};

use super::multiplexer::StreamMultiplexer;

pub(super) struct ControlPackets {
    max_packet_size: u32,
    /// The beginning of a packet.
    partial: Vec<u8>,
    since: Instant,
    /// Bytes of the current packet that are passed on as they arrive.
    remaining: usize,
    /// The bytes of CONNECT so far, which are passed on as they arrive. `None`: it is complete.
    connect: Option<Vec<u8>>,
    max_connect_bytes: u32,
    /// The shard closes the connection because of what has been received.
    is_invalid: bool,
}

impl ControlPackets {
    pub(super) fn new(max_packet_size: u32, max_connect_bytes: u32) -> Self {
        Self {
            max_packet_size,
            partial: Vec::new(),
            since: Instant::now(),
            remaining: 0,
            connect: Some(Vec::new()),
            max_connect_bytes,
            is_invalid: false,
        }
    }

    /// Whether packets of other streams may be passed on now.
    pub(super) fn is_at_boundary(&self) -> bool {
        self.remaining == 0 && !self.is_invalid
    }

    /// Ends when a packet that is kept here has taken too long.
    pub(super) async fn overdue(&self, limit: Duration) {
        match self.partial.is_empty() {
            true => std::future::pending().await,
            false => sleep_until(self.since + limit).await,
        }
    }

    /// Appends what can be passed on to `out`.
    pub(super) fn receive(
        &mut self,
        mut chunk: &[u8],
        multiplexer: &mut StreamMultiplexer,
        out: &mut Vec<u8>,
    ) {
        if self.is_invalid {
            out.extend_from_slice(chunk);
            return;
        }
        if let Some(connect) = &mut self.connect {
            let before = connect.len();
            connect.extend_from_slice(chunk);
            let len = match frame_len(connect) {
                Ok(Some(len)) if len <= self.max_connect_bytes as usize => len,
                Ok(None) => usize::MAX,
                // Another protocol, or too large: the shard closes the connection.
                Ok(Some(_)) | Err(_) => {
                    self.is_invalid = true;
                    out.extend_from_slice(chunk);
                    return;
                }
            };
            let (passed, rest) = chunk.split_at(chunk.len().min(len.saturating_sub(before)));
            out.extend_from_slice(passed);
            if connect.len() < len {
                return;
            }
            multiplexer.record_connect(&connect[..len]);
            self.connect = None;
            chunk = rest;
        }
        if self.remaining > 0 {
            let (passed, rest) = chunk.split_at(self.remaining.min(chunk.len()));
            self.remaining -= passed.len();
            out.extend_from_slice(passed);
            chunk = rest;
        }
        if self.partial.is_empty() {
            self.since = Instant::now();
        }
        self.partial.extend_from_slice(chunk);
        let mut at = 0;
        loop {
            let buffer = &mut self.partial[at..];
            let len = match frame_len(buffer) {
                Ok(Some(len)) if len <= self.max_packet_size as usize => len,
                Ok(None) => break,
                // The shard reports the error to the client.
                Ok(Some(_)) | Err(_) => {
                    self.is_invalid = true;
                    out.extend_from_slice(buffer);
                    at = self.partial.len();
                    break;
                }
            };
            let is_complete = len <= buffer.len();
            if !is_complete && !multiplexer.may_pass_in_parts(buffer) {
                break;
            }
            let available = len.min(buffer.len());
            let packet = &mut buffer[..available];
            multiplexer.receive_control(packet);
            out.extend_from_slice(packet);
            at += available;
            if !is_complete {
                self.remaining = len - available;
                break;
            }
            self.since = Instant::now();
        }
        self.partial.drain(..at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqtt::{Connect, Packet, Properties, Publish, QoS, Version};

    const CONNECT: Packet<'static> = Packet::Connect(Connect {
        version: Version::V5,
        clean_start: true,
        keep_alive_s: 0,
        client_id: "client",
        username: None,
        password: None,
        will: None,
        properties: Properties::EMPTY,
        is_bridge: false,
    });

    fn session_bytes() -> Vec<u8> {
        let mut bytes = Vec::new();
        CONNECT.encode(Version::V5, &mut bytes);
        for packet_id in [0, 1, 2] {
            Packet::Publish(Publish {
                dup: false,
                qos: [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][usize::from(packet_id)],
                retain: false,
                topic: "topic",
                packet_id,
                properties: Properties::EMPTY,
                payload: &[7; 300],
            })
            .encode(Version::V5, &mut bytes);
            Packet::PingReq.encode(Version::V5, &mut bytes);
        }
        bytes
    }

    #[test]
    fn bytes_pass_unchanged_however_they_are_divided() {
        let bytes = session_bytes();
        for has_data_stream in [false, true] {
            for size in (1..bytes.len()).step_by(7) {
                let mut multiplexer = StreamMultiplexer::new(4096, 4096);
                if has_data_stream {
                    multiplexer.open_stream();
                }
                let mut packets = ControlPackets::new(4096, 4096);
                let mut out = Vec::new();
                for chunk in bytes.chunks(size) {
                    packets.receive(chunk, &mut multiplexer, &mut out);
                    assert!(packets.is_at_boundary() || !has_data_stream);
                }
                assert!(packets.is_at_boundary());
                assert_eq!(out, bytes, "in chunks of {size}");
            }
        }
    }

    #[test]
    fn what_the_shard_rejects_reaches_it() {
        for (max_packet, max_connect) in [(100, 100), (4096, 10)] {
            let mut packets = ControlPackets::new(max_packet, max_connect);
            let mut out = Vec::new();
            let bytes = session_bytes();
            packets.receive(
                &bytes,
                &mut StreamMultiplexer::new(max_packet, 4096),
                &mut out,
            );
            assert_eq!(out, bytes);
            assert!(!packets.is_at_boundary());
        }
    }
}
