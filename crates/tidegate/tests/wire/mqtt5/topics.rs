//! Chapter 4.7, topic names and topic filters.

use super::*;

/// Subscribes to `filter` below a fresh prefix and publishes to each topic below it; those that arrive.
fn matching(filter: &str, topics: &[&str]) -> Vec<String> {
    let base = unique("m/");
    let (mut subscriber, mut publisher) = pair(&format!("{base}/{filter}"));
    let end = unique("end/");
    subscriber.subscribe(&end, 0);
    for topic in topics {
        publisher.publish(&format!("{base}/{topic}"), "x");
    }
    publisher.publish(&end, "end");
    let mut found = Vec::new();
    loop {
        let message = subscriber.recv(kind::PUBLISH);
        if message.topic == end {
            return found;
        }
        found.push(message.topic[base.len() + 1..].to_owned());
    }
}

/// A node for subscriptions to everything; see [`node`].
fn wild_node() -> &'static Node {
    Node::shared_with(&["--shards", "3"])
}

/// Subscribes where what other tests publish may come before the SUBACK.
fn subscribe_amid_traffic(raw: &mut Raw, filter: &str) -> Vec<u8> {
    let options = option::RETAIN_NEVER;
    raw.send(&Subscribe::new(1).filter(filter, options).bytes(5));
    loop {
        let packet = raw.recv_packet();
        if packet.kind == kind::SUBACK {
            return packet.payload;
        }
    }
}

#[test]
fn mqtt5_4_7_0_1_wildcards_are_for_filters_not_for_names() {
    // In names: `mqtt5_3_3_2_2_...` in `publish.rs`. In filters they are wildcards, not characters.
    assert_eq!(matching("+", &["a", "b", "a/b"]), ["a", "b"]);
    assert_eq!(matching("#", &["a", "b", "a/b"]), ["a", "b", "a/b"]);
}

#[test]
fn mqtt5_4_7_1_1_the_multi_level_wildcard_stands_alone_and_last() {
    for filter in ["a/#", "#", "/#", "+/#", "a/+/#"] {
        assert_eq!(
            subscribe_amid_traffic(&mut Raw::client(wild_node(), 5), filter),
            [0],
            "{filter}"
        );
    }
    let mut raw = client();
    for filter in ["a#", "a/#/b", "#/", "##", "a/#b", "#a", "a/b#/c"] {
        let codes = raw.subscribe_for_codes(&Subscribe::new(1).filter(filter, 0));
        assert_eq!(codes, [reason::FILTER_INVALID], "{filter}");
    }
}

#[test]
fn mqtt5_section_4_7_1_2_the_multi_level_wildcard_includes_the_parent() {
    assert_eq!(
        matching(
            "sport/#",
            &["sport", "sport/", "sport/a", "sport/a/b", "sports", "spor"]
        ),
        ["sport", "sport/", "sport/a", "sport/a/b"]
    );
}

#[test]
fn mqtt5_4_7_1_2_the_single_level_wildcard_is_a_whole_level() {
    for filter in ["+", "+/+", "/+", "a/+/b", "+/b/+"] {
        assert_eq!(
            subscribe_amid_traffic(&mut Raw::client(wild_node(), 5), filter),
            [0],
            "{filter}"
        );
    }
    let mut raw = client();
    for filter in ["a+", "+a", "a/b+", "a/+b/c", "++", "+#", "#+"] {
        let codes = raw.subscribe_for_codes(&Subscribe::new(1).filter(filter, 0));
        assert_eq!(codes, [reason::FILTER_INVALID], "{filter}");
    }
}

#[test]
fn mqtt5_section_4_7_1_3_the_single_level_wildcard_matches_one_level() {
    assert_eq!(
        matching("a/+", &["a", "a/", "a/b", "a/b/c", "b/a"]),
        ["a/", "a/b"]
    );
    assert_eq!(
        matching("+/a/+", &["x/a/y", "/a/", "a", "x/a", "x/b/y"]),
        ["x/a/y", "/a/"]
    );
    assert_eq!(
        matching("+/+", &["/x", "x/", "/", "x", "//"]),
        ["/x", "x/", "/"]
    );
}

#[test]
fn mqtt5_4_7_2_1_wildcards_at_the_start_do_not_match_dollar_topics() {
    let name = unique("");
    let topic = format!("$test/{name}");
    let mut publisher = Raw::client(wild_node(), 5);
    let mut exact = Raw::client(wild_node(), 5);
    exact.subscribe(&topic, 0);
    let mut prefix = Raw::client(wild_node(), 5);
    prefix.subscribe(&format!("$test/{name}/#"), 0);
    for filter in [&format!("+/{name}"), "+/+", &format!("+/{name}/#"), "#"] {
        let mut wild = Raw::client(wild_node(), 5);
        assert_eq!(subscribe_amid_traffic(&mut wild, filter), [0]);
        let fence = format!("fence/{name}");
        assert_eq!(subscribe_amid_traffic(&mut wild, &fence), [0]);
        publisher.publish(&topic, "hidden");
        publisher.publish(&fence, "fence");
        exact.recv_message(&topic, "hidden");
        prefix.recv_message(&topic, "hidden");
        loop {
            let message = wild.recv(kind::PUBLISH);
            assert!(!message.topic.starts_with('$'), "{message:?}");
            if message.topic == fence {
                break;
            }
        }
    }
}

#[test]
fn mqtt5_4_7_3_1_names_and_filters_have_at_least_one_character() {
    breaks(&Publish::new("", "x").bytes(5), &[reason::PROTOCOL_ERROR]);
    let mut raw = client();
    let codes = raw.subscribe_for_codes(&Subscribe::new(1).filter("", 0));
    assert_eq!(codes, [reason::FILTER_INVALID]);
    // A slash alone is a name.
    let payload = unique("p");
    let (mut subscriber, mut publisher) = pair("/");
    publisher.publish("/", &payload);
    while subscriber.recv(kind::PUBLISH).text() != payload {}
}

#[test]
fn mqtt5_4_7_3_2_names_and_filters_have_no_null_character() {
    breaks(&Publish::new("a/\0", "x").bytes(5), &[reason::MALFORMED]);
    breaks(
        &Subscribe::new(1).filter("a/\0/#", 0).bytes(5),
        &[reason::MALFORMED],
    );
}

#[test]
fn mqtt5_4_7_3_3_long_names_are_carried_or_rejected_but_never_cut() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    // `limits.max_topic_bytes` is 4096.
    let longest = unique("long/") + &"x".repeat(4096);
    let longest = &longest[..4096];
    let (mut subscriber, mut publisher) = pair(longest);
    publisher.publish(longest, "x");
    subscriber.recv_message(longest, "x");
    for length in [4097, 65535] {
        let too_long = "y".repeat(length);
        let mut raw = client();
        let codes = raw.subscribe_for_codes(&Subscribe::new(1).filter(&too_long, 0));
        assert_eq!(codes, [reason::FILTER_INVALID]);
        raw.send_publish(&Publish::new(&too_long, "x").qos(1, 1));
        let answer = raw.recv_packet();
        assert_eq!(answer.reason, reason::TOPIC_INVALID, "{answer:?}");
    }
}

#[test]
fn mqtt5_4_7_3_4_names_are_not_normalised() {
    let lower = unique("Norm/");
    // Case, composed and decomposed accents, ligatures, slashes and spaces are what they are.
    for (subscribed, others) in [
        ("a", ["A", "a ", " a", "a/"]),
        ("\u{e9}", ["e\u{301}", "e", "\u{c9}", "%C3%A9"]),
        ("\u{fb01}", ["fi", "f", "\u{fb02}", "F"]),
        ("a//b", ["a/b", "a///b", "/a/b", "a/./b"]),
        ("\u{212b}", ["\u{c5}", "A\u{30a}", "\u{e5}", "A"]),
    ] {
        let topic = format!("{lower}/{subscribed}");
        let (mut subscriber, mut publisher) = pair(&topic);
        for other in others {
            publisher.publish(&format!("{lower}/{other}"), "another topic");
        }
        expect_fence(&mut subscriber, &mut publisher, &topic);
    }
}

#[test]
fn mqtt5_section_4_7_1_1_empty_levels_are_levels() {
    assert_eq!(
        matching("/+/", &["/a/", "a/", "/a", "///", "//"]),
        ["/a/", "//"]
    );
    assert_eq!(matching("a//b", &["a//b", "a/b", "a/ /b"]), ["a//b"]);
}
