//! Decoder of the records of a batch.

use disk::varint;

use crate::batch::{StateKind, tag};

/// One record. Offsets are relative to the first record of the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogRecord<'a> {
    Message {
        body_at: u32,
        body: &'a [u8],
    },
    Entry {
        session: u64,
        seq: u64,
        packet_id: u16,
        released: bool,
        attributes_at: u32,
        attributes: &'a [u8],
    },
    Sent {
        session: u64,
        seq: u64,
        packet_id: u16,
    },
    Released {
        session: u64,
        seq: u64,
    },
    Done {
        session: u64,
        seq: u64,
    },
    Received {
        session: u64,
        packet_id: u16,
    },
    Forgotten {
        session: u64,
        packet_id: u16,
    },
    End {
        session: u64,
    },
    Put {
        space: StateKind,
        key: &'a [u8],
        value: &'a [u8],
    },
    Delete {
        space: StateKind,
        key: &'a [u8],
    },
}

/// The records of a frame in order. `None` in place of a record marks invalid bytes, which a valid checksum excludes
/// unless another program wrote them.
pub(crate) struct LogRecords<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> LogRecords<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Offset of the next record.
    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    fn number(&mut self) -> Option<u64> {
        let mut rest = self.bytes.get(self.at..)?;
        let number = varint::take(&mut rest)?;
        self.at = self.bytes.len() - rest.len();
        Some(number)
    }

    #[inline]
    fn packet_id(&mut self) -> Option<u16> {
        let bytes = self.take(2)?;
        Some(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    #[inline]
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..)?.get(..len)?;
        self.at += len;
        Some(taken)
    }

    #[inline]
    fn record(&mut self) -> Option<LogRecord<'a>> {
        let kind = self.byte()?;
        Some(match kind {
            tag::MESSAGE => {
                let len = self.number()? as usize;
                LogRecord::Message {
                    body_at: self.at as u32,
                    body: self.take(len)?,
                }
            }
            tag::ENTRY | tag::ENTRY_SENT | tag::ENTRY_RELEASED => {
                let (session, seq) = (self.number()?, self.number()?);
                let len = self.number()? as usize;
                LogRecord::Entry {
                    session,
                    seq,
                    attributes_at: self.at as u32,
                    attributes: self.take(len)?,
                    packet_id: match kind {
                        tag::ENTRY => 0,
                        _ => self.packet_id()?,
                    },
                    released: kind == tag::ENTRY_RELEASED,
                }
            }
            tag::SENT => LogRecord::Sent {
                session: self.number()?,
                seq: self.number()?,
                packet_id: self.packet_id()?,
            },
            tag::RELEASED => LogRecord::Released {
                session: self.number()?,
                seq: self.number()?,
            },
            tag::DONE => LogRecord::Done {
                session: self.number()?,
                seq: self.number()?,
            },
            tag::RECEIVED => LogRecord::Received {
                session: self.number()?,
                packet_id: self.packet_id()?,
            },
            tag::FORGOTTEN => LogRecord::Forgotten {
                session: self.number()?,
                packet_id: self.packet_id()?,
            },
            tag::END => LogRecord::End {
                session: self.number()?,
            },
            tag::PUT => {
                let space = self.space()?;
                let (key_len, value_len) = (self.number()? as usize, self.number()? as usize);
                LogRecord::Put {
                    space,
                    key: self.take(key_len)?,
                    value: self.take(value_len)?,
                }
            }
            tag::DELETE => {
                let space = self.space()?;
                let key_len = self.number()? as usize;
                LogRecord::Delete {
                    space,
                    key: self.take(key_len)?,
                }
            }
            _ => return None,
        })
    }

    fn space(&mut self) -> Option<StateKind> {
        let number = self.byte()?;
        StateKind::ALL.get(usize::from(number)).copied()
    }
}

impl<'a> Iterator for LogRecords<'a> {
    type Item = Option<LogRecord<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let record = self.record();
        if record.is_none() {
            self.at = self.bytes.len();
        }
        Some(record)
    }
}
