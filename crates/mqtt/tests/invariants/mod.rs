//! Invariants for arbitrary bytes and texts from property tests, the fuzzer or a seed corpus.
#![allow(dead_code, reason = "each user of this module needs a part of it")]

use mqtt::{
    Direction, Frame, Packet, Properties, PropertiesBuf, SubscriptionFilter, TopicLimits, Version,
    filter_matches, frame_len, has_wildcards, levels, parse_filter, split_frame,
    validate_topic_filter, validate_topic_name,
};

pub(crate) const VERSIONS: [Version; 3] = [Version::V31, Version::V311, Version::V5];

const MAX_PACKET_BYTES: u32 = 1 << 20;

/// Interprets `data` as a version (one byte) and the stream of bytes sent by `direction`.
pub(crate) fn check_stream(data: &[u8], direction: Direction) {
    let Some((version, mut rest)) = data.split_first() else {
        return;
    };
    let version = VERSIONS[usize::from(*version) % VERSIONS.len()];
    while let Some(frame) = next_frame(rest) {
        rest = &rest[frame.len..];
        if let Ok(packet) = Packet::decode(frame, version, direction) {
            check_packet(&packet, frame, version, direction);
        }
    }
}

/// The next frame; its length is checked against `frame_len`.
fn next_frame(bytes: &[u8]) -> Option<Frame<'_>> {
    let found = split_frame(bytes, MAX_PACKET_BYTES);
    match (frame_len(bytes), found) {
        (Ok(Some(len)), Ok(Some(frame))) => {
            assert_eq!(frame.len, len);
            assert_eq!(frame.first_byte, bytes[0]);
            assert!(bytes[..len].ends_with(frame.body));
            Some(frame)
        }
        (Ok(Some(len)), Ok(None)) => {
            assert!(len > bytes.len());
            None
        }
        (Ok(Some(len)), Err(_)) => {
            assert!(len > MAX_PACKET_BYTES as usize);
            None
        }
        (Ok(None), Ok(None)) | (Err(_), Err(_)) => None,
        (len, frame) => panic!("frame_len says {len:?}, split_frame {frame:?}"),
    }
}

/// A decoded packet can be encoded in at most as many bytes, and decodes to the same packet again.
pub(crate) fn check_packet(
    packet: &Packet<'_>,
    frame: Frame<'_>,
    version: Version,
    direction: Direction,
) {
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes);
    assert!(bytes.len() <= frame.len, "{packet:?} grew");
    let again = split_frame(&bytes, u32::MAX).expect("its header is valid");
    let again = again.expect("it is whole");
    assert_eq!(again.len, bytes.len());
    let again = Packet::decode(again, version, direction).expect("it is valid");
    assert_eq!(again, *packet);
    assert_eq!(again.packet_type() as u8, bytes[0] >> 4);
    let mut twice = Vec::new();
    again.encode(version, &mut twice);
    assert_eq!(twice, bytes, "it is written in one way only");
    check_prefixes(&bytes);
    check_properties(properties_of(packet));
    let _ = format!("{packet:?}");
}

/// Every prefix of a packet is incomplete, never an error and never another packet.
pub(crate) fn check_prefixes(packet: &[u8]) {
    for len in 0..packet.len() {
        assert_eq!(split_frame(&packet[..len], u32::MAX), Ok(None), "{len}");
        assert!(frame_len(&packet[..len]).is_ok());
    }
}

fn properties_of<'a>(packet: &Packet<'a>) -> Properties<'a> {
    match packet {
        Packet::Connect(packet) => packet.properties,
        Packet::ConnAck(packet) => packet.properties,
        Packet::Publish(packet) => packet.properties,
        Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack) => {
            ack.properties
        }
        Packet::Subscribe(packet) => packet.properties,
        Packet::SubAck(packet) => packet.properties,
        Packet::Unsubscribe(packet) => packet.properties,
        Packet::UnsubAck(packet) => packet.properties,
        Packet::Disconnect(packet) => packet.properties,
        Packet::Auth(packet) => packet.properties,
        Packet::PingReq | Packet::PingResp => Properties::EMPTY,
    }
}

/// The spans cover the list without gaps, and re-encoding the properties yields the same bytes.
fn check_properties(properties: Properties<'_>) {
    let bytes = properties.as_bytes();
    let mut again = PropertiesBuf::new();
    let mut at = 0;
    for (span, property) in properties.spans() {
        assert_eq!(span.start, at);
        at = span.end;
        again.push(property);
    }
    assert_eq!(at, bytes.len());
    assert_eq!(again.as_properties(), properties);
}

/// Interprets `text` as a filter, a line feed and a topic.
pub(crate) fn check_topics(text: &str) {
    let (filter, topic) = text.split_once('\n').unwrap_or((text, text));
    let tight = TopicLimits {
        max_bytes: 16,
        max_levels: 4,
    };
    check_filter(filter, &tight);
    let is_filter = check_filter(filter, &TopicLimits::NONE);
    let is_name = validate_topic_name(topic, &TopicLimits::NONE).is_ok();
    if is_filter && is_name {
        let expected = matches_recursively(filter, topic);
        assert_eq!(
            filter_matches(filter, topic),
            expected,
            "{filter:?} {topic:?}"
        );
        if !has_wildcards(filter) {
            assert_eq!(filter_matches(filter, topic), filter == topic);
        }
        // A topic name is also a filter, which matches only this name.
        assert!(filter_matches(topic, topic));
    }
}

/// Whether `filter` is a valid filter without a prefix.
fn check_filter(filter: &str, limits: &TopicLimits) -> bool {
    let found = validate_topic_filter(filter, limits);
    let name = validate_topic_name(filter, limits);
    if found.is_ok() {
        assert!(filter.len() <= usize::from(limits.max_bytes));
        assert!(levels(filter).count() <= usize::from(limits.max_levels));
        assert_eq!(name.is_ok(), !has_wildcards(filter));
    } else {
        assert!(name.is_err());
    }
    for error in [found.err(), name.err()].into_iter().flatten() {
        assert!(!error.to_string().is_empty());
    }
    match parse_filter(filter, limits) {
        Ok(SubscriptionFilter::Plain(plain)) => assert_eq!(plain, filter),
        Ok(SubscriptionFilter::Shared {
            group,
            filter: inner,
        }) => {
            assert_eq!(format!("$share/{group}/{inner}"), filter);
            assert!(!group.is_empty() && !group.contains(['/', '+', '#', '\0']));
            assert!(validate_topic_filter(inner, limits).is_ok());
        }
        Ok(SubscriptionFilter::Queue { filter: inner }) => {
            assert_eq!(format!("$queue/{inner}"), filter);
            assert!(validate_topic_filter(inner, limits).is_ok());
        }
        Ok(SubscriptionFilter::Exclusive { topic }) => {
            assert_eq!(format!("$exclusive/{topic}"), filter);
            assert!(validate_topic_name(topic, limits).is_ok());
        }
        Err(error) => assert!(
            found.is_err() || filter.starts_with('$'),
            "{filter:?}: {error}"
        ),
    }
    found.is_ok()
}

/// A second matching algorithm: recursive, level by level, on slices.
fn matches_recursively(filter: &str, topic: &str) -> bool {
    fn rest(filter: &[&str], topic: &[&str]) -> bool {
        match (filter, topic) {
            (["#"], _) | ([], []) => true,
            (["+", filter @ ..], [_, topic @ ..]) => rest(filter, topic),
            ([level, filter @ ..], [name, topic @ ..]) => level == name && rest(filter, topic),
            _ => false,
        }
    }
    let filter: Vec<&str> = filter.split('/').collect();
    let topic: Vec<&str> = topic.split('/').collect();
    let is_hidden = topic[0].starts_with('$') && matches!(filter[0], "+" | "#");
    !is_hidden && rest(&filter, &topic)
}
