//! Layers between a socket and MQTT: a PROXY header, TLS, WebSocket, in this order. Sans-io: bytes from the wire become
//! MQTT bytes, and MQTT bytes become bytes for the wire. A plain connection has no layers at all.

use std::io::{Read, Write};
use std::sync::Arc;

use hooks::{CertificateNames, PeerAddress};
use rustls::{ServerConfig, ServerConnection};
use ws::{
    Decoder, DecoderEvent, DecoderOptions, Deflater, Opcode, PermessageDeflate, Role,
    ServerHandshake, ServerHandshakeStep, ServerOptions,
};

use super::compressed_messages::CompressedMessages;
use super::{proxy_protocol, tls};
use crate::core::protocol_detection::is_mqtt_connect;

/// Bytes for the wire that may wait here before more MQTT bytes are taken from the outbox.
const WIRE_HIGH_BYTES: usize = 256 * 1024;

enum WebSocketLayer {
    Handshake {
        options: Arc<ServerOptions>,
        state: ServerHandshake,
        head: Vec<u8>,
    },
    Open {
        decoder: Decoder,
        held_back: Vec<u8>,
        compression: Option<Box<CompressedMessages>>,
    },
}

pub(crate) struct TransportLayers {
    /// The beginning of a PROXY header.
    proxy: Option<Vec<u8>>,
    tls: Option<ServerConnection>,
    websocket: Option<WebSocketLayer>,
    /// Bytes for the wire; those before `written` have been written.
    wire: Vec<u8>,
    written: usize,
    is_certificate_reported: bool,
    /// Whether nothing has been read yet.
    is_untouched: bool,
    /// The peer has ended the stream of TLS while input was pending.
    is_ended: bool,
}

/// Results of decoding besides MQTT bytes.
#[derive(Default)]
pub(crate) struct InboundResult {
    pub(crate) peer: Option<PeerAddress>,
    pub(crate) certificate: Option<CertificateNames>,
    /// The client ended the stream with a message of a layer (TLS close_notify, WebSocket close).
    pub(crate) closed: bool,
    /// The client asked for a relay endpoint. The other bytes are WebSocket frames, not MQTT.
    pub(crate) relay: Option<Box<RelayUpgrade>>,
}

/// The accepted request for a relay endpoint.
pub(crate) struct RelayUpgrade {
    pub(crate) target: String,
    pub(crate) origin: Option<String>,
    pub(crate) subprotocols: Vec<String>,
    pub(crate) compression: Option<PermessageDeflate>,
}

/// Why a connection cannot continue; the message to the client is in `wire` already.
#[derive(Debug)]
pub(crate) struct LayerError(pub(crate) String);

impl TransportLayers {
    pub(crate) fn new(
        proxy: bool,
        tls: Option<Arc<ServerConfig>>,
        websocket: Option<Arc<ServerOptions>>,
    ) -> Result<Option<Box<Self>>, rustls::Error> {
        if !proxy && tls.is_none() && websocket.is_none() {
            return Ok(None);
        }
        let tls = match tls {
            Some(config) => {
                let mut tls = ServerConnection::new(config)?;
                // The output waiting here is bounded by the outbox.
                tls.set_buffer_limit(None);
                Some(tls)
            }
            None => None,
        };
        Ok(Some(Box::new(Self {
            proxy: proxy.then(Vec::new),
            tls,
            websocket: websocket.map(|options| WebSocketLayer::Handshake {
                options,
                state: ServerHandshake::new(),
                head: Vec::new(),
            }),
            wire: Vec::new(),
            written: 0,
            is_certificate_reported: false,
            is_untouched: true,
            is_ended: false,
        })))
    }

    /// Detects plain MQTT by its first byte, which no layer begins with.
    fn check_first_bytes(&self, first: &[u8]) -> Result<(), LayerError> {
        if !is_mqtt_connect(first) {
            return Ok(());
        }
        Err(LayerError(match (&self.proxy, &self.tls) {
            (Some(_), _) => "the listener expects a PROXY protocol header, but the client sends none; connect through the proxy, or set proxy_protocol = false",
            (None, Some(_)) => "the listener expects TLS, but the client uses plain MQTT; use mqtts://, or connect to a listener with protocol mqtt",
            (None, None) => "the listener expects WebSocket, but the client uses plain MQTT; use ws://, or connect to a listener with protocol mqtt",
        }.into()))
    }

    /// Decodes bytes from the wire; MQTT bytes are appended to `mqtt`. While input is pending afterwards
    /// ([`Self::has_pending_input`]), the next call comes without bytes.
    pub(crate) fn decode_inbound(
        &mut self,
        raw: &mut [u8],
        mqtt: &mut Vec<u8>,
    ) -> Result<InboundResult, LayerError> {
        let mut learned = InboundResult::default();
        let mut after_header;
        let mut raw = raw;
        if self.is_untouched {
            self.is_untouched = false;
            self.check_first_bytes(raw)?;
        }
        if let Some(header) = &mut self.proxy {
            header.extend_from_slice(raw);
            match proxy_protocol::parse_proxy_header(header) {
                proxy_protocol::ProxyHeader::Incomplete => return Ok(learned),
                proxy_protocol::ProxyHeader::Invalid => {
                    return Err(LayerError("expected a PROXY protocol header".into()));
                }
                proxy_protocol::ProxyHeader::Complete(len, peer) => {
                    learned.peer = peer;
                    after_header = header.split_off(len);
                    self.proxy = None;
                    raw = &mut after_header;
                }
            }
        }
        if self.tls.is_some() {
            let mut plain = Vec::new();
            let result = self.decrypt(raw, &mut plain, &mut learned);
            let result =
                result.and_then(|()| self.decode_websocket(&mut plain, mqtt, &mut learned));
            // Collects the output of TLS itself, alerts included.
            self.encrypt(&[]);
            result?;
        } else {
            self.decode_websocket(raw, mqtt, &mut learned)?;
        }
        if self.has_pending_input() {
            self.is_ended |= std::mem::take(&mut learned.closed);
        } else {
            learned.closed |= self.is_ended;
        }
        Ok(learned)
    }

    fn decrypt(
        &mut self,
        mut raw: &[u8],
        plain: &mut Vec<u8>,
        learned: &mut InboundResult,
    ) -> Result<(), LayerError> {
        let Some(tls) = &mut self.tls else {
            return Ok(());
        };
        while !raw.is_empty() {
            let taken = tls
                .read_tls(&mut raw)
                .map_err(|e| LayerError(e.to_string()))?;
            let state = tls.process_new_packets();
            let state = match state {
                Ok(state) => state,
                Err(error) => return Err(LayerError(error.to_string())),
            };
            let at = plain.len();
            plain.resize(at + state.plaintext_bytes_to_read(), 0);
            if tls.reader().read_exact(&mut plain[at..]).is_err() {
                plain.truncate(at);
            }
            learned.closed |= state.peer_has_closed();
            if taken == 0 {
                break;
            }
        }
        if !self.is_certificate_reported && !tls.is_handshaking() {
            self.is_certificate_reported = true;
            let certificate = tls.peer_certificates().and_then(|chain| chain.first());
            learned.certificate = certificate.and_then(tls::certificate_names);
        }
        Ok(())
    }

    fn decode_websocket(
        &mut self,
        bytes: &mut [u8],
        mqtt: &mut Vec<u8>,
        learned: &mut InboundResult,
    ) -> Result<(), LayerError> {
        let mut frames = Vec::new();
        match &mut self.websocket {
            None => {
                mqtt.extend_from_slice(bytes);
                return Ok(());
            }
            Some(WebSocketLayer::Handshake {
                options,
                state,
                head,
            }) => {
                head.extend_from_slice(bytes);
                match state.feed(options, head) {
                    ServerHandshakeStep::Incomplete => return Ok(()),
                    ServerHandshakeStep::Rejected(rejected) => {
                        self.append_to_wire(&rejected.response);
                        return Err(LayerError(rejected.reason));
                    }
                    ServerHandshakeStep::Accepted(accepted) if accepted.is_prefix => {
                        // From now on the core reads and writes frames itself.
                        mqtt.extend_from_slice(&head[accepted.consumed..]);
                        learned.relay = Some(Box::new(RelayUpgrade {
                            target: accepted.target,
                            origin: accepted.origin,
                            subprotocols: accepted.offered_subprotocols,
                            compression: accepted.compression,
                        }));
                        self.websocket = None;
                        self.append_to_wire(&accepted.response);
                        return Ok(());
                    }
                    ServerHandshakeStep::Accepted(accepted) => {
                        frames.extend_from_slice(&head[accepted.consumed..]);
                        self.websocket = Some(WebSocketLayer::Open {
                            decoder: Decoder::new(DecoderOptions {
                                has_compression: accepted.compression.is_some(),
                                ..DecoderOptions::byte_stream(Role::Server)
                            }),
                            held_back: Vec::new(),
                            compression: accepted
                                .compression
                                .map(|negotiated| Box::new(CompressedMessages::new(negotiated))),
                        });
                        self.append_to_wire(&accepted.response);
                        if frames.is_empty() {
                            return Ok(());
                        }
                    }
                }
            }
            Some(WebSocketLayer::Open { held_back, .. }) if !held_back.is_empty() => {
                frames = std::mem::take(held_back);
                frames.extend_from_slice(bytes);
            }
            Some(WebSocketLayer::Open { .. }) => return self.read_frames(bytes, mqtt, learned),
        }
        self.read_frames(&mut frames, mqtt, learned)
    }

    fn read_frames(
        &mut self,
        mut bytes: &mut [u8],
        mqtt: &mut Vec<u8>,
        learned: &mut InboundResult,
    ) -> Result<(), LayerError> {
        let Some(WebSocketLayer::Open {
            decoder,
            held_back,
            compression,
        }) = &mut self.websocket
        else {
            return Ok(());
        };
        let mut answers = Vec::new();
        let mut result = match compression {
            Some(compression) => compression.inflate_pending(mqtt),
            None => Ok(()),
        };
        while result.is_ok() {
            if compression.as_ref().is_some_and(|it| it.has_pending()) {
                held_back.extend_from_slice(bytes);
                break;
            }
            let step = match decoder.decode(bytes) {
                Ok(step) => step,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            };
            let consumed = step.consumed;
            let done = step.event.is_none();
            match step.event {
                Some(DecoderEvent::Data {
                    chunk,
                    is_compressed,
                    is_end_of_message,
                    ..
                }) => match compression {
                    Some(it) if is_compressed => {
                        result = it.inflate(chunk, is_end_of_message, mqtt)
                    }
                    _ => mqtt.extend_from_slice(chunk),
                },
                Some(DecoderEvent::Ping(payload)) => {
                    ws::encode_frame(Opcode::Pong, payload, None, &mut answers);
                }
                Some(DecoderEvent::Close { code, .. }) => {
                    ws::encode_close(code, "", None, &mut answers);
                    learned.closed = true;
                }
                Some(DecoderEvent::Pong(_)) | None => {}
            }
            bytes = &mut bytes[consumed..];
            if done {
                held_back.extend_from_slice(bytes);
                break;
            }
        }
        if let Err(error) = &result {
            decoder.close();
            ws::encode_close(Some(error.code), error.detail, None, &mut answers);
        }
        if !answers.is_empty() {
            self.append_to_wire(&answers);
        }
        result.map_err(|error| LayerError(error.detail.into()))
    }

    /// Whether input is left that can be decoded without further bytes from the wire.
    pub(crate) fn has_pending_input(&self) -> bool {
        match &self.websocket {
            Some(WebSocketLayer::Open {
                compression: Some(compression),
                ..
            }) => compression.has_pending(),
            _ => false,
        }
    }

    /// Bytes of an incomplete handshake or frame.
    pub(crate) fn waiting_bytes(&self) -> usize {
        let of_websocket = match &self.websocket {
            Some(WebSocketLayer::Handshake { head, .. }) => head.len(),
            Some(WebSocketLayer::Open {
                held_back,
                compression,
                ..
            }) => held_back.len() + compression.as_ref().map_or(0, |it| it.waiting_bytes()),
            None => 0,
        };
        of_websocket + self.proxy.as_ref().map_or(0, Vec::len)
    }

    /// Whether MQTT bytes can be accepted: handshakes are complete and not too many bytes wait.
    pub(crate) fn can_accept_more(&self) -> bool {
        let open = !matches!(self.websocket, Some(WebSocketLayer::Handshake { .. }));
        let secure = self.tls.as_ref().is_none_or(|tls| !tls.is_handshaking());
        open && secure && self.wire.len() - self.written < WIRE_HIGH_BYTES
    }

    /// Encodes MQTT bytes for the client.
    pub(crate) fn encode_outbound(&mut self, mqtt: &[u8], deflater: &mut Deflater) {
        if let Some(WebSocketLayer::Open { compression, .. }) = &self.websocket {
            let compressed = compression
                .as_ref()
                .and_then(|it| it.deflate(mqtt, deflater));
            if let Some(compressed) = compressed {
                let header = ws::FrameHeader::new(Opcode::Binary, compressed.len(), None);
                self.append_to_wire(header.with_compressed_flag().as_bytes());
                self.append_to_wire(&compressed);
                return;
            }
            let header = ws::FrameHeader::new(Opcode::Binary, mqtt.len(), None);
            self.append_to_wire(header.as_bytes());
        }
        self.append_to_wire(mqtt);
    }

    /// Appends the close message of each layer.
    pub(crate) fn send_close(&mut self) {
        if matches!(&self.websocket, Some(WebSocketLayer::Open { decoder, .. }) if !decoder.is_closed())
        {
            let mut close = Vec::new();
            ws::encode_close(Some(ws::close_codes::NORMAL), "", None, &mut close);
            self.append_to_wire(&close);
        }
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
        self.encrypt(&[]);
    }

    /// Appends bytes that are ready for the wire, encrypted if there is TLS.
    fn append_to_wire(&mut self, bytes: &[u8]) {
        if self.tls.is_some() {
            self.encrypt(bytes);
        } else {
            self.wire.extend_from_slice(bytes);
        }
    }

    fn encrypt(&mut self, bytes: &[u8]) {
        let Some(tls) = &mut self.tls else { return };
        // Neither call can fail: there is no buffer limit, and a `Vec` accepts all bytes.
        let _ = tls.writer().write_all(bytes);
        while tls.wants_write() && tls.write_tls(&mut self.wire).is_ok() {}
    }

    /// The bytes for the wire, if no layer is left, so that the connection can do without layers.
    pub(crate) fn take_wire_if_empty(&mut self) -> Option<Vec<u8>> {
        let is_empty = self.tls.is_none() && self.proxy.is_none() && self.websocket.is_none();
        (is_empty && self.written == 0).then(|| std::mem::take(&mut self.wire))
    }

    pub(crate) fn wire(&self) -> &[u8] {
        &self.wire[self.written..]
    }

    pub(crate) fn advance(&mut self, count: usize) {
        self.written += count;
        if self.written == self.wire.len() {
            // An idle connection keeps no buffer.
            self.wire = Vec::new();
            self.written = 0;
        }
    }
}
