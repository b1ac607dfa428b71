//! The entries of a MESSAGES frame: each message is its length followed by its content.

use bytes::BytesMut;
use disk::varint;

/// Longest length before a message.
const MAX_LENGTH_BYTES: usize = 10;

/// Bytes of an entry.
pub(crate) fn entry_bytes(message: &[u8]) -> usize {
    varint::len(message.len() as u64) + message.len()
}

/// Appends an entry.
pub fn put_entry(entries: &mut BytesMut, message: &[u8]) {
    let mut length = [0; MAX_LENGTH_BYTES];
    let end = varint::write(&mut length, 0, message.len() as u64);
    entries.extend_from_slice(&length[..end]);
    entries.extend_from_slice(message);
}

/// Takes the first message off the front of entries; `None`: they are invalid, or there are none.
#[inline]
pub(crate) fn take_entry<'a>(entries: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = varint::take(entries)?;
    entries.split_off(..usize::try_from(len).ok()?)
}
