//! The lifetime of a stream: it ends when the node stops or when the credentials that opened it are
//! revoked.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use namespaces::NamespaceSelection;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use wall_clock::now_ms;

use crate::access::{self, EndpointAccess};
use crate::call::ApiCall;
use crate::connection_tracker::LongRequestPermit;
use crate::state::ApiState;

/// Idle time after which a keep-alive is sent and the credentials are checked again.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The items of one subscriber's stream.
pub(super) trait ItemStream: Send + 'static {
    /// The next item; `None` at the end of the stream.
    fn next(&mut self) -> impl Future<Output = Option<StreamItem>> + Send;
}

pub(super) enum StreamItem {
    /// Name and JSON of an event.
    Event(String, String),
    /// Sent after an idle period.
    KeepAlive,
}

impl StreamItem {
    /// The subscriber was too slow and lost `count` items.
    pub(super) fn lost_items(count: u64) -> Self {
        let lost = json!({"event": "lost", "at_ms": now_ms(), "count": count});
        Self::Event("lost".into(), lost.to_string())
    }

    /// The items of these nodes of the cluster are missing now.
    pub(super) fn missing_nodes(nodes: &[String]) -> Self {
        const NAME: &str = "missing_nodes";
        let missing = json!({"event": NAME, "at_ms": now_ms(), NAME: nodes});
        Self::Event(NAME.into(), missing.to_string())
    }
}

pub(super) struct StreamConnection {
    app: Arc<ApiState>,
    headers: axum::http::HeaderMap,
    client_ip: std::net::IpAddr,
    /// The access required by the route.
    access: EndpointAccess,
    /// What the stream was opened for; it ends when the caller no longer has all of it.
    granted: NamespaceSelection,
    stopping: watch::Receiver<bool>,
    /// Changes whenever credentials may have been revoked.
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
            granted: call.granted_namespaces().clone(),
            stopping: call.app.stopping.clone(),
            // Revocations since the request was admitted count too.
            revocations: call.revocations.clone(),
            keep_alive: delayed_interval(KEEP_ALIVE),
            _place: place,
        }
    }

    /// For a connection of a caller with a node-wide role that sends its credentials, here in
    /// `headers`, after it was opened.
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
            granted: NamespaceSelection::All,
            revocations,
            keep_alive: delayed_interval(KEEP_ALIVE),
            _place: place,
        }
    }

    /// Resolves when a keep-alive is due or credentials may have been revoked; then call
    /// `check_and_keep_alive`. `None`: the node stops. Cancel safe.
    pub(super) async fn wait_for_keep_alive(&mut self) -> Option<()> {
        tokio::select! {
            _ = self.stopping.wait_for(|stopping| *stopping) => None,
            changed = self.revocations.changed() => changed.ok(),
            _ = self.keep_alive.tick() => Some(()),
        }
    }

    /// `None`: the subscriber's credentials are no longer valid.
    pub(super) async fn check_and_keep_alive(&self) -> Option<StreamItem> {
        let (app, headers) = (&self.app, &self.headers);
        let who = access::authenticate(app, self.access, headers, self.client_ip).await;
        let who = who.ok()?;
        let needed = self.access.required_role(app)?;
        let has_now = who.authority.selection(needed, &app.namespaces);
        has_now
            .covers(&self.granted)
            .then_some(StreamItem::KeepAlive)
    }
}

/// An interval whose first tick comes after one `period`.
pub(super) fn delayed_interval(period: Duration) -> Interval {
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
