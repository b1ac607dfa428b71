//! A client of MQTT 3.1.1 on tokio, as far as devices and other clients need it.

use anyhow::{Context as _, ensure};
use bytes::{Buf as _, BytesMut};
use mqtt::{
    Connect, Direction, Packet, Properties, PropertiesBuf, Publish, QoS, SubscribeBuf,
    SubscriptionOptions, Version,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

pub(super) struct BenchClient {
    stream: TcpStream,
    input: BytesMut,
}

impl BenchClient {
    pub(super) async fn connect(
        address: &str,
        client_id: &str,
        username: Option<&str>,
    ) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)
            .await
            .context("cannot connect to the node")?;
        stream.set_nodelay(true)?;
        let mut client = Self {
            stream,
            input: BytesMut::new(),
        };
        client
            .send(&Packet::Connect(Connect {
                version: Version::V311,
                clean_start: true,
                keep_alive_s: 0,
                client_id,
                username,
                password: None,
                will: None,
                properties: Properties::EMPTY,
                is_bridge: false,
            }))
            .await?;
        let code = client
            .receive(|packet| match packet {
                Packet::ConnAck(connack) => Some(connack.code),
                _ => None,
            })
            .await?;
        ensure!(!code.is_error(), "the node refuses {client_id}: {code}");
        Ok(client)
    }

    async fn send(&mut self, packet: &Packet<'_>) -> anyhow::Result<()> {
        let mut out = Vec::new();
        packet.encode(Version::V311, &mut out);
        Ok(self.stream.write_all(&out).await?)
    }

    pub(super) async fn subscribe(&mut self, filter: &str) -> anyhow::Result<()> {
        let mut subscribe = SubscribeBuf::new(1);
        subscribe.push(filter, SubscriptionOptions::default());
        let mut out = Vec::new();
        let properties = PropertiesBuf::new();
        subscribe.encode(properties.as_properties(), Version::V311, &mut out);
        self.stream.write_all(&out).await?;
        self.receive(|packet| matches!(packet, Packet::SubAck(_)).then_some(()))
            .await
    }

    pub(super) async fn publish(&mut self, topic: &str, payload: &[u8]) -> anyhow::Result<()> {
        self.send(&Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            packet_id: 0,
            properties: Properties::EMPTY,
            payload,
        }))
        .await
    }

    /// The first packet that `select` takes. It may be cancelled.
    pub(super) async fn receive<T>(
        &mut self,
        mut select: impl FnMut(&Packet<'_>) -> Option<T>,
    ) -> anyhow::Result<T> {
        loop {
            while let Some(frame) = mqtt::split_frame(&self.input, u32::MAX)? {
                let len = frame.len;
                let packet = Packet::decode(frame, Version::V311, Direction::FromServer)?;
                let selected = select(&packet);
                self.input.advance(len);
                if let Some(selected) = selected {
                    return Ok(selected);
                }
            }
            self.input.reserve(16 << 10);
            let len = self.stream.read_buf(&mut self.input).await?;
            ensure!(len > 0, "the node closed the connection");
        }
    }
}
