//! A client of the checks: one blocking connection that sends and receives one message at a time.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;
use socket2::SockRef;
use ws::{MaskKeys, Opcode, encode_frame};

use crate::client_error::ClientError;
use crate::relay_bench::connection::MessageDecoder;
use crate::relay_bench::server::RelayServer;

pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// Room for what was not complete, and for one read.
const BUFFER_BYTES: usize = 64 * 1024;

pub(super) struct CheckClient {
    stream: TcpStream,
    decoder: MessageDecoder,
    keys: MaskKeys,
    buffer: Box<[u8]>,
    received: VecDeque<String>,
    is_accepted: bool,
}

impl CheckClient {
    /// Connects to an endpoint and waits for the response.
    pub(super) fn connect(server: &RelayServer, endpoint: &str) -> anyhow::Result<Self> {
        let mut client = Self::start(server, endpoint, None)?;
        let deadline = Instant::now() + TIMEOUT;
        while !client.is_accepted {
            if Instant::now() >= deadline || !client.read_until(deadline)? {
                bail!("{}: the connection was not accepted in time", server.label);
            }
        }
        Ok(client)
    }

    /// Sends the request for a connection, together with the first message if there is one.
    pub(super) fn start(
        server: &RelayServer,
        endpoint: &str,
        first: Option<&Value>,
    ) -> anyhow::Result<Self> {
        let (decoder, mut request) =
            MessageDecoder::start(&server.host, &server.path(endpoint)).map_err(to_error)?;
        let mut keys = MaskKeys::new();
        if let Some(message) = first {
            let text = message.to_string();
            let key = keys.next_key();
            encode_frame(Opcode::Text, text.as_bytes(), Some(key), &mut request);
        }
        let mut stream = TcpStream::connect_timeout(&server.target, TIMEOUT)
            .with_context(|| format!("cannot connect to {}", server.label))?;
        stream.set_nodelay(true)?;
        stream.write_all(&request)?;
        Ok(Self {
            stream,
            decoder,
            keys,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            received: VecDeque::new(),
            is_accepted: false,
        })
    }

    pub(super) fn send(&mut self, message: &Value) -> anyhow::Result<()> {
        let mut frame = Vec::new();
        let key = self.keys.next_key();
        let text = message.to_string();
        encode_frame(Opcode::Text, text.as_bytes(), Some(key), &mut frame);
        Ok(self.stream.write_all(&frame)?)
    }

    /// The next message; `None` if there is none within `timeout`. Pings are answered meanwhile.
    pub(super) fn receive(&mut self, timeout: Duration) -> anyhow::Result<Option<Value>> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(text) = self.received.pop_front() {
                let value = serde_json::from_str(&text);
                return Ok(Some(value.unwrap_or(Value::String(text))));
            }
            if !self.read_until(deadline)? {
                return Ok(None);
            }
        }
    }

    /// Reads once; false if nothing has arrived.
    fn read_until(&mut self, deadline: Instant) -> anyhow::Result<bool> {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = left.max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(left))?;
        let held = self.decoder.restore_incomplete(&mut self.buffer);
        let read = self.stream.read(&mut self.buffer[held..]);
        let bytes = match read {
            Ok(0) => bail!("the relay closed the connection"),
            Ok(bytes) => bytes,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => 0,
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            Err(error) => return Err(error).context("cannot read from the relay"),
        };
        let mut replies = Vec::new();
        let received = &mut self.received;
        let accepted = self.decoder.decode(
            &mut self.buffer[..held + bytes],
            &mut self.keys,
            &mut replies,
            |message| received.push_back(String::from_utf8_lossy(message).into_owned()),
        );
        self.is_accepted |= accepted.map_err(to_error)?;
        if !replies.is_empty() {
            self.stream.write_all(&replies)?;
        }
        Ok(bytes > 0)
    }

    /// Breaks the connection with a reset.
    pub(super) fn reset(self) -> anyhow::Result<()> {
        Ok(SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?)
    }
}

fn to_error(failure: ClientError) -> anyhow::Error {
    anyhow::anyhow!("{failure}")
}

/// A message that a device sends first.
pub(super) fn identify(device: &str) -> Value {
    serde_json::json!({"type": "identify", "deviceId": device})
}
