//! The hook points that an implementation declares to want.

use std::ops::BitOr;

/// A set of hook points, and the first bytes of the topics whose messages are wanted.
///
/// The first byte rules out most topics that no hook wants, in one comparison; for topics that begin with `$`, the second byte
/// does. Nodes with hooks for few topics therefore pass other messages at no cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    points: u32,
    /// A bit for each [`topic_slot`].
    topics: [u64; 4],
}

impl Interest {
    pub const NONE: Self = Self::point(0);
    pub const AUTHENTICATE: Self = Self::point(1);
    pub const AUTHORIZE: Self = Self::point(1 << 1);
    pub const CONNECT: Self = Self::point(1 << 2);
    pub const DISCONNECT: Self = Self::point(1 << 3);
    pub const SUBSCRIBE: Self = Self::point(1 << 4);
    pub const UNSUBSCRIBE: Self = Self::point(1 << 5);
    /// Messages on all topics.
    pub const PUBLISH: Self = Self {
        points: 1 << 6,
        topics: [u64::MAX; 4],
    };
    pub const DELIVER: Self = Self::point(1 << 7);
    pub const ACK: Self = Self::point(1 << 8);
    pub const DROP: Self = Self::point(1 << 9);
    pub const PING: Self = Self::point(1 << 10);
    /// Rejected CONNECT packets.
    pub const CONNECT_REJECTED: Self = Self::point(1 << 11);
    /// Sessions that begin and end.
    pub const SESSION: Self = Self::point(1 << 12);
    /// Authorization decisions, whichever component made them.
    pub const AUTHORIZATION_DECIDED: Self = Self::point(1 << 13);
    /// QoS 1 and 2 messages that wait for a client without a connection.
    pub const QUEUE: Self = Self::point(1 << 14);
    /// Messages that hooks may deny for any publisher, in addition to authorization.
    pub const PUBLISH_GUARD: Self = Self::point(1 << 15);

    const fn point(points: u32) -> Self {
        Self {
            points,
            topics: [0; 4],
        }
    }

    /// [`Self::PUBLISH`], but only for topics that begin with one of these bytes.
    #[must_use]
    pub const fn publish_on(first_bytes: &[u8]) -> Self {
        let mut interest = Self::point(Self::PUBLISH.points);
        let mut at = 0;
        while at < first_bytes.len() {
            let byte = first_bytes[at];
            interest.topics[(byte / 64) as usize] |= 1 << (byte % 64);
            if byte == b'$' {
                interest.topics[2] = u64::MAX;
                interest.topics[3] = u64::MAX;
            }
            at += 1;
        }
        interest
    }

    /// [`Self::PUBLISH`], but only for topics that begin with `$` and this byte.
    #[must_use]
    pub const fn publish_on_dollar(second_byte: u8) -> Self {
        let mut interest = Self::point(Self::PUBLISH.points);
        let slot = DOLLAR_SLOTS | second_byte;
        interest.topics[(slot / 64) as usize] |= 1 << (slot % 64);
        interest
    }

    #[inline]
    pub fn contains(self, point: Self) -> bool {
        self.points & point.points == point.points
    }

    /// Whether [`Hooks::publish`](crate::Hooks::publish) may want messages on a topic.
    #[inline]
    pub fn may_want_topic(&self, topic: &str) -> bool {
        let slot = topic_slot(topic.as_bytes());
        self.topics[usize::from(slot / 64)] & (1 << (slot % 64)) != 0
    }

    /// Whether the set contains any of the points.
    #[inline]
    pub fn intersects(self, points: Self) -> bool {
        self.points & points.points != 0
    }
}

/// Topics that begin with `$` and another byte have the slots from here on, by that byte. They share them with topics that begin
/// with a character outside ASCII. These are rare, so that asking hooks about them unnecessarily costs little.
const DOLLAR_SLOTS: u8 = 0x80;

#[inline]
fn topic_slot(topic: &[u8]) -> u8 {
    match topic {
        [b'$', second, ..] => DOLLAR_SLOTS | second,
        [first, ..] => *first,
        [] => 0,
    }
}

impl BitOr for Interest {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        let mut topics = self.topics;
        for (all, others) in topics.iter_mut().zip(other.topics) {
            *all |= others;
        }
        Self {
            points: self.points | other.points,
            topics,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_wanted_by_their_first_byte() {
        let some = Interest::publish_on(b"$v\xf0");
        for (topic, is_wanted) in [
            ("$file/x", true),
            ("v1/devices", true),
            ("w", false),
            ("\u{10000}", true),
            ("$", true),
        ] {
            assert_eq!(some.may_want_topic(topic), is_wanted, "{topic}");
            assert!(Interest::PUBLISH.may_want_topic(topic));
            assert!(!Interest::DELIVER.may_want_topic(topic));
        }
        let file = Interest::publish_on_dollar(b'f');
        for (topic, is_wanted) in [
            ("$file/x", true),
            ("$relay/x", false),
            ("f", false),
            ("$", false),
        ] {
            assert_eq!(file.may_want_topic(topic), is_wanted, "{topic}");
        }
        let both = Interest::publish_on(b"w") | some | Interest::DELIVER;
        assert!(both.may_want_topic("w") && both.may_want_topic("$x"));
        assert!(both.contains(Interest::PUBLISH) && both.contains(Interest::DELIVER));
    }
}
