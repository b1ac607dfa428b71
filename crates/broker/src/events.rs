//! The stream of broker events. The broker does not wait for subscribers: a slow one loses events and receives their
//! number. Without subscribers, the shards produce no events.

use std::sync::Arc;

use hooks::{
    AcceptedConnect, Client, DropReason, Hooks, HooksFactory, Interest, MessageOrigin, MessageView,
    PacketFacts, RejectedConnect,
};
use mqtt::{ReasonCode, SubscriptionOptions};
use store::StoreHealth;
use tokio::sync::broadcast;
use wall_clock::now_ms;

use crate::control::{BrokerEvent, BrokerEventKind};

/// Events buffered for a slow subscriber.
const EVENT_BUFFER: usize = 4096;
/// Drops of one client for one reason are reported once per interval, with their number.
const DROP_REPORT_INTERVAL_MS: u64 = 1000;
/// Combinations of client and reason whose drops are counted separately, per shard.
const DROP_SLOTS: usize = 256;
/// Largest number of drop events for all clients that one shard reports within [`DROP_REPORT_INTERVAL_MS`].
const MAX_DROP_REPORTS: u32 = 100;

/// Sends events to subscribers. Clones share one stream.
#[derive(Clone)]
pub(crate) struct EventStream {
    sender: broadcast::Sender<Arc<BrokerEvent>>,
}

impl EventStream {
    pub(crate) fn new() -> Self {
        Self {
            sender: broadcast::Sender::new(EVENT_BUFFER),
        }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Arc<BrokerEvent>> {
        self.sender.subscribe()
    }

    pub(crate) fn has_subscribers(&self) -> bool {
        self.sender.receiver_count() > 0
    }

    pub(crate) fn emit(&self, kind: BrokerEventKind) {
        if self.has_subscribers() {
            let at_ms = now_ms();
            // The last subscriber may have left just now.
            let _ = self.sender.send(Arc::new(BrokerEvent { at_ms, kind }));
        }
    }
}

impl HooksFactory for EventStream {
    fn hooks_for(&self, _shard: u16) -> Box<dyn Hooks> {
        Box::new(EventHooks {
            events: self.clone(),
            drops: DropAggregator::default(),
        })
    }
}

/// Emits an event when the store stops accepting writes, and when it accepts them again.
#[derive(Default)]
pub(crate) struct StoreAlarms {
    raised: Option<&'static str>,
}

impl StoreAlarms {
    pub(crate) fn update(&mut self, health: StoreHealth, events: &EventStream) {
        let (now, detail) = match health {
            StoreHealth::Ok => (None, ""),
            StoreHealth::Full => (Some("store_full"), "the store has no room for new messages"),
            StoreHealth::Failed => (Some("store_failed"), "writing to the store fails"),
        };
        let before = std::mem::replace(&mut self.raised, now);
        if before == now {
            return;
        }
        if let Some(alarm) = before {
            events.emit(BrokerEventKind::AlarmCleared { alarm });
        }
        if let Some(alarm) = now {
            let detail = detail.to_owned();
            events.emit(BrokerEventKind::AlarmRaised { alarm, detail });
        }
    }
}

struct EventHooks {
    events: EventStream,
    drops: DropAggregator,
}

fn boxed(text: Option<&str>) -> Option<Box<str>> {
    text.map(Into::into)
}

impl Hooks for EventHooks {
    fn interest(&self) -> Interest {
        match self.events.has_subscribers() {
            true => {
                Interest::CONNECT
                    | Interest::DISCONNECT
                    | Interest::CONNECT_REJECTED
                    | Interest::SESSION
                    | Interest::SUBSCRIBE
                    | Interest::UNSUBSCRIBE
                    | Interest::DROP
            }
            false => Interest::NONE,
        }
    }

    fn connect_rejected(&mut self, rejected: &RejectedConnect<'_>) {
        let reported = [
            ReasonCode::BAD_USER_NAME_OR_PASSWORD,
            ReasonCode::NOT_AUTHORIZED,
            ReasonCode::BANNED,
            ReasonCode::BAD_AUTHENTICATION_METHOD,
        ];
        if reported.contains(&rejected.code) {
            self.events.emit(BrokerEventKind::AuthenticationFailed {
                client_id: boxed(rejected.client_id),
                username: boxed(rejected.username),
                peer_address: rejected.peer.to_string(),
                listener: rejected.listener.into(),
                reason_code: rejected.code.0,
            });
        }
    }

    fn connected(&mut self, client: &Client<'_>, accepted: &AcceptedConnect<'_>) {
        let peer = client.peer.map(|peer| peer.to_string());
        self.events.emit(BrokerEventKind::Connected {
            client_id: client.client_id.into(),
            username: boxed(client.username),
            peer_address: peer.unwrap_or_default(),
            listener: None,
            protocol_version: client.version.as_str(),
            session_present: accepted.session_present,
        });
    }

    fn disconnected(&mut self, client: &Client<'_>, reason: &'static str) {
        // Events use one word for both reasons.
        let reason = match reason {
            "discarded" => "taken_over",
            reason => reason,
        };
        self.events.emit(BrokerEventKind::Disconnected {
            client_id: client.client_id.into(),
            username: boxed(client.username),
            reason,
        });
    }

    fn session_created(&mut self, client_id: &str) {
        let client_id = client_id.into();
        self.events
            .emit(BrokerEventKind::SessionCreated { client_id });
    }

    fn session_ended(&mut self, client_id: &str) {
        let client_id = client_id.into();
        self.events
            .emit(BrokerEventKind::SessionEnded { client_id });
    }

    fn subscribed(
        &mut self,
        client: &Client<'_>,
        filter: &str,
        options: SubscriptionOptions,
        _packet: PacketFacts<'_>,
    ) {
        self.events.emit(BrokerEventKind::Subscribed {
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
        self.events.emit(BrokerEventKind::Unsubscribed {
            client_id: client.client_id.into(),
            topic_filter: filter.into(),
        });
    }

    fn dropped(
        &mut self,
        client: Option<&Client<'_>>,
        message: &MessageView<'_>,
        _origin: &MessageOrigin<'_>,
        why: DropReason,
    ) {
        let client_id = client.map(|client| client.client_id);
        if let Some(count) = self.drops.count(client_id, why, now_ms()) {
            self.events.emit(BrokerEventKind::Dropped {
                client_id: boxed(client_id),
                topic: message.topic.into(),
                reason: why.as_str(),
                count,
            });
        }
    }
}

/// Counts drops and reports them as few events: one per second for each client and reason, with an upper bound for all
/// clients. Drops that are not reported at once are added to the next event of the same kind.
#[derive(Default)]
struct DropAggregator {
    slots: Vec<DropSlot>,
    hasher: foldhash::fast::RandomState,
    interval_start_ms: u64,
    reported: u32,
}

#[derive(Clone, Copy, Default)]
struct DropSlot {
    hash: u64,
    reported_ms: u64,
    unreported: u64,
}

impl DropAggregator {
    /// Counts one more drop; returns the number to report now, if any.
    fn count(&mut self, client_id: Option<&str>, why: DropReason, now_ms: u64) -> Option<u64> {
        use std::hash::BuildHasher;
        if self.slots.is_empty() {
            self.slots.resize(DROP_SLOTS, DropSlot::default());
        }
        let hash = self.hasher.hash_one((client_id, why.as_str()));
        let slot = &mut self.slots[hash as usize % DROP_SLOTS];
        if slot.hash != hash {
            *slot = DropSlot {
                hash,
                ..DropSlot::default()
            };
        }
        slot.unreported += 1;
        if now_ms.saturating_sub(self.interval_start_ms) >= DROP_REPORT_INTERVAL_MS {
            (self.interval_start_ms, self.reported) = (now_ms, 0);
        }
        if now_ms.saturating_sub(slot.reported_ms) < DROP_REPORT_INTERVAL_MS
            || self.reported >= MAX_DROP_REPORTS
        {
            return None;
        }
        self.reported += 1;
        slot.reported_ms = now_ms;
        Some(std::mem::take(&mut slot.unreported))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_drops_becomes_few_events_that_count_all_but_the_last() {
        let mut drops = DropAggregator::default();
        let mut reported = Vec::new();
        for n in 0..5_000 {
            reported.extend(drops.count(Some("slow"), DropReason::QueueFull, 10_000 + n));
        }
        assert_eq!(reported, [1, 1000, 1000, 1000, 1000]);
        // Another reason and another client have events of their own.
        assert_eq!(
            drops.count(Some("slow"), DropReason::Expired, 15_000),
            Some(1)
        );
        assert_eq!(drops.count(None, DropReason::QueueFull, 15_000), Some(1));
    }

    #[test]
    fn store_full_and_store_failed_are_reported_once_each() {
        let events = EventStream::new();
        let mut receiver = events.subscribe();
        let mut alarms = StoreAlarms::default();
        for health in [
            StoreHealth::Ok,
            StoreHealth::Full,
            StoreHealth::Full,
            StoreHealth::Failed,
            StoreHealth::Ok,
            StoreHealth::Ok,
        ] {
            alarms.update(health, &events);
        }
        let mut reported = Vec::new();
        while let Ok(event) = receiver.try_recv() {
            reported.push(match event.kind {
                BrokerEventKind::AlarmRaised { alarm, .. } => (true, alarm),
                BrokerEventKind::AlarmCleared { alarm } => (false, alarm),
                _ => panic!("unexpected event"),
            });
        }
        let (full, failed) = ("store_full", "store_failed");
        let expected = [(true, full), (false, full), (true, failed), (false, failed)];
        assert_eq!(reported, expected);
    }

    #[test]
    fn drops_of_very_many_clients_are_bounded_too() {
        let mut drops = DropAggregator::default();
        let reported = (0..10_000).filter(|n| {
            let client_id = format!("c{n}");
            let count = drops.count(Some(&client_id), DropReason::QueueFull, 10_000);
            count.is_some()
        });
        assert_eq!(reported.count(), MAX_DROP_REPORTS as usize);
    }
}
