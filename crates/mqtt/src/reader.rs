//! Reads fields from a packet's body; each error names the field.

use crate::byte_scan::has_nul;
use crate::error::Error;
use crate::varint::decode_varint;

/// The unread rest of a packet's body.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize, detail: &'static str) -> Result<&'a [u8], Error> {
        match self.rest.split_at_checked(len) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(Error::malformed_packet(detail)),
        }
    }

    #[inline]
    pub(crate) fn u8(&mut self, detail: &'static str) -> Result<u8, Error> {
        Ok(self.take(1, detail)?[0])
    }

    #[inline]
    pub(crate) fn u16(&mut self, detail: &'static str) -> Result<u16, Error> {
        let bytes = self.take(2, detail)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    pub(crate) fn u32(&mut self, detail: &'static str) -> Result<u32, Error> {
        let bytes = self.take(4, detail)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub(crate) fn varint(&mut self, detail: &'static str) -> Result<u32, Error> {
        match decode_varint(self.rest) {
            Ok(Some((value, len))) => {
                self.rest = &self.rest[len..];
                Ok(value)
            }
            _ => Err(Error::malformed_packet(detail)),
        }
    }

    /// Two bytes of length, followed by that many bytes.
    #[inline]
    pub(crate) fn binary(&mut self, detail: &'static str) -> Result<&'a [u8], Error> {
        let len = self.u16(detail)?;
        self.take(usize::from(len), detail)
    }

    /// A UTF-8 string without U+0000 [MQTT-1.5.4-1, MQTT-1.5.4-2].
    #[inline]
    pub(crate) fn string(&mut self, detail: &'static str) -> Result<&'a str, Error> {
        let bytes = self.binary(detail)?;
        match std::str::from_utf8(bytes) {
            Ok(text) if !has_nul(bytes) => Ok(text),
            _ => Err(Error::malformed_packet(detail)),
        }
    }

    /// A nonzero packet identifier [MQTT-2.2.1-3].
    #[inline]
    pub(crate) fn packet_id(&mut self, detail: &'static str) -> Result<u16, Error> {
        match self.u16(detail)? {
            0 => Err(Error::protocol_error(detail)),
            id => Ok(id),
        }
    }

    #[inline]
    pub(crate) fn expect_end(&self, detail: &'static str) -> Result<(), Error> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Error::malformed_packet(detail))
        }
    }
}

/// Appends the length of `bytes` and `bytes`, which must be at most 65,535 bytes long.
pub(crate) fn put_binary(bytes: &[u8], out: &mut Vec<u8>) {
    // Longer input is a bug of the caller; the packet stays well-formed nevertheless.
    debug_assert!(bytes.len() <= usize::from(u16::MAX));
    let len = bytes.len().min(usize::from(u16::MAX));
    out.extend_from_slice(&(len as u16).to_be_bytes());
    out.extend_from_slice(&bytes[..len]);
}

/// Number of bytes that [`put_binary`] appends.
pub(crate) fn binary_len(bytes: &[u8]) -> usize {
    2 + bytes.len().min(usize::from(u16::MAX))
}

pub(crate) fn put_u16(value: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_be_bytes());
}
