//! The event stream of one subscriber: filtered, with periodic counters, and ended when the
//! subscriber's credentials are revoked.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use broker::control::BrokerEvent;
use hooks::MetricFamily;
use serde_json::{Map, Value, json};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::Interval;
use wall_clock::now_ms;

use super::stream_connection::{ItemStream, StreamConnection, StreamItem, delayed_interval};
use crate::call::ApiCall;
use crate::connection_tracker::LongRequestPermit;
use crate::state::ApiState;

/// Names of events, as in `types=`. `lost` is always sent.
pub(super) const TYPES: &[&str] = &[
    "connected",
    "disconnected",
    "authentication_failed",
    "session_created",
    "session_ended",
    "subscribed",
    "unsubscribed",
    "dropped",
    "alarm_raised",
    "alarm_cleared",
    "stats",
];

pub(super) struct EventFeed {
    app: Arc<ApiState>,
    listener: StreamConnection,
    events: broadcast::Receiver<Arc<BrokerEvent>>,
    stats: Interval,
    filter: EventFeedFilter,
}

/// The filter of one subscriber.
pub(super) struct EventFeedFilter {
    /// Empty: all types.
    pub(super) types: Vec<String>,
    pub(super) client_id: Option<String>,
    pub(super) stats_every: Duration,
}

impl ItemStream for EventFeed {
    fn next(&mut self) -> impl Future<Output = Option<StreamItem>> + Send {
        self.next_item()
    }
}

impl EventFeed {
    pub(super) fn new(call: &ApiCall, filter: EventFeedFilter, place: LongRequestPermit) -> Self {
        Self {
            app: call.app.clone(),
            listener: StreamConnection::new(call, place),
            events: call.app.node.events(),
            stats: delayed_interval(filter.stats_every),
            filter,
        }
    }

    async fn next_item(&mut self) -> Option<StreamItem> {
        enum FeedInput {
            Event(Result<Arc<BrokerEvent>, RecvError>),
            Stats,
            KeepAliveDue,
        }
        let wants_stats = self.is_selected("stats");
        loop {
            let input = tokio::select! {
                biased;
                silence = self.listener.wait_for_keep_alive() => {
                    silence?;
                    FeedInput::KeepAliveDue
                }
                event = self.events.recv() => FeedInput::Event(event),
                _ = self.stats.tick(), if wants_stats => FeedInput::Stats,
            };
            match input {
                FeedInput::Event(Ok(event)) => {
                    if let Some(item) = self.to_stream_item(&event) {
                        return Some(item);
                    }
                }
                FeedInput::Event(Err(RecvError::Lagged(count))) => {
                    return Some(StreamItem::lost_items(count));
                }
                FeedInput::Event(Err(RecvError::Closed)) => return None,
                FeedInput::Stats => {
                    let stats = stats_json(&self.app.node.metrics().await);
                    return Some(StreamItem::Event("stats".into(), stats.to_string()));
                }
                FeedInput::KeepAliveDue => return self.listener.check_and_keep_alive().await,
            }
        }
    }

    fn is_selected(&self, name: &str) -> bool {
        self.filter.types.is_empty() || self.filter.types.iter().any(|wanted| wanted == name)
    }

    fn to_stream_item(&self, event: &BrokerEvent) -> Option<StreamItem> {
        let json = serde_json::to_value(event).ok()?;
        let name = json["event"].as_str()?;
        let is_of_client = self
            .filter
            .client_id
            .as_deref()
            .is_none_or(|wanted| event.kind.client_id() == Some(wanted));
        (is_of_client && self.is_selected(name))
            .then(|| StreamItem::Event(name.to_owned(), json.to_string()))
    }
}

/// The node's counters and gauges, each summed over its labels.
fn stats_json(families: &[MetricFamily]) -> Value {
    let mut totals = Map::new();
    for family in families {
        if let Some(total) = family.numbers().reduce(|sum, number| sum + number) {
            totals.insert(family.name.to_owned(), json!(total));
        }
    }
    json!({"event": "stats", "at_ms": now_ms(), "metrics": totals})
}
