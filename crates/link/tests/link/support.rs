//! Two ends of a link, connected by a simulated carrier under a simulated clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use link::config::LinkConfig;
use link::core::{LinkCore, LinkEvent};
use link::error_code::ProtocolError;
use link::message::ReceivedMessage;
use link::wire::handshake::{Credentials, Hello, LinkId};
use link::wire::header::FrameType;
use link::wire::reader::FrameReader;

/// Opens a locked file or directory. A child process that another test starts holds the locks of this process until it
/// executes its program. A lock that was just released may thus be taken for a moment.
pub(crate) fn open_locked<T, E: std::fmt::Debug>(mut open: impl FnMut() -> Result<T, E>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match open() {
            Ok(opened) => return opened,
            Err(error) if Instant::now() > deadline => panic!("it does not open: {error:?}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

pub(crate) struct LinkEnd {
    pub(crate) core: LinkCore,
    pub(crate) reader: FrameReader,
    pub(crate) messages: Vec<ReceivedMessage>,
    pub(crate) events: Vec<LinkEvent>,
    /// Bytes on their way to this end.
    incoming: VecDeque<u8>,
}

impl LinkEnd {
    fn new(id: LinkId, config: LinkConfig) -> Self {
        Self {
            core: LinkCore::new(id, config),
            reader: FrameReader::new(),
            messages: Vec::new(),
            events: Vec::new(),
            incoming: VecDeque::new(),
        }
    }

    /// Takes what has arrived for the application.
    pub(crate) fn collect(&mut self) {
        while let Some(message) = self.core.next_message() {
            self.messages.push(message);
        }
        while let Some(event) = self.core.next_event() {
            self.events.push(event);
        }
    }
}

pub(crate) struct Simulation {
    pub(crate) client: LinkEnd,
    pub(crate) server: LinkEnd,
    pub(crate) now: Instant,
    is_connected: bool,
    /// Whether the server has the state of the link.
    pub(crate) server_knows_link: bool,
    pub(crate) carriers: usize,
    /// Position of the next byte that the carrier changes.
    pub(crate) corrupt_after: Option<usize>,
    /// The last violation that ended a carrier.
    pub(crate) violation: Option<ProtocolError>,
    /// What the client has sent over each carrier, also if it did not arrive.
    sent_by_client: Vec<Vec<u8>>,
}

const ID: LinkId = LinkId([7; 16]);

impl Simulation {
    pub(crate) fn new(config: LinkConfig) -> Self {
        Self::with_configs(config.clone(), config)
    }

    pub(crate) fn with_configs(client: LinkConfig, server: LinkConfig) -> Self {
        Self {
            client: LinkEnd::new(ID, client),
            server: LinkEnd::new(ID, server),
            now: Instant::now(),
            is_connected: false,
            server_knows_link: false,
            carriers: 0,
            corrupt_after: None,
            violation: None,
            sent_by_client: Vec::new(),
        }
    }

    pub(crate) fn connect(&mut self) {
        self.cut();
        let max = self.client.core.config().limits.max_frame_bytes;
        for end in [&mut self.client, &mut self.server] {
            end.reader = FrameReader::new();
            end.reader.set_max_payload_bytes(max);
            end.incoming.clear();
        }
        self.client.core.connect(Credentials::None, self.now);
        self.is_connected = true;
        self.carriers += 1;
        self.sent_by_client.push(Vec::new());
    }

    /// A former carrier arrives at the server late, or once more: all that the client sent over it. The application takes
    /// content with `collect` meanwhile. Its answers are lost.
    pub(crate) fn replay(&mut self, carrier: usize, mut collect: impl FnMut(&mut Self)) {
        self.cut();
        let mut reader = FrameReader::new();
        reader.set_max_payload_bytes(self.server.core.config().limits.max_frame_bytes);
        reader.push(&self.sent_by_client[carrier]);
        while let Ok(Some(frame)) = reader.next_frame() {
            let core = &mut self.server.core;
            let result = match frame.frame_type {
                FrameType::Hello => {
                    let hello = Hello::decode(&frame.payload).expect("the client sent it");
                    core.accept(&hello, self.server_knows_link, self.now);
                    self.server_knows_link = true;
                    Ok(())
                }
                _ => core.handle_frame(frame, self.now),
            };
            if result.is_err() {
                break;
            }
            let len = core.poll_transmit(self.now, &mut VecDeque::new());
            core.transmitted(len, self.now);
            self.server.collect();
            collect(self);
        }
        self.server.core.disconnect();
    }

    /// The carrier breaks; what is under way is lost.
    pub(crate) fn cut(&mut self) {
        self.is_connected = false;
        self.client.core.disconnect();
        self.server.core.disconnect();
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// A millisecond, in which up to `bytes` arrive in each direction.
    pub(crate) fn step(&mut self, bytes: usize) {
        self.now += Duration::from_millis(1);
        if !self.is_connected {
            return;
        }
        self.transmit(true);
        self.transmit(false);
        let result = self.deliver(true, bytes).and(self.deliver(false, bytes));
        let timeouts = self
            .client
            .core
            .handle_timeout(self.now)
            .and(self.server.core.handle_timeout(self.now));
        if let Err(error) = result.and(timeouts) {
            self.violation = Some(error);
            self.cut();
        }
        self.client.collect();
        self.server.collect();
    }

    fn transmit(&mut self, is_client: bool) {
        let (from, to) = if is_client {
            (&mut self.client, &mut self.server)
        } else {
            (&mut self.server, &mut self.client)
        };
        // A carrier has little memory of its own, so that priorities matter.
        while to.incoming.len() < 64 * 1024 {
            let mut slices = VecDeque::new();
            let len = from.core.poll_transmit(self.now, &mut slices);
            if len == 0 {
                break;
            }
            assert_eq!(slices.iter().map(Bytes::len).sum::<usize>(), len);
            from.core.transmitted(len, self.now);
            for slice in slices {
                if is_client && let Some(sent) = self.sent_by_client.last_mut() {
                    sent.extend_from_slice(&slice);
                }
                to.incoming.extend(&slice);
            }
        }
    }

    fn deliver(&mut self, to_server: bool, bytes: usize) -> Result<(), ProtocolError> {
        let end = if to_server {
            &mut self.server
        } else {
            &mut self.client
        };
        let count = bytes.min(end.incoming.len());
        let mut arrived: Vec<u8> = end.incoming.drain(..count).collect();
        if let Some(after) = self.corrupt_after {
            self.corrupt_after = after.checked_sub(count);
            if let Some(byte) = arrived.get_mut(after) {
                *byte ^= 0x10;
            }
        }
        end.reader.push(&arrived);
        while let Some(frame) = end.reader.next_frame()? {
            if to_server && frame.frame_type == FrameType::Hello {
                let hello = Hello::decode(&frame.payload)?;
                assert_eq!(hello.link_id, ID);
                end.core.accept(&hello, self.server_knows_link, self.now);
                self.server_knows_link = true;
            } else {
                end.core.handle_frame(frame, self.now)?;
            }
        }
        Ok(())
    }

    /// Steps until `is_done`, which must happen.
    pub(crate) fn run(&mut self, bytes: usize, mut is_done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..200_000 {
            if is_done(self) {
                return;
            }
            self.step(bytes);
        }
        panic!("the simulation does not end");
    }
}

/// Content that differs at every position and between seeds.
pub(crate) fn content(len: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// A small generator for the choices of simulations.
pub(crate) struct RandomChoices(pub(crate) u64);

impl RandomChoices {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
