//! A WebSocket client by hand: the upgrade, frames as bytes, and a stream that carries MQTT in binary frames.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::raw::{DEADLINE, Stream};

/// MQTT over WebSocket: writes become one masked binary frame each, reads are the data of binary frames.
pub struct WsStream<S = TcpStream> {
    socket: S,
    /// Received bytes not yet taken apart into frames.
    raw: Vec<u8>,
    /// Data not yet read.
    data: Vec<u8>,
}

/// Sends an upgrade request for `path` and reads the response's head. `protocol` is the value of
/// `Sec-WebSocketFraming-ListenerProtocol`, if it is to be sent.
pub fn upgrade(address: &str, path: &str, protocol: Option<&str>) -> (TcpStream, String) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_nodelay(true).unwrap();
    let head = upgrade_over(&mut socket, path, protocol);
    (socket, head)
}

/// The same over a socket that is connected already.
pub fn upgrade_over(socket: &mut impl Stream, path: &str, protocol: Option<&str>) -> String {
    socket.set_timeouts(DEADLINE);
    let protocol = protocol
        .map(|name| format!("Sec-WebSocket-Protocol: {name}\r\n"))
        .unwrap_or_default();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{protocol}\r\n"
    );
    socket.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && socket.read(&mut byte).unwrap() == 1 {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

impl WsStream {
    /// Upgrades at `/mqtt` with the sub-protocol `mqtt`.
    pub fn connect(address: &str) -> WsStream {
        let (socket, head) = upgrade(address, "/mqtt", Some("mqtt"));
        assert!(head.starts_with("HTTP/1.1 101 "), "no upgrade: {head}");
        WsStream::over(socket)
    }
}

impl<S: Stream> WsStream<S> {
    /// Over a socket that is upgraded already.
    pub fn over(socket: S) -> WsStream<S> {
        WsStream {
            socket,
            raw: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Sends one masked frame; `first_byte` is FIN and the opcode.
    pub fn send_frame(&mut self, first_byte: u8, payload: &[u8]) {
        self.socket
            .write_all(&masked_frame(first_byte, payload))
            .unwrap();
    }

    /// Sends bytes that may be no frame.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.try_send_bytes(bytes).unwrap();
    }

    /// The same where the node may have closed the connection.
    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.socket.write_all(bytes)
    }

    /// The next frame: its first byte and payload. `None`: the connection has ended.
    pub fn recv_frame(&mut self) -> std::io::Result<Option<(u8, Vec<u8>)>> {
        loop {
            if let Some((first_byte, start, length)) = frame_at_front(&self.raw) {
                let rest = self.raw.split_off(start + length);
                let frame = std::mem::replace(&mut self.raw, rest);
                return Ok(Some((first_byte, frame[start..].to_vec())));
            }
            let mut chunk = [0; 65536];
            match self.socket.read(&mut chunk)? {
                0 => return Ok(None),
                count => self.raw.extend_from_slice(&chunk[..count]),
            }
        }
    }
}

/// A frame from a client.
pub fn masked_frame(first_byte: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x12, 0x34, 0x56, 0x78];
    let mut out = vec![first_byte];
    match payload.len() {
        length @ 0..=125 => out.push(0x80 | length as u8),
        length @ 126..=65535 => {
            out.push(0x80 | 126);
            out.extend((length as u16).to_be_bytes());
        }
        length => {
            out.push(0x80 | 127);
            out.extend((length as u64).to_be_bytes());
        }
    }
    out.extend(mask);
    out.extend(
        payload
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    out
}

/// First byte, start of the payload and its length, once the whole frame is there.
fn frame_at_front(raw: &[u8]) -> Option<(u8, usize, usize)> {
    let (&first_byte, rest) = raw.split_first()?;
    let (&second, rest) = rest.split_first()?;
    assert_eq!(second & 0x80, 0, "a server must not mask");
    let (start, length) = match second {
        126 => (
            4,
            usize::from(u16::from_be_bytes(rest.get(..2)?.try_into().unwrap())),
        ),
        127 => (
            10,
            u64::from_be_bytes(rest.get(..8)?.try_into().unwrap()) as usize,
        ),
        length => (2, usize::from(length)),
    };
    (raw.len() >= start + length).then_some((first_byte, start, length))
}

impl<S: Stream> Read for WsStream<S> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.data.is_empty() {
            match self.recv_frame()? {
                None => return Ok(0),
                Some((first_byte, payload)) => match first_byte & 15 {
                    0 | 2 => self.data = payload,
                    8 => return Ok(0),
                    opcode => panic!("a frame with opcode {opcode} where MQTT data were expected"),
                },
            }
        }
        let count = buffer.len().min(self.data.len());
        buffer[..count].copy_from_slice(&self.data[..count]);
        self.data.drain(..count);
        Ok(count)
    }
}

impl<S: Stream> Write for WsStream<S> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.socket.write_all(&masked_frame(0x82, bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<S: Stream> Stream for WsStream<S> {
    fn set_timeouts(&mut self, timeout: Duration) {
        self.socket.set_timeouts(timeout);
    }

    fn shut(&mut self) {
        self.socket.shut();
    }
}
