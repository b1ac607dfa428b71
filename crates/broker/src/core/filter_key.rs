//! Hashes that stand for topic filters in the place of their texts.
//!
//! Filters have a *shape*: the number of their levels, which of these are `+`, and whether they end in `#`. A filter of a
//! known shape is determined by its other levels, the literal ones. A topic is therefore compared with all filters of a
//! shape by one hash of those levels of the topic that are literal in the shape.
//!
//! Hashes are SipHash-1-3 with a random key, the same for the whole process, so that the node router and the shards can
//! exchange them. Clients choose filters and topics, and a collision can lose a message (see [`FilterFingerprint`]), so
//! the hash has to be one for which nobody can construct collisions without the key. The hashes of hash tables, such as
//! foldhash, do not claim that.

use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::OnceLock;

use super::hash_state::ProcessHashState;

/// Levels that a filter with a shape has at most, without a final `#`.
const MAX_LEVELS: usize = u64::BITS as usize;

// First bytes of what is hashed, except literal levels. They occur in no text, so that what is hashed for different
// purposes never is the same.
const CHECK: u8 = 0xff;
const SHAPE: u8 = 0xfe;
const NO_SHAPE: u8 = 0xfd;

fn hash_key() -> &'static ProcessHashState {
    static KEY: OnceLock<ProcessHashState> = OnceLock::new();
    KEY.get_or_init(ProcessHashState::default)
}

/// The ends of the first levels of a topic name or filter.
struct LevelEnds {
    ends: [u32; MAX_LEVELS],
    /// Number of all levels; those beyond [`MAX_LEVELS`] count as one.
    count: usize,
}

impl LevelEnds {
    fn of(text: &str) -> Self {
        let mut found = Self {
            ends: [0; MAX_LEVELS],
            count: 0,
        };
        let ends = memchr::memchr_iter(b'/', text.as_bytes()).chain([text.len()]);
        for end in ends {
            if let Some(place) = found.ends.get_mut(found.count) {
                *place = end as u32;
            }
            found.count += 1;
            if found.count > MAX_LEVELS {
                break;
            }
        }
        found
    }

    fn start(&self, level: usize) -> usize {
        match level {
            0 => 0,
            _ => self.ends[level - 1] as usize + 1,
        }
    }
}

/// What filters have in common that differ only in literal levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilterShape {
    /// Without a final `#`.
    levels: u8,
    /// The levels that are `+`, one bit each.
    plus_levels: u64,
    /// Whether the filter ends in `#`, the multi-level wildcard.
    is_multi_level: bool,
}

impl FilterShape {
    /// `None` for a filter of more levels than [`MAX_LEVELS`], and for one that is not valid.
    fn of(filter: &str) -> Option<Self> {
        let mut shape = Self {
            levels: 0,
            plus_levels: 0,
            is_multi_level: false,
        };
        for level in mqtt::levels(filter) {
            if shape.is_multi_level {
                return None;
            }
            if level == "#" {
                shape.is_multi_level = true;
                continue;
            }
            if usize::from(shape.levels) == MAX_LEVELS {
                return None;
            }
            if level == "+" {
                shape.plus_levels |= 1 << shape.levels;
            }
            shape.levels += 1;
        }
        Some(shape)
    }

    /// A hash of the shape, which is added to those of its filters: filters of different shapes may have the same literal
    /// levels.
    fn hash(self) -> u64 {
        let mut hasher = hash_key().build_hasher();
        hasher.write_u8(SHAPE);
        hasher.write_u8(self.levels);
        hasher.write_u64(self.plus_levels);
        hasher.write_u8(self.is_multi_level.into());
        hasher.finish()
    }

    fn hash_literals(self, text: &str, ends: &LevelEnds) -> u64 {
        let mut hasher = hash_key().build_hasher();
        let mut literals = !self.plus_levels & low_bits(self.levels.into());
        // Adjacent levels at once.
        while literals != 0 {
            let first = literals.trailing_zeros();
            let count = (literals >> first).trailing_ones();
            let last = (first + count - 1) as usize;
            let levels = ends.start(first as usize)..ends.ends[last] as usize;
            hasher.write(&text.as_bytes()[levels]);
            // No level contains it, so that different levels never result in the same bytes.
            hasher.write_u8(b'/');
            literals &= !(low_bits(count) << first);
        }
        hasher.finish()
    }
}

fn low_bits(count: u32) -> u64 {
    match count {
        0 => 0,
        _ => u64::MAX >> (u64::BITS - count),
    }
}

/// A shape with its hash.
#[derive(Debug, Clone, Copy)]
pub(super) struct HashedShape {
    pub(super) shape: FilterShape,
    hash: u64,
}

impl HashedShape {
    pub(super) fn new(shape: FilterShape) -> Self {
        Self {
            shape,
            hash: shape.hash(),
        }
    }
}

/// A topic that is compared with filters.
pub(super) struct HashedTopic<'a> {
    topic: &'a str,
    ends: LevelEnds,
    /// Wildcards at the first level do not match it [MQTT-4.7.2-1].
    is_hidden: bool,
}

impl<'a> HashedTopic<'a> {
    pub(super) fn new(topic: &'a str) -> Self {
        Self {
            topic,
            ends: LevelEnds::of(topic),
            is_hidden: topic.starts_with('$'),
        }
    }

    /// The hash of the only filter of a shape that matches the topic; `None` if no filter of that shape does.
    pub(super) fn hash_for(&self, of: &HashedShape) -> Option<u64> {
        let shape = of.shape;
        let levels = usize::from(shape.levels);
        let has_depth = match shape.is_multi_level {
            // `a/#` matches `a` too.
            true => self.ends.count >= levels,
            false => self.ends.count == levels,
        };
        let begins_with_wildcard = levels == 0 || shape.plus_levels & 1 != 0;
        if !has_depth || self.is_hidden && begins_with_wildcard {
            return None;
        }
        let literals = shape.hash_literals(self.topic, &self.ends);
        Some(literals.wrapping_add(of.hash))
    }
}

/// What is kept of a filter in the place of its text.
///
/// Topics are compared by `hash` alone. Should a topic have the hash of a filter that does not match it, a message is
/// sent to a node that drops it. The probability is 2^-64 for each filter and topic, and nothing is lost.
///
/// Filters are compared by `hash` and `check`, because two filters that counted as one would lose messages: a node that no
/// longer wants one of them would no longer get what the other one matches. The probability that there are two such filters
/// among a million is 6 × 10^-18. With `hash` alone it would be 3 × 10^-8, and someone who subscribes again and again for
/// years could find one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
// 12 bytes instead of 16.
#[repr(C, packed(4))]
pub(crate) struct FilterFingerprint {
    pub(crate) hash: u64,
    pub(crate) check: u32,
}

/// The shape and the fingerprint of a filter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FilterKey {
    /// `None`: topics cannot be compared with the filter by its hash.
    pub(crate) shape: Option<FilterShape>,
    pub(crate) fingerprint: FilterFingerprint,
}

impl FilterKey {
    pub(crate) fn of(filter: &str) -> Self {
        let with_first_byte = |byte: u8| {
            let mut hasher = hash_key().build_hasher();
            hasher.write_u8(byte);
            hasher.write(filter.as_bytes());
            hasher.finish()
        };
        let shape = FilterShape::of(filter);
        let hash = match shape {
            Some(shape) => {
                let literals = shape.hash_literals(filter, &LevelEnds::of(filter));
                literals.wrapping_add(shape.hash())
            }
            None => with_first_byte(NO_SHAPE),
        };
        let check = with_first_byte(CHECK) as u32;
        Self {
            shape,
            fingerprint: FilterFingerprint { hash, check },
        }
    }
}
