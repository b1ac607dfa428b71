//! Slow receivers of relay endpoints on simulated shards: what waits for them, in which memory, and what is dropped.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use ::hooks::{Client, DropReason, Hooks, Interest, MessageOrigin, MessageView};
use hooks::relay::RelayLimits;
use ws::Opcode;

use super::relay::{frame, join, limits, received, relay_sim};
use super::sim::{Sim, SimConnection};
use crate::config::BrokerLimits;
use crate::core::shard::ConnectionAction;

fn send(sim: &mut Sim, sender: SimConnection, text: &str) -> ConnectionAction {
    sim.send(&mut sender.clone(), &frame(Opcode::Text, text.as_bytes()))
}

/// Everything that waits for a client until nothing does.
fn drain(sim: &mut Sim, client: SimConnection) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let messages = received(sim, client);
        if messages.is_empty() {
            return all;
        }
        all.extend(messages);
    }
}

fn set_limits(sim: &mut Sim, limits: BrokerLimits) {
    sim.shards[0].set_limits(Arc::new(limits));
}

/// Bytes that wait for slow receivers, and those in outboxes.
fn waiting(sim: &Sim) -> (usize, usize) {
    let delivery = &sim.shards[0].delivery;
    (delivery.relay_memory.bytes(), delivery.buffered_bytes)
}

#[test]
fn messages_for_many_stalled_receivers_count_once_and_pause_nobody() {
    let (mut sim, ..) = relay_sim(1, limits());
    set_limits(
        &mut sim,
        BrokerLimits {
            max_buffered_bytes_per_shard: 1 << 20,
            max_relay_backlog_bytes_per_shard: 1 << 20,
            ..BrokerLimits::default()
        },
    );
    let sender = join(&mut sim, 0);
    let stalled: Vec<_> = (0..20).map(|_| join(&mut sim, 0)).collect();
    // Large ones are shared with the outboxes.
    for number in 0..10 {
        let text = format!("{number}{}", "x".repeat(49_999));
        assert_eq!(send(&mut sim, sender, &text), ConnectionAction::Continue);
    }
    // Each receiver keeps one in its outbox and three in its backlog, and all keep the same ones.
    let (relay_bytes, buffered_bytes) = waiting(&sim);
    assert!((200_000..300_000).contains(&relay_bytes), "{relay_bytes}");
    assert!(buffered_bytes < 1000, "{buffered_bytes}");
    assert!(!sim.shards[0].is_saturated());
    for client in &stalled {
        let texts = drain(&mut sim, *client);
        let numbers: String = texts.iter().map(|text| &text[..1]).collect();
        assert_eq!(numbers, "07896", "the last one is the notice: {}", texts[4]);
    }
    assert_eq!(waiting(&sim), (0, 0));
}

#[test]
fn a_closed_receiver_releases_what_waits_for_it() {
    let (mut sim, ..) = relay_sim(1, limits());
    let sender = join(&mut sim, 0);
    let stalled = [join(&mut sim, 0), join(&mut sim, 0)];
    for length in [10, 100, 20_000, 40_000, 100, 10, 30_000, 5] {
        for _ in 0..20 {
            send(&mut sim, sender, &"x".repeat(length));
        }
    }
    let serial = sim.shards[0].delivery.connections[stalled[0].at].serial;
    for _ in 0..1000 {
        let text = "y".repeat(10_000);
        sim.shards[0].send_relay_text(stalled[0].at, serial, text);
    }
    let (relay_bytes, buffered_bytes) = waiting(&sim);
    assert!(relay_bytes > 200_000 && buffered_bytes > 0);
    for client in stalled {
        sim.drop_connection(client);
    }
    assert_eq!(waiting(&sim), (0, 0));
}

#[test]
fn small_messages_cannot_take_more_memory_than_large_ones() {
    let (mut sim, _, endpoint) = relay_sim(1, limits());
    let (sender, _stalled) = (join(&mut sim, 0), join(&mut sim, 0));
    // The memory for this one is used again.
    send(&mut sim, sender, &"x".repeat(14_000));
    for _ in 0..50_000 {
        send(&mut sim, sender, "");
    }
    let (relay_bytes, _) = waiting(&sim);
    assert!(relay_bytes <= 200_000, "{relay_bytes}");
    let dropped = endpoint.dropped.load(Relaxed);
    assert!(dropped > 20_000, "{dropped}");
}

#[test]
fn receivers_share_scarce_memory_and_senders_wait_when_it_is_used_up() {
    let (mut sim, ..) = relay_sim(1, limits());
    let scarce = |bytes| BrokerLimits {
        max_relay_backlog_bytes_per_shard: bytes,
        ..BrokerLimits::default()
    };
    set_limits(&mut sim, scarce(200_000));
    let sender = join(&mut sim, 0);
    let stalled: Vec<_> = (0..10).map(|_| join(&mut sim, 0)).collect();
    for number in 0..500 {
        let text = format!("{number:03}{}", "x".repeat(997));
        assert_eq!(send(&mut sim, sender, &text), ConnectionAction::Continue);
    }
    let (relay_bytes, _) = waiting(&sim);
    assert!((90_000..110_000).contains(&relay_bytes), "{relay_bytes}");
    for client in &stalled[1..] {
        let texts = drain(&mut sim, *client);
        // 64 KiB are with the socket; 100 kB of messages that all receivers share follow, and then the notice.
        assert!((130..160).contains(&texts.len()), "{}", texts.len());
        assert!(texts[texts.len() - 2].starts_with("499"));
    }
    let large = "x".repeat(50_000);
    assert_eq!(send(&mut sim, sender, &large), ConnectionAction::Continue);
    set_limits(&mut sim, scarce(10_000));
    assert_eq!(send(&mut sim, sender, &large), ConnectionAction::Pause(1));
    assert!(!sim.shards[0].is_saturated(), "MQTT clients do not wait");
}

struct DropHooks(Arc<Mutex<Vec<(String, String, String)>>>);

impl Hooks for DropHooks {
    fn interest(&self) -> Interest {
        Interest::DROP
    }

    fn dropped(
        &mut self,
        client: Option<&Client<'_>>,
        message: &MessageView<'_>,
        _origin: &MessageOrigin<'_>,
        why: DropReason,
    ) {
        if why == DropReason::QueueFull {
            self.0.lock().unwrap().push((
                client.map_or("", |client| client.client_id).to_owned(),
                message.from_client_id.to_owned(),
                String::from_utf8_lossy(&message.payload[..3]).into_owned(),
            ));
        }
    }
}

#[test]
fn hooks_learn_which_messages_were_dropped() {
    let (mut sim, ..) = relay_sim(1, limits());
    let drops = Arc::<Mutex<Vec<_>>>::default();
    sim.shards[0].delivery.hooks = Box::new(DropHooks(drops.clone()));
    sim.shards[0].refresh_hook_interest();
    let (sender, slow) = (join(&mut sim, 0), join(&mut sim, 0));
    for number in 0..50 {
        send(
            &mut sim,
            sender,
            &format!("{number:03}{}", "x".repeat(9_997)),
        );
    }
    let kept: Vec<String> = drain(&mut sim, slow)
        .iter()
        .filter(|text| text.len() == 10_000)
        .map(|text| text[..3].to_owned())
        .collect();
    let drops = drops.lock().unwrap();
    assert!((10..40).contains(&drops.len()), "{}", drops.len());
    assert_eq!(drops.len() + kept.len(), 50);
    for (receiver, publisher, number) in &*drops {
        assert_eq!(
            (&**receiver, &**publisher),
            ("$relay/room/1", "$relay/room/0")
        );
        assert!(!kept.contains(number), "{number}");
    }
    assert_eq!(waiting(&sim), (0, 0));
}

#[test]
fn texts_of_the_service_reach_a_receiver_whose_outbox_is_full() {
    let large = RelayLimits {
        max_message_bytes: 2_000_000,
        ..limits()
    };
    let (mut sim, _, endpoint) = relay_sim(1, large);
    let (sender, slow) = (join(&mut sim, 0), join(&mut sim, 0));
    send(&mut sim, sender, &"x".repeat(1_200_000));
    send(&mut sim, sender, "behind");
    let serial = sim.shards[0].delivery.connections[slow.at].serial;
    for text in ["command 1", "command 2"] {
        sim.shards[0].send_relay_text(slow.at, serial, text.to_owned());
    }
    let mut texts = drain(&mut sim, slow);
    assert_eq!(texts.remove(0).len(), 1_200_000);
    assert_eq!(texts, ["command 1", "command 2", "behind"]);
    assert_eq!(endpoint.dropped.load(Relaxed), 0);
}

#[test]
fn too_many_texts_for_a_receiver_are_dropped_and_it_is_notified() {
    let (mut sim, _, endpoint) = relay_sim(1, limits());
    let slow = join(&mut sim, 0);
    let serial = sim.shards[0].delivery.connections[slow.at].serial;
    for _ in 0..30_000 {
        sim.shards[0].send_relay_text(slow.at, serial, "x".repeat(100));
    }
    let dropped = endpoint.dropped.load(Relaxed) as usize;
    assert!((5_000..20_000).contains(&dropped), "{dropped}");
    let (relay_bytes, buffered_bytes) = waiting(&sim);
    assert!(relay_bytes + buffered_bytes <= 2 << 20);
    let texts = drain(&mut sim, slow);
    assert_eq!(texts.len() + dropped, 30_000 + 1);
    let notice = format!("{dropped} messages were dropped");
    assert_eq!(texts.last(), Some(&notice));
    assert_eq!(waiting(&sim), (0, 0));
}
