//! Relay connections on simulated shards.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use mqtt::QoS;
use ws::{DecodeStep, Decoder, DecoderEvent, DecoderOptions, Opcode, Role};

use super::sim::{Sim, SimConnection};
use crate::core::shard::ConnectionAction;
use crate::core::timers::TICK_MS;
use ::hooks::{MessageView, PeerAddress};
use hooks::relay::{
    RelayAdmission, RelayClient, RelayClose, RelayConnection, RelayEndpoint, RelayLimits,
    RelayPayloadKind, RelayRequest, RelayService, RelayTraffic, RelayVerdict, SlowReceiverPolicy,
    payload_kind,
};

const MASK: [u8; 4] = [1, 2, 3, 4];

#[derive(Default)]
pub(super) struct TestRelayService {
    endpoint: Mutex<Option<Arc<TestRelayEndpoint>>>,
    connections: AtomicU64,
    published: Mutex<Vec<(String, Vec<u8>, String)>>,
}

pub(super) struct TestRelayEndpoint {
    limits: RelayLimits,
    is_direct: AtomicBool,
    pub(super) dropped: AtomicU64,
    encoded: AtomicU64,
    closed: Mutex<Vec<&'static str>>,
}

struct TestRelayClient(Arc<TestRelayEndpoint>);

pub(super) fn limits() -> RelayLimits {
    RelayLimits {
        max_message_bytes: 100_000,
        max_backlog_bytes: 200_000,
        slow_receiver: SlowReceiverPolicy::DropOldest,
        max_messages_per_s: 0,
        max_bytes_per_s: 0,
        ping_interval_s: 15,
    }
}

impl RelayService for TestRelayService {
    fn admit(
        &self,
        request: &RelayRequest<'_>,
        _connection: Arc<dyn RelayConnection>,
    ) -> Result<RelayAdmission, RelayClose> {
        if request.target != "room" {
            return Err(RelayClose {
                code: 1008,
                reason: "Invalid endpoint".into(),
                message: Some("no such endpoint".into()),
            });
        }
        let endpoint = self.endpoint.lock().unwrap().clone().unwrap();
        Ok(RelayAdmission {
            client: Box::new(TestRelayClient(endpoint.clone())),
            endpoint,
            connection_id: self.connections.fetch_add(1, Relaxed).to_string(),
        })
    }

    fn published(&self, endpoint: &str, message: &MessageView<'_>) {
        let (payload, from) = (message.payload.to_vec(), message.from_client_id.to_owned());
        let mut published = self.published.lock().unwrap();
        published.push((endpoint.to_owned(), payload, from));
    }
}

impl RelayEndpoint for TestRelayEndpoint {
    fn topic(&self) -> &'static str {
        "$relay/room"
    }

    fn limits(&self) -> RelayLimits {
        self.limits
    }

    fn is_direct(&self) -> bool {
        self.is_direct.load(Relaxed)
    }

    fn encode(&self, message: &MessageView<'_>, payload: &mut Vec<u8>) -> RelayPayloadKind {
        self.encoded.fetch_add(1, Relaxed);
        payload.extend_from_slice(message.payload);
        payload_kind(message)
    }

    fn record_dropped(&self, messages: u64) {
        self.dropped.fetch_add(messages, Relaxed);
    }
}

impl RelayClient for TestRelayClient {
    fn opened(&mut self) {}

    fn received(
        &mut self,
        _kind: RelayPayloadKind,
        payload: &[u8],
        _now_ms: u64,
        replies: &mut Vec<String>,
    ) -> RelayVerdict {
        match payload {
            b"hello?" => {
                replies.push("hello!".into());
                RelayVerdict::Consume
            }
            b"bad" => RelayVerdict::Close(RelayClose {
                code: 1008,
                reason: "bad".into(),
                message: None,
            }),
            _ => RelayVerdict::Publish,
        }
    }

    fn finish_input(&mut self) {}

    fn internal_error(&self, _now_ms: u64) -> RelayClose {
        RelayClose {
            code: 1011,
            reason: "it failed".into(),
            message: Some("sorry".into()),
        }
    }

    fn take_pause_ms(&mut self) -> u64 {
        0
    }

    fn caught_up(&mut self, dropped: u64, _now_ms: u64) -> Option<String> {
        Some(format!("{dropped} messages were dropped"))
    }

    fn closed(&mut self, reason: &'static str, _traffic: RelayTraffic) {
        self.0.closed.lock().unwrap().push(reason);
    }
}

struct NoHandle;

impl RelayConnection for NoHandle {
    fn send_text(&self, _message: String) {}

    fn close(&self, _close: RelayClose) {}
}

pub(super) fn relay_sim(
    shards: usize,
    limits: RelayLimits,
) -> (Sim, Arc<TestRelayService>, Arc<TestRelayEndpoint>) {
    let endpoint = Arc::new(TestRelayEndpoint {
        limits,
        is_direct: AtomicBool::new(false),
        dropped: AtomicU64::new(0),
        encoded: AtomicU64::new(0),
        closed: Mutex::default(),
    });
    let service = Arc::new(TestRelayService::default());
    *service.endpoint.lock().unwrap() = Some(endpoint.clone());
    let sim = Sim::with_relay(shards, 7, service.clone());
    (sim, service, endpoint)
}

fn open(sim: &mut Sim, shard: usize, target: &str) -> (SimConnection, ConnectionAction) {
    let peer = PeerAddress::Unix;
    let core = &mut sim.shards[shard];
    let at = core.open_connection(0, peer);
    let request = RelayRequest {
        target,
        origin: None,
        subprotocols: &[],
        peer,
        listener: "ws",
        shard: shard as u16,
        now_ms: sim.now_ms,
    };
    let action = core.open_relay(at, &request, None, Arc::new(NoHandle));
    (SimConnection { shard, at }, action)
}

pub(super) fn join(sim: &mut Sim, shard: usize) -> SimConnection {
    let (connection, _) = open(sim, shard, "room");
    sim.settle();
    connection
}

pub(super) fn frame(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ws::encode_frame(opcode, payload, Some(MASK), &mut out);
    out
}

/// What the client has received: messages, and control frames with a word in front.
pub(super) fn received(sim: &mut Sim, client: SimConnection) -> Vec<String> {
    let mut bytes = sim.take_bytes(client);
    let options = DecoderOptions {
        role: Role::Client,
        refuse_text: false,
        max_message_bytes: u64::MAX,
        has_compression: false,
    };
    let mut decoder = Decoder::new(options);
    let (mut at, mut found) = (0, Vec::new());
    while let DecodeStep {
        event: Some(event),
        consumed,
    } = decoder.decode(&mut bytes[at..]).unwrap()
    {
        found.push(match event {
            DecoderEvent::Data {
                chunk, is_binary, ..
            } => match is_binary {
                true => format!("binary {chunk:?}"),
                false => String::from_utf8_lossy(chunk).into_owned(),
            },
            DecoderEvent::Ping(_) => "ping".to_owned(),
            DecoderEvent::Pong(_) => "pong".to_owned(),
            DecoderEvent::Close { code, reason } => format!("close {code:?} {reason}"),
        });
        at += consumed;
    }
    found
}

#[test]
fn messages_go_to_all_other_connections_of_all_shards_in_order() {
    for (shards, is_direct) in [(1, false), (1, true), (2, false), (2, true)] {
        let (mut sim, service, endpoint) = relay_sim(shards, limits());
        endpoint.is_direct.store(is_direct, Relaxed);
        let clients: Vec<_> = (0..4).map(|n| join(&mut sim, n % shards)).collect();
        for n in 0..3 {
            sim.send(
                &mut clients[0].clone(),
                &frame(Opcode::Text, format!("m{n}").as_bytes()),
            );
        }
        sim.send(&mut clients[1].clone(), &frame(Opcode::Binary, &[0xff, 0]));
        sim.settle();
        assert_eq!(received(&mut sim, clients[0]), ["binary [255, 0]"]);
        assert_eq!(received(&mut sim, clients[1]), ["m0", "m1", "m2"]);
        let mut others = received(&mut sim, clients[3]);
        others.retain(|message| message.starts_with('m'));
        assert_eq!(others, ["m0", "m1", "m2"]);
        assert!(service.published.lock().unwrap().is_empty());
    }
}

#[test]
fn a_message_is_encoded_once_for_all_receivers_of_a_shard() {
    for shards in [1, 2] {
        let (mut sim, _, endpoint) = relay_sim(shards, limits());
        let clients: Vec<_> = (0..8).map(|n| join(&mut sim, n % shards)).collect();
        for text in ["short", &"long ".repeat(1000)] {
            let before = endpoint.encoded.load(Relaxed);
            sim.send(
                &mut clients[0].clone(),
                &frame(Opcode::Text, text.as_bytes()),
            );
            sim.settle();
            // The end of the next turn passes it to the other shard.
            sim.pass(1);
            sim.settle();
            for client in &clients[1..] {
                assert_eq!(received(&mut sim, *client), [text], "{shards} {client:?}");
            }
            let encoded = endpoint.encoded.load(Relaxed) - before;
            assert_eq!(encoded, shards as u64, "{} bytes", text.len());
        }
    }
}

#[test]
fn the_only_receiver_gets_an_unchanged_payload_without_encoding() {
    let (mut sim, _, endpoint) = relay_sim(1, limits());
    endpoint.is_direct.store(true, Relaxed);
    let (sender, receiver) = (join(&mut sim, 0), join(&mut sim, 0));
    // Lengths with each size of a header; the longest one is shared with the outbox, and not copied to it.
    let texts = [0, 125, 126, 16_000, 16_384].map(|bytes| "x".repeat(bytes));
    for text in &texts {
        sim.send(&mut sender.clone(), &frame(Opcode::Text, text.as_bytes()));
        assert_eq!(received(&mut sim, receiver), [text.as_str()]);
    }
    assert_eq!(endpoint.encoded.load(Relaxed), 1);
    // Valid UTF-8 that was sent as binary remains so.
    sim.send(&mut sender.clone(), &frame(Opcode::Binary, b"a"));
    assert_eq!(received(&mut sim, receiver), ["binary [97]"]);
    // Of other publishers, valid UTF-8 without a mark is text.
    for (payload, expected) in [(&b"a"[..], "a"), (b"\xff", "binary [255]")] {
        let view = MessageView::from_client("rule", "$relay/room", payload, 0);
        sim.shards[0].publish_internal(&view);
        assert_eq!(received(&mut sim, receiver), [expected]);
        assert_eq!(received(&mut sim, sender), [expected]);
    }
    // The second receiver needed a frame.
    assert_eq!(endpoint.encoded.load(Relaxed), 3);
}

#[test]
fn frames_may_be_split_at_every_byte() {
    let mut bytes = Vec::new();
    let mut first = frame(Opcode::Text, "grü".as_bytes());
    // The first fragment of a message, with a ping before the second one.
    first[0] &= 0x7f;
    bytes.extend(first);
    bytes.extend(frame(Opcode::Ping, b"p"));
    bytes.extend(frame(Opcode::Continuation, "ße".as_bytes()));
    bytes.extend(frame(Opcode::Text, b"hello?"));
    for split in 0..=bytes.len() {
        let (mut sim, ..) = relay_sim(1, limits());
        let (a, b) = (join(&mut sim, 0), join(&mut sim, 0));
        sim.send(&mut a.clone(), &bytes[..split]);
        sim.send(&mut a.clone(), &bytes[split..]);
        sim.settle();
        assert_eq!(received(&mut sim, b), ["grüße"], "{split}");
        assert_eq!(received(&mut sim, a), ["pong", "hello!"], "{split}");
    }
}

#[test]
fn a_client_that_is_not_admitted_receives_the_reason() {
    let (mut sim, ..) = relay_sim(1, limits());
    let (stranger, action) = open(&mut sim, 0, "other");
    assert_eq!(action, ConnectionAction::Close);
    let output = received(&mut sim, stranger);
    assert_eq!(
        output,
        ["no such endpoint", "close Some(1008) Invalid endpoint"]
    );
}

#[test]
fn violations_close_the_connection_with_their_code() {
    let too_large = frame(Opcode::Text, &[b'x'; 100_001]);
    let cases: [(&[u8], &str); 4] = [
        (&frame(Opcode::Text, &[0xff, 0xfe]), "close Some(1007)"),
        (&too_large, "close Some(1009)"),
        (&[0x81, 0x01, b'x'], "close Some(1002)"),
        (&frame(Opcode::Text, b"bad"), "close Some(1008) bad"),
    ];
    for (bytes, expected) in cases {
        let (mut sim, _, endpoint) = relay_sim(1, limits());
        let (a, b) = (join(&mut sim, 0), join(&mut sim, 0));
        sim.send(&mut a.clone(), bytes);
        sim.settle();
        let output = received(&mut sim, a);
        assert!(output[0].starts_with(expected), "{output:?}");
        assert!(received(&mut sim, b).is_empty());
        assert_eq!(*endpoint.closed.lock().unwrap(), ["protocol_error"]);
    }
}

#[test]
fn a_close_frame_is_answered_with_its_code() {
    let (mut sim, _, endpoint) = relay_sim(1, limits());
    let a = join(&mut sim, 0);
    let mut close = Vec::new();
    ws::encode_close(Some(3001), "bye", Some(MASK), &mut close);
    sim.send(&mut a.clone(), &close);
    assert_eq!(received(&mut sim, a), ["close Some(3001) "]);
    assert_eq!(*endpoint.closed.lock().unwrap(), ["normal"]);
    assert_eq!(sim.shards[0].delivery.sessions.iter().count(), 0);
}

#[test]
fn a_client_that_answers_no_ping_is_closed() {
    let (mut sim, ..) = relay_sim(1, limits());
    let (quiet, alive) = (join(&mut sim, 0), join(&mut sim, 0));
    // A check takes place in the tick after its time.
    let interval_ms = 15_000 + TICK_MS;
    for _ in 0..2 {
        sim.pass(interval_ms);
        assert_eq!(received(&mut sim, quiet), ["ping"]);
        assert_eq!(received(&mut sim, alive), ["ping"]);
        sim.send(&mut alive.clone(), &frame(Opcode::Pong, b""));
    }
    sim.pass(interval_ms);
    assert_eq!(received(&mut sim, quiet), ["close Some(1008) no pong"]);
    assert_eq!(received(&mut sim, alive), ["ping"]);
}

#[test]
fn connections_are_pinged_in_steps() {
    let (mut sim, ..) = relay_sim(1, limits());
    let all: Vec<_> = (0..40).map(|_| join(&mut sim, 0)).collect();
    let later_ms = sim.now_ms + 15_000 + TICK_MS;
    let shard = &mut sim.shards[0];
    shard.set_now(later_ms, 0);
    shard.delivery.dirty.clear();
    let mut due = shard.tick();
    let mut pinged = Vec::new();
    while due > 0 {
        let now = due.min(16);
        due -= now;
        shard.check_connections(now);
        // Here the shard reads messages and writes these pings.
        let dirty = std::mem::take(&mut shard.delivery.dirty);
        pinged.push(dirty.len());
        for at in dirty {
            shard.delivery.connections[at].is_dirty = false;
        }
    }
    assert!(pinged.iter().all(|&count| count <= 16), "{pinged:?}");
    assert_eq!(pinged.iter().sum::<usize>(), 40);
    for connection in all {
        assert_eq!(received(&mut sim, connection), ["ping"]);
    }
}

#[test]
fn pings_do_not_count_while_the_client_is_not_read() {
    let slow = RelayLimits {
        max_message_bytes: 1_000_000,
        max_bytes_per_s: 10_000,
        ..limits()
    };
    let (mut sim, ..) = relay_sim(1, slow);
    let (sender, receiver) = (join(&mut sim, 0), join(&mut sim, 0));
    let text = "x".repeat(600_000);
    let started_ms = sim.now_ms;
    // The pongs of the sender are behind the bytes that are not read yet.
    for piece in frame(Opcode::Text, text.as_bytes()).chunks(64 * 1024) {
        let mut action = sim.shards[0].receive(sender.at, &mut piece.to_vec());
        while let ConnectionAction::Pause(ms) = action {
            sim.pass(ms);
            sim.send(&mut receiver.clone(), &frame(Opcode::Pong, b""));
            action = sim.shards[0].resume(sender.at);
        }
        assert_eq!(action, ConnectionAction::Continue);
    }
    let passed_ms = sim.now_ms - started_ms;
    assert!(passed_ms > 50_000, "{passed_ms}");
    assert!(received(&mut sim, receiver).contains(&text));
    // From now on it is read again.
    for _ in 0..2 {
        sim.pass(15_000 + TICK_MS);
        assert!(!sim.is_closing(sender));
    }
    sim.pass(15_000 + TICK_MS);
    assert!(sim.is_closing(sender));
}

#[test]
fn clients_that_connect_together_are_not_pinged_together() {
    let (mut sim, ..) = relay_sim(1, limits());
    let mut unpinged: Vec<_> = (0..100).map(|_| join(&mut sim, 0)).collect();
    let step_ms = 1000;
    for _ in (0..15_000 + TICK_MS).step_by(step_ms) {
        sim.pass(step_ms as u64);
        let before = unpinged.len();
        unpinged.retain(|client| received(&mut sim, *client).is_empty());
        // 100 within 11.25 s: about 9 in a second.
        let pinged = before - unpinged.len();
        assert!(pinged <= 11, "{pinged} were pinged together");
    }
    assert!(unpinged.is_empty(), "{} were not pinged", unpinged.len());
}

#[test]
fn a_slow_receiver_loses_its_oldest_messages_and_is_notified() {
    for is_direct in [false, true] {
        check_slow_receiver(is_direct);
    }
}

fn check_slow_receiver(is_direct: bool) {
    let (mut sim, _, endpoint) = relay_sim(1, limits());
    endpoint.is_direct.store(is_direct, Relaxed);
    let (sender, slow) = (join(&mut sim, 0), join(&mut sim, 0));
    let message = |n: usize| format!("{n:05}{}", "x".repeat(9_995));
    for n in 0..100 {
        sim.send(
            &mut sender.clone(),
            &frame(Opcode::Text, message(n).as_bytes()),
        );
    }
    let dropped = endpoint.dropped.load(Relaxed) as usize;
    // 64 KiB are with the socket, 200 kB in the backlog.
    assert!((70..80).contains(&dropped), "{dropped}");
    let mut numbers = Vec::new();
    let mut notices = Vec::new();
    loop {
        let messages = received(&mut sim, slow);
        if messages.is_empty() {
            break;
        }
        for text in messages {
            match text.len() {
                10_000 => numbers.push(text[..5].parse::<usize>().unwrap()),
                _ => notices.push(text),
            }
        }
    }
    assert_eq!(numbers.len() + dropped, 100);
    assert!(numbers.is_sorted() && numbers.contains(&0) && numbers.contains(&99));
    assert_eq!(notices, [format!("{dropped} messages were dropped")]);
}

#[test]
fn a_message_that_is_larger_than_the_backlog_reaches_a_fast_receiver() {
    let large = RelayLimits {
        max_message_bytes: 100_000,
        max_backlog_bytes: 100_000,
        ..limits()
    };
    let (mut sim, _, endpoint) = relay_sim(1, large);
    let (sender, receiver) = (join(&mut sim, 0), join(&mut sim, 0));
    // The second one waits behind the first; its frame is larger than the backlog by its header.
    for text in ["a", "b"] {
        let frame = frame(Opcode::Text, text.repeat(100_000).as_bytes());
        sim.send(&mut sender.clone(), &frame);
    }
    let mut texts = Vec::new();
    for _ in 0..10 {
        texts.extend(received(&mut sim, receiver));
    }
    let lengths: Vec<_> = texts.iter().map(String::len).collect();
    assert_eq!(lengths, [100_000, 100_000]);
    assert_eq!(endpoint.dropped.load(Relaxed), 0);
}

#[test]
fn a_slow_receiver_is_disconnected_if_the_endpoint_wants_it() {
    let (mut sim, _, endpoint) = relay_sim(
        1,
        RelayLimits {
            slow_receiver: SlowReceiverPolicy::Disconnect,
            ..limits()
        },
    );
    let (sender, slow, reader) = (join(&mut sim, 0), join(&mut sim, 0), join(&mut sim, 0));
    let mut read = 0;
    for _ in 0..100 {
        sim.send(&mut sender.clone(), &frame(Opcode::Binary, &[0; 10_000]));
        read += received(&mut sim, reader).len();
    }
    sim.settle();
    assert_eq!(*endpoint.closed.lock().unwrap(), ["slow_receiver"]);
    assert_eq!(read, 100, "others notice nothing");
    let output = received(&mut sim, slow);
    let end = output.last().map(String::as_str);
    let expected = "close Some(1013) too many messages wait for this client";
    assert_eq!(end, Some(expected), "{} frames", output.len());
}

/// A client sends messages at once and is read whenever its pause is over. Returns how many were relayed at once, and the milliseconds
/// until all were relayed.
fn send_at_once(limits: RelayLimits, text: &str, count: usize) -> (usize, u64) {
    let (mut sim, ..) = relay_sim(1, limits);
    let (sender, receiver) = (join(&mut sim, 0), join(&mut sim, 0));
    let all = frame(Opcode::Text, text.as_bytes()).repeat(count);
    let started_ms = sim.now_ms;
    let mut action = sim.shards[0].receive(sender.at, &mut all.clone());
    let at_once = received(&mut sim, receiver).len();
    let mut relayed = at_once;
    for _ in 0..10 * count {
        let ConnectionAction::Pause(ms) = action else {
            break;
        };
        assert!((1..=10_000).contains(&ms), "{ms}");
        // Also of the pings: nobody answers them.
        sim.send(&mut receiver.clone(), &frame(Opcode::Pong, b""));
        sim.pass(ms);
        action = sim.shards[0].resume(sender.at);
        let texts = received(&mut sim, receiver);
        relayed += texts.iter().filter(|received| *received == text).count();
    }
    assert_eq!(action, ConnectionAction::Continue);
    assert_eq!(relayed, count, "every message is relayed in the end");
    (at_once, sim.now_ms - started_ms)
}

#[test]
fn a_client_that_sends_too_many_messages_is_not_read_for_a_while() {
    let limits = RelayLimits {
        max_messages_per_s: 10,
        ..limits()
    };
    let (at_once, passed_ms) = send_at_once(limits, "x", 100);
    assert!((10..=12).contains(&at_once), "{at_once}");
    // One second of messages is allowed at once; the other 90 take 9 s.
    assert!((8_500..=10_000).contains(&passed_ms), "{passed_ms}");
}

#[test]
fn a_client_that_sends_too_many_bytes_is_not_read_for_a_while() {
    let limits = RelayLimits {
        max_bytes_per_s: 10_000,
        ..limits()
    };
    // What the node has read is relayed; the next bytes are read when these are paid for.
    let (_, passed_ms) = send_at_once(limits, &"x".repeat(1000), 100);
    assert!((8_500..=12_000).contains(&passed_ms), "{passed_ms}");
}

#[test]
fn mqtt_clients_publish_and_subscribe_only_with_a_permission_and_never_retain() {
    let (mut sim, service, _) = relay_sim(1, limits());
    let web = join(&mut sim, 0);
    let mut client = sim.connect(0, "c", true);
    sim.take_bytes(client);
    for filter in [
        "$relay/room",
        "$relay/+",
        "$relay/#",
        "$share/g/$relay/room",
    ] {
        sim.subscribe(&mut client, filter, QoS::AtMostOnce);
        let suback = sim.take_bytes(client);
        assert_eq!(suback.first(), Some(&0x90), "{filter}: {suback:x?}");
        assert_eq!(suback.last(), Some(&0x87), "{filter}: {suback:x?}");
    }
    sim.publish(&mut client, "$relay/room", b"denied", QoS::AtMostOnce, 0);
    sim.settle();
    assert!(received(&mut sim, web).is_empty());
    assert!(service.published.lock().unwrap().is_empty());
    let view = MessageView::from_client("rule", "$relay/room", b"from a rule", 0);
    sim.shards[0].publish_internal(&view);
    let retained = MessageView {
        retain: true,
        ..view
    };
    sim.shards[0].publish_internal(&retained);
    assert_eq!(received(&mut sim, web), ["from a rule"]);
    assert_eq!(sim.take(&mut client, true), [], "it has no subscription");
    let published = service.published.lock().unwrap().clone();
    assert_eq!(
        published,
        [("room".into(), b"from a rule".to_vec(), "rule".into())]
    );
}
