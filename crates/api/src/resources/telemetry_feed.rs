//! Telemetry as one listener of the API gets it, ended when the listener's credentials are.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::event_feed::{Item, Items};
use super::events;
use super::telemetry::ask;
use super::telemetry_question::keys;
use crate::access::{self, now_ms};
use crate::app::App;
use crate::call::Call;
use crate::endpoint::Outcome;
use crate::parameters::{Parameter, Shape};
use crate::problem::Problem;
use crate::telemetry_tools::{LiveItem, LiveRows};

/// Silence after which something is sent, and after which the credentials are looked at again.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) const DEVICES: Parameter = Parameter {
    name: "devices",
    shape: Shape::Text,
    about: "Ids of devices, separated by commas.",
};

struct Feed {
    app: Arc<App>,
    headers: axum::http::HeaderMap,
    from: std::net::IpAddr,
    rows: Box<dyn LiveRows>,
    stopping: watch::Receiver<bool>,
    keep_alive: Interval,
    _permit: OwnedSemaphorePermit,
}

impl Items for Feed {
    fn next(&mut self) -> impl Future<Output = Option<Item>> + Send {
        self.next_item()
    }
}

impl Feed {
    async fn next_item(&mut self) -> Option<Item> {
        // The credentials are looked at when nothing is borrowed any more.
        let woken = tokio::select! {
            _ = self.stopping.wait_for(|stopping| *stopping) => return None,
            item = self.rows.next() => Some(item?),
            _ = self.keep_alive.tick() => None,
        };
        let Some(item) = woken else {
            let who = access::admitted(&self.app, &self.headers, self.from).await;
            return who.is_ok().then_some(Item::KeepAlive);
        };
        Some(match item {
            LiveItem::Row {
                device,
                ts_ms,
                values,
            } => {
                let values: Map<String, Value> = values.into_iter().collect();
                let row = json!({"device": device, "ts_ms": ts_ms, "values": values});
                Item::Event("telemetry".into(), row.to_string())
            }
            LiveItem::Lost(count) => {
                let lost = json!({"event": "lost", "at_ms": now_ms(), "count": count});
                Item::Event("lost".into(), lost.to_string())
            }
        })
    }
}

pub(super) async fn of_device(call: Call) -> Outcome {
    let device = call.path("id").to_owned();
    watch(call, vec![device]).await
}

pub(super) async fn of_devices(call: Call) -> Outcome {
    let devices = call.query.words(DEVICES);
    if devices.is_empty() {
        let detail = "devices: expected at least one id.";
        return Err(Problem::parameter(DEVICES.name, detail));
    }
    watch(call, devices).await
}

async fn watch(mut call: Call, devices: Vec<String>) -> Outcome {
    let permit = events::permit(&call)?;
    let keys = keys(&call);
    let rows = ask(&call.app, move |tools| {
        tools.watch(&devices, keys.as_deref())
    })
    .await?;
    let mut keep_alive = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let feed = Feed {
        app: call.app.clone(),
        headers: call.headers().clone(),
        from: call.from,
        rows,
        stopping: call.app.stopping.clone(),
        keep_alive,
        _permit: permit,
    };
    events::stream_of(&mut call, feed)
}
