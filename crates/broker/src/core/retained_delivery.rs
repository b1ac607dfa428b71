//! Retained messages on their way to the new subscriptions of one connection.

use std::collections::VecDeque;
use std::sync::Arc;

use super::message::Message;
use super::retained_store::RetainedStore;
use super::subscriber_list::Subscriber;

/// Retained messages looked up at once for a new subscription.
const RETAINED_PER_STEP: usize = 16;

/// The subscriptions of one connection that retained messages are still to be sent for, and the progress.
///
/// It owns no message: messages are looked up in steps, so that a subscription to a million of them keeps none waiting
/// in memory. Subscriptions are served one after the other.
///
/// - [`subscribe`](Self::subscribe) adds a subscription. A repeated one starts again behind the others.
/// - [`next_step`](Self::next_step) returns the next messages; `None`: everything is sent. The caller sends them in
///   this order, as far as the client can take them, and calls [`record_sent`](Self::record_sent) after each. After all
///   of them it calls [`end_step`](Self::end_step). If it stops before, the next step begins where it stopped.
/// - When the connection closes, [`take_remaining`](Self::take_remaining) returns what is left of each subscription.
#[derive(Default)]
pub(crate) struct RetainedDelivery {
    subscriptions: VecDeque<PendingSubscription>,
}

struct PendingSubscription {
    filter: Box<str>,
    subscriber: Subscriber,
    /// The topic sent last.
    after: Option<Box<str>>,
}

/// Messages for one subscription, in the order of their topics.
pub(crate) struct RetainedStep {
    pub(super) subscriber: Subscriber,
    pub(super) messages: Vec<Arc<Message>>,
    /// Whether the subscription has no messages behind these.
    is_last: bool,
}

impl RetainedDelivery {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.subscriptions.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.subscriptions.len()
    }

    /// Adds a subscription; a repeated one replaces the earlier one.
    pub(super) fn subscribe(&mut self, filter: &str, subscriber: Subscriber) {
        self.subscriptions
            .retain(|earlier| *earlier.filter != *filter);
        self.subscriptions.push_back(PendingSubscription {
            filter: filter.into(),
            subscriber,
            after: None,
        });
    }

    pub(super) fn next_step(&self, store: &RetainedStore, now_ms: u64) -> Option<RetainedStep> {
        let first = self.subscriptions.front()?;
        Some(first.step(store, RETAINED_PER_STEP, now_ms))
    }

    /// The message of this topic, of the step that was returned last, is sent or will not be sent.
    pub(super) fn record_sent(&mut self, topic: &str) {
        if let Some(first) = self.subscriptions.front_mut() {
            first.after = Some(topic.into());
        }
    }

    /// All messages of the step are sent.
    pub(super) fn end_step(&mut self, step: &RetainedStep) {
        if step.is_last {
            self.subscriptions.pop_front();
        }
    }

    /// Removes the first subscription and returns its remaining messages, at most `limit`.
    pub(super) fn take_remaining(
        &mut self,
        store: &RetainedStore,
        limit: usize,
        now_ms: u64,
    ) -> Option<RetainedStep> {
        let first = self.subscriptions.pop_front()?;
        Some(first.step(store, limit, now_ms))
    }
}

impl PendingSubscription {
    fn step(&self, store: &RetainedStore, limit: usize, now_ms: u64) -> RetainedStep {
        let messages = store.matching(&self.filter, self.after.as_deref(), limit, now_ms);
        RetainedStep {
            subscriber: self.subscriber,
            is_last: messages.len() < limit,
            messages,
        }
    }
}

#[cfg(test)]
mod tests {
    use hooks::MessageView;
    use mqtt::SubscriptionOptions;

    use super::*;
    use crate::config::BrokerLimits;
    use crate::core::tables::{SessionIx, TableIx};

    fn store_of(topics: &[String]) -> RetainedStore {
        let store = RetainedStore::default();
        for topic in topics {
            let view = MessageView {
                topic,
                payload: b"on",
                retain: true,
                ..MessageView::unknown()
            };
            let limits = BrokerLimits::default();
            assert!(store.store(&view, &limits).is_ok(), "{topic}");
        }
        store
    }

    fn subscriber(identifier: u32) -> Subscriber {
        Subscriber {
            session: SessionIx::from_position(0),
            identifier,
            options: SubscriptionOptions::default(),
        }
    }

    /// Sends up to `room` messages; returns the identifier of the subscription and the topic of each.
    fn send(
        delivery: &mut RetainedDelivery,
        store: &RetainedStore,
        room: usize,
    ) -> Vec<(u32, String)> {
        let mut sent = Vec::new();
        while let Some(step) = delivery.next_step(store, 0) {
            for message in &step.messages {
                if sent.len() == room {
                    return sent;
                }
                let topic = message.view().topic;
                sent.push((step.subscriber.identifier, topic.to_owned()));
                delivery.record_sent(topic);
            }
            delivery.end_step(&step);
        }
        sent
    }

    #[test]
    fn each_message_is_sent_once_however_often_the_client_is_full() {
        let topics: Vec<String> = (10..60).map(|n| format!("a/{n}")).collect();
        let store = store_of(&topics);
        let mut delivery = RetainedDelivery::default();
        delivery.subscribe("a/#", subscriber(1));
        delivery.subscribe("a/30", subscriber(2));
        let mut sent = Vec::new();
        while !delivery.is_empty() {
            sent.extend(send(&mut delivery, &store, 7));
        }
        let mut wanted: Vec<_> = topics.into_iter().map(|topic| (1, topic)).collect();
        wanted.push((2, "a/30".to_owned()));
        sent.sort();
        wanted.sort();
        assert_eq!(sent, wanted);
    }

    #[test]
    fn a_repeated_subscription_starts_again() {
        let topics: Vec<String> = (10..20).map(|n| format!("a/{n}")).collect();
        let store = store_of(&topics);
        let mut delivery = RetainedDelivery::default();
        delivery.subscribe("a/#", subscriber(1));
        assert_eq!(send(&mut delivery, &store, 4).len(), 4);
        delivery.subscribe("a/#", subscriber(2));
        let sent = send(&mut delivery, &store, usize::MAX);
        assert_eq!(sent.len(), 10);
        assert!(sent.iter().all(|(identifier, _)| *identifier == 2));
    }

    #[test]
    fn what_is_left_begins_behind_the_message_sent_last() {
        let topics: Vec<String> = (10..20).map(|n| format!("a/{n}")).collect();
        let store = store_of(&topics);
        let mut delivery = RetainedDelivery::default();
        delivery.subscribe("a/#", subscriber(1));
        let sent = send(&mut delivery, &store, 4).len();
        let left = delivery.take_remaining(&store, 1000, 0);
        assert_eq!(left.map(|left| left.messages.len()), Some(10 - sent));
        assert!(delivery.take_remaining(&store, 1000, 0).is_none());
    }
}
