//! The least that looks like a broker: hands what a publisher sends to the one subscriber of that topic, and
//! acknowledges. Only good for finding out what the generator can do.
//!
//! It keeps no state per message. At QoS 1 and 2 the packet identifier of the publisher goes through to the subscriber,
//! and each side's acknowledgements are answered at once. Topics are looked at once per publisher.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use crate::host::{pin_to_core, thread_cpu_ns};
use crate::packet_scanner::{
    PUBACK, PUBCOMP, PUBREC, PUBREL, ScanStep, ScannedPacket, push_ack, step,
};

const LISTENER: Token = Token(usize::MAX - 1);
const INBOX_BYTES: usize = 512 * 1024;

/// A running forwarder.
pub(crate) struct Forwarder {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Forwarder {
    /// Starts it on a port of its own, on `core` if given, for at most `max_connections`.
    pub(crate) fn start(core: Option<usize>, max_connections: usize) -> io::Result<Self> {
        let mut listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        let poll = Poll::new()?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        let stop = Arc::new(AtomicBool::new(false));
        let hub = ForwarderLoop {
            poll,
            listener,
            max_connections,
            clients: Vec::new(),
            routes: HashMap::new(),
            inbox: vec![0; INBOX_BYTES],
        };
        let flag = stop.clone();
        let thread = std::thread::Builder::new()
            .name("forwarder".to_owned())
            .spawn(move || {
                if let Some(core) = core {
                    // Not being allowed to choose a core only makes the figure worse.
                    let _ = pin_to_core(core);
                }
                hub.run(&flag);
                thread_cpu_ns()
            })?;
        Ok(Self {
            address,
            stop,
            thread,
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops it and returns the processor time it used, in seconds.
    pub(crate) fn stop(self) -> f64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(0) as f64 / 1e9
    }
}

struct ForwarderClient {
    stream: TcpStream,
    v5: bool,
    /// The start of a packet that is not whole.
    partial: Vec<u8>,
    /// What the socket did not take.
    unsent: Vec<u8>,
    /// The subscriber of this publisher's topic.
    peer: Option<usize>,
}

struct ForwarderLoop {
    poll: Poll,
    listener: TcpListener,
    max_connections: usize,
    clients: Vec<Option<ForwarderClient>>,
    routes: HashMap<Vec<u8>, usize>,
    inbox: Vec<u8>,
}

/// What a batch of packets calls for.
#[derive(Default)]
struct PacketActions {
    /// Bytes to send back.
    replies: Vec<u8>,
    /// Where in the batch the messages for the peer are.
    forward: Vec<(usize, usize)>,
}

impl ForwarderLoop {
    fn run(mut self, stop: &AtomicBool) {
        let mut events = Events::with_capacity(1024);
        while !stop.load(Ordering::Relaxed) {
            let timeout = Some(Duration::from_millis(50));
            if self.poll.poll(&mut events, timeout).is_err() {
                continue;
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    Token(client) => {
                        if self.handle_event(client, event.is_writable()).is_err()
                            && let Some(slot) = self.clients.get_mut(client)
                        {
                            *slot = None;
                        }
                    }
                }
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            let open = self
                .clients
                .iter()
                .filter(|client| client.is_some())
                .count();
            let token = Token(self.clients.len());
            let interest = Interest::READABLE | Interest::WRITABLE;
            if open >= self.max_connections
                || stream.set_nodelay(true).is_err()
                || self
                    .poll
                    .registry()
                    .register(&mut stream, token, interest)
                    .is_err()
            {
                continue;
            }
            self.clients.push(Some(ForwarderClient {
                stream,
                v5: false,
                partial: Vec::new(),
                unsent: Vec::new(),
                peer: None,
            }));
        }
    }

    fn handle_event(&mut self, index: usize, is_writable: bool) -> io::Result<()> {
        if is_writable {
            self.send(index, &[])?;
        }
        let mut inbox = std::mem::take(&mut self.inbox);
        let served = self.read_all(index, &mut inbox);
        self.inbox = inbox;
        served
    }

    fn read_all(&mut self, index: usize, inbox: &mut [u8]) -> io::Result<()> {
        loop {
            let Some(Some(client)) = self.clients.get_mut(index) else {
                return Ok(());
            };
            let kept = client.partial.len();
            if kept > inbox.len() / 2 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            inbox[..kept].copy_from_slice(&client.partial);
            let read = match client.stream.read(&mut inbox[kept..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            client.partial.clear();
            let is_full = kept + read == inbox.len();
            self.handle_packets(index, &inbox[..kept + read])?;
            if !is_full {
                return Ok(());
            }
        }
    }

    fn handle_packets(&mut self, index: usize, buf: &[u8]) -> io::Result<()> {
        let mut actions = PacketActions::default();
        let mut at = 0;
        loop {
            let Some(Some(client)) = self.clients.get_mut(index) else {
                return Ok(());
            };
            match step(&buf[at..], client.v5) {
                Ok(ScanStep::Packet { found, len }) => {
                    let packet = at..at + len;
                    at += len;
                    match found {
                        ScannedPacket::Publish(message) => {
                            match message.qos {
                                0 => {}
                                1 => push_ack(PUBACK, message.id, &mut actions.replies),
                                _ => push_ack(PUBREC, message.id, &mut actions.replies),
                            }
                            if client.peer.is_none() {
                                client.peer = route(&self.routes, &buf[packet.clone()]);
                            }
                            match actions.forward.last_mut() {
                                Some(last) if last.1 == packet.start => last.1 = packet.end,
                                _ => actions.forward.push((packet.start, packet.end)),
                            }
                        }
                        ScannedPacket::Ack { kind, id, .. } => match kind {
                            PUBREC => push_ack(PUBREL, id, &mut actions.replies),
                            PUBREL => push_ack(PUBCOMP, id, &mut actions.replies),
                            _ => {}
                        },
                        ScannedPacket::Other(packet) => {
                            reply_to(index, client, &mut self.routes, packet, &mut actions)?;
                        }
                    }
                }
                Ok(ScanStep::Incomplete { .. }) => {
                    client.partial.extend_from_slice(&buf[at..]);
                    break;
                }
                Err(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        self.apply_actions(index, buf, &actions)
    }

    fn apply_actions(
        &mut self,
        index: usize,
        buf: &[u8],
        actions: &PacketActions,
    ) -> io::Result<()> {
        let client = self.clients.get(index).and_then(Option::as_ref);
        if let Some(peer) = client.and_then(|client| client.peer) {
            for &(from, to) in &actions.forward {
                // A subscriber that is gone is no reason to drop the publisher.
                let _ = self.send(peer, &buf[from..to]);
            }
        }
        if !actions.replies.is_empty() {
            self.send(index, &actions.replies)?;
        }
        Ok(())
    }

    fn send(&mut self, index: usize, bytes: &[u8]) -> io::Result<()> {
        let Some(Some(client)) = self.clients.get_mut(index) else {
            return Ok(());
        };
        if client.unsent.is_empty() {
            let written = write(&mut client.stream, bytes)?;
            client.unsent.extend_from_slice(&bytes[written..]);
        } else {
            client.unsent.extend_from_slice(bytes);
            let written = write(&mut client.stream, &client.unsent)?;
            client.unsent.drain(..written);
        }
        Ok(())
    }
}

fn write(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    if bytes.is_empty() {
        return Ok(0);
    }
    match stream.write(bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}

/// The bytes of the topic or filter that a length of two bytes at `at` announces.
fn string_at(packet: &[u8], at: usize) -> Option<&[u8]> {
    let &[high, low] = packet.get(at..)?.first_chunk::<2>()?;
    let len = usize::from(u16::from_be_bytes([high, low]));
    packet.get(at + 2..at + 2 + len)
}

fn header_bytes(packet: &[u8]) -> usize {
    1 + packet[1..]
        .iter()
        .position(|byte| byte & 0x80 == 0)
        .map_or(0, |at| at + 1)
}

fn route(routes: &HashMap<Vec<u8>, usize>, publish: &[u8]) -> Option<usize> {
    let topic = string_at(publish, header_bytes(publish))?;
    routes.get(topic).copied()
}

/// Answers CONNECT, SUBSCRIBE with one filter, and PINGREQ; ends the connection at DISCONNECT.
fn reply_to(
    index: usize,
    client: &mut ForwarderClient,
    routes: &mut HashMap<Vec<u8>, usize>,
    packet: &[u8],
    actions: &mut PacketActions,
) -> io::Result<()> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let body = header_bytes(packet);
    match packet[0] >> 4 {
        1 => {
            let name = string_at(packet, body).ok_or_else(invalid)?.len();
            client.v5 = packet.get(body + 2 + name) == Some(&5);
            let accepted: &[u8] = if client.v5 {
                &[0x20, 3, 0, 0, 0]
            } else {
                &[0x20, 2, 0, 0]
            };
            actions.replies.extend_from_slice(accepted);
        }
        8 => {
            // The generator sends no properties.
            let filter_at = body + 2 + usize::from(client.v5);
            let filter = string_at(packet, filter_at).ok_or_else(invalid)?;
            routes.insert(filter.to_vec(), index);
            let qos = packet
                .get(filter_at + 2 + filter.len())
                .ok_or_else(invalid)?
                & 3;
            let (high, low) = (packet[body], packet[body + 1]);
            if client.v5 {
                actions
                    .replies
                    .extend_from_slice(&[0x90, 4, high, low, 0, qos]);
            } else {
                actions
                    .replies
                    .extend_from_slice(&[0x90, 3, high, low, qos]);
            }
        }
        12 => actions.replies.extend_from_slice(&[0xd0, 0]),
        14 => return Err(io::ErrorKind::ConnectionAborted.into()),
        _ => return Err(invalid()),
    }
    Ok(())
}
