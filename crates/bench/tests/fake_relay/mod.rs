//! A small relay in this process, right unless told otherwise: a room for each path, a thread for each connection.

#![allow(clippy::unwrap_used)] // it is a test, though no `#[test]` function

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use ws::{Decoder, DecoderEvent, DecoderOptions, Opcode, Role, encode_frame};

/// What the relay does wrong, once every so many messages of a room; 0 is never.
#[derive(Clone, Copy, Default)]
pub(crate) struct RelayFaults {
    pub(crate) lose_every: u64,
    pub(crate) repeat_every: u64,
    /// Held back until the next message has been passed on.
    pub(crate) delay_every: u64,
    /// A byte is changed.
    pub(crate) damage_every: u64,
    /// Sent to the sender as well.
    pub(crate) echo_every: u64,
}

#[derive(Default)]
struct Room {
    messages: u64,
    members: Vec<(u64, TcpStream)>,
    delayed: Option<(u64, Vec<u8>)>,
}

type Rooms = Arc<Mutex<HashMap<String, Room>>>;

/// A running relay. Its threads end with the test process.
pub(crate) struct FakeRelay {
    pub(crate) address: SocketAddr,
}

impl FakeRelay {
    pub(crate) fn start(faults: RelayFaults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let rooms = Rooms::default();
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let (rooms, stream) = (rooms.clone(), stream.unwrap());
                // How a connection ends is the client's business.
                std::thread::spawn(move || serve(&rooms, number as u64, stream, faults));
            }
        });
        Self { address }
    }
}

fn invalid(reason: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_string())
}

fn serve(rooms: &Rooms, number: u64, mut stream: TcpStream, faults: RelayFaults) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut decoder = Decoder::new(DecoderOptions {
        role: Role::Server,
        refuse_text: false,
        max_message_bytes: 1 << 20,
        has_compression: false,
    });
    let mut path = None;
    let mut held = Vec::new();
    let mut message = Vec::new();
    loop {
        let mut read = [0; 4096];
        let bytes = stream.read(&mut read)?;
        if bytes == 0 {
            return Ok(());
        }
        held.extend_from_slice(&read[..bytes]);
        let room = match &path {
            Some(room) => room,
            None => {
                let Some(end) = held.windows(4).position(|four| four == b"\r\n\r\n") else {
                    continue;
                };
                let request: Vec<u8> = held.drain(..end + 4).collect();
                let accepted = accept(&request)?;
                let mut rooms = rooms.lock().unwrap();
                stream.write_all(&accepted.1)?;
                let room = rooms.entry(accepted.0.clone()).or_default();
                room.members.push((number, stream.try_clone()?));
                path.insert(accepted.0)
            }
        };
        let mut at = 0;
        loop {
            let step = decoder.decode(&mut held[at..]).map_err(invalid)?;
            let consumed = step.consumed;
            match step.event {
                Some(DecoderEvent::Data {
                    chunk,
                    is_end_of_message,
                    ..
                }) => {
                    message.extend_from_slice(chunk);
                    if is_end_of_message {
                        let message = std::mem::take(&mut message);
                        relay(rooms, room, number, message, faults)?;
                    }
                }
                Some(_) => {}
                None => {
                    held.drain(..at + consumed);
                    break;
                }
            }
            at += consumed;
        }
    }
}

/// The path of a request, and the response.
fn accept(request: &[u8]) -> io::Result<(String, Vec<u8>)> {
    let text = String::from_utf8_lossy(request);
    let path = text.split(' ').nth(1).ok_or_else(|| invalid("no path"))?;
    let key = text
        .lines()
        .find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "))
        .ok_or_else(|| invalid("no key"))?;
    let response = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {}\r\n\r\n",
        ws::accept_key(key)
    );
    Ok((path.to_owned(), response.into_bytes()))
}

fn relay(
    rooms: &Rooms,
    path: &str,
    sender: u64,
    mut message: Vec<u8>,
    faults: RelayFaults,
) -> io::Result<()> {
    let mut rooms = rooms.lock().unwrap();
    let room = rooms.get_mut(path).unwrap();
    room.messages += 1;
    let is_turn = |every: u64| every > 0 && room.messages.is_multiple_of(every);
    if is_turn(faults.lose_every) {
        return Ok(());
    }
    if is_turn(faults.damage_every) {
        let last = message.len() - 1;
        message[last] ^= 1;
    }
    let (is_repeated, is_echoed) = (is_turn(faults.repeat_every), is_turn(faults.echo_every));
    let delayed = room.delayed.take();
    if is_turn(faults.delay_every) && delayed.is_none() {
        room.delayed = Some((sender, message));
        return Ok(());
    }
    for (sender, message, is_echoed) in [(sender, message, is_echoed)]
        .into_iter()
        .chain(delayed.map(|(sender, message)| (sender, message, false)))
    {
        let mut frame = Vec::new();
        encode_frame(Opcode::Text, &message, None, &mut frame);
        if is_repeated {
            encode_frame(Opcode::Text, &message, None, &mut frame);
        }
        for (member, stream) in &mut room.members {
            if *member != sender || is_echoed {
                // A member may have gone.
                let _ = stream.write_all(&frame);
            }
        }
    }
    Ok(())
}
