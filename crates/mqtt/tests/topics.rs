//! Topic names and filters: the matcher against a second implementation, and filters against the rules of
//! validity.

mod invariants;

use invariants::check_topics;
use mqtt::{TopicLimits, filter_matches, validate_topic_filter};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Levels from a small alphabet, so that filters and topics match often.
fn topic() -> impl Strategy<Value = String> {
    vec(select(vec!["a", "b", "", "$SYS", "$share", "ä"]), 1..=5)
        .prop_map(|levels| levels.join("/"))
}

fn filter() -> impl Strategy<Value = String> {
    let level = select(vec![
        "a",
        "b",
        "",
        "+",
        "+",
        "#",
        "$SYS",
        "$share",
        "$queue",
        "$exclusive",
        "a+",
        "#b",
    ]);
    vec(level, 1..=5).prop_map(|levels| levels.join("/"))
}

/// A filter derived from `topic`: some levels become `+`, the rest may become `#`.
fn filter_for(topic: &str, plus: &[bool], hash_at: Option<usize>) -> String {
    let levels = topic.split('/').enumerate();
    let mut levels: Vec<&str> = levels
        .map(|(at, level)| {
            if plus.get(at) == Some(&true) {
                "+"
            } else {
                level
            }
        })
        .collect();
    if let Some(at) = hash_at {
        levels.truncate(at);
        levels.push("#");
    }
    levels.join("/")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn both_matchers_agree(filter in filter(), topic in topic()) {
        check_topics(&format!("{filter}\n{topic}"));
    }

    #[test]
    fn a_filter_made_from_a_topic_matches_it(
        topic in topic(),
        plus in vec(any::<bool>(), 0..=5),
        hash_at in proptest::option::of(0..=5_usize),
    ) {
        prop_assume!(!topic.is_empty());
        let count = topic.split('/').count();
        let filter = filter_for(&topic, &plus, hash_at.filter(|&at| at <= count));
        prop_assert!(validate_topic_filter(&filter, &TopicLimits::NONE).is_ok());
        let is_hidden = topic.starts_with('$') && filter.starts_with(['+', '#']);
        prop_assert_eq!(filter_matches(&filter, &topic), !is_hidden, "{} {}", filter, topic);
        check_topics(&format!("{filter}\n{topic}"));
    }

    #[test]
    fn any_text_is_a_filter_or_is_rejected(text in any::<String>()) {
        check_topics(&text);
    }

    #[test]
    fn any_text_behind_a_prefix(
        prefix in select(vec!["$share/", "$share/g/", "$queue/", "$exclusive/", "$SYS/"]),
        text in any::<String>(),
        filter in filter(),
    ) {
        check_topics(&format!("{prefix}{text}"));
        check_topics(&format!("{prefix}{filter}"));
    }

    /// A filter is valid exactly if each level is valid and `#` occurs only as the last one [MQTT-4.7.1-1,
    /// MQTT-4.7.1-2].
    #[test]
    fn a_filter_is_valid_level_by_level(filter in filter()) {
        let levels: Vec<&str> = filter.split('/').collect();
        let (last, before) = levels.split_last().expect("there is one level at least");
        let is_level = |level: &&str| *level == "+" || !level.contains(['+', '#']);
        let expected = !filter.is_empty() && before.iter().all(is_level) && (is_level(last) || *last == "#");
        let found = validate_topic_filter(&filter, &TopicLimits::NONE);
        prop_assert_eq!(found.is_ok(), expected, "{}: {:?}", filter, found);
    }
}
