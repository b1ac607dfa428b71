//! HELLO and WELCOME, which begin each carrier.

use std::fmt;

use content::RangeSet;
use disk::varint;

use crate::error_code::{ErrorCode, ProtocolError};
use crate::priority::{LANES, Priority};
use crate::wire::control::MAX_NUMBER;
use crate::wire::payload::{PayloadReader, put_ranges, put_text};

/// The first bytes of HELLO.
pub const MAGIC: [u8; 8] = *b"TGLINK\r\n";
/// The version of this implementation.
pub const VERSION: u8 = 1;
/// Largest HELLO and WELCOME; other limits are not agreed before them.
pub const MAX_HANDSHAKE_BYTES: u32 = 64 * 1024;
const MAX_CREDENTIAL_BYTES: usize = 32 * 1024;
const MAX_CLIENT_ID_BYTES: usize = 1024;

/// Identifies a link over all its carriers. Chosen at random by the connecting end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub [u8; 16]);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What the connecting end proves its identity with. The library carries credentials and does not judge them.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// None, or those of the carrier, such as a TLS client certificate.
    None,
    Token(String),
    UserPassword {
        user: String,
        password: String,
    },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Token(_) => f.write_str("Token(..)"),
            Self::UserPassword { user, .. } => write!(f, "UserPassword({user:?}, ..)"),
        }
    }
}

/// What one end permits the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest payload of a frame.
    pub max_frame_bytes: u32,
    /// Bytes of messages that may wait for the application. A message of several frames has at most an eighth of it.
    pub message_window_bytes: u64,
    /// Bytes of all streams that may wait for the application.
    pub data_window_bytes: u64,
    /// Bytes of one stream that may wait for the application; sent without waiting for ACCEPT.
    pub stream_window_bytes: u64,
    /// Streams that the other end may have open.
    pub max_streams: u32,
    /// How far the number of a message may be ahead of the first one that is not acknowledged, in each lane.
    pub horizon: u32,
    /// After this silence the carrier is regarded as dead, in milliseconds.
    pub idle_timeout_ms: u32,
}

impl Limits {
    /// Least values: every message of one frame can be sent, and four messages of several frames at a time.
    const LEAST: Self = Self {
        max_frame_bytes: 160 * 1024,
        message_window_bytes: 512 * 1024,
        data_window_bytes: 64 * 1024,
        stream_window_bytes: 64 * 1024,
        max_streams: 1,
        horizon: 16,
        idle_timeout_ms: 100,
    };

    fn put(&self, out: &mut Vec<u8>) {
        for number in [
            u64::from(self.max_frame_bytes),
            self.message_window_bytes,
            self.data_window_bytes,
            self.stream_window_bytes,
            u64::from(self.max_streams),
            u64::from(self.horizon),
            u64::from(self.idle_timeout_ms),
        ] {
            varint::put(out, number);
        }
    }

    fn read(reader: &mut PayloadReader<'_>) -> Result<Self, ProtocolError> {
        let limits = Self {
            max_frame_bytes: reader.number_u32()?,
            message_window_bytes: reader.number()?,
            data_window_bytes: reader.number()?,
            stream_window_bytes: reader.number()?,
            max_streams: reader.number_u32()?,
            horizon: reader.number_u32()?,
            idle_timeout_ms: reader.number_u32()?,
        };
        let least = Self::LEAST;
        if limits.message_window_bytes > MAX_NUMBER
            || limits.data_window_bytes > MAX_NUMBER
            || limits.stream_window_bytes > MAX_NUMBER
        {
            return Err(ProtocolError::violation("a window is larger than 2^62"));
        }
        if limits.max_frame_bytes < least.max_frame_bytes
            || limits.message_window_bytes < least.message_window_bytes
            || limits.data_window_bytes < least.data_window_bytes
            || limits.stream_window_bytes < least.stream_window_bytes
            || limits.max_streams < least.max_streams
            || limits.horizon < least.horizon
            || limits.idle_timeout_ms < least.idle_timeout_ms
        {
            return Err(ProtocolError::violation(
                "a limit of the peer is below the least value of the protocol",
            ));
        }
        Ok(limits)
    }
}

/// What may be sent before the first WINDOW: the windows, less what still waits for the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InitialCredit {
    pub message_bytes: u64,
    pub data_bytes: u64,
}

impl InitialCredit {
    fn put(self, out: &mut Vec<u8>) {
        varint::put(out, self.message_bytes);
        varint::put(out, self.data_bytes);
    }

    fn read(reader: &mut PayloadReader<'_>, limits: &Limits) -> Result<Self, ProtocolError> {
        let credit = Self {
            message_bytes: reader.number()?,
            data_bytes: reader.number()?,
        };
        if credit.message_bytes > limits.message_window_bytes
            || credit.data_bytes > limits.data_window_bytes
        {
            return Err(ProtocolError::violation(
                "the initial credit of the peer is larger than its windows",
            ));
        }
        Ok(credit)
    }
}

/// The state of the messages of one priority, as one end tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaneState {
    /// The lowest number that this end may still send.
    pub first: u64,
    /// The numbers that this end has received from the other one.
    pub received: RangeSet,
}

/// Streams in one HELLO or WELCOME. The others continue after ACCEPT.
pub const MAX_STREAM_STATES: usize = 16;
/// Ranges of one of them. A stream with more continues after ACCEPT.
pub const MAX_STREAM_STATE_RANGES: usize = 16;

/// An accepted stream of which this end has received a part. The peer continues it without waiting for ACCEPT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamState {
    pub priority: Priority,
    pub number: u64,
    /// As in [`Accept`](crate::wire::control::Accept).
    pub credit: u64,
    pub received: RangeSet,
}

/// The first frame of the connecting end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    pub min_version: u8,
    pub max_version: u8,
    pub link_id: LinkId,
    pub limits: Limits,
    pub credit: InitialCredit,
    pub lanes: [LaneState; LANES],
    pub credentials: Credentials,
    /// At most [`MAX_STREAM_STATES`].
    pub streams: Vec<StreamState>,
    /// The name under which the connecting end logs in; empty: the accepting end chooses one. At most 1,024 bytes.
    pub client_id: String,
}

impl Hello {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[self.min_version, self.max_version]);
        out.extend_from_slice(&self.link_id.0);
        self.limits.put(out);
        self.credit.put(out);
        put_lanes(out, &self.lanes);
        match &self.credentials {
            Credentials::None => out.push(0),
            Credentials::Token(token) => {
                out.push(1);
                put_text(out, token.as_bytes());
            }
            Credentials::UserPassword { user, password } => {
                out.push(2);
                put_text(out, user.as_bytes());
                put_text(out, password.as_bytes());
            }
        }
        if self.client_id.is_empty() {
            return put_streams(out, &self.streams);
        }
        if self.streams.is_empty() {
            varint::put(out, 0);
        }
        put_streams(out, &self.streams);
        put_text(out, self.client_id.as_bytes());
    }

    pub fn decode(payload: &[u8]) -> Result<Self, ProtocolError> {
        let mut reader = PayloadReader::new(payload, "HELLO has a missing or invalid field");
        if reader.array::<8>()? != MAGIC {
            return Err(ProtocolError::violation("HELLO does not begin with TGLINK"));
        }
        let (min_version, max_version) = (reader.byte()?, reader.byte()?);
        if !(min_version..=max_version).contains(&VERSION) {
            return Err(ProtocolError {
                code: ErrorCode::UNSUPPORTED_VERSION,
                detail: "no protocol version in common; this end supports version 1",
            });
        }
        let link_id = LinkId(reader.array()?);
        let limits = Limits::read(&mut reader)?;
        let hello = Self {
            min_version,
            max_version,
            link_id,
            limits,
            credit: InitialCredit::read(&mut reader, &limits)?,
            lanes: read_lanes(&mut reader)?,
            credentials: match reader.byte()? {
                0 => Credentials::None,
                1 => Credentials::Token(reader.text(MAX_CREDENTIAL_BYTES)?.to_owned()),
                2 => Credentials::UserPassword {
                    user: reader.text(MAX_CREDENTIAL_BYTES)?.to_owned(),
                    password: reader.text(MAX_CREDENTIAL_BYTES)?.to_owned(),
                },
                _ => return Err(ProtocolError::violation("unknown kind of credentials")),
            },
            streams: read_streams(&mut reader)?,
            client_id: match reader.is_empty() {
                true => String::new(),
                false => reader.text(MAX_CLIENT_ID_BYTES)?.to_owned(),
            },
        };
        reader.finish();
        Ok(hello)
    }
}

/// The answer to HELLO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    pub version: u8,
    /// Whether this end knew the link. Otherwise it starts with the state that HELLO describes.
    pub is_resumed: bool,
    pub limits: Limits,
    pub credit: InitialCredit,
    pub lanes: [LaneState; LANES],
    /// At most [`MAX_STREAM_STATES`].
    pub streams: Vec<StreamState>,
}

impl Welcome {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.version, u8::from(self.is_resumed)]);
        self.limits.put(out);
        self.credit.put(out);
        put_lanes(out, &self.lanes);
        put_streams(out, &self.streams);
    }

    pub fn decode(payload: &[u8]) -> Result<Self, ProtocolError> {
        let mut reader = PayloadReader::new(payload, "WELCOME has a missing or invalid field");
        let version = reader.byte()?;
        if version != VERSION {
            return Err(ProtocolError::violation(
                "WELCOME chooses a version that was not offered",
            ));
        }
        let is_resumed = reader.byte()? & 1 != 0;
        let limits = Limits::read(&mut reader)?;
        let welcome = Self {
            version,
            is_resumed,
            limits,
            credit: InitialCredit::read(&mut reader, &limits)?,
            lanes: read_lanes(&mut reader)?,
            streams: read_streams(&mut reader)?,
        };
        reader.finish();
        Ok(welcome)
    }
}

fn put_lanes(out: &mut Vec<u8>, lanes: &[LaneState; LANES]) {
    for lane in lanes {
        varint::put(out, lane.first);
        put_ranges(out, &lane.received);
    }
}

/// Without streams, the field is left out.
fn put_streams(out: &mut Vec<u8>, streams: &[StreamState]) {
    if streams.is_empty() {
        return;
    }
    varint::put(out, streams.len() as u64);
    for stream in streams {
        out.push(stream.priority as u8);
        varint::put(out, stream.number);
        varint::put(out, stream.credit);
        put_ranges(out, &stream.received);
    }
}

fn read_streams(reader: &mut PayloadReader<'_>) -> Result<Vec<StreamState>, ProtocolError> {
    if reader.is_empty() {
        return Ok(Vec::new());
    }
    let count = reader.number_up_to(MAX_STREAM_STATES)?;
    let read = |reader: &mut PayloadReader<'_>| {
        let state = StreamState {
            priority: Priority::from_flags(reader.byte()?),
            number: reader.number()?,
            credit: reader.number()?,
            received: reader.ranges()?,
        };
        if state.credit > MAX_NUMBER {
            return Err(ProtocolError::violation("a number is larger than 2^62"));
        }
        Ok(state)
    };
    (0..count).map(|_| read(reader)).collect()
}

fn read_lanes(reader: &mut PayloadReader<'_>) -> Result<[LaneState; LANES], ProtocolError> {
    let mut lanes: [LaneState; LANES] = Default::default();
    for lane in &mut lanes {
        lane.first = reader.number()?;
        if lane.first == 0 {
            return Err(ProtocolError::violation(
                "messages are numbered from 1, not from 0",
            ));
        }
        lane.received = reader.ranges()?;
    }
    Ok(lanes)
}
