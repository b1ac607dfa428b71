//! The header of every payload: who sent it, which one it is, and when. In bytes at its start, or as text somewhere in it.

/// Bytes the header takes; the smallest payload the generator can send.
pub const STAMP_BYTES: usize = 24;
/// What the header begins with as text; the rest are hexadecimal digits.
const MARK: &[u8; 3] = b"tg=";
/// Bytes the header takes as text.
pub const TEXT_BYTES: usize = MARK.len() + 2 * STAMP_BYTES;

/// How the header stands in a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampFormat {
    /// At the start, as bytes.
    Bytes,
    /// Anywhere, as text that JSON carries as it is.
    Text,
}

impl StampFormat {
    pub fn bytes(self) -> usize {
        match self {
            Self::Bytes => STAMP_BYTES,
            Self::Text => TEXT_BYTES,
        }
    }
}

/// Header of one message. The run number keeps messages of another run, or of strangers, out of the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadStamp {
    /// Number drawn once for each run.
    pub run: u32,
    /// The publisher's index within its worker.
    pub publisher: u32,
    /// 0 for the publisher's first message, then one more each time.
    pub sequence: u64,
    /// When it was sent, or meant to be sent, in nanoseconds of the monotonic clock.
    pub sent_ns: u64,
}

impl PayloadStamp {
    /// Writes the header over the first [`STAMP_BYTES`] of `payload`.
    pub fn write(&self, payload: &mut [u8]) {
        payload[0..4].copy_from_slice(&self.run.to_le_bytes());
        payload[4..8].copy_from_slice(&self.publisher.to_le_bytes());
        payload[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        payload[16..24].copy_from_slice(&self.sent_ns.to_le_bytes());
    }

    /// Writes the header as text over the first [`TEXT_BYTES`] of `payload`.
    pub fn write_text(&self, payload: &mut [u8]) {
        payload[..3].copy_from_slice(MARK);
        payload[3..11].copy_from_slice(&hex_digits(self.run));
        payload[11..19].copy_from_slice(&hex_digits(self.publisher));
        write_text_number(&mut payload[19..35], self.sequence);
        write_text_number(&mut payload[35..51], self.sent_ns);
    }

    /// The header as text.
    #[must_use]
    pub fn to_text(&self) -> [u8; TEXT_BYTES] {
        let mut text = [0; TEXT_BYTES];
        self.write_text(&mut text);
        text
    }

    /// Finds the header of a message of `run` as text in a packet.
    pub fn find_in(packet: &[u8], run: u32) -> Option<Self> {
        memchr::memmem::find_iter(packet, MARK)
            .filter_map(|at| Self::read_text(&packet[at..]))
            .find(|stamp| stamp.run == run)
    }

    /// Reads the header from the text that starts with it.
    #[inline]
    pub fn read_text(text: &[u8]) -> Option<Self> {
        let text: &[u8; TEXT_BYTES] = text.first_chunk()?;
        let (mark, digits) = text.split_at(MARK.len());
        let (words, _) = digits.as_chunks::<8>();
        let word = |at: usize| parse_digits(words[at]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 1));
        (mark == MARK).then(|| Self {
            run: word(0),
            publisher: word(1),
            sequence: long(2),
            sent_ns: long(4),
        })
    }

    /// Reads the header, or `None` when the payload is too short to carry one.
    #[inline]
    pub fn read(payload: &[u8]) -> Option<Self> {
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

/// Eight hexadecimal digits; the nibbles are spread over eight bytes, which become digits all at once.
#[inline]
fn hex_digits(number: u32) -> [u8; 8] {
    let mut x = u64::from(number);
    x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    x = (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = (x + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    (x + 0x3030_3030_3030_3030 + letters * 0x27).to_be_bytes()
}

/// The reverse of `format_digits`; of other bytes it makes some number.
#[inline]
fn parse_digits(digits: [u8; 8]) -> u32 {
    let x = u64::from_be_bytes(digits);
    let letters = x >> 6 & 0x0101_0101_0101_0101;
    let mut x = (x & 0x0f0f_0f0f_0f0f_0f0f) + letters * 9;
    x = (x | x >> 4) & 0x00ff_00ff_00ff_00ff;
    x = (x | x >> 8) & 0x0000_ffff_0000_ffff;
    (x | x >> 16) as u32
}

/// A number as the header has it as text.
#[inline]
pub fn write_text_number(out: &mut [u8], number: u64) {
    out[..8].copy_from_slice(&hex_digits((number >> 32) as u32));
    out[8..16].copy_from_slice(&hex_digits(number as u32));
}

/// Finds the headers of payloads.
#[derive(Debug)]
pub struct StampFinder {
    form: StampFormat,
    /// Where the last one was: the next will be there, too.
    at: usize,
}

impl StampFinder {
    pub fn new(form: StampFormat) -> Self {
        Self { form, at: 0 }
    }

    /// The header of a payload, if it has one.
    #[inline]
    pub fn find(&mut self, payload: &[u8]) -> Option<PayloadStamp> {
        if self.form == StampFormat::Bytes {
            return PayloadStamp::read(payload);
        }
        let there = payload.get(self.at..).and_then(PayloadStamp::read_text);
        there.or_else(|| {
            self.at = memchr::memmem::find(payload, MARK)?;
            PayloadStamp::read_text(&payload[self.at..])
        })
    }
}

/// Offset of the sequence number within the header, and of the send time, as bytes and as text.
pub const SEQUENCE_TEXT_AT: usize = 19;
pub const SENT_TEXT_AT: usize = 35;

/// Offset of the sequence number within the payload.
pub const SEQUENCE_AT: usize = 8;
/// Offset of the send time within the payload.
pub const SENT_AT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_the_journey() {
        let stamp = PayloadStamp {
            run: 0xdead_beef,
            publisher: 77,
            sequence: u64::MAX - 3,
            sent_ns: 123_456_789_012,
        };
        let mut payload = [0xaa; 64];
        stamp.write(&mut payload);
        assert_eq!(PayloadStamp::read(&payload), Some(stamp));
        assert_eq!(payload[STAMP_BYTES], 0xaa);
        assert_eq!(PayloadStamp::read(&payload[..STAMP_BYTES - 1]), None);
        assert_eq!(payload[SEQUENCE_AT..][..8], stamp.sequence.to_le_bytes());
        assert_eq!(payload[SENT_AT..][..8], stamp.sent_ns.to_le_bytes());
    }

    #[test]
    fn survives_the_journey_as_text() {
        let mut finder = StampFinder::new(StampFormat::Text);
        for (front, sequence) in [
            ("{\"a\": \"", 0),
            ("", 0x0123_4567_89ab_cdef),
            ("tg", u64::MAX),
        ] {
            let stamp = PayloadStamp {
                run: 0x00a0_9f0f,
                publisher: 41,
                sequence,
                sent_ns: u64::MAX - sequence,
            };
            let mut text = [b' '; TEXT_BYTES];
            stamp.write_text(&mut text);
            assert!(text[3..].iter().all(u8::is_ascii_hexdigit));
            let payload = [front.as_bytes(), &text, b"\"}"].concat();
            assert_eq!(finder.find(&payload), Some(stamp));
            assert_eq!(PayloadStamp::find_in(&payload, stamp.run), Some(stamp));
            assert_eq!(PayloadStamp::find_in(&payload, 1), None);
            assert_eq!(finder.find(&payload), Some(stamp));
            assert_eq!(finder.find(&payload[..front.len() + TEXT_BYTES - 1]), None);
        }
        assert_eq!(finder.find(b""), None);
    }
}
