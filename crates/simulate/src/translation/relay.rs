//! Connections to relay endpoints: a WebSocket of text messages, on which devices identify themselves.
//!
//! Topics of the pipe have no meaning for the endpoint, except that they tell requests from other messages.

use std::collections::HashMap;
use std::time::Duration;

use link_carriers::BoxedCarrier;
use mqtt::ReasonCode;
use outbound::url_encoding::url_encode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use ws::{
    ClientHandshake, ClientRequest, Decoder, DecoderEvent, DecoderOptions, MaskKeys, Opcode, Role,
};

use super::local_port::{DeviceMessage, DevicePacket, LocalReader, LocalWriter};
use super::server_target::{ServerTarget, describe};
use super::translated_session::TranslatedSession;
use crate::device_protocol::{RELAY_CONTROL, RELAY_MESSAGES, RELAY_REQUESTS};

/// Devices have little memory: a longer message ends the connection.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;
const READ_BYTES: usize = 16 * 1024;
const SUBPROTOCOL: &str = "tidegate-relay";

/// Connects to the endpoint, identifies the device, and translates until it ends.
pub(super) async fn translate(
    session: TranslatedSession,
    reader: &mut LocalReader,
    target: &ServerTarget,
) -> Result<(), String> {
    let timeout = session.login_timeout;
    let mut device = RelayDevice {
        socket: connect(&session, target).await?,
        writer: session.writer,
        requests: HashMap::new(),
    };
    if session.route.identifies {
        let mut identity = json!({"type": "identify", "deviceId": session.login.client_id});
        if let Some(name) = session.login.username {
            identity["deviceName"] = json!(name);
        }
        device.socket.send(&identity.to_string()).await?;
        tokio::time::timeout(timeout, device.wait_until_identified())
            .await
            .unwrap_or_else(|_| Err("the endpoint has not answered `identify`".to_owned()))?;
    }
    device.writer.accept_login().await;
    loop {
        let message = tokio::select! {
            packet = reader.next() => match packet {
                DevicePacket::Publish(message) => {
                    device.send(message).await?;
                    continue;
                }
                DevicePacket::Subscribe { packet_id, filters } => {
                    device.writer.accept_subscriptions(packet_id, filters.len()).await;
                    continue;
                }
                DevicePacket::Connect(_) | DevicePacket::End => return device.socket.leave().await,
            },
            message = device.socket.receive() => message?,
        };
        match message {
            Some(message) => device.pass(&message).await,
            None => device.socket.answer().await?,
        }
    }
}

/// Connects, and performs the handshake.
async fn connect(
    session: &TranslatedSession,
    target: &ServerTarget,
) -> Result<RelaySocket, String> {
    let connecting = async {
        let stream = target.connect(session.route.source).await;
        let stream = stream.map_err(|error| describe(&error))?;
        let prefix = match target.path.as_str() {
            "" => "/ws",
            path => path,
        };
        let path = format!("{prefix}/{}", url_encode(&session.route.endpoint));
        let key = session.login.password.as_ref();
        let key = key.map(|key| format!("key.{key}"));
        RelaySocket::connect(stream, &target.authority, &path, key.as_deref()).await
    };
    let connected = tokio::time::timeout(session.login_timeout, connecting).await;
    connected.unwrap_or_else(|_| Err("timed out".to_owned()))
}

struct RelayDevice {
    socket: RelaySocket,
    writer: LocalWriter,
    /// Packet identifiers of requests that the node has not answered, by their request id.
    requests: HashMap<String, u16>,
}

impl RelayDevice {
    async fn wait_until_identified(&mut self) -> Result<(), String> {
        loop {
            let Some(message) = self.socket.receive().await? else {
                self.socket.answer().await?;
                continue;
            };
            let message: Value = serde_json::from_slice(&message).unwrap_or_default();
            match message["type"].as_str() {
                Some("identified") => return Ok(()),
                Some("system") => {
                    let text = |name: &str| message[name].as_str().unwrap_or_default();
                    return Err(format!("{}: {}", text("code"), text("message")));
                }
                // Messages of others arrive from the handshake on.
                _ => {}
            }
        }
    }

    async fn send(&mut self, message: DeviceMessage) -> Result<(), String> {
        let text = String::from_utf8_lossy(&message.payload);
        if message.topic != RELAY_REQUESTS || message.packet_id == 0 {
            self.socket.send(&text).await?;
            self.writer
                .acknowledge(message.packet_id, ReasonCode::SUCCESS)
                .await;
            return Ok(());
        }
        // The answer to a request is its acknowledgement.
        let id = message.packet_id.to_string();
        let Ok(Value::Object(mut request)) = serde_json::from_str(&text) else {
            return Err("a request to a relay endpoint is not a JSON object".to_owned());
        };
        request.insert("type".to_owned(), json!("request"));
        request.insert("requestId".to_owned(), json!(id));
        self.requests.insert(id, message.packet_id);
        self.socket.send(&Value::Object(request).to_string()).await
    }

    /// Passes a message of the endpoint to the device.
    async fn pass(&mut self, bytes: &[u8]) {
        let message: Value = serde_json::from_slice(bytes).unwrap_or_default();
        match message["type"].as_str() {
            Some("control") if message["commandId"].is_string() => {
                let id = message["commandId"].as_str().unwrap_or_default();
                let topic = RELAY_CONTROL.replace('+', id);
                let command = json!({"method": message["command"], "params": message["params"]});
                self.writer
                    .publish(&topic, command.to_string().as_bytes())
                    .await;
            }
            Some("response") => {
                let id = message["requestId"].as_str().unwrap_or_default();
                if let Some(packet_id) = self.requests.remove(id) {
                    let reason = match message["status"].as_str() {
                        Some("success") => ReasonCode::SUCCESS,
                        _ => ReasonCode::UNSPECIFIED_ERROR,
                    };
                    self.writer.acknowledge(packet_id, reason).await;
                }
            }
            _ => self.writer.publish(RELAY_MESSAGES, bytes).await,
        }
    }
}

/// A WebSocket whose messages are complete texts.
struct RelaySocket {
    stream: BoxedCarrier,
    decoder: Decoder,
    masks: MaskKeys,
    received: Vec<u8>,
    /// The message that is being received.
    message: Vec<u8>,
    /// Frames that answer pings.
    answers: Vec<u8>,
}

impl RelaySocket {
    async fn connect(
        mut stream: BoxedCarrier,
        host: &str,
        path: &str,
        key: Option<&str>,
    ) -> Result<Self, String> {
        let subprotocols: Vec<&str> = key.map_or(Vec::new(), |key| vec![SUBPROTOCOL, key]);
        let request = ClientRequest {
            host,
            path,
            subprotocols: &subprotocols,
            headers: &[],
        };
        let (mut handshake, request) =
            ClientHandshake::start(&request).map_err(|error| error.to_string())?;
        let written = stream.write_all(&request).await;
        written.map_err(|error| describe(&error))?;
        let mut received = Vec::new();
        let accepted = loop {
            let read = stream.read_buf(&mut received).await;
            if read.map_err(|error| describe(&error))? == 0 {
                return Err("closed by the server".to_owned());
            }
            let step = handshake.feed(&received);
            if let Some(accepted) = step.map_err(|error| error.to_string())? {
                break accepted;
            }
        };
        received.drain(..accepted.consumed);
        Ok(Self {
            stream,
            decoder: Decoder::new(DecoderOptions {
                role: Role::Client,
                refuse_text: false,
                max_message_bytes: MAX_MESSAGE_BYTES as u64,
                has_compression: false,
            }),
            masks: MaskKeys::new(),
            received,
            message: Vec::new(),
            answers: Vec::new(),
        })
    }

    async fn send(&mut self, text: &str) -> Result<(), String> {
        let mut frame = Vec::with_capacity(text.len() + 14);
        let mask = Some(self.masks.next_key());
        ws::encode_frame(Opcode::Text, text.as_bytes(), mask, &mut frame);
        let written = self.stream.write_all(&frame).await;
        written.map_err(|error| describe(&error))
    }

    /// Closes the connection as a client that leaves.
    async fn leave(&mut self) -> Result<(), String> {
        let mut frame = Vec::new();
        let mask = Some(self.masks.next_key());
        ws::encode_close(Some(ws::close_codes::NORMAL), "", mask, &mut frame);
        // The node may have closed it at the same time.
        let _ = self.stream.write_all(&frame).await;
        let _ = tokio::time::timeout(Duration::from_secs(1), self.stream.shutdown()).await;
        Ok(())
    }

    /// The next message, or `None` if there is something to [answer](Self::answer). Cancelling loses nothing.
    async fn receive(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            if let Some(message) = self.decode()? {
                return Ok(Some(message));
            }
            if !self.answers.is_empty() {
                return Ok(None);
            }
            self.received.reserve(READ_BYTES);
            let read = self.stream.read_buf(&mut self.received).await;
            if read.map_err(|error| describe(&error))? == 0 {
                return Err("closed by the server".to_owned());
            }
        }
    }

    /// Answers pings. It must not be cancelled.
    async fn answer(&mut self) -> Result<(), String> {
        let answers = std::mem::take(&mut self.answers);
        let written = self.stream.write_all(&answers).await;
        written.map_err(|error| describe(&error))
    }

    /// Decodes until a message is complete.
    fn decode(&mut self) -> Result<Option<Vec<u8>>, String> {
        let mut at = 0;
        let mut complete = None;
        while complete.is_none() {
            let step = self.decoder.decode(&mut self.received[at..]);
            let step = step.map_err(|error| error.to_string())?;
            at += step.consumed;
            match step.event {
                None => break,
                Some(DecoderEvent::Data {
                    chunk,
                    is_end_of_message,
                    ..
                }) => {
                    self.message.extend_from_slice(chunk);
                    if is_end_of_message {
                        complete = Some(std::mem::take(&mut self.message));
                    }
                }
                Some(DecoderEvent::Ping(payload)) => {
                    let mask = Some(self.masks.next_key());
                    ws::encode_frame(Opcode::Pong, payload, mask, &mut self.answers);
                }
                Some(DecoderEvent::Pong(_)) => {}
                Some(DecoderEvent::Close { code, reason }) => {
                    let code = code.map_or("none".to_owned(), |code| code.to_string());
                    return Err(format!(
                        "the endpoint closed the connection with code {code}: {reason}"
                    ));
                }
            }
        }
        self.received.drain(..at);
        Ok(complete)
    }
}
