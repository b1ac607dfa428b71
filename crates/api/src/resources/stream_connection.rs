//! One who listens to a stream of the API: it ends with the node, and with the credentials that opened it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::access::{self, now_ms};
use crate::call::ApiCall;
use crate::connection_tracker::LongRequestPermit;
use crate::endpoint::EndpointAccess;
use crate::state::ApiState;

/// Silence after which something is sent, and after which the credentials are looked at again.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What one listener is told, item by item.
pub(super) trait ItemStream: Send + 'static {
    /// `None`: that was all.
    fn next(&mut self) -> impl Future<Output = Option<StreamItem>> + Send;
}

pub(super) enum StreamItem {
    /// Its name and JSON.
    Event(String, String),
    /// Nothing happened for a while.
    KeepAlive,
}

impl StreamItem {
    /// The listener was too slow for `count` others.
    pub(super) fn lost_items(count: u64) -> Self {
        let lost = json!({"event": "lost", "at_ms": now_ms(), "count": count});
        Self::Event("lost".into(), lost.to_string())
    }
}

pub(super) struct StreamConnection {
    app: Arc<ApiState>,
    headers: axum::http::HeaderMap,
    client_ip: std::net::IpAddr,
    /// What the route asks for.
    access: EndpointAccess,
    stopping: watch::Receiver<bool>,
    /// Changes whenever credentials may have ended.
    revocations: watch::Receiver<u64>,
    keep_alive: Interval,
    _place: LongRequestPermit,
}

impl StreamConnection {
    pub(super) fn new(call: &ApiCall, place: LongRequestPermit) -> Self {
        Self {
            app: call.app.clone(),
            headers: call.headers().clone(),
            client_ip: call.client_ip,
            access: call.access,
            stopping: call.app.stopping.clone(),
            // What changed since the request was let in counts, too.
            revocations: call.revocations.clone(),
            keep_alive: delayed_interval(KEEP_ALIVE),
            _place: place,
        }
    }

    /// Of a connection that shows its credentials after it was opened, in `headers`.
    pub(super) fn of_login(
        app: Arc<ApiState>,
        (access, headers): (EndpointAccess, axum::http::HeaderMap),
        from: std::net::IpAddr,
        revocations: watch::Receiver<u64>,
        place: LongRequestPermit,
    ) -> Self {
        Self {
            stopping: app.stopping.clone(),
            app,
            headers,
            client_ip: from,
            access,
            revocations,
            keep_alive: delayed_interval(KEEP_ALIVE),
            _place: place,
        }
    }

    /// Ends when something is to be sent whatever happens, or credentials have changed: `check_and_keep_alive` has to be asked then.
    /// `None`: the node stops. Nothing is lost if it is not waited for.
    pub(super) async fn wait_for_keep_alive(&mut self) -> Option<()> {
        tokio::select! {
            _ = self.stopping.wait_for(|stopping| *stopping) => None,
            changed = self.revocations.changed() => changed.ok(),
            _ = self.keep_alive.tick() => Some(()),
        }
    }

    /// `None`: whoever listens may no longer.
    pub(super) async fn check_and_keep_alive(&self) -> Option<StreamItem> {
        let who = access::authorize(&self.app, self.access, &self.headers, self.client_ip).await;
        who.is_ok().then_some(StreamItem::KeepAlive)
    }
}

/// The first time after one `period`.
pub(super) fn delayed_interval(period: Duration) -> Interval {
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
