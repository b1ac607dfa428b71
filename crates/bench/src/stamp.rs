//! The header at the start of every payload: who sent it, which one it is, and when.

/// Bytes the header takes; the smallest payload the generator can send.
pub(crate) const STAMP_BYTES: usize = 24;

/// Header of one message. The run number keeps messages of another run, or of strangers, out of the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Number drawn once for each run.
    pub(crate) run: u32,
    /// The publisher's index within its worker.
    pub(crate) publisher: u32,
    /// 0 for the publisher's first message, then one more each time.
    pub(crate) sequence: u64,
    /// When it was sent, or meant to be sent, in nanoseconds of the monotonic clock.
    pub(crate) sent_ns: u64,
}

impl Stamp {
    /// Writes the header over the first [`STAMP_BYTES`] of `payload`.
    pub(crate) fn write(&self, payload: &mut [u8]) {
        payload[0..4].copy_from_slice(&self.run.to_le_bytes());
        payload[4..8].copy_from_slice(&self.publisher.to_le_bytes());
        payload[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        payload[16..24].copy_from_slice(&self.sent_ns.to_le_bytes());
    }

    /// Reads the header, or `None` when the payload is too short to carry one.
    #[inline]
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        let head: &[u8; STAMP_BYTES] = payload.first_chunk()?;
        let word = |at: usize| -> [u8; 8] {
            [
                head[at],
                head[at + 1],
                head[at + 2],
                head[at + 3],
                head[at + 4],
                head[at + 5],
                head[at + 6],
                head[at + 7],
            ]
        };
        let who = u64::from_le_bytes(word(0));
        Some(Self {
            run: who as u32,
            publisher: (who >> 32) as u32,
            sequence: u64::from_le_bytes(word(8)),
            sent_ns: u64::from_le_bytes(word(16)),
        })
    }
}

/// Offset of the sequence number within the payload.
pub(crate) const SEQUENCE_AT: usize = 8;
/// Offset of the send time within the payload.
pub(crate) const SENT_AT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_the_journey() {
        let stamp = Stamp {
            run: 0xdead_beef,
            publisher: 77,
            sequence: u64::MAX - 3,
            sent_ns: 123_456_789_012,
        };
        let mut payload = [0xaa; 64];
        stamp.write(&mut payload);
        assert_eq!(Stamp::read(&payload), Some(stamp));
        assert_eq!(payload[STAMP_BYTES], 0xaa);
        assert_eq!(Stamp::read(&payload[..STAMP_BYTES - 1]), None);
        assert_eq!(payload[SEQUENCE_AT..][..8], stamp.sequence.to_le_bytes());
        assert_eq!(payload[SENT_AT..][..8], stamp.sent_ns.to_le_bytes());
    }
}
