//! The stream of alarm changes for one subscriber; it ends when the subscriber's credentials are
//! revoked.

use std::future::Future;

use devices::DeviceNo;
use devices::alarm::AlarmEvent;
use namespaces::NamespaceSelection;
use serde_json::json;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use wall_clock::now_ms;

use super::alarm_query::{DEVICE, PRODUCT, SEVERITY, TYPE, run_blocking};
use super::devices::check_all_selected;
use super::events;
use super::stream_connection::{ItemStream, StreamConnection, StreamItem};
use crate::call::ApiCall;
use crate::problem_details::{ApiResult, ProblemDetails};

/// The filter of one subscriber.
struct AlarmFeedFilter {
    device: Option<DeviceNo>,
    product: Option<String>,
    kind: Option<String>,
    /// Empty: all severities.
    severities: Vec<String>,
    namespaces: NamespaceSelection,
}

struct AlarmFeed {
    listener: StreamConnection,
    updates: Receiver<AlarmEvent>,
    filter: AlarmFeedFilter,
}

impl AlarmFeedFilter {
    fn matches(&self, event: &AlarmEvent) -> bool {
        let alarm = &*event.alarm;
        let is = |wanted: &Option<String>, found: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == found)
        };
        let severity = alarm.severity.as_str();
        self.device.is_none_or(|no| alarm.devices().contains(&no))
            && is(&self.product, &alarm.product)
            && is(&self.kind, &alarm.kind)
            && self.namespaces.contains(&alarm.namespace)
            && (self.severities.is_empty() || self.severities.iter().any(|one| one == severity))
    }
}

impl ItemStream for AlarmFeed {
    fn next(&mut self) -> impl Future<Output = Option<StreamItem>> + Send {
        self.next_item()
    }
}

impl AlarmFeed {
    async fn next_item(&mut self) -> Option<StreamItem> {
        loop {
            // The credentials are checked outside the select, when nothing is borrowed any more.
            let woken = tokio::select! {
                biased;
                silence = self.listener.wait_for_keep_alive() => {
                    silence?;
                    None
                }
                update = self.updates.recv() => Some(update),
            };
            match woken {
                None => return self.listener.check_and_keep_alive().await,
                Some(Err(RecvError::Closed)) => return None,
                Some(Err(RecvError::Lagged(count))) => return Some(StreamItem::lost_items(count)),
                Some(Ok(update)) if self.filter.matches(&update) => {
                    let change = update.change.as_str();
                    let event = json!({"event": change, "at_ms": now_ms(), "alarm": *update.alarm});
                    return Some(StreamItem::Event(change.to_owned(), event.to_string()));
                }
                Some(Ok(_)) => {}
            }
        }
    }
}

pub(super) async fn stream_alarms(mut call: ApiCall) -> ApiResult {
    let device = match call.query.owned_text(DEVICE) {
        None => None,
        Some(id) => {
            check_all_selected(&call, vec![id.clone()]).await?;
            let watched = id.clone();
            let number =
                run_blocking(&call.app, move |alarms| alarms.device_number(&watched)).await?;
            let none = || ProblemDetails::not_found(format!("There is no device {id:?}."));
            Some(number.ok_or_else(none)?)
        }
    };
    let place = events::begin_stream(&call)?;
    let feed = AlarmFeed {
        listener: StreamConnection::new(&call, place),
        updates: call.app.alarms.subscribe(),
        filter: AlarmFeedFilter {
            device,
            product: call.query.owned_text(PRODUCT),
            kind: call.query.owned_text(TYPE),
            severities: call.query.comma_separated(SEVERITY),
            namespaces: call.namespaces(),
        },
    };
    events::stream_response(&mut call, feed)
}
