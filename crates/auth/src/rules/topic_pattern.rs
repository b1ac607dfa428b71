//! Topic patterns of rules: MQTT topic filters with `${...}` placeholders, or a literal text after `eq `.

use std::borrow::Cow;
use std::sync::Arc;

use mqtt::TopicLimits;

/// Prefix of a literal: `eq a/#` matches only the filter `a/#` itself.
const LITERAL_PREFIX: &str = "eq ";

/// The names and the address of a client, as used by rules.
#[derive(Debug, Clone, Copy, Default)]
pub struct RuleSubject<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub common_name: Option<&'a str>,
    pub address: Option<std::net::IpAddr>,
    /// Attributes assigned by an authenticator, for `${client_attrs.NAME}`.
    pub attributes: &'a [(Box<str>, Box<str>)],
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum RulePlaceholder {
    ClientId,
    Username,
    CommonName,
    Attribute(Box<str>),
}

impl RulePlaceholder {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "clientid" | "client_id" => Self::ClientId,
            "username" => Self::Username,
            "cert_common_name" => Self::CommonName,
            _ => Self::Attribute(name.strip_prefix("client_attrs.")?.into()),
        })
    }

    fn value_for<'a>(&self, who: &RuleSubject<'a>) -> Option<&'a str> {
        match self {
            Self::ClientId => Some(who.client_id),
            Self::Username => who.username,
            Self::CommonName => who.common_name,
            Self::Attribute(name) => {
                let mut attributes = who.attributes.iter();
                let found = attributes.find(|(known, _)| known == name);
                found.map(|(_, value)| &**value)
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PatternPart {
    Text(Box<str>),
    Placeholder(RulePlaceholder),
}

/// A topic pattern as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPattern {
    is_literal: bool,
    text: PatternText,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PatternText {
    Constant(Arc<str>),
    PerClient(Box<[PatternPart]>),
}

impl TopicPattern {
    /// Parses a pattern; the error describes what is invalid.
    pub fn parse(written: &str) -> Result<Self, String> {
        let (is_literal, text) = match written.strip_prefix(LITERAL_PREFIX) {
            Some(text) => (true, text),
            None => (false, written),
        };
        let parts = parse_parts(text)?;
        // Validate with a one-letter sample in place of each placeholder.
        let sample: String = parts
            .iter()
            .map(|part| match part {
                PatternPart::Text(text) => text,
                PatternPart::Placeholder(_) => "x",
            })
            .collect();
        mqtt::parse_filter(&sample, &TopicLimits::NONE)
            .map_err(|error| format!("{written:?} is not a topic filter: {error}"))?;
        let is_same = parts
            .iter()
            .all(|part| matches!(part, PatternPart::Text(_)));
        let text = match is_same {
            true => PatternText::Constant(text.into()),
            false => PatternText::PerClient(parts.into()),
        };
        Ok(Self { is_literal, text })
    }

    /// Whether the pattern is the same for every client.
    pub(crate) fn is_client_independent(&self) -> bool {
        matches!(self.text, PatternText::Constant(_))
    }

    /// Fills in the names of one client. `None` if a name is missing, or contains a separator or wildcard; the rule
    /// then matches nothing for this client.
    pub(crate) fn resolve(&self, who: &RuleSubject<'_>) -> Option<SubjectTopics> {
        let text = match &self.text {
            PatternText::Constant(text) => text.clone(),
            PatternText::PerClient(parts) => {
                let mut text = String::new();
                for part in parts {
                    match part {
                        PatternPart::Text(part) => text.push_str(part),
                        PatternPart::Placeholder(placeholder) => {
                            let value = placeholder.value_for(who)?;
                            if value.is_empty() || value.contains(['/', '+', '#', '\0']) {
                                return None;
                            }
                            text.push_str(value);
                        }
                    }
                }
                text.into()
            }
        };
        Some(match self.is_literal {
            true => SubjectTopics::Literal(text),
            false => SubjectTopics::from_filter(text),
        })
    }
}

fn parse_parts(text: &str) -> Result<Vec<PatternPart>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, behind) = after
            .split_once('}')
            .ok_or_else(|| format!("{text:?}: a ${{ without its }}"))?;
        let placeholder = RulePlaceholder::from_name(name).ok_or_else(|| {
            format!(
                "{text:?}: unknown placeholder ${{{name}}}; there are ${{clientid}}, ${{username}}, \
                 ${{cert_common_name}} and ${{client_attrs.NAME}}"
            )
        })?;
        if !before.is_empty() {
            parts.push(PatternPart::Text(before.into()));
        }
        parts.push(PatternPart::Placeholder(placeholder));
        rest = behind;
    }
    if !rest.is_empty() || parts.is_empty() {
        parts.push(PatternPart::Text(rest.into()));
    }
    Ok(parts)
}

/// The topics of a rule, resolved for one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SubjectTopics {
    /// Every topic, including those that begin with `$`.
    All,
    /// `#`: every topic that does not begin with `$`.
    AllButSpecial,
    /// Topics that begin with the text (`a/b/` for `a/b/#`), or equal it without the final slash.
    Subtree(Arc<str>),
    /// A filter with wildcards elsewhere, and the length of its text before the first wildcard.
    Filter(Arc<str>, u32),
    /// One topic.
    Exact(Arc<str>),
    /// Exactly this topic or filter.
    Literal(Arc<str>),
}

impl SubjectTopics {
    fn from_filter(filter: Arc<str>) -> Self {
        match filter.find(['+', '#']) {
            None => Self::Exact(filter),
            Some(0) if filter.starts_with('#') => Self::AllButSpecial,
            Some(at) if filter.as_bytes()[at] == b'#' => Self::Subtree(filter[..at].into()),
            Some(at) => Self::Filter(filter, at as u32),
        }
    }

    /// Whether a message to this topic matches.
    #[inline]
    pub(crate) fn matches_topic(&self, topic: &str) -> bool {
        match self {
            Self::All => true,
            Self::AllButSpecial => !topic.starts_with('$'),
            Self::Subtree(front) => {
                topic.starts_with(&**front)
                    || topic.len() + 1 == front.len() && front.starts_with(topic)
            }
            Self::Filter(filter, 0) => mqtt::filter_matches(filter, topic),
            Self::Filter(filter, literal) => {
                let (front, rest) = filter.split_at(*literal as usize);
                topic
                    .strip_prefix(front)
                    .is_some_and(|topic| remainder_matches(rest, topic))
            }
            Self::Exact(text) | Self::Literal(text) => **text == *topic,
        }
    }

    /// Whether the topics include every topic that a subscription filter matches.
    pub(crate) fn covers_filter(&self, filter: &str) -> bool {
        match self {
            Self::All => true,
            Self::AllButSpecial => !filter.starts_with('$'),
            Self::Subtree(front) => filter_covers(&format!("{front}#"), filter),
            Self::Filter(own, _) | Self::Exact(own) => filter_covers(own, filter),
            Self::Literal(text) => **text == *filter,
        }
    }

    /// Whether the topics include any topic that a subscription filter matches.
    pub(crate) fn overlaps_filter(&self, filter: &str) -> bool {
        match self {
            Self::All => true,
            Self::AllButSpecial => !filter.starts_with('$'),
            Self::Subtree(front) => filters_overlap(&format!("{front}#"), filter),
            Self::Filter(own, _) | Self::Exact(own) => filters_overlap(own, filter),
            Self::Literal(text) => **text == *filter,
        }
    }

    /// The first level of the topics, if it is constant.
    pub(crate) fn first_level(&self) -> Option<&str> {
        match self {
            Self::All | Self::AllButSpecial | Self::Filter(_, 0) => None,
            Self::Subtree(text)
            | Self::Filter(text, _)
            | Self::Exact(text)
            | Self::Literal(text) => mqtt::levels(text).next(),
        }
    }
}

/// Like [`mqtt::filter_matches`], for the remainder after a common prefix, which is not the beginning of a topic.
fn remainder_matches(mut filter: &str, mut topic: &str) -> bool {
    let level = |text: &str| text.bytes().position(|byte| byte == b'/');
    loop {
        if filter.starts_with('#') {
            return true;
        }
        let (filter_end, topic_end) = (level(filter), level(topic));
        let own = &filter[..filter_end.unwrap_or(filter.len())];
        if own != "+" && *own != topic[..topic_end.unwrap_or(topic.len())] {
            return false;
        }
        match (filter_end, topic_end) {
            (None, None) => return true,
            (Some(a), Some(b)) => (filter, topic) = (&filter[a + 1..], &topic[b + 1..]),
            // `#` also matches the parent level.
            (Some(a), None) => return &filter[a + 1..] == "#",
            (None, Some(_)) => return false,
        }
    }
}

/// The topic filter of a subscription without `$share/`, `$queue/` or `$exclusive/`.
pub(crate) fn without_subscription_prefix(filter: &str) -> Cow<'_, str> {
    use mqtt::SubscriptionFilter::{Exclusive, Plain, Queue, Shared};
    match mqtt::parse_filter(filter, &TopicLimits::NONE) {
        Ok(Plain(inner) | Shared { filter: inner, .. } | Queue { filter: inner }) => inner.into(),
        Ok(Exclusive { topic }) => topic.into(),
        // The broker has already rejected an invalid filter.
        Err(_) => filter.into(),
    }
}

/// A wildcard in the first level does not match levels that begin with `$` [MQTT-4.7.2-1].
fn is_special_topic_hidden(special: &str, filter: &str) -> bool {
    special.starts_with('$') && filter.starts_with(['+', '#'])
}

/// Whether every topic that matches `filter` matches `pattern`.
fn filter_covers(pattern: &str, filter: &str) -> bool {
    if is_special_topic_hidden(filter, pattern) {
        return false;
    }
    let (mut patterns, mut filters) = (mqtt::levels(pattern), mqtt::levels(filter));
    loop {
        match (patterns.next(), filters.next()) {
            (Some("#"), _) | (None, None) => return true,
            (_, Some("#")) | (Some(_), None) | (None, Some(_)) => return false,
            (Some("+"), Some(_)) => {}
            (Some(own), Some(other)) if own == other => {}
            _ => return false,
        }
    }
}

/// Whether any topic matches both filters.
fn filters_overlap(a: &str, b: &str) -> bool {
    if is_special_topic_hidden(a, b) || is_special_topic_hidden(b, a) {
        return false;
    }
    let (mut a, mut b) = (mqtt::levels(a), mqtt::levels(b));
    loop {
        match (a.next(), b.next()) {
            (Some("#"), _) | (_, Some("#")) | (None, None) => return true,
            (None, Some(_)) | (Some(_), None) => return false,
            (Some("+"), Some(_)) | (Some(_), Some("+")) => {}
            (Some(one), Some(other)) if one == other => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ann() -> RuleSubject<'static> {
        RuleSubject {
            client_id: "c1",
            username: Some("ann"),
            ..RuleSubject::default()
        }
    }

    fn topics(pattern: &str) -> Option<SubjectTopics> {
        TopicPattern::parse(pattern).unwrap().resolve(&ann())
    }

    #[test]
    fn placeholders_become_the_names_of_the_client() {
        let one = |text: &str| Some(SubjectTopics::Exact(text.into()));
        assert_eq!(
            topics("d/${clientid}/#"),
            Some(SubjectTopics::Subtree("d/c1/".into()))
        );
        assert_eq!(topics("${username}-${clientid}"), one("ann-c1"));
        assert_eq!(topics("d/${cert_common_name}"), None);
        assert_eq!(topics("d/${client_attrs.site}"), None);
    }

    #[test]
    fn a_name_that_would_widen_a_pattern_matches_nothing() {
        for name in ["", "#", "+", "a/b", "a+"] {
            let who = RuleSubject {
                client_id: name,
                ..RuleSubject::default()
            };
            let pattern = TopicPattern::parse("d/${clientid}/x").unwrap();
            assert_eq!(pattern.resolve(&who), None, "{name:?}");
        }
    }

    #[test]
    fn a_literal_matches_exactly_its_text() {
        let literal = topics("eq a/#").unwrap();
        assert!(literal.covers_filter("a/#"));
        assert!(!literal.covers_filter("a/b"));
        assert!(!literal.matches_topic("a/b"));
    }

    #[test]
    fn wildcards_do_not_reach_topics_of_the_broker() {
        let all = topics("#").unwrap();
        assert!(!all.matches_topic("$SYS/x"));
        assert!(!all.covers_filter("$SYS/#"));
        assert!(all.covers_filter("+/x"));
        assert!(!topics("$SYS/#").unwrap().overlaps_filter("#"));
        assert!(topics("$SYS/#").unwrap().covers_filter("$SYS/brokers/+"));
        assert!(SubjectTopics::All.covers_filter("$SYS/#"));
    }

    #[test]
    fn covering_and_overlapping_filters() {
        for (pattern, filter, covers_it, overlaps_it) in [
            ("a/#", "a", true, true),
            ("a/#", "a/b/#", true, true),
            ("a/+", "a/#", false, true),
            ("a/+", "a/b", true, true),
            ("a/+/c", "a/b/+", false, true),
            ("a", "a/#", false, true),
            ("a/b", "a/c", false, false),
            ("+/+", "a/b/c", false, false),
            ("secret/#", "#", false, true),
        ] {
            let topics = topics(pattern).unwrap();
            assert_eq!(
                topics.covers_filter(filter),
                covers_it,
                "{pattern} {filter}"
            );
            assert_eq!(
                topics.overlaps_filter(filter),
                overlaps_it,
                "{pattern} {filter}"
            );
        }
    }

    #[test]
    fn errors_are_reported() {
        for (pattern, expected) in [
            ("a/#/b", "is not a topic filter"),
            ("", "is not a topic filter"),
            ("a/${user}", "unknown placeholder ${user}"),
            ("a/${clientid", "a ${ without its }"),
        ] {
            let message = TopicPattern::parse(pattern).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn the_kind_of_a_subscription_is_not_part_of_its_topics() {
        assert_eq!(without_subscription_prefix("$share/g/a/#"), "a/#");
        assert_eq!(without_subscription_prefix("$queue/a"), "a");
        assert_eq!(without_subscription_prefix("$exclusive/a"), "a");
        assert_eq!(without_subscription_prefix("a/+"), "a/+");
    }

    fn level() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("a".to_owned()),
            Just("b".to_owned()),
            Just("+".to_owned())
        ]
    }

    fn filter() -> impl Strategy<Value = String> {
        (proptest::collection::vec(level(), 1..4), any::<bool>()).prop_map(|(mut levels, hash)| {
            if hash {
                levels.push("#".to_owned());
            }
            levels.join("/")
        })
    }

    fn topic() -> impl Strategy<Value = String> {
        let name = prop_oneof![Just("a"), Just("b"), Just("c"), Just(""), Just("$a")];
        proptest::collection::vec(name, 1..6).prop_map(|levels| levels.join("/"))
    }

    proptest! {
        #[test]
        fn covering_and_overlapping_agree_with_matching(a in filter(), b in filter(), t in topic()) {
            let in_a = mqtt::filter_matches(&a, &t);
            let in_b = mqtt::filter_matches(&b, &t);
            if filter_covers(&a, &b) && in_b {
                prop_assert!(in_a);
            }
            let topics = TopicPattern::parse(&a).unwrap().resolve(&ann()).unwrap();
            prop_assert_eq!(topics.matches_topic(&t), in_a, "{} {}", a, t);
            if in_a && in_b {
                prop_assert!(filters_overlap(&a, &b) && filters_overlap(&b, &a));
            }
            if filter_covers(&a, &b) {
                prop_assert!(filters_overlap(&a, &b));
            }
        }
    }
}
