//! Which topics a rule speaks of: filters as MQTT has them, with `${...}` for what differs between clients, or a literal
//! text behind `eq `.

use std::borrow::Cow;
use std::sync::Arc;

use mqtt::TopicLimits;

/// Literal instead of a filter: `eq a/#` speaks of the very filter `a/#`.
const LITERAL: &str = "eq ";

/// What a client is called and where it comes from, as rules see it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Who<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub common_name: Option<&'a str>,
    pub address: Option<std::net::IpAddr>,
    /// Further names an authenticator has given the client, for `${client_attrs.NAME}`.
    pub attributes: &'a [(Box<str>, Box<str>)],
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Placeholder {
    ClientId,
    Username,
    CommonName,
    Attribute(Box<str>),
}

impl Placeholder {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "clientid" | "client_id" => Self::ClientId,
            "username" => Self::Username,
            "cert_common_name" => Self::CommonName,
            _ => Self::Attribute(name.strip_prefix("client_attrs.")?.into()),
        })
    }

    fn value<'a>(&self, who: &Who<'a>) -> Option<&'a str> {
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
enum Part {
    Text(Box<str>),
    Placeholder(Placeholder),
}

/// The topics of a rule as they were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPattern {
    is_literal: bool,
    text: Text,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Text {
    Same(Arc<str>),
    PerClient(Box<[Part]>),
}

impl TopicPattern {
    /// Reads a pattern; the error says what is wrong with it.
    pub fn parse(written: &str) -> Result<Self, String> {
        let (is_literal, text) = match written.strip_prefix(LITERAL) {
            Some(text) => (true, text),
            None => (false, written),
        };
        let parts = parts(text)?;
        // A stand-in of one letter where the client's own text will be.
        let sample: String = parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text,
                Part::Placeholder(_) => "x",
            })
            .collect();
        mqtt::parse_filter(&sample, &TopicLimits::NONE)
            .map_err(|error| format!("{written:?} is not a topic filter: {error}"))?;
        let is_same = parts.iter().all(|part| matches!(part, Part::Text(_)));
        let text = match is_same {
            true => Text::Same(text.into()),
            false => Text::PerClient(parts.into()),
        };
        Ok(Self { is_literal, text })
    }

    /// Whether it means the same for every client.
    pub(crate) fn is_same_for_all(&self) -> bool {
        matches!(self.text, Text::Same(_))
    }

    /// The pattern for one client; `None` if it speaks of nothing for this one: a name is missing, or could be taken
    /// for more than one level or for a wildcard.
    pub(crate) fn for_client(&self, who: &Who<'_>) -> Option<Topics> {
        let text = match &self.text {
            Text::Same(text) => text.clone(),
            Text::PerClient(parts) => {
                let mut text = String::new();
                for part in parts {
                    match part {
                        Part::Text(part) => text.push_str(part),
                        Part::Placeholder(placeholder) => {
                            let value = placeholder.value(who)?;
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
            true => Topics::Literal(text),
            false => Topics::of(text),
        })
    }
}

fn parts(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, behind) = after
            .split_once('}')
            .ok_or_else(|| format!("{text:?}: a ${{ without its }}"))?;
        let placeholder = Placeholder::named(name).ok_or_else(|| {
            format!(
                "{text:?}: unknown placeholder ${{{name}}}; there are ${{clientid}}, ${{username}}, \
                 ${{cert_common_name}} and ${{client_attrs.NAME}}"
            )
        })?;
        if !before.is_empty() {
            parts.push(Part::Text(before.into()));
        }
        parts.push(Part::Placeholder(placeholder));
        rest = behind;
    }
    if !rest.is_empty() || parts.is_empty() {
        parts.push(Part::Text(rest.into()));
    }
    Ok(parts)
}

/// The topics of a rule for one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Topics {
    /// Every topic, those that begin with `$` included.
    All,
    /// `#`: every topic that does not begin with `$`.
    AllBut,
    /// Topics that begin with the text (`a/b/` of `a/b/#`), or are it without the slash.
    Below(Arc<str>),
    /// A filter with wildcards elsewhere, and how long it is in front of the first.
    Filter(Arc<str>, u32),
    /// One topic.
    One(Arc<str>),
    /// The topic, or the very filter.
    Literal(Arc<str>),
}

impl Topics {
    fn of(filter: Arc<str>) -> Self {
        match filter.find(['+', '#']) {
            None => Self::One(filter),
            Some(0) if filter.starts_with('#') => Self::AllBut,
            Some(at) if filter.as_bytes()[at] == b'#' => Self::Below(filter[..at].into()),
            Some(at) => Self::Filter(filter, at as u32),
        }
    }

    /// Whether it speaks of a message to this topic.
    #[inline]
    pub(crate) fn has_topic(&self, topic: &str) -> bool {
        match self {
            Self::All => true,
            Self::AllBut => !topic.starts_with('$'),
            Self::Below(front) => {
                topic.starts_with(&**front)
                    || topic.len() + 1 == front.len() && front.starts_with(topic)
            }
            Self::Filter(filter, 0) => mqtt::filter_matches(filter, topic),
            Self::Filter(filter, literal) => {
                let (front, rest) = filter.split_at(*literal as usize);
                topic
                    .strip_prefix(front)
                    .is_some_and(|topic| rest_matches(rest, topic))
            }
            Self::One(text) | Self::Literal(text) => **text == *topic,
        }
    }

    /// Whether every message the filter of a subscription lets through is one it speaks of.
    pub(crate) fn covers(&self, filter: &str) -> bool {
        match self {
            Self::All => true,
            Self::AllBut => !filter.starts_with('$'),
            Self::Below(front) => covers(&format!("{front}#"), filter),
            Self::Filter(own, _) | Self::One(own) => covers(own, filter),
            Self::Literal(text) => **text == *filter,
        }
    }

    /// Whether any message the filter of a subscription lets through is one it speaks of.
    pub(crate) fn overlaps(&self, filter: &str) -> bool {
        match self {
            Self::All => true,
            Self::AllBut => !filter.starts_with('$'),
            Self::Below(front) => overlaps(&format!("{front}#"), filter),
            Self::Filter(own, _) | Self::One(own) => overlaps(own, filter),
            Self::Literal(text) => **text == *filter,
        }
    }

    /// The first level of the topics it speaks of, if that is always the same.
    pub(crate) fn first_level(&self) -> Option<&str> {
        match self {
            Self::All | Self::AllBut | Self::Filter(_, 0) => None,
            Self::Below(text) | Self::Filter(text, _) | Self::One(text) | Self::Literal(text) => {
                mqtt::levels(text).next()
            }
        }
    }
}

/// As [`mqtt::filter_matches`], for what is behind a common beginning, and so not at the beginning of a topic.
fn rest_matches(mut filter: &str, mut topic: &str) -> bool {
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
            // `#` stands for the level above it, too.
            (Some(a), None) => return &filter[a + 1..] == "#",
            (None, Some(_)) => return false,
        }
    }
}

/// The topics a subscription is about, without `$share/`, `$queue/` and `$exclusive/`.
pub(crate) fn subscribed(filter: &str) -> Cow<'_, str> {
    use mqtt::FilterKind::{Exclusive, Plain, Queue, Shared};
    match mqtt::parse_filter(filter, &TopicLimits::NONE) {
        Ok(Plain(inner) | Shared { filter: inner, .. } | Queue { filter: inner }) => inner.into(),
        Ok(Exclusive { topic }) => topic.into(),
        // The broker has refused it before.
        Err(_) => filter.into(),
    }
}

/// Wildcards in the first level do not stand for levels that begin with `$` [MQTT-4.7.2-1].
fn is_hidden_from(special: &str, filter: &str) -> bool {
    special.starts_with('$') && filter.starts_with(['+', '#'])
}

/// Whether every topic that matches `filter` matches `pattern`.
fn covers(pattern: &str, filter: &str) -> bool {
    if is_hidden_from(filter, pattern) {
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

/// Whether there is a topic that matches both.
fn overlaps(a: &str, b: &str) -> bool {
    if is_hidden_from(a, b) || is_hidden_from(b, a) {
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

    fn ann() -> Who<'static> {
        Who {
            client_id: "c1",
            username: Some("ann"),
            ..Who::default()
        }
    }

    fn topics(pattern: &str) -> Option<Topics> {
        TopicPattern::parse(pattern).unwrap().for_client(&ann())
    }

    #[test]
    fn placeholders_become_the_names_of_the_client() {
        let one = |text: &str| Some(Topics::One(text.into()));
        assert_eq!(
            topics("d/${clientid}/#"),
            Some(Topics::Below("d/c1/".into()))
        );
        assert_eq!(topics("${username}-${clientid}"), one("ann-c1"));
        assert_eq!(topics("d/${cert_common_name}"), None);
        assert_eq!(topics("d/${client_attrs.site}"), None);
    }

    #[test]
    fn a_name_that_would_widen_a_pattern_matches_nothing() {
        for name in ["", "#", "+", "a/b", "a+"] {
            let who = Who {
                client_id: name,
                ..Who::default()
            };
            let pattern = TopicPattern::parse("d/${clientid}/x").unwrap();
            assert_eq!(pattern.for_client(&who), None, "{name:?}");
        }
    }

    #[test]
    fn a_literal_speaks_of_that_very_text() {
        let literal = topics("eq a/#").unwrap();
        assert!(literal.covers("a/#"));
        assert!(!literal.covers("a/b"));
        assert!(!literal.has_topic("a/b"));
    }

    #[test]
    fn wildcards_do_not_reach_topics_of_the_broker() {
        let all = topics("#").unwrap();
        assert!(!all.has_topic("$SYS/x"));
        assert!(!all.covers("$SYS/#"));
        assert!(all.covers("+/x"));
        assert!(!topics("$SYS/#").unwrap().overlaps("#"));
        assert!(topics("$SYS/#").unwrap().covers("$SYS/brokers/+"));
        assert!(Topics::All.covers("$SYS/#"));
    }

    #[test]
    fn what_covers_and_what_overlaps() {
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
            assert_eq!(topics.covers(filter), covers_it, "{pattern} {filter}");
            assert_eq!(topics.overlaps(filter), overlaps_it, "{pattern} {filter}");
        }
    }

    #[test]
    fn mistakes_are_told() {
        for (pattern, told) in [
            ("a/#/b", "is not a topic filter"),
            ("", "is not a topic filter"),
            ("a/${user}", "unknown placeholder ${user}"),
            ("a/${clientid", "a ${ without its }"),
        ] {
            let message = TopicPattern::parse(pattern).unwrap_err();
            assert!(message.contains(told), "{message}");
        }
    }

    #[test]
    fn the_kind_of_a_subscription_is_not_part_of_its_topics() {
        assert_eq!(subscribed("$share/g/a/#"), "a/#");
        assert_eq!(subscribed("$queue/a"), "a");
        assert_eq!(subscribed("$exclusive/a"), "a");
        assert_eq!(subscribed("a/+"), "a/+");
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
            if covers(&a, &b) && in_b {
                prop_assert!(in_a);
            }
            let topics = TopicPattern::parse(&a).unwrap().for_client(&ann()).unwrap();
            prop_assert_eq!(topics.has_topic(&t), in_a, "{} {}", a, t);
            if in_a && in_b {
                prop_assert!(overlaps(&a, &b) && overlaps(&b, &a));
            }
            if covers(&a, &b) {
                prop_assert!(overlaps(&a, &b));
            }
        }
    }
}
