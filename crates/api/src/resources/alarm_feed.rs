//! What becomes of alarms as one listener of the API gets it, ended when the listener's credentials are.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::sync::{OwnedSemaphorePermit, watch as stopping};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::alarms::{DEVICE, PRODUCT, SEVERITY, TYPE, ask};
use super::event_feed::{Item, Items};
use super::events;
use crate::access::{self, now_ms};
use crate::alarm_tools::AlarmNews;
use crate::app::App;
use crate::call::Call;
use crate::endpoint::Outcome;
use crate::problem::Problem;

/// Silence after which something is sent, and after which the credentials are looked at again.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What this listener wants.
struct Filter {
    device: Option<u32>,
    product: Option<String>,
    kind: Option<String>,
    /// Empty: all.
    severities: Vec<String>,
}

struct Feed {
    app: Arc<App>,
    headers: axum::http::HeaderMap,
    from: std::net::IpAddr,
    news: Receiver<Arc<AlarmNews>>,
    filter: Filter,
    stopping: stopping::Receiver<bool>,
    keep_alive: Interval,
    _permit: OwnedSemaphorePermit,
}

impl Filter {
    fn has(&self, news: &AlarmNews) -> bool {
        let is = |wanted: &Option<String>, field: &str| {
            let found = news.alarm.get(field).and_then(Value::as_str);
            wanted.is_none() || wanted.as_deref() == found
        };
        let severity = news.alarm["severity"].as_str().unwrap_or_default();
        self.device.is_none_or(|no| news.devices.contains(&no))
            && is(&self.product, "productId")
            && is(&self.kind, "type")
            && (self.severities.is_empty() || self.severities.iter().any(|one| one == severity))
    }
}

impl Items for Feed {
    fn next(&mut self) -> impl Future<Output = Option<Item>> + Send {
        self.next_item()
    }
}

impl Feed {
    async fn next_item(&mut self) -> Option<Item> {
        loop {
            // The credentials are looked at when nothing is borrowed any more.
            let woken = tokio::select! {
                _ = self.stopping.wait_for(|stopping| *stopping) => return None,
                news = self.news.recv() => Some(news),
                _ = self.keep_alive.tick() => None,
            };
            match woken {
                None => {
                    let who = access::admitted(&self.app, &self.headers, self.from).await;
                    return who.is_ok().then_some(Item::KeepAlive);
                }
                Some(Err(RecvError::Closed)) => return None,
                Some(Err(RecvError::Lagged(count))) => {
                    let lost = json!({"event": "lost", "at_ms": now_ms(), "count": count});
                    return Some(Item::Event("lost".into(), lost.to_string()));
                }
                Some(Ok(news)) if self.filter.has(&news) => {
                    let event =
                        json!({"event": news.change, "at_ms": now_ms(), "alarm": news.alarm});
                    return Some(Item::Event(news.change.to_owned(), event.to_string()));
                }
                Some(Ok(_)) => {}
            }
        }
    }
}

pub(super) async fn watch(mut call: Call) -> Outcome {
    let device = match call.query.owned(DEVICE) {
        None => None,
        Some(id) => {
            let asked = id.clone();
            let number = ask(&call.app, move |tools| tools.device_number(&asked)).await?;
            let none = || Problem::not_found(format!("There is no device {id:?}."));
            Some(number.ok_or_else(none)?)
        }
    };
    let permit = events::permit(&call)?;
    let mut keep_alive = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let feed = Feed {
        app: call.app.clone(),
        headers: call.headers().clone(),
        from: call.from,
        news: call.app.alarm_tools.watch(),
        filter: Filter {
            device,
            product: call.query.owned(PRODUCT),
            kind: call.query.owned(TYPE),
            severities: call.query.words(SEVERITY),
        },
        stopping: call.app.stopping.clone(),
        keep_alive,
        _permit: permit,
    };
    events::stream_of(&mut call, feed)
}
