//! The numbers of messages that were accepted from a publisher that numbers them itself, so that each message is published
//! once.
//!
//! MQTT packet identifiers are reused; the numbers of a gateway are not. Its peer repeats the messages until they are
//! acknowledged, also after a restart of the node.

use content::RangeSet;
use disk::varint;

/// User property of CONNECT: who numbers the messages. Another value begins a new record.
pub const PUBLISHER_PROPERTY: &str = "tidegate-publisher";
/// User property of PUBLISH: `LANE.NUMBER`.
pub const NUMBER_PROPERTY: &str = "tidegate-number";

/// User property of CONNECT: for each lane `LANE.NUMBER`, separated by spaces. The publisher sends no lower numbers any more.
pub const FIRST_NUMBERS_PROPERTY: &str = "tidegate-first-numbers";

/// Sequences of numbers that a publisher may use. Numbers of different lanes are independent.
const LANES: usize = 4;
/// Ranges of one lane in the record. A gap is a number that was used for something else, or a message that has not arrived.
/// The lowest range is forgotten if there are more.
const MAX_RANGES: usize = 1024;
/// Bytes of the name of a publisher.
const MAX_PUBLISHER_BYTES: usize = 256;

/// The number that a publisher has given to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublicationNumber {
    lane: u8,
    number: u64,
}

impl PublicationNumber {
    /// Reads the value of [`NUMBER_PROPERTY`].
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (lane, number) = text.split_once('.')?;
        let (lane, number) = (lane.parse().ok()?, number.parse().ok()?);
        let is_valid = usize::from(lane) < LANES && number < 1 << 62;
        is_valid.then_some(Self { lane, number })
    }
}

/// Ranges of numbers by lane.
type LaneRanges = [RangeSet; LANES];

/// What was accepted from one publisher.
#[derive(Debug)]
pub(crate) struct AcceptedNumbers {
    publisher: Box<str>,
    accepted: LaneRanges,
    /// Those that belong into the record of the session: their messages are in the log of all nodes that need them.
    recorded: LaneRanges,
    /// Those of a record that was read from the store, whose messages hooks may not have stored.
    restored: LaneRanges,
    /// Those of `restored` that have been passed to hooks again.
    passed_to_hooks: LaneRanges,
    /// Whether `recorded` has changed since the record was written.
    is_changed: bool,
}

impl AcceptedNumbers {
    /// `None` if the name of the publisher is too long.
    pub(crate) fn new(publisher: &str) -> Option<Self> {
        (publisher.len() <= MAX_PUBLISHER_BYTES).then(|| Self {
            publisher: publisher.into(),
            accepted: LaneRanges::default(),
            recorded: LaneRanges::default(),
            restored: LaneRanges::default(),
            passed_to_hooks: LaneRanges::default(),
            is_changed: false,
        })
    }

    pub(crate) fn belongs_to(&self, publisher: &str) -> bool {
        *self.publisher == *publisher
    }

    /// Whether a message was accepted before.
    pub(crate) fn contains(&self, number: PublicationNumber) -> bool {
        contains_number(&self.accepted, number)
    }

    /// A message was accepted.
    pub(crate) fn accept(&mut self, number: PublicationNumber) {
        insert_number(&mut self.accepted, number);
    }

    /// Numbers below `first` will not come any more.
    pub(crate) fn accept_all_before(&mut self, first: PublicationNumber) {
        let sets = [
            &mut self.accepted,
            &mut self.recorded,
            &mut self.restored,
            &mut self.passed_to_hooks,
        ];
        for lanes in sets {
            lanes[usize::from(first.lane)].insert(0..first.number);
        }
    }

    /// An accepted message is in all logs that it belongs to. True if the record was up to date before.
    pub(crate) fn mark_logged(&mut self, number: PublicationNumber) -> bool {
        insert_number(&mut self.recorded, number);
        !std::mem::replace(&mut self.is_changed, true)
    }

    /// Whether hooks have to get a repeated message again, because its record was read from the store.
    pub(crate) fn needs_hooks_again(&self, number: PublicationNumber) -> bool {
        contains_number(&self.restored, number) && !contains_number(&self.passed_to_hooks, number)
    }

    /// A repeated message has been passed to hooks.
    pub(crate) fn mark_passed_to_hooks(&mut self, number: PublicationNumber) {
        insert_number(&mut self.passed_to_hooks, number);
    }

    /// The record: the name of the publisher, then for each lane the number of ranges, and for each range its distance from the
    /// end of the one before and its length.
    pub(crate) fn write(&mut self) -> Vec<u8> {
        self.is_changed = false;
        let mut out = Vec::with_capacity(self.publisher.len() + 16);
        varint::put(&mut out, self.publisher.len() as u64);
        out.extend_from_slice(self.publisher.as_bytes());
        for lane in &self.recorded {
            varint::put(&mut out, lane.range_count() as u64);
            let mut end = 0;
            for range in lane.iter() {
                varint::put(&mut out, range.start - end);
                varint::put(&mut out, range.end - range.start);
                end = range.end;
            }
        }
        out
    }

    /// `None` if the record is damaged.
    pub(crate) fn read(mut bytes: &[u8]) -> Option<Self> {
        let len = usize::try_from(varint::take(&mut bytes)?).ok()?;
        let (publisher, mut rest) = bytes.split_at_checked(len)?;
        let mut numbers = Self::new(std::str::from_utf8(publisher).ok()?)?;
        for lane in &mut numbers.recorded {
            let mut end = 0_u64;
            for _ in 0..varint::take(&mut rest)?.min(MAX_RANGES as u64) {
                let start = end.checked_add(varint::take(&mut rest)?)?;
                end = start.checked_add(varint::take(&mut rest)?)?;
                lane.insert(start..end);
            }
        }
        numbers.accepted = numbers.recorded.clone();
        numbers.restored = numbers.recorded.clone();
        rest.is_empty().then_some(numbers)
    }
}

fn contains_number(lanes: &LaneRanges, number: PublicationNumber) -> bool {
    lanes[usize::from(number.lane)].contains(number.number)
}

fn insert_number(lanes: &mut LaneRanges, number: PublicationNumber) {
    let lane = &mut lanes[usize::from(number.lane)];
    lane.insert(number.number..number.number + 1);
    lane.keep_last_ranges(MAX_RANGES);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> PublicationNumber {
        PublicationNumber::parse(text).unwrap()
    }

    #[test]
    fn numbers_are_lane_and_number() {
        assert_eq!(
            number("3.17"),
            PublicationNumber {
                lane: 3,
                number: 17
            }
        );
        for text in ["", "1", "4.1", "-1.1", "1.", "1.x", "0.4611686018427387904"] {
            assert_eq!(PublicationNumber::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_record_has_what_is_logged() {
        let mut numbers = AcceptedNumbers::new("link 7").unwrap();
        for text in ["0.1", "0.2", "0.4", "2.900"] {
            numbers.accept(number(text));
        }
        assert!(numbers.mark_logged(number("0.1")));
        assert!(!numbers.mark_logged(number("2.900")));
        let bytes = numbers.write();
        assert!(numbers.mark_logged(number("0.4")));
        assert!(numbers.contains(number("0.2")) && !numbers.contains(number("0.3")));
        let mut read = AcceptedNumbers::read(&bytes).unwrap();
        assert!(read.belongs_to("link 7") && !read.belongs_to("link 8"));
        let known = ["0.1", "2.900"].map(number);
        assert!(
            known
                .iter()
                .all(|it| read.contains(*it) && read.needs_hooks_again(*it))
        );
        assert!(!read.contains(number("0.4")) && !read.contains(number("1.1")));
        read.mark_passed_to_hooks(known[0]);
        assert!(!read.needs_hooks_again(known[0]) && read.needs_hooks_again(known[1]));
        assert_eq!(read.write(), bytes);
        // A gap below the first number is closed.
        read.accept_all_before(number("2.950"));
        assert!(read.contains(number("2.7")) && !read.contains(number("2.950")));
        assert_eq!(read.recorded[2].range_count(), 1);
        for cut in 0..bytes.len() {
            assert!(AcceptedNumbers::read(&bytes[..cut]).is_none(), "{cut}");
        }
    }

    #[test]
    fn the_record_is_limited() {
        let mut numbers = AcceptedNumbers::new("p").unwrap();
        for even in (0..3000).step_by(2) {
            let number = number(&format!("1.{even}"));
            numbers.accept(number);
            numbers.mark_logged(number);
        }
        assert!(!numbers.contains(number("1.900")) && numbers.contains(number("1.2998")));
        assert!(numbers.write().len() < 3 * MAX_RANGES);
        assert!(AcceptedNumbers::new(&"x".repeat(MAX_PUBLISHER_BYTES + 1)).is_none());
    }
}
