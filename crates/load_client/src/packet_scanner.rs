//! Finds MQTT packets in a read buffer: the few kinds a load run is made of by hand, in place; the rest as bytes.

use std::fmt;

/// PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP and the others, as in the upper four bits of the first byte.
pub const PUBLISH: u8 = 3;
pub const PUBACK: u8 = 4;
pub const PUBREC: u8 = 5;
pub const PUBREL: u8 = 6;
pub const PUBCOMP: u8 = 7;

/// One complete packet.
#[derive(Debug, PartialEq, Eq)]
pub enum ScannedPacket<'a> {
    /// A message with what matters of it.
    Publish(ScannedPublish<'a>),
    /// One of the four acknowledgements; `kind` is its packet type, `reason` 0 where none is on the wire.
    Ack { kind: u8, id: u16, reason: u8 },
    /// Any other packet, whole, for the full decoder.
    Other(&'a [u8]),
}

/// A PUBLISH.
#[derive(Debug, PartialEq, Eq)]
pub struct ScannedPublish<'a> {
    pub qos: u8,
    /// 0 at QoS 0.
    pub id: u16,
    pub payload: &'a [u8],
}

/// What the front of a buffer holds.
#[derive(Debug, PartialEq, Eq)]
pub enum ScanStep<'a> {
    /// A complete packet of `len` bytes.
    Packet {
        found: ScannedPacket<'a>,
        len: usize,
    },
    /// The start of a packet of `len` bytes, 0 while that is not known.
    Incomplete { len: usize },
}

/// Bytes that are not MQTT, or not as the generator can take it.
#[derive(Debug, PartialEq, Eq)]
pub struct ScanError(pub &'static str);

impl fmt::Display for ScanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the broker sent a malformed packet: {}", self.0)
    }
}

/// Total length of the packet at the front of `buf` and the length of its fixed header, once both are known.
#[inline]
fn lengths(buf: &[u8]) -> Result<Option<(usize, usize)>, ScanError> {
    let mut remaining = 0;
    for at in 1..5 {
        let Some(&byte) = buf.get(at) else {
            return Ok(None);
        };
        remaining |= usize::from(byte & 0x7f) << (7 * (at - 1));
        if byte & 0x80 == 0 {
            return Ok(Some((at + 1 + remaining, at + 1)));
        }
    }
    Err(ScanError("a remaining length of more than four bytes"))
}

/// Scans the front of `buf`. `v5`: packets have properties.
#[inline]
pub fn step(buf: &[u8], v5: bool) -> Result<ScanStep<'_>, ScanError> {
    let Some((len, header)) = lengths(buf)? else {
        return Ok(ScanStep::Incomplete { len: 0 });
    };
    let Some(packet) = buf.get(..len) else {
        return Ok(ScanStep::Incomplete { len });
    };
    let found = match packet[0] >> 4 {
        PUBLISH => match publish(packet[0], &packet[header..], v5)? {
            Some(message) => ScannedPacket::Publish(message),
            None => return Err(ScanError("a PUBLISH that ends within its header")),
        },
        kind @ PUBACK..=PUBCOMP => ack(kind, &packet[header..])?,
        _ => ScannedPacket::Other(packet),
    };
    Ok(ScanStep::Packet { found, len })
}

/// The message at the front of an incomplete PUBLISH, as far as its payload has arrived.
pub fn partial_publish(buf: &[u8], v5: bool) -> Result<Option<ScannedPublish<'_>>, ScanError> {
    match lengths(buf)? {
        Some((_, header)) if buf[0] >> 4 == PUBLISH => publish(buf[0], &buf[header..], v5),
        _ => Ok(None),
    }
}

/// Takes the variable header of a PUBLISH apart; `None` when `body` ends before the payload starts.
#[inline]
fn publish(first: u8, body: &[u8], v5: bool) -> Result<Option<ScannedPublish<'_>>, ScanError> {
    let Some(&[high, low]) = body.first_chunk::<2>() else {
        return Ok(None);
    };
    let mut at = 2 + usize::from(u16::from_be_bytes([high, low]));
    let qos = first >> 1 & 3;
    let mut id = 0;
    if qos > 0 {
        let Some(&[high, low]) = body.get(at..).and_then(|rest| rest.first_chunk::<2>()) else {
            return Ok(None);
        };
        id = u16::from_be_bytes([high, low]);
        at += 2;
        if qos > 2 || id == 0 {
            return Err(ScanError("a PUBLISH with QoS 3 or packet identifier 0"));
        }
    }
    if v5 {
        // The property length reads like a remaining length that starts one byte further on.
        let Some(rest) = body.get(at - 1..) else {
            return Ok(None);
        };
        match lengths(rest)? {
            Some((len, _)) => at += len - 1,
            None => return Ok(None),
        }
    }
    Ok(body
        .get(at..)
        .map(|payload| ScannedPublish { qos, id, payload }))
}

#[inline]
fn ack(kind: u8, body: &[u8]) -> Result<ScannedPacket<'_>, ScanError> {
    let Some(&[high, low]) = body.first_chunk::<2>() else {
        return Err(ScanError("an acknowledgement without packet identifier"));
    };
    Ok(ScannedPacket::Ack {
        kind,
        id: u16::from_be_bytes([high, low]),
        reason: body.get(2).copied().unwrap_or(0),
    })
}

/// Appends a PUBACK, PUBREC, PUBREL or PUBCOMP with the reason code success; the form is the same in all versions.
#[inline]
pub fn push_ack(kind: u8, id: u16, out: &mut Vec<u8>) {
    let flags = if kind == PUBREL { 2 } else { 0 };
    let [high, low] = id.to_be_bytes();
    out.extend_from_slice(&[kind << 4 | flags, 2, high, low]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(buf: &[u8], v5: bool) -> (Vec<String>, usize) {
        let (mut seen, mut at) = (Vec::new(), 0);
        while let ScanStep::Packet { found, len } = step(&buf[at..], v5).expect("well-formed") {
            seen.push(match found {
                ScannedPacket::Publish(m) => format!("publish {} {} {:?}", m.qos, m.id, m.payload),
                ScannedPacket::Ack { kind, id, reason } => format!("ack {kind} {id} {reason}"),
                ScannedPacket::Other(bytes) => format!("other {bytes:?}"),
            });
            at += len;
        }
        (seen, at)
    }

    #[test]
    fn finds_every_kind() {
        let mut buf = vec![0x30, 6, 0, 1, b'a', 7, 8, 9, 0x32, 6, 0, 1, b'a', 0, 5, 7];
        push_ack(PUBACK, 0x0102, &mut buf);
        push_ack(PUBREL, 3, &mut buf);
        buf.extend_from_slice(&[0xd0, 0, 0x40]);
        let (seen, used) = packets(&buf, false);
        assert_eq!(
            seen,
            [
                "publish 0 0 [7, 8, 9]",
                "publish 1 5 [7]",
                "ack 4 258 0",
                "ack 6 3 0",
                "other [208, 0]"
            ]
        );
        assert_eq!(used, buf.len() - 1);
    }

    #[test]
    fn skips_properties_of_version_5() {
        let buf = [
            0x34, 10, 0, 1, b'a', 0, 5, 2, 0x01, 0x01, 7, 8, 0x50, 3, 0, 5, 0x97,
        ];
        assert_eq!(packets(&buf, true).0, ["publish 2 5 [7, 8]", "ack 5 5 151"]);
    }

    #[test]
    fn says_how_much_is_missing() {
        assert_eq!(step(&[], false), Ok(ScanStep::Incomplete { len: 0 }));
        assert_eq!(step(&[0x30], false), Ok(ScanStep::Incomplete { len: 0 }));
        assert_eq!(
            step(&[0x30, 0x80, 1, 0], false),
            Ok(ScanStep::Incomplete { len: 131 })
        );
        let big = [0x30, 0x80, 1, 0, 1, b'a', 1, 2];
        let message = partial_publish(&big, false).expect("well-formed");
        assert_eq!(message.map(|m| m.payload.to_vec()), Some(vec![1, 2]));
        assert_eq!(partial_publish(&big[..4], false), Ok(None));
        assert_eq!(partial_publish(&[0x90, 0x80, 1, 0], false), Ok(None));
    }

    #[test]
    fn refuses_garbage_without_panic() {
        assert!(step(&[0x30, 0xff, 0xff, 0xff, 0xff, 1], false).is_err());
        assert!(step(&[0x30, 2, 0, 9], false).is_err());
        assert!(step(&[0x32, 5, 0, 1, b'a', 0, 0], false).is_err());
        assert!(step(&[0x40, 1, 0], false).is_err());
        // Every short byte string either waits for more or is refused.
        let mut state = 1u32;
        for _ in 0..20_000 {
            let mut buf = [0; 12];
            for byte in &mut buf {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (state >> 24) as u8;
            }
            for v5 in [false, true] {
                let _ = step(&buf, v5);
                let _ = partial_publish(&buf, v5);
            }
        }
    }
}
