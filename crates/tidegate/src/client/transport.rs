//! A byte stream to a broker over TCP, TLS, QUIC or a Unix socket, optionally with WebSocket frames.

use std::io;
use std::sync::Arc;

use link_carriers::{QuicTarget, open_quic_stream};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf,
};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use ws::{
    ClientHandshake, ClientRequest, Decoder, DecoderEvent, DecoderOptions, MaskKeys, Opcode, Role,
};

use super::endpoint::{BrokerAddress, BrokerEndpoint};
use super::error::ClientError;
use super::tls;

const READ_BYTES: usize = 64 * 1024;

trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

/// How to reach a broker.
#[derive(Clone)]
pub(crate) struct ConnectRoute {
    pub(crate) endpoint: BrokerEndpoint,
    /// Set if the endpoint uses TLS.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// The name expected in the certificate, if it is not the host.
    pub(crate) tls_server_name: Option<String>,
}

pub(crate) struct Transport {
    reader: ReadHalf<Box<dyn ByteStream>>,
    writer: WriteHalf<Box<dyn ByteStream>>,
    websocket: Option<WebSocketFraming>,
    /// Bytes from the stream; MQTT bytes are passed on at once, WebSocket frames when complete.
    incoming: Vec<u8>,
    /// Bytes for the stream, starting at `written`.
    outgoing: Vec<u8>,
    written: usize,
    unflushed: bool,
}

struct WebSocketFraming {
    decoder: Decoder,
    masks: MaskKeys,
}

/// Result of [`Transport::transfer`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TransportProgress {
    /// Bytes were received.
    Read,
    /// All pending output was passed to the system.
    Written,
    /// The broker closed the stream.
    Closed,
}

impl Transport {
    /// Connects, including TLS and WebSocket handshakes. The caller sets the time limit.
    pub(crate) async fn connect(route: &ConnectRoute) -> Result<Self, ClientError> {
        let endpoint = &route.endpoint;
        let unreachable = |reason: String, hint| ClientError::Unreachable {
            endpoint: endpoint.to_string(),
            reason,
            hint,
        };
        let failed = |error: io::Error| {
            let hint = match error.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                    "; does a broker run there? `tidegate serve` starts one"
                }
                _ => tls::handshake_hint(&error),
            };
            unreachable(tls::describe(&error), hint)
        };
        let stream: Box<dyn ByteStream> = match &endpoint.address {
            BrokerAddress::Unix(path) => Box::new(UnixStream::connect(path).await.map_err(failed)?),
            BrokerAddress::Tcp { host, port } if endpoint.quic => {
                let Some(config) = &route.tls else {
                    return Err(ClientError::Usage("QUIC needs TLS".into()));
                };
                let target = QuicTarget {
                    host,
                    port: *port,
                    server_name: route.tls_server_name.as_ref().unwrap_or(host),
                    alpn: b"mqtt",
                };
                let stream = open_quic_stream(target, config).await.map_err(failed)?;
                Box::new(stream)
            }
            BrokerAddress::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port))
                    .await
                    .map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                match &route.tls {
                    None => Box::new(stream),
                    Some(config) => {
                        let name = route.tls_server_name.as_ref().unwrap_or(host);
                        let name = ServerName::try_from(name.clone()).map_err(|_| {
                            ClientError::Usage(format!(
                                "{name:?} is not a valid name of a certificate"
                            ))
                        })?;
                        let connector = TlsConnector::from(config.clone());
                        Box::new(connector.connect(name, stream).await.map_err(failed)?)
                    }
                }
            }
        };
        let (reader, writer) = tokio::io::split(stream);
        let mut transport = Self {
            reader,
            writer,
            websocket: None,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            written: 0,
            unflushed: false,
        };
        if let Some(path) = &endpoint.websocket_path {
            let upgraded = transport.upgrade_to_websocket(endpoint, path).await;
            upgraded.map_err(|reason| unreachable(reason, ""))?;
        }
        Ok(transport)
    }

    /// Performs the WebSocket handshake.
    async fn upgrade_to_websocket(
        &mut self,
        endpoint: &BrokerEndpoint,
        path: &str,
    ) -> Result<(), String> {
        let host = match &endpoint.address {
            BrokerAddress::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            BrokerAddress::Tcp { host, port } => format!("{host}:{port}"),
            BrokerAddress::Unix(_) => "localhost".to_owned(),
        };
        let request = ClientRequest {
            host: &host,
            path,
            subprotocols: &["mqtt"],
            headers: &[],
        };
        let (mut handshake, mut request) =
            ClientHandshake::start(&request).map_err(|error| error.to_string())?;
        let mut answer = Vec::new();
        let accepted = loop {
            let turn = self.transfer(&mut request, &mut answer).await;
            match turn.map_err(|error| error.to_string())? {
                TransportProgress::Closed => {
                    return Err("the broker closed during the WebSocket handshake".into());
                }
                TransportProgress::Written => {}
                TransportProgress::Read => {
                    let step = handshake.feed(&answer).map_err(|error| error.to_string())?;
                    if let Some(accepted) = step {
                        break accepted;
                    }
                }
            }
        };
        if accepted.subprotocol.is_none() {
            return Err("the server supports WebSocket, but not the sub-protocol mqtt".into());
        }
        // Frames may have arrived with the response.
        self.incoming = answer.split_off(accepted.consumed);
        self.websocket = Some(WebSocketFraming {
            decoder: Decoder::new(DecoderOptions::byte_stream(Role::Client)),
            masks: MaskKeys::new(),
        });
        Ok(())
    }

    /// Sends `outgoing` (draining it) while waiting for bytes to append to `incoming`; returns when
    /// either completes. Cancel safe: no bytes are lost.
    pub(crate) async fn transfer(
        &mut self,
        outgoing: &mut Vec<u8>,
        incoming: &mut Vec<u8>,
    ) -> io::Result<TransportProgress> {
        self.queue_outgoing(outgoing);
        if !self.incoming.is_empty() && self.decode_arrived(incoming)? {
            return Ok(TransportProgress::Read);
        }
        loop {
            let has_leaving = self.has_unsent();
            let closed = self
                .websocket
                .as_ref()
                .is_some_and(|ws| ws.decoder.is_closed());
            if closed && !has_leaving && !self.unflushed {
                return Ok(TransportProgress::Closed);
            }
            let has_to_send = has_leaving || self.unflushed;
            let (writer, leaving) = (&mut self.writer, &self.outgoing[self.written..]);
            let send = async move {
                match has_leaving {
                    true => writer.write(leaving).await,
                    false => writer.flush().await.map(|()| 0),
                }
            };
            self.incoming.reserve(READ_BYTES);
            tokio::select! {
                read = self.reader.read_buf(&mut self.incoming) => {
                    if read? == 0 {
                        return Ok(TransportProgress::Closed);
                    }
                    if self.decode_arrived(incoming)? {
                        return Ok(TransportProgress::Read);
                    }
                }
                sent = send, if has_to_send => match sent? {
                    0 if has_leaving => return Err(io::ErrorKind::WriteZero.into()),
                    0 => {
                        self.unflushed = false;
                        return Ok(TransportProgress::Written);
                    }
                    written => {
                        self.written += written;
                        self.unflushed = true;
                        if !self.has_unsent() {
                            self.outgoing.clear();
                            self.written = 0;
                        }
                    }
                },
            }
        }
    }

    /// Sends everything and closes the sending side, without waiting for further bytes of the
    /// broker.
    pub(crate) async fn close(mut self, mut outgoing: Vec<u8>) -> io::Result<()> {
        self.queue_outgoing(&mut outgoing);
        if let Some(websocket) = &mut self.websocket {
            let mask = Some(websocket.masks.next_key());
            ws::encode_close(Some(ws::close_codes::NORMAL), "", mask, &mut self.outgoing);
        }
        self.writer
            .write_all(&self.outgoing[self.written..])
            .await?;
        self.writer.shutdown().await
    }

    /// Bytes drained from `outgoing` that the system has not accepted yet.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.outgoing.len() - self.written
    }

    fn has_unsent(&self) -> bool {
        self.unsent_bytes() > 0
    }

    fn queue_outgoing(&mut self, outgoing: &mut Vec<u8>) {
        if outgoing.is_empty() {
            return;
        }
        match &mut self.websocket {
            None => self.outgoing.append(outgoing),
            Some(websocket) => {
                let mask = Some(websocket.masks.next_key());
                ws::encode_frame(Opcode::Binary, outgoing, mask, &mut self.outgoing);
                outgoing.clear();
            }
        }
    }

    /// Moves MQTT bytes from `arrived` to `incoming`; returns whether there were any.
    fn decode_arrived(&mut self, incoming: &mut Vec<u8>) -> io::Result<bool> {
        let Some(websocket) = &mut self.websocket else {
            incoming.append(&mut self.incoming);
            return Ok(true);
        };
        let before = incoming.len();
        let mut at = 0;
        loop {
            let step = websocket.decoder.decode(&mut self.incoming[at..]);
            let step = step.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            at += step.consumed;
            match step.event {
                None => break,
                Some(DecoderEvent::Data { chunk, .. }) => incoming.extend_from_slice(chunk),
                Some(DecoderEvent::Ping(payload)) => {
                    let mask = Some(websocket.masks.next_key());
                    ws::encode_frame(Opcode::Pong, payload, mask, &mut self.outgoing);
                }
                Some(DecoderEvent::Pong(_)) => {}
                Some(DecoderEvent::Close { code, .. }) => {
                    let code = code.filter(|code| ws::close_codes::is_valid_on_wire(*code));
                    let mask = Some(websocket.masks.next_key());
                    ws::encode_close(code, "", mask, &mut self.outgoing);
                }
            }
        }
        self.incoming.drain(..at);
        Ok(incoming.len() > before)
    }
}
