//! Topic names and topic filters (MQTT 5.0 section 4.7), and the filter prefixes of this broker.

use std::fmt;

/// Limits of the length and depth of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicLimits {
    pub max_bytes: u16,
    pub max_levels: u16,
}

impl TopicLimits {
    /// The limits of the protocol itself.
    pub const NONE: Self = Self {
        max_bytes: u16::MAX,
        max_levels: u16::MAX,
    };
}

/// Why a topic name or filter is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicError {
    Empty,
    TooLong {
        max_bytes: u16,
    },
    TooDeep {
        max_levels: u16,
    },
    ContainsNul,
    WildcardInName,
    /// `+` must be a whole level.
    PlusInLevel,
    /// `#` must be the whole last level.
    HashNotLast,
    /// `$share/{group}/{filter}` lacks a part, or the group contains a wildcard.
    InvalidShare,
    /// `$queue/{filter}` without a filter.
    InvalidQueue,
    /// `$exclusive/{topic}` contains a wildcard, or lacks the topic.
    InvalidExclusive,
}

impl fmt::Display for TopicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopicError::Empty => f.write_str("a topic has at least one character [MQTT-4.7.3-1]"),
            TopicError::TooLong { max_bytes } => write!(f, "longer than {max_bytes} bytes"),
            TopicError::TooDeep { max_levels } => write!(f, "more than {max_levels} levels"),
            TopicError::ContainsNul => f.write_str("U+0000 is not allowed [MQTT-4.7.3-2]"),
            TopicError::WildcardInName => {
                f.write_str("a topic name has no wildcards [MQTT-3.3.2-2]")
            }
            TopicError::PlusInLevel => f.write_str("'+' must be a whole level [MQTT-4.7.1-2]"),
            TopicError::HashNotLast => {
                f.write_str("'#' must be the whole last level [MQTT-4.7.1-1]")
            }
            TopicError::InvalidShare => f.write_str(
                "expected $share/{group}/{filter}, no wildcard in the group [MQTT-4.8.2-1, MQTT-4.8.2-2]",
            ),
            TopicError::InvalidQueue => f.write_str("expected $queue/{filter}"),
            TopicError::InvalidExclusive => {
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
        return Err(TopicError::ContainsNul);
    }
    Ok(())
}

/// Checks that `topic` is a valid topic name.
pub fn validate_topic_name(topic: &str, limits: &TopicLimits) -> Result<(), TopicError> {
    check_size(topic, limits)?;
    if has_wildcards(topic) {
        Err(TopicError::WildcardInName)
    } else {
        Ok(())
    }
}

/// Checks that `filter` is a valid topic filter without the prefixes of [`parse_filter`].
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

/// The levels of a topic name or filter, including empty ones.
#[inline]
pub fn levels(text: &str) -> std::str::Split<'_, char> {
    text.split('/')
}

/// Whether a topic name matches a topic filter; both must be valid. Compares level by level; routing uses a faster
/// structure.
pub fn filter_matches(filter: &str, topic: &str) -> bool {
    // [MQTT-4.7.2-1]
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
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

/// A topic filter of a SUBSCRIBE packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubscriptionFilter<'a> {
    Plain(&'a str),
    /// `$share/{group}/{filter}` (MQTT 5.0 section 4.8.2).
    Shared {
        group: &'a str,
        filter: &'a str,
    },
    /// `$queue/{filter}`: one unnamed group per filter.
    Queue {
        filter: &'a str,
    },
    /// `$exclusive/{topic}`: one subscriber at a time.
    Exclusive {
        topic: &'a str,
    },
}

/// Parses and validates a filter of SUBSCRIBE. `limits` apply to the part without the prefix.
pub fn parse_filter<'a>(
    text: &'a str,
    limits: &TopicLimits,
) -> Result<SubscriptionFilter<'a>, TopicError> {
    let kind = if let Some(rest) = text.strip_prefix("$share/") {
        let (group, filter) = rest.split_once('/').ok_or(TopicError::InvalidShare)?;
        if group.is_empty() || has_wildcards(group) || filter.is_empty() {
            return Err(TopicError::InvalidShare);
        }
        check_size(group, limits)?;
        validate_topic_filter(filter, limits)?;
        SubscriptionFilter::Shared { group, filter }
    } else if let Some(filter) = text.strip_prefix("$queue/") {
        if filter.is_empty() {
            return Err(TopicError::InvalidQueue);
        }
        validate_topic_filter(filter, limits)?;
        SubscriptionFilter::Queue { filter }
    } else if let Some(topic) = text.strip_prefix("$exclusive/") {
        if topic.is_empty() || has_wildcards(topic) {
            return Err(TopicError::InvalidExclusive);
        }
        validate_topic_name(topic, limits)?;
        SubscriptionFilter::Exclusive { topic }
    } else if text == "$share" {
        return Err(TopicError::InvalidShare);
    } else if text == "$exclusive" {
        return Err(TopicError::InvalidExclusive);
    } else if text == "$queue" {
        return Err(TopicError::InvalidQueue);
    } else {
        validate_topic_filter(text, limits)?;
        SubscriptionFilter::Plain(text)
    };
    Ok(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: TopicLimits = TopicLimits::NONE;

    #[test]
    fn mqtt_4_7_1_1_hash_is_the_whole_last_level() {
        for filter in ["#", "/#", "a/#", "a//#", "+/#", "$SYS/#"] {
            assert_eq!(validate_topic_filter(filter, &NONE), Ok(()), "{filter}");
        }
        for filter in [
            "a#", "#a", "#/a", "a/#/b", "##", "a/##", "#/", "a/#/", "a/b#",
        ] {
            let found = validate_topic_filter(filter, &NONE);
            assert_eq!(found, Err(TopicError::HashNotLast), "{filter}");
        }
    }

    #[test]
    fn mqtt_4_7_1_2_plus_is_a_whole_level() {
        for filter in ["+", "/+", "+/", "a/+/b", "+/+/+", "$SYS/+"] {
            assert_eq!(validate_topic_filter(filter, &NONE), Ok(()), "{filter}");
        }
        for filter in ["a+", "+a", "++", "a/b+/c", "a/+b"] {
            let found = validate_topic_filter(filter, &NONE);
            assert_eq!(found, Err(TopicError::PlusInLevel), "{filter}");
        }
    }

    #[test]
    fn mqtt_4_7_0_1_a_topic_name_has_no_wildcards() {
        for topic in ["#", "+", "a/+", "a#b"] {
            let found = validate_topic_name(topic, &NONE);
            assert_eq!(found, Err(TopicError::WildcardInName), "{topic}");
        }
        for topic in ["a", "/", "//", "a/b", "$SYS/a", " ", "ä/\u{10ffff}"] {
            assert_eq!(validate_topic_name(topic, &NONE), Ok(()), "{topic}");
            assert_eq!(validate_topic_filter(topic, &NONE), Ok(()), "{topic}");
        }
    }

    #[test]
    fn mqtt_4_7_2_1_a_wildcard_in_front_does_not_match_dollar_topics() {
        for filter in ["#", "+/monitor/Clients", "+/#", "+/+/+"] {
            assert!(!filter_matches(filter, "$SYS/monitor/Clients"), "{filter}");
        }
        for filter in ["$SYS/#", "$SYS/monitor/+", "$SYS/+/Clients"] {
            assert!(filter_matches(filter, "$SYS/monitor/Clients"), "{filter}");
        }
        // A dollar sign in a later position has no special meaning.
        assert!(filter_matches("+/$a", "b/$a") && filter_matches("#", "b/$a"));
    }

    #[test]
    fn mqtt_4_7_3_1_and_2_and_3_topics_have_1_to_65_535_bytes_without_nul() {
        assert_eq!(validate_topic_name("", &NONE), Err(TopicError::Empty));
        assert_eq!(validate_topic_filter("", &NONE), Err(TopicError::Empty));
        assert_eq!(
            validate_topic_name("a\0", &NONE),
            Err(TopicError::ContainsNul)
        );
        assert_eq!(
            validate_topic_filter("\0/#", &NONE),
            Err(TopicError::ContainsNul)
        );
        let longest = "a".repeat(65_535);
        assert_eq!(validate_topic_name(&longest, &NONE), Ok(()));
        let found = validate_topic_name(&(longest + "a"), &NONE);
        assert_eq!(found, Err(TopicError::TooLong { max_bytes: 65_535 }));
    }

    #[test]
    fn limits_count_bytes_and_levels() {
        let limits = TopicLimits {
            max_bytes: 5,
            max_levels: 3,
        };
        assert_eq!(validate_topic_name("a/b/c", &limits), Ok(()));
        assert_eq!(
            validate_topic_name("ab/cde", &limits),
            Err(TopicError::TooLong { max_bytes: 5 })
        );
        assert_eq!(
            validate_topic_name("///", &limits),
            Err(TopicError::TooDeep { max_levels: 3 })
        );
        assert_eq!(validate_topic_filter("//#", &limits), Ok(()));
        assert_eq!(
            validate_topic_filter("///#", &limits),
            Err(TopicError::TooDeep { max_levels: 3 })
        );
        assert!(parse_filter("$share/group1/a", &limits).is_err());
        assert!(parse_filter("$share/group/a/b/c", &limits).is_ok());
        assert!(parse_filter("$share/g/a/b/c/d", &limits).is_err());
    }

    #[test]
    fn section_4_7_1_the_examples_of_the_specification() {
        for (filter, topic, expected) in [
            ("sport/tennis/player1/#", "sport/tennis/player1", true),
            (
                "sport/tennis/player1/#",
                "sport/tennis/player1/ranking",
                true,
            ),
            (
                "sport/tennis/player1/#",
                "sport/tennis/player1/score/wimbledon",
                true,
            ),
            ("sport/tennis/player1/#", "sport/tennis/player2", false),
            ("sport/#", "sport", true),
            ("sport/tennis/+", "sport/tennis/player1", true),
            ("sport/tennis/+", "sport/tennis/player1/ranking", false),
            ("sport/+", "sport", false),
            ("sport/+", "sport/", true),
            ("+/+", "/finance", true),
            ("/+", "/finance", true),
            ("+", "/finance", false),
            // Section 4.7.3: case, spaces and a leading or trailing separator make topics different.
            ("ACCOUNTS", "Accounts", false),
            ("/A", "A", false),
            ("A", "A/", false),
            // [MQTT-4.7.3-4] no normalisation: a composed letter differs from a letter with a combining accent.
            ("\u{e4}", "a\u{308}", false),
        ] {
            assert_eq!(filter_matches(filter, topic), expected, "{filter} {topic}");
        }
    }

    #[test]
    fn mqtt_4_8_2_1_and_2_a_share_name_and_a_filter() {
        let shared = |group, filter| Ok(SubscriptionFilter::Shared { group, filter });
        assert_eq!(parse_filter("$share/g/a/+", &NONE), shared("g", "a/+"));
        assert_eq!(parse_filter("$share/g//", &NONE), shared("g", "/"));
        assert_eq!(parse_filter("$share/$g/#", &NONE), shared("$g", "#"));
        for bad in [
            "$share",
            "$share/",
            "$share/g",
            "$share/g/",
            "$share//a",
            "$share/+/a",
            "$share/g#/a",
        ] {
            assert_eq!(
                parse_filter(bad, &NONE),
                Err(TopicError::InvalidShare),
                "{bad}"
            );
        }
        assert_eq!(
            parse_filter("$share/g/a+", &NONE),
            Err(TopicError::PlusInLevel)
        );
        assert_eq!(
            parse_filter("$share/g\0/a", &NONE),
            Err(TopicError::ContainsNul)
        );
        // Matching is case-sensitive, and a longer first level is a different one.
        assert_eq!(
            parse_filter("$Share/g/a", &NONE),
            Ok(SubscriptionFilter::Plain("$Share/g/a"))
        );
        assert_eq!(
            parse_filter("$shared/g/a", &NONE),
            Ok(SubscriptionFilter::Plain("$shared/g/a"))
        );
    }

    #[test]
    fn queue_and_exclusive_filters() {
        assert_eq!(
            parse_filter("$queue/a/#", &NONE),
            Ok(SubscriptionFilter::Queue { filter: "a/#" })
        );
        assert_eq!(
            parse_filter("$exclusive/a/b", &NONE),
            Ok(SubscriptionFilter::Exclusive { topic: "a/b" })
        );
        for bad in ["$queue", "$queue/"] {
            assert_eq!(
                parse_filter(bad, &NONE),
                Err(TopicError::InvalidQueue),
                "{bad}"
            );
        }
        for bad in [
            "$exclusive",
            "$exclusive/",
            "$exclusive/+",
            "$exclusive/a/#",
        ] {
            assert_eq!(
                parse_filter(bad, &NONE),
                Err(TopicError::InvalidExclusive),
                "{bad}"
            );
        }
    }
}
