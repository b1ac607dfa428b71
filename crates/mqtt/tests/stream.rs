//! Byte streams: packets split at any position, random bytes, and packets with errors.

mod invariants;
mod strategies;

use invariants::check_stream;
use mqtt::{Direction, Packet, Version};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use strategies::{SamplePacket, sample, sample_of};

const BOTH: [Direction; 2] = [Direction::FromClient, Direction::FromServer];

/// Reads as a connection does: appends chunk after chunk to the unread rest, and decodes packets
/// from the front.
fn read_in_chunks(bytes: &[u8], cuts: &[usize]) -> Result<Vec<Vec<u8>>, mqtt::Error> {
    let mut buffer = Vec::new();
    let mut packets = Vec::new();
    let ends = cuts.iter().copied().chain([bytes.len()]);
    let mut start = 0;
    for end in ends {
        buffer.extend_from_slice(&bytes[start..end]);
        start = end;
        while let Some(frame) = mqtt::split_frame(&buffer, u32::MAX)? {
            let len = frame.len;
            packets.push(buffer.drain(..len).collect());
        }
    }
    assert!(buffer.is_empty(), "bytes are left over");
    Ok(packets)
}

/// The packets of one direction of a connection.
fn conversation() -> impl Strategy<Value = Vec<SamplePacket>> {
    sample().prop_flat_map(|first| vec(sample_of(first.version, first.direction), 1..=8))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn packets_come_whole_out_of_any_split(
        samples in conversation(),
        cuts in vec(any::<Index>(), 0..=20),
    ) {
        let packets: Vec<Vec<u8>> = samples.iter().map(SamplePacket::encode).collect();
        let bytes = packets.concat();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        prop_assert_eq!(read_in_chunks(&bytes, &cuts)?, packets);
    }

    #[test]
    fn any_bytes_are_read_or_rejected(bytes in vec(any::<u8>(), 0..=200)) {
        for direction in BOTH {
            check_stream(&bytes, direction);
        }
    }

    /// A header that fits any bytes, so that the bodies are parsed.
    #[test]
    fn any_body_is_read_or_rejected(
        first_byte in any::<u8>(),
        body in vec(any::<u8>(), 0..=100),
        version in 0..=2_u8,
    ) {
        for flags in [0, 2, 4, first_byte & 0x0f] {
            let header = [version, first_byte & 0xf0 | flags, body.len() as u8];
            for direction in BOTH {
                check_stream(&[&header[..], &body].concat(), direction);
            }
        }
    }

    /// Packets with a few bytes changed, removed or inserted, which are closest to real errors.
    #[test]
    fn a_packet_with_mistakes_is_read_or_rejected(
        sample in sample(),
        mistakes in vec((any::<Index>(), any::<u8>(), 0..=2_u8), 1..=4),
    ) {
        let version = sample.version as u8;
        let mut bytes = sample.encode();
        for (at, byte, kind) in mistakes {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => {}
            }
        }
        // Correct the remaining length, so that the packet is not just incomplete.
        let mut right = vec![version, bytes[0]];
        let body = &bytes[bytes.len().min(2)..];
        mqtt::encode_varint(body.len() as u32, &mut right);
        right.extend_from_slice(body);
        bytes.insert(0, version);
        for direction in BOTH {
            check_stream(&bytes, direction);
            check_stream(&right, direction);
        }
    }

    /// A packet of a different version or direction never causes a panic.
    #[test]
    fn a_packet_of_another_version_is_read_or_rejected(sample in sample(), version in 0..=2_u8) {
        let bytes = [&[version], &sample.encode()[..]].concat();
        for direction in BOTH {
            check_stream(&bytes, direction);
        }
    }

    /// Each proper prefix of a packet's body is rejected or is a different packet; nothing is read
    /// past its end.
    #[test]
    fn a_truncated_body_is_read_or_rejected(sample in sample(), at in any::<Index>()) {
        let bytes = sample.encode();
        let frame = mqtt::split_frame(&bytes, u32::MAX)?.expect("it is whole");
        let body = &frame.body[..at.index(frame.body.len() + 1)];
        let mut cut = vec![sample.version as u8, bytes[0]];
        mqtt::encode_varint(body.len() as u32, &mut cut);
        cut.extend_from_slice(body);
        check_stream(&cut, sample.direction);
    }
}

#[test]
fn one_byte_at_a_time() {
    let stream = b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01c\xc0\0\x30\x03\0\x01a\xe0\0";
    let cuts: Vec<usize> = (0..stream.len()).collect();
    let packets = read_in_chunks(stream, &cuts).unwrap();
    let kinds: Vec<_> = packets
        .iter()
        .map(|bytes| {
            let frame = mqtt::split_frame(bytes, u32::MAX).unwrap().unwrap();
            Packet::decode(frame, Version::V311, Direction::FromClient)
                .unwrap()
                .packet_type()
        })
        .collect();
    use mqtt::PacketType::*;
    assert_eq!(kinds, [Connect, PingReq, Publish, Disconnect]);
}
