//! Texts and byte arrays in the stored records of devices and credentials.

use disk::varint;

pub(crate) fn encode_text(out: &mut Vec<u8>, text: &str) {
    varint::put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

pub(crate) fn decode_text<'b>(bytes: &mut &'b [u8]) -> Option<&'b str> {
    let len = usize::try_from(varint::take(bytes)?).ok()?;
    let (text, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    str::from_utf8(text).ok()
}

pub(crate) fn decode_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (found, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*found)
}
