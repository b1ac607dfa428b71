//! A stream of MQTT bytes to a broker, whatever carries it: TCP, TLS, Unix socket, each also with WebSocket
//! frames around.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf,
};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use ws::{ClientHandshake, ClientRequest, Decoder, DecoderOptions, Event, MaskKeys, Opcode, Role};

use super::endpoint::{Address, Endpoint};
use super::error::ClientError;
use super::tls;

const READ_BYTES: usize = 64 * 1024;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// How to make a connection.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) endpoint: Endpoint,
    /// There if the endpoint wants TLS.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// The name the certificate has to be for, if not the host.
    pub(crate) tls_server_name: Option<String>,
}

pub(crate) struct Transport {
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    websocket: Option<WebSocket>,
    /// As it came from the stream; MQTT bytes leave it at once, WebSocket frames when they are whole.
    arrived: Vec<u8>,
    /// As it goes to the stream, from `written` on.
    leaving: Vec<u8>,
    written: usize,
    unflushed: bool,
}

struct WebSocket {
    decoder: Decoder,
    masks: MaskKeys,
}

/// What [`Transport::turn`] came back with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Bytes arrived.
    Read,
    /// Everything that was to be sent has been handed to the system.
    Written,
    /// The broker closed the stream.
    Closed,
}

impl Transport {
    /// Connects, TLS and WebSocket handshakes included. The caller sets the time limit.
    pub(crate) async fn connect(route: &Route) -> Result<Self, ClientError> {
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
                _ => tls::hint(&error),
            };
            unreachable(tls::describe(&error), hint)
        };
        let stream: Box<dyn Stream> = match &endpoint.address {
            Address::Unix(path) => Box::new(UnixStream::connect(path).await.map_err(failed)?),
            Address::Tcp { host, port } => {
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
                                "{name:?} is no name a certificate can have"
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
            arrived: Vec::new(),
            leaving: Vec::new(),
            written: 0,
            unflushed: false,
        };
        if let Some(path) = &endpoint.websocket_path {
            let upgraded = transport.upgrade(endpoint, path).await;
            upgraded.map_err(|reason| unreachable(reason, ""))?;
        }
        Ok(transport)
    }

    /// The WebSocket handshake.
    async fn upgrade(&mut self, endpoint: &Endpoint, path: &str) -> Result<(), String> {
        let host = match &endpoint.address {
            Address::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Address::Tcp { host, port } => format!("{host}:{port}"),
            Address::Unix(_) => "localhost".to_owned(),
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
            let turn = self.turn(&mut request, &mut answer).await;
            match turn.map_err(|error| error.to_string())? {
                Turn::Closed => {
                    return Err("the broker closed during the WebSocket handshake".into());
                }
                Turn::Written => {}
                Turn::Read => {
                    let step = handshake.feed(&answer).map_err(|error| error.to_string())?;
                    if let Some(accepted) = step {
                        break accepted;
                    }
                }
            }
        };
        if accepted.subprotocol.is_none() {
            return Err("the server speaks WebSocket, but not the sub-protocol mqtt".into());
        }
        // Frames may have come with the answer.
        self.arrived = answer.split_off(accepted.consumed);
        self.websocket = Some(WebSocket {
            decoder: Decoder::new(DecoderOptions::byte_stream(Role::Client)),
            masks: MaskKeys::new(),
        });
        Ok(())
    }

    /// Sends what is in `outgoing` (taking it out) while waiting for bytes to append to `incoming`; returns at
    /// the first that is done. May be dropped at any time without losing bytes.
    pub(crate) async fn turn(
        &mut self,
        outgoing: &mut Vec<u8>,
        incoming: &mut Vec<u8>,
    ) -> io::Result<Turn> {
        self.take_outgoing(outgoing);
        if !self.arrived.is_empty() && self.take_arrived(incoming)? {
            return Ok(Turn::Read);
        }
        loop {
            let has_leaving = self.has_leaving();
            let closed = self
                .websocket
                .as_ref()
                .is_some_and(|ws| ws.decoder.is_closed());
            if closed && !has_leaving && !self.unflushed {
                return Ok(Turn::Closed);
            }
            let has_to_send = has_leaving || self.unflushed;
            let (writer, leaving) = (&mut self.writer, &self.leaving[self.written..]);
            let send = async move {
                match has_leaving {
                    true => writer.write(leaving).await,
                    false => writer.flush().await.map(|()| 0),
                }
            };
            self.arrived.reserve(READ_BYTES);
            tokio::select! {
                read = self.reader.read_buf(&mut self.arrived) => {
                    if read? == 0 {
                        return Ok(Turn::Closed);
                    }
                    if self.take_arrived(incoming)? {
                        return Ok(Turn::Read);
                    }
                }
                sent = send, if has_to_send => match sent? {
                    0 if has_leaving => return Err(io::ErrorKind::WriteZero.into()),
                    0 => {
                        self.unflushed = false;
                        return Ok(Turn::Written);
                    }
                    written => {
                        self.written += written;
                        self.unflushed = true;
                        if !self.has_leaving() {
                            self.leaving.clear();
                            self.written = 0;
                        }
                    }
                },
            }
        }
    }

    /// Sends everything and says that nothing more will come. The broker's last words are not waited for.
    pub(crate) async fn close(mut self, mut outgoing: Vec<u8>) -> io::Result<()> {
        self.take_outgoing(&mut outgoing);
        if let Some(websocket) = &mut self.websocket {
            let mask = Some(websocket.masks.next_key());
            ws::encode_close(Some(ws::close::NORMAL), "", mask, &mut self.leaving);
        }
        self.writer.write_all(&self.leaving[self.written..]).await?;
        self.writer.shutdown().await
    }

    /// Bytes taken from `outgoing` that the system has not taken yet.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.leaving.len() - self.written
    }

    fn has_leaving(&self) -> bool {
        self.unsent_bytes() > 0
    }

    fn take_outgoing(&mut self, outgoing: &mut Vec<u8>) {
        if outgoing.is_empty() {
            return;
        }
        match &mut self.websocket {
            None => self.leaving.append(outgoing),
            Some(websocket) => {
                let mask = Some(websocket.masks.next_key());
                ws::encode_frame(Opcode::Binary, outgoing, mask, &mut self.leaving);
                outgoing.clear();
            }
        }
    }

    /// Moves MQTT bytes from `arrived` to `incoming`; whether there were any.
    fn take_arrived(&mut self, incoming: &mut Vec<u8>) -> io::Result<bool> {
        let Some(websocket) = &mut self.websocket else {
            incoming.append(&mut self.arrived);
            return Ok(true);
        };
        let before = incoming.len();
        let mut at = 0;
        loop {
            let step = websocket.decoder.decode(&mut self.arrived[at..]);
            let step = step.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            at += step.consumed;
            match step.event {
                None => break,
                Some(Event::Data { chunk, .. }) => incoming.extend_from_slice(chunk),
                Some(Event::Ping(payload)) => {
                    let mask = Some(websocket.masks.next_key());
                    ws::encode_frame(Opcode::Pong, payload, mask, &mut self.leaving);
                }
                Some(Event::Pong(_)) => {}
                Some(Event::Close { code, .. }) => {
                    let code = code.filter(|code| ws::close::is_valid_on_wire(*code));
                    let mask = Some(websocket.masks.next_key());
                    ws::encode_close(code, "", mask, &mut self.leaving);
                }
            }
        }
        self.arrived.drain(..at);
        Ok(incoming.len() > before)
    }
}
