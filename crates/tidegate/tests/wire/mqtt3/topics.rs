//! Topic names and filters (4.7).

use super::{V311, client, expect_violation, subscriber, topic};
use crate::support::{Publish, Subscribe, kind};

/// `filter` and `name` are below a level of this test's own.
fn expect_match(filter: &str, name: &str, matches: bool) {
    let base = topic();
    let mut raw = subscriber(&format!("{base}/{filter}"), 0);
    let marker = format!("{base}/marker{}", topic());
    raw.subscribe(&marker, 0);
    let name = format!("{base}/{name}");
    raw.publish(&name, "x");
    raw.publish(&marker, "marker");
    if matches {
        raw.recv_message(&name, "x");
    }
    let packet = raw.recv_packet();
    // `#` and `+` match the marker as well; once is enough.
    assert_eq!(packet.topic, marker, "{filter:?} and {name:?}: {packet:?}");
}

#[test]
fn mqtt_4_7_1_1_wildcards_are_for_filters_only() {
    for name in ["+", "#", "a/+", "a/#", "a+"] {
        expect_violation(name, &Publish::new(name, "x").bytes(V311));
    }
}

#[test]
fn mqtt_4_7_1_2_the_multi_level_wildcard_matches_all_levels_below_and_the_parent() {
    for name in ["a", "a/b", "a/b/c", "a/", "a//", "a/b/c/d/e/f/g"] {
        expect_match("a/#", name, true);
    }
    for name in ["b", "ab", "A", "b/a", ""] {
        expect_match("a/#", name, false);
    }
    for name in ["a", "a/b", "", "/"] {
        expect_match("#", name, true);
    }
    let base = topic();
    let mut raw = subscriber(&format!("{base}/#"), 0);
    raw.publish(&base, "parent");
    raw.recv_message(&base, "parent");
}

#[test]
fn mqtt_4_7_1_3_the_single_level_wildcard_matches_one_level() {
    for (filter, name, matches) in [
        ("a/+", "a/b", true),
        ("a/+", "a/", true),
        ("a/+", "a", false),
        ("a/+", "a/b/c", false),
        ("a/+", "a//", false),
        ("+", "a", true),
        ("+", "", true),
        ("+", "a/b", false),
        ("+/b", "a/b", true),
        ("+/b", "/b", true),
        ("+/b", "b", false),
        ("+/+", "/finance", true),
        ("/+", "/finance", true),
        ("+", "/finance", false),
        ("a/+/c", "a/b/c", true),
        ("a/+/c", "a//c", true),
        ("a/+/c", "a/c", false),
        ("a/+/+/d", "a/b/c/d", true),
        ("+/+/#", "a/b", true),
        ("+/+/#", "a/b/c/d", true),
        ("+/+/#", "a", false),
        ("a/+/#", "a/b", true),
        ("a/+/#", "a", false),
    ] {
        expect_match(filter, name, matches);
    }
}

#[test]
fn mqtt_4_7_2_1_filters_that_start_with_a_wildcard_do_not_match_names_that_start_with_a_dollar() {
    let level = topic();
    let mut raw = client();
    let filters = [
        format!("+/{level}"),
        format!("+/{level}/#"),
        format!("+/{level}/+"),
    ];
    let subscribe = filters.iter().fold(Subscribe::new(1), |subscribe, filter| {
        subscribe.filter(filter, 0)
    });
    raw.subscribe_for_codes(&subscribe);
    let mut dollar = subscriber(&format!("$test/{level}/#"), 0);
    let mut publisher = client();
    publisher.publish(&format!("$test/{level}"), "hidden");
    publisher.publish(&format!("$test/{level}/a"), "hidden");
    publisher.publish(&format!("plain/{level}"), "shown");
    assert_eq!(raw.recv(kind::PUBLISH).text(), "shown");
    // A filter that names it matches.
    dollar.recv_message(&format!("$test/{level}"), "hidden");
    dollar.recv_message(&format!("$test/{level}/a"), "hidden");
}

#[test]
fn mqtt_4_7_2_1_the_bare_multi_level_wildcard_does_not_match_names_that_start_with_a_dollar() {
    // This subscriber gets the messages of all other tests too.
    let mut raw = client();
    raw.send(
        &Subscribe::new(1)
            .filter("#", 0)
            .filter("+/#", 0)
            .bytes(V311),
    );
    let level = topic();
    while raw.recv_packet().kind != kind::SUBACK {}
    let mut publisher = client();
    publisher.publish(&format!("$test/{level}"), "hidden");
    publisher.publish(&level, "marker");
    loop {
        let message = raw.recv(kind::PUBLISH);
        assert!(!message.topic.starts_with('$'), "{message:?}");
        if message.topic == level {
            return;
        }
    }
}

#[test]
fn mqtt_4_7_2_1_retained_messages_below_a_dollar_are_hidden_too() {
    let level = topic();
    let mut publisher = client();
    publisher.send_publish(
        &Publish::new(format!("$test/{level}"), "hidden")
            .qos(1, 1)
            .retain(),
    );
    publisher.recv(kind::PUBACK);
    subscriber(&format!("+/{level}"), 0).ping();
    subscriber(&format!("+/{level}/#"), 0).ping();
    subscriber(&format!("$test/{level}"), 0).recv_message(&format!("$test/{level}"), "hidden");
    // Only at the start of the name.
    publisher.send_publish(
        &Publish::new(format!("{level}/$x"), "shown")
            .qos(1, 2)
            .retain(),
    );
    publisher.recv(kind::PUBACK);
    subscriber(&format!("{level}/+"), 0).recv_message(&format!("{level}/$x"), "shown");
    subscriber(&format!("{level}/#"), 0).recv_message(&format!("{level}/$x"), "shown");
}

#[test]
fn mqtt_4_7_3_1_an_empty_topic_name_closes_the_connection() {
    for qos in 0..3 {
        expect_violation(
            "an empty name",
            &Publish::new("", "x").qos(qos, 1).bytes(V311),
        );
    }
}

#[test]
fn mqtt_4_7_3_1_one_character_is_enough() {
    // A level of its own would make it longer, so the slash and its empty levels.
    let mut raw = client();
    raw.subscribe("/", 0);
    raw.publish("/", "slash");
    raw.recv_message("/", "slash");
}

#[test]
fn mqtt_4_7_3_2_the_null_character_closes_the_connection() {
    expect_violation("in a name", &Publish::new("a\0", "x").bytes(V311));
    expect_violation(
        "in a filter",
        &Subscribe::new(1).filter("a\0", 0).bytes(V311),
    );
}

#[test]
fn mqtt_4_7_3_4_names_are_matched_without_normalization() {
    for (filter, name, matches) in [
        ("ACCOUNTS", "Accounts", false),
        ("ACCOUNTS", "ACCOUNTS", true),
        // Composed and decomposed.
        ("\u{e9}", "e\u{301}", false),
        ("e\u{301}", "e\u{301}", true),
        // Compatibility forms, width, final sigma, dotless i.
        ("\u{fb01}", "fi", false),
        ("\u{ff21}", "A", false),
        ("\u{3c3}", "\u{3c2}", false),
        ("\u{131}", "i", false),
        (" a", "a", false),
        ("a ", "a", false),
        ("a/b", "a//b", false),
        ("a", "a/", false),
        ("/a", "a", false),
        ("a/../b", "b", false),
        ("a/./b", "a/b", false),
        ("%41", "A", false),
        ("a\\b", "a/b", false),
        ("a*", "ab", false),
        ("a?", "ab", false),
        ("$x", "$x", true),
        ("\u{feff}a", "a", false),
        ("\u{200b}a", "a", false),
    ] {
        expect_match(filter, name, matches);
    }
}

#[test]
fn mqtt_4_7_levels_up_to_the_limits_are_matched() {
    // limits.max_topic_levels is 128 and limits.max_topic_bytes 4096 unless set.
    let base = topic();
    let deep = base.clone() + &"/a".repeat(126);
    let mut raw = subscriber(&deep, 0);
    raw.publish(&deep, "deep");
    raw.recv_message(&deep, "deep");
    let long = base + &"x".repeat(4000);
    raw.subscribe(&long, 0);
    raw.publish(&long, "long");
    raw.recv_message(&long, "long");
}
