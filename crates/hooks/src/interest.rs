//! The hook points that an implementation declares to want.

use std::ops::BitOr;

/// A set of hook points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest(u32);

impl Interest {
    pub const NONE: Self = Self(0);
    pub const AUTHENTICATE: Self = Self(1);
    pub const AUTHORIZE: Self = Self(1 << 1);
    pub const CONNECT: Self = Self(1 << 2);
    pub const DISCONNECT: Self = Self(1 << 3);
    pub const SUBSCRIBE: Self = Self(1 << 4);
    pub const UNSUBSCRIBE: Self = Self(1 << 5);
    pub const PUBLISH: Self = Self(1 << 6);
    pub const DELIVER: Self = Self(1 << 7);
    pub const ACK: Self = Self(1 << 8);
    pub const DROP: Self = Self(1 << 9);
    pub const PING: Self = Self(1 << 10);
    /// Refused CONNECT packets.
    pub const CONNECT_REFUSED: Self = Self(1 << 11);
    /// Sessions that begin and end.
    pub const SESSION: Self = Self(1 << 12);
    /// Authorization decisions, whichever component made them.
    pub const AUTHORIZATION_DECIDED: Self = Self(1 << 13);
    /// QoS 1 and 2 messages that wait for a client without a connection.
    pub const QUEUE: Self = Self(1 << 14);
    /// Messages that hooks may deny for any publisher, in addition to authorization.
    pub const PUBLISH_GUARD: Self = Self(1 << 15);
    /// Like [`Self::PUBLISH`], but only for topics that begin with `$`, so that other messages pass at no cost.
    pub const PUBLISH_RESERVED: Self = Self(1 << 16);

    #[inline]
    pub fn contains(self, point: Self) -> bool {
        self.0 & point.0 == point.0
    }

    /// Whether [`Hooks::publish`](crate::Hooks::publish) may want messages on a topic.
    #[inline]
    pub fn may_want_topic(self, topic: &str) -> bool {
        self.contains(Self::PUBLISH)
            || self.contains(Self::PUBLISH_RESERVED) && topic.starts_with('$')
    }

    /// Whether the set contains any of the points.
    #[inline]
    pub fn intersects(self, points: Self) -> bool {
        self.0 & points.0 != 0
    }
}

impl BitOr for Interest {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
