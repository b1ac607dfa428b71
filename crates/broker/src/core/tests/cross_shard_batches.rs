//! Messages in the form in which they cross between shards and nodes.

use bytes::{Bytes, BytesMut};
use hooks::{MessageView, NEVER_MS};
use mqtt::{Properties, PropertiesBuf, Property, QoS};
use proptest::prelude::*;

use crate::core::cross_shard_batch::{
    BatchError, CrossShardBatch, GroupMemberTarget, MessageId, NodeTraffic,
};
use crate::core::outbox::SHARE_FROM_BYTES;

/// How a message is pushed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Crossing {
    Plain,
    ForMember,
    Linked,
    RetainedCopy,
    ForAdopted,
    Identified,
    PublishedAt,
}

const ID: MessageId = MessageId {
    origin: 11,
    seq: 5,
    behind: 4,
};

#[derive(Debug, Clone)]
struct TestMessage {
    crossing: Crossing,
    topic: &'static str,
    client_id: &'static str,
    is_text: bool,
    qos: QoS,
    retain: bool,
    received_ms: u64,
    payload: Vec<u8>,
    number: u32,
}

fn text_property() -> PropertiesBuf {
    let mut properties = PropertiesBuf::new();
    properties.push(Property::PayloadFormatIndicator(1));
    properties
}

impl TestMessage {
    fn push(&self, batch: &mut CrossShardBatch) {
        let properties = text_property();
        let view = MessageView {
            topic: self.topic,
            properties: match self.is_text {
                true => properties.as_properties(),
                false => Properties::from_validated(&[]),
            },
            payload: &self.payload,
            shared_payload: None,
            qos: self.qos,
            retain: self.retain,
            received_ms: self.received_ms,
            expires_ms: NEVER_MS,
            from_client_id: self.client_id,
            from_username: "",
            is_derived: false,
            number: self.number,
        };
        let member = GroupMemberTarget {
            filter: "a/#",
            group: "g",
            nth: 2,
        };
        match self.crossing {
            Crossing::Plain => batch.push(&view, None, None, None),
            Crossing::ForMember => batch.push(&view, Some(member), None, None),
            Crossing::Linked => batch.push(&view, None, Some(7), None),
            Crossing::RetainedCopy => batch.push_retained_copy(&view),
            Crossing::ForAdopted => {
                let (view, id) = (&view, Some(ID));
                batch.push_for_adopted(NodeTraffic { view, id }, "node-2");
            }
            Crossing::Identified => batch.push(&view, None, None, Some(ID)),
            Crossing::PublishedAt => {
                let (view, id) = (&view, None);
                batch.push_published_at(NodeTraffic { view, id }, "node-3");
            }
        }
    }
}

fn message() -> impl Strategy<Value = TestMessage> {
    let crossing = prop_oneof![
        12 => Just(Crossing::Plain),
        1 => Just(Crossing::ForMember),
        1 => Just(Crossing::Linked),
        1 => Just(Crossing::RetainedCopy),
        1 => Just(Crossing::ForAdopted),
        1 => Just(Crossing::Identified),
        1 => Just(Crossing::PublishedAt),
    ];
    let payload = prop_oneof![
        8 => prop::collection::vec(any::<u8>(), 0..20),
        1 => Just(vec![7; SHARE_FROM_BYTES]),
    ];
    let texts = (
        prop_oneof![4 => Just("a/b"), 1 => Just("a/bc")],
        prop_oneof![4 => Just("client"), 1 => Just("")],
        prop::bool::weighted(0.2),
    );
    let flags = (
        prop_oneof![4 => Just(QoS::AtMostOnce), 1 => Just(QoS::ExactlyOnce)],
        prop::bool::weighted(0.1),
        prop_oneof![6 => Just(1000_u64), 1 => Just(1001)],
    );
    (crossing, texts, flags, payload, any::<u32>()).prop_map(
        |(crossing, texts, flags, payload, number)| TestMessage {
            crossing,
            topic: texts.0,
            client_id: texts.1,
            is_text: texts.2,
            qos: flags.0,
            retain: flags.1,
            received_ms: flags.2,
            payload,
            number,
        },
    )
}

/// Compares the content of a batch; `shifted_ms` is the difference between the clocks of the nodes.
fn check(batch: &CrossShardBatch, messages: &[TestMessage], shifted_ms: u64) {
    assert_eq!(batch.iter().count(), messages.len());
    let mut before: Option<&TestMessage> = None;
    for (read, message) in batch.iter().zip(messages) {
        let view = &read.view;
        let properties = text_property();
        let expected_properties = if message.is_text {
            properties.as_properties().as_bytes()
        } else {
            &[]
        };
        let shifted_ms = match message.crossing {
            Crossing::RetainedCopy => 0,
            _ => shifted_ms,
        };
        assert_eq!(view.topic, message.topic);
        assert_eq!(view.from_client_id, message.client_id);
        assert_eq!(view.properties.as_bytes(), expected_properties);
        assert_eq!((view.qos, view.retain), (message.qos, message.retain));
        assert_eq!(view.received_ms, message.received_ms + shifted_ms);
        assert_eq!(view.expires_ms, NEVER_MS);
        assert_eq!(view.payload, message.payload);
        assert_eq!(view.number, message.number);
        let member = read.member.map(|member| (member.filter, member.nth));
        let for_member = message.crossing == Crossing::ForMember;
        assert_eq!(member, for_member.then_some(("a/#", 2)));
        let is_linked = message.crossing == Crossing::Linked;
        assert_eq!(read.link_seq, is_linked.then_some(7));
        let is_copy = message.crossing == Crossing::RetainedCopy;
        assert_eq!(read.is_retained_copy, is_copy);
        let for_adopted = message.crossing == Crossing::ForAdopted;
        assert_eq!(read.adopted_from, for_adopted.then_some("node-2"));
        let is_published_at = message.crossing == Crossing::PublishedAt;
        assert_eq!(read.published_at, is_published_at.then_some("node-3"));
        let is_identified = message.crossing == Crossing::Identified || for_adopted;
        assert_eq!(read.id, is_identified.then_some(ID));
        let is_same = |before: &TestMessage| {
            let all = |it: &TestMessage| {
                let texts = (it.topic, it.client_id, it.is_text);
                (it.crossing, texts, it.qos, it.retain, it.received_ms)
            };
            message.crossing == Crossing::Plain && all(before) == all(message)
        };
        assert_eq!(read.is_repetition, before.is_some_and(is_same));
        before = Some(message);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_read_is_what_was_pushed(messages in prop::collection::vec(message(), 0..30)) {
        let mut batch = CrossShardBatch::default();
        for message in &messages {
            message.push(&mut batch);
        }
        check(&batch, &messages, 0);
        let mut encoded = BytesMut::new();
        batch.encode_into(&mut encoded);
        check(&CrossShardBatch::decode(&encoded, 5).unwrap(), &messages, 5);
        batch.clear();
        if let Some(message) = messages.first() {
            // Nothing is left that it could repeat.
            message.push(&mut batch);
            check(&batch, &messages[..1], 0);
        }
    }
}

#[test]
fn repetitions_are_small() {
    let mut batch = CrossShardBatch::default();
    let message = TestMessage {
        crossing: Crossing::Plain,
        topic: "a/b",
        client_id: "client",
        is_text: true,
        qos: QoS::AtMostOnce,
        retain: false,
        received_ms: 1000,
        payload: vec![1; 64],
        number: 1,
    };
    message.push(&mut batch);
    let first = batch.size();
    message.push(&mut batch);
    assert_eq!(batch.size() - first, 64 + 9);
}

#[test]
fn repetitions_of_nothing_are_rejected() {
    let encoded = |records: &[&[u8]]| {
        let bytes = records.concat();
        let count = records.len() as u32;
        let len = bytes.len() as u32;
        Bytes::from([&count.to_le_bytes()[..], &len.to_le_bytes(), &bytes].concat())
    };
    let repetition: &[u8] = &[3, 0, 0, 0, 0, 9, 0, 0, 0];
    let rejected = |records: &[&[u8]]| CrossShardBatch::decode(&encoded(records), 0).err();
    assert_eq!(rejected(&[repetition]), Some(BatchError::Repetition));
    let mut copy = CrossShardBatch::default();
    let message = TestMessage {
        crossing: Crossing::RetainedCopy,
        topic: "a",
        client_id: "",
        is_text: false,
        qos: QoS::AtMostOnce,
        retain: true,
        received_ms: 1,
        payload: Vec::new(),
        number: 1,
    };
    message.push(&mut copy);
    let copy = copy.into_buffer();
    assert_eq!(rejected(&[&copy, repetition]), Some(BatchError::Repetition));
    let mut plain = CrossShardBatch::default();
    TestMessage {
        crossing: Crossing::Plain,
        ..message
    }
    .push(&mut plain);
    let plain = plain.into_buffer();
    assert_eq!(rejected(&[&plain, repetition]), None);
    let with_flag: &[u8] = &[3 | 1 << 2, 0, 0, 0, 0, 9, 0, 0, 0];
    assert_eq!(rejected(&[&plain, with_flag]), Some(BatchError::Repetition));
    assert_eq!(
        rejected(&[&plain, &repetition[..8]]),
        Some(BatchError::Short)
    );
}

#[test]
fn identities_whose_numbers_are_impossible_are_rejected() {
    let rejected = |seq: u64, behind: u32| {
        let mut batch = CrossShardBatch::default();
        let view = MessageView {
            topic: "a",
            qos: QoS::ExactlyOnce,
            ..MessageView::unknown()
        };
        let origin = 1;
        let id = MessageId {
            origin,
            seq,
            behind,
        };
        batch.push(&view, None, None, Some(id));
        let mut encoded = BytesMut::new();
        batch.encode_into(&mut encoded);
        CrossShardBatch::decode(&encoded, 0).err()
    };
    assert_eq!(rejected(5, 4), None);
    assert_eq!(rejected(5, 5), Some(BatchError::Identity));
    assert_eq!(rejected(0, 0), Some(BatchError::Identity));
}
