//! Topic names and topic filters (MQTT 5.0 section 4.7), and what this broker adds to filters.

use std::fmt;

/// How long and how deep a topic may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicLimits {
    pub max_bytes: u16,
    pub max_levels: u16,
}

impl TopicLimits {
    /// What the protocol itself allows.
    pub const NONE: Self = Self {
        max_bytes: u16::MAX,
        max_levels: u16::MAX,
    };
}

/// What is wrong with a topic name or filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicError {
    Empty,
    TooLong {
        max_bytes: u16,
    },
    TooDeep {
        max_levels: u16,
    },
    Nul,
    WildcardInName,
    /// `+` has to stand alone in its level.
    PlusInLevel,
    /// `#` has to stand alone in the last level.
    HashNotLast,
    /// `$share/{group}/{filter}` lacks a part, or the group has a wildcard in it.
    BadShare,
    /// `$exclusive/{topic}` with a wildcard, or without a topic.
    BadExclusive,
}

impl fmt::Display for TopicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopicError::Empty => f.write_str("a topic has at least one character [MQTT-4.7.3-1]"),
            TopicError::TooLong { max_bytes } => write!(f, "longer than {max_bytes} bytes"),
            TopicError::TooDeep { max_levels } => write!(f, "more than {max_levels} levels"),
            TopicError::Nul => f.write_str("U+0000 is not allowed [MQTT-4.7.3-2]"),
            TopicError::WildcardInName => {
                f.write_str("a topic name has no wildcards [MQTT-3.3.2-2]")
            }
            TopicError::PlusInLevel => f.write_str("'+' must be a whole level [MQTT-4.7.1-2]"),
            TopicError::HashNotLast => {
                f.write_str("'#' must be the whole last level [MQTT-4.7.1-1]")
            }
            TopicError::BadShare => f.write_str(
                "expected $share/{group}/{filter}, no wildcard in the group [MQTT-4.8.2-1]",
            ),
            TopicError::BadExclusive => {
                f.write_str("expected $exclusive/{topic} without wildcards")
            }
        }
    }
}

impl std::error::Error for TopicError {}

fn check_size(text: &str, limits: &TopicLimits) -> Result<(), TopicError> {
    if text.is_empty() {
        return Err(TopicError::Empty);
    }
    if text.len() > usize::from(limits.max_bytes) {
        return Err(TopicError::TooLong {
            max_bytes: limits.max_bytes,
        });
    }
    if text.len() >= usize::from(limits.max_levels)
        && levels(text).count() > usize::from(limits.max_levels)
    {
        return Err(TopicError::TooDeep {
            max_levels: limits.max_levels,
        });
    }
    if text.contains('\0') {
        return Err(TopicError::Nul);
    }
    Ok(())
}

/// Whether `topic` may be published to.
pub fn validate_topic_name(topic: &str, limits: &TopicLimits) -> Result<(), TopicError> {
    check_size(topic, limits)?;
    if has_wildcards(topic) {
        Err(TopicError::WildcardInName)
    } else {
        Ok(())
    }
}

/// Whether `filter` is a topic filter (without the prefixes that [`parse_filter`] knows).
pub fn validate_topic_filter(filter: &str, limits: &TopicLimits) -> Result<(), TopicError> {
    check_size(filter, limits)?;
    let mut rest = levels(filter);
    while let Some(level) = rest.next() {
        if level.contains('#') && (level != "#" || rest.next().is_some()) {
            return Err(TopicError::HashNotLast);
        }
        if level.contains('+') && level != "+" {
            return Err(TopicError::PlusInLevel);
        }
    }
    Ok(())
}

#[inline]
pub fn has_wildcards(filter: &str) -> bool {
    filter.bytes().any(|byte| byte == b'+' || byte == b'#')
}

/// The levels of a topic name or filter; empty levels count.
#[inline]
pub fn levels(text: &str) -> std::str::Split<'_, char> {
    text.split('/')
}

/// Whether a topic name matches a topic filter, level by level. The obvious way; routing has a faster one.
pub fn filter_matches(filter: &str, topic: &str) -> bool {
    // [MQTT-4.7.2-1]
    if topic.starts_with('$') && !filter.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut topic_levels = levels(topic);
    for level in levels(filter) {
        if level == "#" {
            return true;
        }
        match topic_levels.next() {
            Some(name) if level == "+" || level == name => {}
            _ => return false,
        }
    }
    topic_levels.next().is_none()
}

/// A filter as a client may write it in SUBSCRIBE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterKind<'a> {
    Plain(&'a str),
    /// `$share/{group}/{filter}` (MQTT 5.0 section 4.8.2).
    Shared {
        group: &'a str,
        filter: &'a str,
    },
    /// `$queue/{filter}`: shared by all who write it so, without a group.
    Queue {
        filter: &'a str,
    },
    /// `$exclusive/{topic}`: one subscriber at a time.
    Exclusive {
        topic: &'a str,
    },
}

pub fn parse_filter<'a>(text: &'a str, limits: &TopicLimits) -> Result<FilterKind<'a>, TopicError> {
    let kind = if let Some(rest) = text.strip_prefix("$share/") {
        let (group, filter) = rest.split_once('/').ok_or(TopicError::BadShare)?;
        if group.is_empty() || has_wildcards(group) || filter.is_empty() {
            return Err(TopicError::BadShare);
        }
        validate_topic_filter(filter, limits)?;
        FilterKind::Shared { group, filter }
    } else if let Some(filter) = text.strip_prefix("$queue/") {
        validate_topic_filter(filter, limits)?;
        FilterKind::Queue { filter }
    } else if let Some(topic) = text.strip_prefix("$exclusive/") {
        if topic.is_empty() || has_wildcards(topic) {
            return Err(TopicError::BadExclusive);
        }
        validate_topic_name(topic, limits)?;
        FilterKind::Exclusive { topic }
    } else if text == "$share" || text == "$queue" || text == "$exclusive" {
        return Err(TopicError::BadShare);
    } else {
        validate_topic_filter(text, limits)?;
        FilterKind::Plain(text)
    };
    Ok(kind)
}
