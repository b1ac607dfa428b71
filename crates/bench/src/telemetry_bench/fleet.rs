//! Devices that connect, report and count what is acknowledged: some threads, each with an event loop for its share.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::args::{DeviceProtocol, PRODUCT, TelemetryArgs, device_name};
use super::report_template::ReportTemplate;
use crate::endpoint::Endpoint;

/// Devices that are connecting at once.
const MAX_CONNECTING: usize = 256;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// What has been sent is acknowledged within this time of silence.
const ACK_TIMEOUT: Duration = Duration::from_secs(10);
/// Reports that are written before other devices have their turn.
const BURST: u64 = 64;
/// Bytes that may wait for a socket at QoS 0.
const MAX_WAITING_BYTES: usize = 64 << 10;
/// How often those are looked after who are due.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// What came of it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FleetReport {
    pub(super) sent: u64,
    pub(super) acknowledged: u64,
    pub(super) disconnected: u64,
}

pub(super) struct DeviceFleet {
    shares: Vec<FleetShare>,
    duration: Duration,
}

/// The devices of one thread.
struct FleetShare {
    poll: Poll,
    devices: Vec<FleetDevice>,
    first_ms: u64,
    window: u64,
    qos: u8,
    /// Per second, of this share.
    rate: Option<f64>,
}

struct FleetDevice {
    stream: TcpStream,
    template: ReportTemplate,
    sent: u64,
    acknowledged: u64,
    /// Not yet taken by the socket.
    waiting: Vec<u8>,
    /// The beginning of a packet.
    partial: Vec<u8>,
    has_connack: bool,
    is_gone: bool,
}

impl DeviceFleet {
    /// Connects all devices.
    pub(super) fn connect(arguments: &TelemetryArgs, first_ms: u64) -> anyhow::Result<Self> {
        let address = address(&arguments.broker)?;
        let threads = arguments.threads as u32;
        let shares = (0..threads).map(|thread| {
            let from = arguments.devices * thread / threads;
            let to = arguments.devices * (thread + 1) / threads;
            FleetShare::connect(arguments, address, from..to, first_ms)
        });
        Ok(Self {
            shares: shares.collect::<Result<_, _>>()?,
            duration: arguments.duration,
        })
    }

    /// Reports until the time is over and everything is acknowledged.
    pub(super) fn run(self) -> anyhow::Result<FleetReport> {
        let (duration, mut sum) = (self.duration, FleetReport::default());
        std::thread::scope(|scope| {
            let running: Vec<_> = self
                .shares
                .into_iter()
                .map(|share| scope.spawn(move || share.run(duration)))
                .collect();
            for running in running {
                let Ok(report) = running.join() else {
                    bail!("a thread of the generator panicked; this is a bug");
                };
                let report = report?;
                sum.sent += report.sent;
                sum.acknowledged += report.acknowledged;
                sum.disconnected += report.disconnected;
            }
            Ok(())
        })?;
        Ok(sum)
    }
}

fn address(endpoint: &Endpoint) -> anyhow::Result<SocketAddr> {
    ensure!(
        !endpoint.tls && endpoint.websocket_path.is_none(),
        "--broker {endpoint}: devices of this benchmark speak plain MQTT"
    );
    let found = (endpoint.host.as_str(), endpoint.port).to_socket_addrs();
    let found = found
        .with_context(|| format!("--broker {endpoint}"))?
        .next();
    found.context("this name has no address")
}

/// CONNECT of MQTT 3.1.1 with the token as user name.
fn connect_packet(token: &str) -> Vec<u8> {
    let mut body = vec![0, 4, b'M', b'Q', b'T', b'T', 4, 0x82, 0, 0];
    for text in [token, token] {
        body.extend((text.len() as u16).to_be_bytes());
        body.extend(text.as_bytes());
    }
    // Names of this benchmark are short.
    let mut packet = vec![0x10, body.len() as u8];
    packet.extend(body);
    packet
}

impl FleetShare {
    fn connect(
        arguments: &TelemetryArgs,
        address: SocketAddr,
        numbers: std::ops::Range<u32>,
        first_ms: u64,
    ) -> anyhow::Result<Self> {
        let part = f64::from(numbers.end - numbers.start) / f64::from(arguments.devices);
        let mut share = Self {
            poll: Poll::new()?,
            devices: Vec::with_capacity(numbers.len()),
            first_ms,
            window: arguments.window.into(),
            qos: arguments.qos,
            rate: arguments.rate.map(|rate| rate * part),
        };
        let mut connected = 0;
        let mut events = Events::with_capacity(1024);
        let deadline = Instant::now() + CONNECT_TIMEOUT.max(arguments.duration);
        for number in numbers {
            let id = device_name(number);
            let protocol = match arguments.protocol {
                DeviceProtocol::Both if number % 2 == 1 => DeviceProtocol::Jetlinks,
                DeviceProtocol::Both => DeviceProtocol::Thingsboard,
                one => one,
            };
            let mut stream = TcpStream::connect(address)?;
            let token = Token(share.devices.len());
            let interest = Interest::READABLE | Interest::WRITABLE;
            share
                .poll
                .registry()
                .register(&mut stream, token, interest)?;
            share.devices.push(FleetDevice {
                stream,
                template: ReportTemplate::new(
                    protocol,
                    PRODUCT,
                    &id,
                    arguments.keys,
                    arguments.qos,
                ),
                sent: 0,
                acknowledged: 0,
                waiting: connect_packet(&id),
                partial: Vec::new(),
                has_connack: false,
                is_gone: false,
            });
            while share.devices.len() - connected >= MAX_CONNECTING {
                share.await_connacks(&mut events, &mut connected, deadline)?;
            }
        }
        while connected < share.devices.len() {
            share.await_connacks(&mut events, &mut connected, deadline)?;
        }
        Ok(share)
    }

    /// Waits for some CONNACKs.
    fn await_connacks(
        &mut self,
        events: &mut Events,
        connected: &mut usize,
        deadline: Instant,
    ) -> anyhow::Result<()> {
        ensure!(
            Instant::now() < deadline,
            "only {connected} devices could connect in time"
        );
        poll(&mut self.poll, events, POLL_INTERVAL)?;
        for event in events.iter() {
            let device = &mut self.devices[event.token().0];
            let had = device.has_connack;
            device.write();
            device.read()?;
            ensure!(
                !device.is_gone,
                "the node does not let a device in; is the listener the one of --api's node?"
            );
            *connected += usize::from(device.has_connack && !had);
        }
        Ok(())
    }

    fn run(mut self, duration: Duration) -> anyhow::Result<FleetReport> {
        let started = Instant::now();
        let mut events = Events::with_capacity(1024);
        let mut due = 0_u64;
        let mut next = 0;
        // All have room to begin with.
        let mut ready: Vec<usize> = (0..self.devices.len()).collect();
        while started.elapsed() < duration {
            match self.rate {
                None => {
                    for at in std::mem::take(&mut ready) {
                        if self.send_allowed(at) {
                            ready.push(at);
                        }
                    }
                }
                Some(rate) => {
                    let all = (started.elapsed().as_secs_f64() * rate) as u64;
                    while due < all {
                        // A device that is not done with its last reports makes its turn up later.
                        self.queue_reports(next, 1);
                        self.devices[next].write();
                        next = (next + 1) % self.devices.len();
                        due += 1;
                    }
                }
            }
            let wait = match (self.rate, ready.is_empty()) {
                (None, false) => Duration::ZERO,
                _ => POLL_INTERVAL,
            };
            poll(&mut self.poll, &mut events, wait)?;
            for event in events.iter() {
                let at = event.token().0;
                self.devices[at].write();
                self.devices[at].read()?;
                if self.rate.is_none() && self.send_allowed(at) {
                    ready.push(at);
                }
            }
        }
        self.await_acknowledgements(&mut events)?;
        let sum = |of: fn(&FleetDevice) -> u64| self.devices.iter().map(of).sum();
        Ok(FleetReport {
            sent: sum(|device| device.sent),
            acknowledged: sum(|device| device.acknowledged),
            disconnected: sum(|device| device.is_gone.into()),
        })
    }

    fn await_acknowledgements(&mut self, events: &mut Events) -> anyhow::Result<()> {
        let mut last = Instant::now();
        loop {
            let is_open = |device: &FleetDevice| {
                let in_flight = match self.qos {
                    0 => 0,
                    _ => device.sent - device.acknowledged,
                };
                !device.is_gone && (in_flight > 0 || !device.waiting.is_empty())
            };
            if !self.devices.iter().any(is_open) || last.elapsed() > ACK_TIMEOUT {
                return Ok(());
            }
            poll(&mut self.poll, events, POLL_INTERVAL)?;
            if !events.is_empty() {
                last = Instant::now();
            }
            for event in events.iter() {
                let device = &mut self.devices[event.token().0];
                device.write();
                device.read()?;
            }
        }
    }

    /// Writes the reports that a device may send; returns whether it could send more at once.
    fn send_allowed(&mut self, at: usize) -> bool {
        let device = &self.devices[at];
        if device.is_gone || device.waiting.len() >= MAX_WAITING_BYTES {
            return false;
        }
        let room = match self.qos {
            0 => BURST,
            _ => self.window - (device.sent - device.acknowledged),
        };
        let count = room.min(BURST);
        self.queue_reports(at, count);
        self.devices[at].write();
        let device = &self.devices[at];
        device.waiting.is_empty() && room > count || (self.qos == 0 && device.waiting.is_empty())
    }

    fn queue_reports(&mut self, at: usize, count: u64) {
        let (device, first_ms) = (&mut self.devices[at], self.first_ms);
        for _ in 0..count {
            let number = device.sent;
            let packet_id = (number % 65_535) as u16 + 1;
            let (template, out) = (&mut device.template, &mut device.waiting);
            template.write(packet_id, first_ms + number, number, out);
            device.sent += 1;
        }
    }
}

fn poll(poll: &mut Poll, events: &mut Events, wait: Duration) -> anyhow::Result<()> {
    match poll.poll(events, Some(wait)) {
        Err(error) if error.kind() != ErrorKind::Interrupted => Err(error.into()),
        _ => Ok(()),
    }
}

impl FleetDevice {
    fn write(&mut self) {
        while !self.waiting.is_empty() && !self.is_gone {
            match self.stream.write(&self.waiting) {
                Ok(0) => self.is_gone = true,
                Ok(count) => {
                    self.waiting.drain(..count);
                }
                Err(error) if would_block(error.kind()) => return,
                Err(_) => self.is_gone = true,
            }
        }
    }

    fn read(&mut self) -> anyhow::Result<()> {
        let mut bytes = [0; 4096];
        while !self.is_gone {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.is_gone = true,
                Ok(count) => {
                    self.partial.extend_from_slice(&bytes[..count]);
                    self.handle_packets()?;
                }
                Err(error) if would_block(error.kind()) => return Ok(()),
                Err(_) => self.is_gone = true,
            }
        }
        Ok(())
    }

    /// CONNACK and PUBACKs: four bytes each.
    fn handle_packets(&mut self) -> anyhow::Result<()> {
        let mut packets = self.partial.chunks_exact(4);
        for packet in &mut packets {
            match packet {
                [0x20, 2, _, 0] => self.has_connack = true,
                [0x20, 2, _, code] => bail!("the node answers a CONNECT with code {code}"),
                [0x40, 2, ..] => self.acknowledged += 1,
                other => bail!("the node sent {other:x?}, which is no acknowledgement"),
            }
        }
        let rest = packets.remainder().len();
        let whole = self.partial.len() - rest;
        self.partial.drain(..whole);
        Ok(())
    }
}

fn would_block(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NotConnected
    )
}
