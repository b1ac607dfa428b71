//! Messages between a node and its standby.
//!
//! A message begins with [`SESSION_COPY_KIND`], then one byte for its type, then the number of the copy (8 bytes). All
//! numbers are little-endian.
//!
//! | type | from | content |
//! |---|---|---|
//! | 1 | node | begin: number of the run of the node (8) |
//! | 2 | standby | position: whether it has a copy of this run (1), the last frame of the log in it (8) |
//! | 3 | node | reset: the standby empties its copy |
//! | 4 | node | state: number of the message (8), kind of the keyed state (1), then for each entry the lengths of key and value (4 each), key, value |
//! | 5 | node | frames: number of the message (8), last frame in it (8), then frames as [`store::LogTail::read`] returns them |
//! | 6 | standby | confirmed: number of the last message that is in the log of the standby (8) |
//! | 7 | standby | failed: a text |
//! | 8 | node | the standby is about to become the one that may adopt the sessions (1), or is it no longer (0): 1 byte |

use bytes::{BufMut as _, Bytes, BytesMut};
use store::StateKind;
use thiserror::Error;

/// First byte of the messages between a node and its standby.
pub const SESSION_COPY_KIND: u8 = 68;

const BEGIN: u8 = 1;
const POSITION: u8 = 2;
const RESET: u8 = 3;
const STATE: u8 = 4;
const FRAMES: u8 = 5;
const CONFIRMED: u8 = 6;
const FAILED: u8 = 7;
const STANDBY: u8 = 8;

/// Kind, type and copy.
const HEAD_BYTES: usize = 10;

/// A message, with the number of the copy it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyMessage<'a> {
    pub(crate) copy: u64,
    pub(crate) body: CopyBody<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyBody<'a> {
    Begin {
        run: u64,
    },
    Position {
        last_lsn: Option<u64>,
    },
    Reset,
    State {
        number: u64,
        kind: StateKind,
        entries: &'a [u8],
    },
    Frames {
        number: u64,
        last_lsn: u64,
        frames: &'a [u8],
    },
    Confirmed {
        number: u64,
    },
    Failed {
        reason: &'a str,
    },
    Standby {
        is_standby: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum CopyMessageError {
    #[error("it ends early")]
    Short,
    #[error("its type {0} is unknown")]
    Type(u8),
    #[error("its kind of keyed state {0} is unknown")]
    State(u8),
    #[error("a text in it is not UTF-8")]
    Text,
}

impl<'a> CopyMessage<'a> {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(HEAD_BYTES + 24);
        let mut begin = |kind: u8| {
            out.put_u8(SESSION_COPY_KIND);
            out.put_u8(kind);
            out.put_u64_le(self.copy);
        };
        match self.body {
            CopyBody::Begin { run } => {
                begin(BEGIN);
                out.put_u64_le(run);
            }
            CopyBody::Position { last_lsn } => {
                begin(POSITION);
                out.put_u8(last_lsn.is_some().into());
                out.put_u64_le(last_lsn.unwrap_or_default());
            }
            CopyBody::Reset => begin(RESET),
            CopyBody::State {
                number,
                kind,
                entries,
            } => {
                begin(STATE);
                out.put_u64_le(number);
                out.put_u8(kind as u8);
                out.put_slice(entries);
            }
            CopyBody::Frames {
                number,
                last_lsn,
                frames,
            } => {
                begin(FRAMES);
                out.put_u64_le(number);
                out.put_u64_le(last_lsn);
                out.put_slice(frames);
            }
            CopyBody::Confirmed { number } => {
                begin(CONFIRMED);
                out.put_u64_le(number);
            }
            CopyBody::Failed { reason } => {
                begin(FAILED);
                out.put_slice(reason.as_bytes());
            }
            CopyBody::Standby { is_standby } => {
                begin(STANDBY);
                out.put_u8(is_standby.into());
            }
        }
        out.freeze()
    }

    pub(crate) fn decode(message: &'a [u8]) -> Result<Self, CopyMessageError> {
        let mut reader = CopyMessageReader { rest: message };
        reader.take(1)?;
        let kind = reader.u8()?;
        let copy = reader.u64()?;
        let body = match kind {
            BEGIN => CopyBody::Begin { run: reader.u64()? },
            POSITION => {
                let is_known = reader.u8()? != 0;
                let lsn = reader.u64()?;
                CopyBody::Position {
                    last_lsn: is_known.then_some(lsn),
                }
            }
            RESET => CopyBody::Reset,
            STATE => {
                let number = reader.u64()?;
                let kind = reader.u8()?;
                let known = StateKind::ALL.get(usize::from(kind));
                CopyBody::State {
                    number,
                    kind: *known.ok_or(CopyMessageError::State(kind))?,
                    entries: reader.rest,
                }
            }
            FRAMES => CopyBody::Frames {
                number: reader.u64()?,
                last_lsn: reader.u64()?,
                frames: reader.rest,
            },
            CONFIRMED => CopyBody::Confirmed {
                number: reader.u64()?,
            },
            FAILED => CopyBody::Failed {
                reason: std::str::from_utf8(reader.rest).map_err(|_| CopyMessageError::Text)?,
            },
            STANDBY => CopyBody::Standby {
                is_standby: reader.u8()? != 0,
            },
            other => return Err(CopyMessageError::Type(other)),
        };
        Ok(Self { copy, body })
    }
}

/// Appends an entry of a state message.
pub(crate) fn put_state_entry(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// Passes each entry of a state message to `each`.
pub(crate) fn read_state_entries(
    entries: &[u8],
    mut each: impl FnMut(&[u8], &[u8]),
) -> Result<(), CopyMessageError> {
    let mut reader = CopyMessageReader { rest: entries };
    while !reader.rest.is_empty() {
        let (key_len, value_len) = (reader.u32()? as usize, reader.u32()? as usize);
        let (key, value) = (reader.take(key_len)?, reader.take(value_len)?);
        if key.len() > usize::from(u16::MAX) {
            return Err(CopyMessageError::Short);
        }
        each(key, value);
    }
    Ok(())
}

/// Appends the records of all frames of a frames message, in order.
pub(crate) fn read_frames(frames: &[u8], out: &mut Vec<u8>) -> Result<(), CopyMessageError> {
    let mut reader = CopyMessageReader { rest: frames };
    while !reader.rest.is_empty() {
        reader.u64()?;
        let len = reader.u32()? as usize;
        out.extend_from_slice(reader.take(len)?);
    }
    Ok(())
}

struct CopyMessageReader<'a> {
    rest: &'a [u8],
}

impl<'a> CopyMessageReader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], CopyMessageError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(CopyMessageError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8, CopyMessageError> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> Result<u32, CopyMessageError> {
        let taken = self.take(4)?;
        Ok(u32::from_le_bytes([taken[0], taken[1], taken[2], taken[3]]))
    }

    fn u64(&mut self) -> Result<u64, CopyMessageError> {
        Ok(u64::from(self.u32()?) | u64::from(self.u32()?) << 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let bodies = [
            CopyBody::Begin { run: 7 },
            CopyBody::Position { last_lsn: None },
            CopyBody::Position { last_lsn: Some(0) },
            CopyBody::Reset,
            CopyBody::State {
                number: 1,
                kind: StateKind::Delayed,
                entries: b"entries",
            },
            CopyBody::Frames {
                number: 2,
                last_lsn: u64::MAX,
                frames: b"frames",
            },
            CopyBody::Confirmed { number: 3 },
            CopyBody::Failed {
                reason: "disk full",
            },
            CopyBody::Standby { is_standby: true },
        ];
        for body in bodies {
            let message = CopyMessage { copy: 9, body };
            let encoded = message.encode();
            assert_eq!(encoded[0], SESSION_COPY_KIND);
            assert_eq!(CopyMessage::decode(&encoded), Ok(message));
            for end in 0..HEAD_BYTES {
                assert!(CopyMessage::decode(&encoded[..end]).is_err());
            }
        }
        let unknown = [SESSION_COPY_KIND, 99, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(
            CopyMessage::decode(&unknown),
            Err(CopyMessageError::Type(99))
        );
    }

    #[test]
    fn entries_and_frames_are_read_in_order_and_never_past_their_end() {
        let mut entries = Vec::new();
        put_state_entry(b"a", b"", &mut entries);
        put_state_entry(b"", b"value", &mut entries);
        let mut read = Vec::new();
        let each = |key: &[u8], value: &[u8]| read.push((key.to_vec(), value.to_vec()));
        read_state_entries(&entries, each).unwrap();
        assert_eq!(
            read,
            [(b"a".to_vec(), Vec::new()), (Vec::new(), b"value".to_vec())]
        );
        for end in 1..entries.len() {
            // 9 is the end of the first entry.
            let is_whole = end == 9;
            assert_eq!(
                read_state_entries(&entries[..end], |_, _| {}).is_ok(),
                is_whole
            );
        }
        let frames = [&5_u64.to_le_bytes()[..], &2_u32.to_le_bytes(), b"xy"].concat();
        let mut records = Vec::new();
        read_frames(&[&frames[..], &frames[..]].concat(), &mut records).unwrap();
        assert_eq!(records, b"xyxy");
        assert_eq!(
            read_frames(&frames[..13], &mut records),
            Err(CopyMessageError::Short)
        );
    }
}
