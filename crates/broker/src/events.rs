//! The stream of what happens at the node. Nobody waits for who listens: a slow listener loses events and is told how
//! many. While nobody listens, the shards are not even interested.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use mqtt::{ReasonCode, SubscriptionOptions};
use store::Health;
use tokio::sync::broadcast;

use crate::control::{Event, EventKind};
use crate::hooks::{
    Accepted, Client, DropReason, Hooks, HooksFactory, Interest, MessageView, Origin, PacketFacts,
    RefusedConnect,
};

/// Events kept for a listener that is behind.
const KEPT_EVENTS: usize = 4096;
/// Drops of one client for one reason are told once in this time, with their number.
const DROPS_EVERY_MS: u64 = 1000;
/// Clients and reasons whose drops are counted apart, for each shard.
const DROP_SLOTS: usize = 256;
/// Drops of all clients that one shard tells of in [`DROPS_EVERY_MS`].
const DROPS_TOLD: u32 = 100;

/// Where events go. Clones are the same stream.
#[derive(Clone)]
pub(crate) struct Events {
    sender: broadcast::Sender<Arc<Event>>,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self {
            sender: broadcast::Sender::new(KEPT_EVENTS),
        }
    }

    pub(crate) fn listen(&self) -> broadcast::Receiver<Arc<Event>> {
        self.sender.subscribe()
    }

    pub(crate) fn has_listeners(&self) -> bool {
        self.sender.receiver_count() > 0
    }

    pub(crate) fn tell(&self, kind: EventKind) {
        if self.has_listeners() {
            let at_ms = now_ms();
            // The last may have left just now.
            let _ = self.sender.send(Arc::new(Event { at_ms, kind }));
        }
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    now.as_millis() as u64
}

impl HooksFactory for Events {
    fn hooks_for(&self, _shard: u16) -> Box<dyn Hooks> {
        Box::new(Teller {
            events: self.clone(),
            drops: Drops::default(),
        })
    }
}

/// Tells when the store ceases to take work, and when it takes it again.
#[derive(Default)]
pub(crate) struct StoreAlarms {
    raised: Option<&'static str>,
}

impl StoreAlarms {
    pub(crate) fn look_at(&mut self, health: Health, events: &Events) {
        let (now, detail) = match health {
            Health::Ok => (None, ""),
            Health::Full => (Some("store_full"), "there is no room for new messages"),
            Health::Failed => (
                Some("store_failed"),
                "what is to be stored cannot be written",
            ),
        };
        let before = std::mem::replace(&mut self.raised, now);
        if before == now {
            return;
        }
        if let Some(alarm) = before {
            events.tell(EventKind::AlarmCleared { alarm });
        }
        if let Some(alarm) = now {
            let detail = detail.to_owned();
            events.tell(EventKind::AlarmRaised { alarm, detail });
        }
    }
}

struct Teller {
    events: Events,
    drops: Drops,
}

fn owned(text: Option<&str>) -> Option<Box<str>> {
    text.map(Into::into)
}

impl Hooks for Teller {
    fn interest(&self) -> Interest {
        match self.events.has_listeners() {
            true => {
                Interest::CONNECT
                    | Interest::DISCONNECT
                    | Interest::REFUSE
                    | Interest::SESSION
                    | Interest::SUBSCRIBE
                    | Interest::UNSUBSCRIBE
                    | Interest::DROP
            }
            false => Interest::NONE,
        }
    }

    fn refused(&mut self, refused: &RefusedConnect<'_>) {
        let told = [
            ReasonCode::BAD_USER_NAME_OR_PASSWORD,
            ReasonCode::NOT_AUTHORIZED,
            ReasonCode::BANNED,
            ReasonCode::BAD_AUTHENTICATION_METHOD,
        ];
        if told.contains(&refused.code) {
            self.events.tell(EventKind::AuthenticationFailed {
                client_id: owned(refused.client_id),
                username: owned(refused.username),
                peer_address: refused.peer.to_string(),
                listener: refused.listener.into(),
                reason_code: refused.code.0,
            });
        }
    }

    fn connected(&mut self, client: &Client<'_>, accepted: &Accepted<'_>) {
        let peer = client.peer.map(|peer| peer.to_string());
        self.events.tell(EventKind::Connected {
            client_id: client.client_id.into(),
            username: owned(client.username),
            peer_address: peer.unwrap_or_default(),
            listener: None,
            protocol_version: client.version.as_str(),
            session_present: accepted.session_present,
        });
    }

    fn disconnected(&mut self, client: &Client<'_>, reason: &'static str) {
        // Listeners to events know one word for both.
        let reason = match reason {
            "discarded" => "taken_over",
            reason => reason,
        };
        self.events.tell(EventKind::Disconnected {
            client_id: client.client_id.into(),
            username: owned(client.username),
            reason,
        });
    }

    fn session_created(&mut self, client_id: &str) {
        let client_id = client_id.into();
        self.events.tell(EventKind::SessionCreated { client_id });
    }

    fn session_ended(&mut self, client_id: &str) {
        let client_id = client_id.into();
        self.events.tell(EventKind::SessionEnded { client_id });
    }

    fn subscribed(
        &mut self,
        client: &Client<'_>,
        filter: &str,
        options: SubscriptionOptions,
        _packet: PacketFacts<'_>,
    ) {
        self.events.tell(EventKind::Subscribed {
            client_id: client.client_id.into(),
            topic_filter: filter.into(),
            qos: options.qos as u8,
        });
    }

    fn unsubscribed(
        &mut self,
        client: &Client<'_>,
        filter: &str,
        _options: SubscriptionOptions,
        _packet: PacketFacts<'_>,
    ) {
        self.events.tell(EventKind::Unsubscribed {
            client_id: client.client_id.into(),
            topic_filter: filter.into(),
        });
    }

    fn dropped(
        &mut self,
        client: Option<&Client<'_>>,
        message: &MessageView<'_>,
        _origin: &Origin<'_>,
        why: DropReason,
    ) {
        let client_id = client.map(|client| client.client_id);
        if let Some(count) = self.drops.count(client_id, why, now_ms()) {
            self.events.tell(EventKind::Dropped {
                client_id: owned(client_id),
                topic: message.topic.into(),
                reason: why.as_str(),
                count,
            });
        }
    }
}

/// Counts drops, so that a stream of them becomes a few events: one a second for each client and reason, and not more
/// than so many for all clients. What is not told at once is told with the next of its kind.
#[derive(Default)]
struct Drops {
    slots: Vec<Slot>,
    hasher: foldhash::fast::RandomState,
    began_ms: u64,
    told: u32,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    hash: u64,
    told_ms: u64,
    untold: u64,
}

impl Drops {
    /// One more; how many are to be told of now, if any are.
    fn count(&mut self, client_id: Option<&str>, why: DropReason, now_ms: u64) -> Option<u64> {
        use std::hash::BuildHasher;
        if self.slots.is_empty() {
            self.slots.resize(DROP_SLOTS, Slot::default());
        }
        let hash = self.hasher.hash_one((client_id, why.as_str()));
        let slot = &mut self.slots[hash as usize % DROP_SLOTS];
        if slot.hash != hash {
            *slot = Slot {
                hash,
                ..Slot::default()
            };
        }
        slot.untold += 1;
        if now_ms.saturating_sub(self.began_ms) >= DROPS_EVERY_MS {
            (self.began_ms, self.told) = (now_ms, 0);
        }
        if now_ms.saturating_sub(slot.told_ms) < DROPS_EVERY_MS || self.told >= DROPS_TOLD {
            return None;
        }
        self.told += 1;
        slot.told_ms = now_ms;
        Some(std::mem::take(&mut slot.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_drops_becomes_few_events_that_count_all_but_the_last() {
        let mut drops = Drops::default();
        let mut told = Vec::new();
        for n in 0..5_000 {
            told.extend(drops.count(Some("slow"), DropReason::QueueFull, 10_000 + n));
        }
        assert_eq!(told, [1, 1000, 1000, 1000, 1000]);
        // Another reason and another client have events of their own.
        assert_eq!(
            drops.count(Some("slow"), DropReason::Expired, 15_000),
            Some(1)
        );
        assert_eq!(drops.count(None, DropReason::QueueFull, 15_000), Some(1));
    }

    #[test]
    fn a_store_that_is_full_and_then_fails_is_told_of_once_each() {
        let events = Events::new();
        let mut receiver = events.listen();
        let mut alarms = StoreAlarms::default();
        for health in [
            Health::Ok,
            Health::Full,
            Health::Full,
            Health::Failed,
            Health::Ok,
            Health::Ok,
        ] {
            alarms.look_at(health, &events);
        }
        let mut told = Vec::new();
        while let Ok(event) = receiver.try_recv() {
            told.push(match event.kind {
                EventKind::AlarmRaised { alarm, .. } => (true, alarm),
                EventKind::AlarmCleared { alarm } => (false, alarm),
                _ => panic!("another event"),
            });
        }
        let (full, failed) = ("store_full", "store_failed");
        let expected = [(true, full), (false, full), (true, failed), (false, failed)];
        assert_eq!(told, expected);
    }

    #[test]
    fn drops_of_very_many_clients_are_bounded_too() {
        let mut drops = Drops::default();
        let told = (0..10_000).filter(|n| {
            let client_id = format!("c{n}");
            let count = drops.count(Some(&client_id), DropReason::QueueFull, 10_000);
            count.is_some()
        });
        assert_eq!(told.count(), DROPS_TOLD as usize);
    }
}
