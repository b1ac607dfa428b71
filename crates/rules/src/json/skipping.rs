//! Skips a JSON value without parsing it: one loop over the bytes validates everything. It keeps only its
//! position and one bit per level, which distinguishes objects from arrays.

use super::error::{JsonError, JsonResult};

fn syntax_error<T>(offset: usize, expected: &'static str) -> JsonResult<T> {
    Err(JsonError { offset, expected })
}

#[inline]
fn skip_whitespace(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(at) {
        at += 1;
    }
    at
}

/// The end of the value at `at`, which may nest `depth` levels deep; at most the number of bits of a `u128`.
pub(super) fn value_end(bytes: &[u8], mut at: usize, depth: usize) -> JsonResult<usize> {
    let (mut level, mut objects) = (0, 0_u128);
    loop {
        at = match bytes.get(at) {
            Some(b'"') => string_end(bytes, at)?.0,
            Some(b'-' | b'0'..=b'9') => number_end(bytes, at)?.0,
            Some(b't') => word_end(bytes, at, b"true")?,
            Some(b'f') => word_end(bytes, at, b"false")?,
            Some(b'n') => word_end(bytes, at, b"null")?,
            Some(&open @ (b'{' | b'[')) => {
                if level == depth {
                    return syntax_error(at, "nested deeper than 128 levels");
                }
                let is_object = open == b'{';
                let close = if is_object { b'}' } else { b']' };
                at = skip_whitespace(bytes, at + 1);
                if bytes.get(at) == Some(&close) {
                    at + 1
                } else {
                    level += 1;
                    objects = objects << 1 | u128::from(is_object);
                    if is_object {
                        at = key_end(bytes, at)?;
                    }
                    continue;
                }
            }
            _ => return syntax_error(at, "expected a value"),
        };
        // After a value: closes what ends here and moves to the next value.
        loop {
            if level == 0 {
                return Ok(at);
            }
            at = skip_whitespace(bytes, at);
            let is_object = objects & 1 == 1;
            match (bytes.get(at), is_object) {
                (Some(b','), true) => {
                    at = key_end(bytes, skip_whitespace(bytes, at + 1))?;
                    break;
                }
                (Some(b','), false) => {
                    at = skip_whitespace(bytes, at + 1);
                    break;
                }
                (Some(b'}'), true) | (Some(b']'), false) => {
                    level -= 1;
                    objects >>= 1;
                    at += 1;
                }
                (_, true) => return syntax_error(at, "expected , or }"),
                (_, false) => return syntax_error(at, "expected , or ]"),
            }
        }
    }
}

/// The position after a name and its colon, where the value begins.
#[inline]
fn key_end(bytes: &[u8], at: usize) -> JsonResult<usize> {
    let at = skip_whitespace(bytes, string_end(bytes, at)?.0);
    if bytes.get(at) != Some(&b':') {
        return syntax_error(at, "expected :");
    }
    Ok(skip_whitespace(bytes, at + 1))
}

#[inline]
fn word_end(bytes: &[u8], at: usize, word: &[u8]) -> JsonResult<usize> {
    match bytes[at..].starts_with(word) {
        true => Ok(at + word.len()),
        false => syntax_error(at, "expected true, false or null"),
    }
}

/// The end of a number, and whether it has neither fraction nor exponent.
#[inline]
pub(super) fn number_end(bytes: &[u8], mut at: usize) -> JsonResult<(usize, bool)> {
    at += usize::from(bytes.get(at) == Some(&b'-'));
    at = match bytes.get(at) {
        Some(b'0') => at + 1,
        _ => digits_end(bytes, at)?,
    };
    let mut whole = true;
    if bytes.get(at) == Some(&b'.') {
        whole = false;
        at = digits_end(bytes, at + 1)?;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        whole = false;
        at += 1;
        at += usize::from(matches!(bytes.get(at), Some(b'+' | b'-')));
        at = digits_end(bytes, at)?;
    }
    Ok((at, whole))
}

#[inline]
fn digits_end(bytes: &[u8], start: usize) -> JsonResult<usize> {
    let mut at = start;
    while let Some(b'0'..=b'9') = bytes.get(at) {
        at += 1;
    }
    match at > start {
        true => Ok(at),
        false => syntax_error(at, "expected a digit"),
    }
}

/// The end of a string, and whether it has escapes. Most strings have none.
#[inline(always)]
pub(super) fn string_end(bytes: &[u8], at: usize) -> JsonResult<(usize, bool)> {
    if bytes.get(at) != Some(&b'"') {
        return syntax_error(at, "expected a string in double quotes");
    }
    let at = at + 1;
    let at = at + unescaped_prefix_length(&bytes[at..]);
    match bytes.get(at) {
        Some(b'"') => Ok((at + 1, false)),
        _ => escaped_string_end(bytes, at).map(|end| (end, true)),
    }
}

/// The end of a string after its first escape or invalid byte.
#[cold]
fn escaped_string_end(bytes: &[u8], mut at: usize) -> JsonResult<usize> {
    loop {
        match bytes.get(at) {
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => at = escape_end(bytes, at + 1)?,
            Some(_) => return syntax_error(at, "a control character in a string must be escaped"),
            None => return syntax_error(at, "the string has no end"),
        }
        at += unescaped_prefix_length(&bytes[at..]);
    }
}

fn escape_end(bytes: &[u8], at: usize) -> JsonResult<usize> {
    match bytes.get(at) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 1),
        Some(b'u') => {
            let digits = bytes.get(at + 1..at + 5);
            if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                return syntax_error(at, "expected four hexadecimal digits after \\u");
            }
            Ok(at + 5)
        }
        _ => syntax_error(at, "no such escape in JSON"),
    }
}

/// Number of bytes from the start that need no attention inside a string: no quote, backslash or control
/// character. Processes eight bytes at a time. The last eight may overlap those before them, and a text of four to
/// seven bytes is two overlapping halves. Only very short texts are thus read byte by byte.
#[inline]
pub fn unescaped_prefix_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(chunk) = bytes[at..].first_chunk::<8>() {
        if let Some(hit) = first_special_byte(u64::from_le_bytes(*chunk)) {
            return at + hit;
        }
        at += 8;
    }
    if at == bytes.len() {
        return at;
    }
    if let Some(chunk) = bytes.last_chunk::<8>() {
        let hit = first_special_byte(u64::from_le_bytes(*chunk));
        return hit.map_or(bytes.len(), |hit| bytes.len() + hit - 8);
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        return match first_special_byte(u64::from(first) | u64::from(last) << 32) {
            Some(hit) if hit < 4 => hit,
            Some(hit) => bytes.len() + hit - 8,
            None => bytes.len(),
        };
    }
    let is_special = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
    bytes.iter().position(is_special).unwrap_or(bytes.len())
}

/// The lowest byte that is a quote, a backslash or a control character. A byte of `x - 0x01..` has its top bit set
/// where the byte of `x` was zero.
#[inline]
fn first_special_byte(chunk: u64) -> Option<usize> {
    const BYTE_ONES: u64 = u64::from_ne_bytes([1; 8]);
    const BYTE_HIGH_BITS: u64 = u64::from_ne_bytes([0x80; 8]);
    let quote = chunk ^ (BYTE_ONES * u64::from(b'"'));
    let slash = chunk ^ (BYTE_ONES * u64::from(b'\\'));
    let hits = (quote.wrapping_sub(BYTE_ONES) & !quote)
        | (slash.wrapping_sub(BYTE_ONES) & !slash)
        | (chunk.wrapping_sub(BYTE_ONES * 0x20) & !chunk);
    let hits = hits & BYTE_HIGH_BITS;
    (hits != 0).then(|| (hits.trailing_zeros() / 8) as usize)
}

#[cfg(test)]
mod tests {
    use super::unescaped_prefix_length;

    #[test]
    fn unescaped_prefix_stops_at_special_bytes() {
        for stop in [b'"', b'\\', 0x1f, 0] {
            for (length, at) in (0..40).flat_map(|length| (0..length).map(move |at| (length, at))) {
                let mut bytes = vec![b'x'; length];
                bytes[at] = stop;
                bytes[..at]
                    .iter_mut()
                    .step_by(3)
                    .for_each(|byte| *byte = 0xe9);
                assert_eq!(unescaped_prefix_length(&bytes), at, "{bytes:?}");
                // The first of several counts.
                bytes[at..].fill(stop);
                assert_eq!(unescaped_prefix_length(&bytes), at, "{bytes:?}");
            }
        }
        for length in 0..40 {
            assert_eq!(unescaped_prefix_length(&vec![0x7f; length]), length);
        }
    }
}
