//! Subscriptions of a peer: what it has requested, one request at a time, and what must be restored when the broker has
//! no session of the peer any more.

use std::collections::{BTreeMap, VecDeque};

use mqtt::{QoS, ReasonCode, SubscriptionOptions, TopicLimits};

use crate::exchange::{RequestedSubscription, SubscriptionAnswer};

/// Requests that wait at a time.
const MAX_PENDING: usize = 16;
/// Filters of one request.
pub(crate) const MAX_FILTERS: usize = 128;
/// Filters that are restored by one SUBSCRIBE.
const RESTORED_AT_A_TIME: usize = 32;

/// A change that the broker makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SubscriptionChange {
    Subscribe(Vec<(String, SubscriptionOptions)>),
    Unsubscribe(Vec<String>),
}

#[derive(Debug)]
struct PendingChange {
    /// The number of the peer's request; `None`: the peer expects no answer.
    request: Option<u64>,
    change: SubscriptionChange,
}

/// The subscriptions of one link. They outlive connections to the broker.
///
/// The caller sends [`next_unsent`](Self::next_unsent) to the broker, calls [`set_sent`](Self::set_sent), and passes the answer
/// to [`complete`](Self::complete). On a new connection it calls [`reset`](Self::reset), and [`restore`](Self::restore) if the broker has
/// no session.
#[derive(Debug, Default)]
pub(crate) struct PeerSubscriptions {
    /// What the broker has accepted; it limits their number.
    active: BTreeMap<String, QoS>,
    pending: VecDeque<PendingChange>,
    is_first_sent: bool,
}

impl SubscriptionChange {
    /// A request to subscribe.
    ///
    /// # Errors
    /// Names the invalid field.
    pub(crate) fn subscribe(requested: Vec<RequestedSubscription>) -> Result<Self, String> {
        check_count("subscribe", requested.len())?;
        let subscription = |it: RequestedSubscription| {
            check_filter("subscribe", &it.filter)?;
            let qos = match it.qos {
                0 => QoS::AtMostOnce,
                1 => QoS::AtLeastOnce,
                other => {
                    return Err(format!(
                        "qos {other}: expected 0 or 1; a link delivers messages of QoS 1 once"
                    ));
                }
            };
            Ok((it.filter, SubscriptionOptions::new(qos)))
        };
        let subscriptions: Result<_, String> = requested.into_iter().map(subscription).collect();
        subscriptions.map(Self::Subscribe)
    }

    /// A request to unsubscribe.
    ///
    /// # Errors
    /// Names the invalid field.
    pub(crate) fn unsubscribe(filters: Vec<String>) -> Result<Self, String> {
        check_count("unsubscribe", filters.len())?;
        for filter in &filters {
            check_filter("unsubscribe", filter)?;
        }
        Ok(Self::Unsubscribe(filters))
    }
}

fn check_count(field: &str, count: usize) -> Result<(), String> {
    match count {
        1..=MAX_FILTERS => Ok(()),
        _ => Err(format!(
            "{field}: {count} topic filters; expected 1 to {MAX_FILTERS}"
        )),
    }
}

/// The broker would end the connection of a client that sends an invalid one.
fn check_filter(field: &str, filter: &str) -> Result<(), String> {
    mqtt::validate_topic_filter(filter, &TopicLimits::NONE)
        .map_err(|error| format!("{field}: {filter:?} is not a topic filter: {error}"))
}

impl PeerSubscriptions {
    pub(crate) fn has_room(&self) -> bool {
        self.pending.len() < MAX_PENDING
    }

    pub(crate) fn push(&mut self, request: u64, change: SubscriptionChange) {
        self.pending.push_back(PendingChange {
            request: Some(request),
            change,
        });
    }

    /// What has been sent and not answered must be sent again, on a new connection.
    pub(crate) fn reset(&mut self) {
        self.is_first_sent = false;
    }

    /// The broker has no session: everything must be subscribed again, before what the peer has requested meanwhile.
    pub(crate) fn restore(&mut self) {
        self.pending.retain(|pending| pending.request.is_some());
        let all: Vec<_> = std::mem::take(&mut self.active).into_iter().collect();
        for some in all.chunks(RESTORED_AT_A_TIME).rev() {
            let options = |(filter, qos): &(String, QoS)| {
                // Retained messages were sent at the first subscribe.
                let options = SubscriptionOptions {
                    retain_handling: 2,
                    ..SubscriptionOptions::new(*qos)
                };
                (filter.clone(), options)
            };
            self.pending.push_front(PendingChange {
                request: None,
                change: SubscriptionChange::Subscribe(some.iter().map(options).collect()),
            });
        }
    }

    /// The next change for the broker, if no other one waits for its answer.
    pub(crate) fn next_unsent(&self) -> Option<&SubscriptionChange> {
        let first = self.pending.front().filter(|_| !self.is_first_sent);
        first.map(|pending| &pending.change)
    }

    pub(crate) fn set_sent(&mut self) {
        self.is_first_sent = true;
    }

    /// Handles the broker's answer to the change that was sent. Returns that for the peer.
    pub(crate) fn complete(
        &mut self,
        codes: &[ReasonCode],
        reason: Option<String>,
    ) -> Option<SubscriptionAnswer> {
        if !std::mem::take(&mut self.is_first_sent) {
            return None;
        }
        let PendingChange { request, change } = self.pending.pop_front()?;
        match change {
            SubscriptionChange::Subscribe(subscriptions) => {
                for ((filter, options), code) in subscriptions.into_iter().zip(codes) {
                    if !code.is_error() {
                        self.active.insert(filter, options.qos);
                    }
                }
            }
            SubscriptionChange::Unsubscribe(filters) => {
                for (filter, code) in filters.iter().zip(codes) {
                    if !code.is_error() {
                        self.active.remove(filter);
                    }
                }
            }
        }
        Some(SubscriptionAnswer {
            request: request?,
            reason_codes: codes.iter().map(|code| code.0).collect(),
            error: reason,
        })
    }

    /// The change that was to be sent next cannot be sent. Returns the answer for the peer.
    pub(crate) fn reject_next(&mut self, error: String) -> Option<SubscriptionAnswer> {
        let rejected = self.pending.pop_front()?;
        Some(SubscriptionAnswer::rejection(rejected.request?, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(filters: &[&str], qos: u8) -> Result<SubscriptionChange, String> {
        let requested = filters.iter().map(|filter| RequestedSubscription {
            filter: (*filter).to_owned(),
            qos,
        });
        SubscriptionChange::subscribe(requested.collect())
    }

    fn accept(subscriptions: &mut PeerSubscriptions, code: ReasonCode) -> Option<u64> {
        let count = match subscriptions.next_unsent()? {
            SubscriptionChange::Subscribe(all) => all.len(),
            SubscriptionChange::Unsubscribe(all) => all.len(),
        };
        subscriptions.set_sent();
        let answer = subscriptions.complete(&vec![code; count], None);
        answer.map(|answer| answer.request)
    }

    #[test]
    fn requests_are_sent_one_after_the_other() {
        let mut subscriptions = PeerSubscriptions::default();
        subscriptions.push(1, requested(&["a", "b/#"], 1).expect("valid"));
        subscriptions.push(2, requested(&["c"], 0).expect("valid"));
        assert!(matches!(
            subscriptions.next_unsent(),
            Some(SubscriptionChange::Subscribe(all)) if all.len() == 2
        ));
        subscriptions.set_sent();
        assert_eq!(subscriptions.next_unsent(), None);
        // The connection is lost before the answer.
        subscriptions.reset();
        assert_eq!(accept(&mut subscriptions, ReasonCode(1)), Some(1));
        assert_eq!(accept(&mut subscriptions, ReasonCode(0)), Some(2));
        assert_eq!(subscriptions.next_unsent(), None);
        assert!(!subscriptions.active.is_empty());
    }

    #[test]
    fn accepted_subscriptions_are_restored_before_new_requests() {
        let mut subscriptions = PeerSubscriptions::default();
        let names: Vec<String> = (0..40).map(|number| format!("t/{number:02}")).collect();
        let filters: Vec<&str> = names.iter().map(String::as_str).collect();
        subscriptions.push(1, requested(&filters, 1).expect("valid"));
        accept(&mut subscriptions, ReasonCode(1));
        subscriptions.push(2, requested(&["denied"], 1).expect("valid"));
        accept(&mut subscriptions, ReasonCode::NOT_AUTHORIZED);
        let left = SubscriptionChange::unsubscribe(vec!["t/07".to_owned()]).expect("valid");
        subscriptions.push(3, left);
        accept(&mut subscriptions, ReasonCode(0));
        subscriptions.push(4, requested(&["later"], 1).expect("valid"));
        // The second interruption comes before everything is restored.
        for _ in 0..2 {
            subscriptions.reset();
            subscriptions.restore();
            let Some(SubscriptionChange::Subscribe(first)) = subscriptions.next_unsent() else {
                panic!("{subscriptions:?}");
            };
            assert_eq!(first.len(), RESTORED_AT_A_TIME);
            assert!(first.iter().all(|(filter, _)| filter != "t/07"));
            assert_eq!(accept(&mut subscriptions, ReasonCode(1)), None);
            assert_eq!(accept(&mut subscriptions, ReasonCode(1)), None);
        }
        assert_eq!(accept(&mut subscriptions, ReasonCode(1)), Some(4));
        assert_eq!(subscriptions.active.len(), 40);
    }

    #[test]
    fn invalid_requests_are_explained() {
        for (change, expected) in [
            (requested(&["a/#/b"], 1), "not a topic filter"),
            (requested(&["a"], 2), "qos 2: expected 0 or 1"),
            (requested(&[], 1), "0 topic filters; expected 1 to 128"),
            (requested(&["a"; MAX_FILTERS + 1], 1), "129 topic filters"),
            (
                SubscriptionChange::unsubscribe(vec![String::new()]),
                "not a topic filter",
            ),
        ] {
            let error = change.expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
        let mut subscriptions = PeerSubscriptions::default();
        subscriptions.push(7, requested(&["a"], 1).expect("valid"));
        let answer = subscriptions.reject_next("too long".to_owned());
        assert_eq!(
            answer,
            Some(SubscriptionAnswer::rejection(7, "too long".to_owned()))
        );
        assert!(subscriptions.active.is_empty() && subscriptions.pending.is_empty());
    }
}
