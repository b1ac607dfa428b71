//! What becomes of alarms as one listener of the API gets it, ended when the listener's credentials are.

use std::future::Future;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::alarms::{DEVICE, PRODUCT, SEVERITY, TYPE, ask};
use super::events;
use super::listener::{Item, Items, Listener};
use crate::access::now_ms;
use crate::alarm_tools::AlarmNews;
use crate::call::Call;
use crate::endpoint::Outcome;
use crate::problem::Problem;

/// What this listener wants.
struct Filter {
    device: Option<u32>,
    product: Option<String>,
    kind: Option<String>,
    /// Empty: all.
    severities: Vec<String>,
}

struct Feed {
    listener: Listener,
    news: Receiver<Arc<AlarmNews>>,
    filter: Filter,
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
                biased;
                silence = self.listener.silence() => {
                    silence?;
                    None
                }
                news = self.news.recv() => Some(news),
            };
            match woken {
                None => return self.listener.keep_alive().await,
                Some(Err(RecvError::Closed)) => return None,
                Some(Err(RecvError::Lagged(count))) => return Some(Item::lost(count)),
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
    let place = events::place(&call)?;
    let feed = Feed {
        listener: Listener::new(&call, place),
        news: call.app.alarm_tools.watch(),
        filter: Filter {
            device,
            product: call.query.owned(PRODUCT),
            kind: call.query.owned(TYPE),
            severities: call.query.words(SEVERITY),
        },
    };
    events::stream_of(&mut call, feed)
}
