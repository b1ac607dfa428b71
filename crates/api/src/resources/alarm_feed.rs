//! The stream of alarm changes for one subscriber; it ends when the subscriber's credentials are
//! revoked.

use std::future::Future;

use devices::alarm::AlarmEvent;
use serde_json::{Value, json};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use wall_clock::now_ms;

use super::alarm_query::{DEVICE, PRODUCT, SEVERITY, TYPE, run_blocking};
use super::devices::check_all_selected;
use super::events;
use super::stream_connection::{ItemStream, StreamConnection, StreamItem};
use crate::alarm_watch::{AlarmWatchFilter, LocalAlarmFilter};
use crate::call::ApiCall;
use crate::cluster_live;
use crate::live_watches::{ClusterWatch, WatchItem};
use crate::node_lists::namespace_names;
use crate::node_live::{SharedItem, SharedWatch};
use crate::problem_details::{ApiResult, ProblemDetails};

struct AlarmFeed {
    listener: StreamConnection,
    updates: Receiver<AlarmEvent>,
    filter: LocalAlarmFilter,
    /// The name of this node, and the changes at others; `None`: this node is in no cluster.
    cluster: Option<(String, ClusterWatch)>,
}

enum AlarmFeedInput {
    KeepAliveDue,
    Own(Result<AlarmEvent, RecvError>),
    OfOthers(WatchItem),
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
            let input = tokio::select! {
                biased;
                silence = self.listener.wait_for_keep_alive() => {
                    silence?;
                    AlarmFeedInput::KeepAliveDue
                }
                update = self.updates.recv() => AlarmFeedInput::Own(update),
                item = next_of_others(&mut self.cluster) => AlarmFeedInput::OfOthers(item),
            };
            match input {
                AlarmFeedInput::KeepAliveDue => return self.listener.check_and_keep_alive().await,
                AlarmFeedInput::Own(Err(RecvError::Closed)) => return None,
                AlarmFeedInput::Own(Err(RecvError::Lagged(count))) => {
                    return Some(StreamItem::lost_items(count));
                }
                AlarmFeedInput::Own(Ok(update)) if self.filter.matches(&update) => {
                    let node = self.cluster.as_ref().map(|(node, _)| node.as_str());
                    let alarm = json!(*update.alarm);
                    return Some(alarm_item(update.change.as_str(), now_ms(), alarm, node));
                }
                AlarmFeedInput::Own(Ok(_)) => {}
                AlarmFeedInput::OfOthers(WatchItem::MissingNodes(nodes)) => {
                    return Some(StreamItem::missing_nodes(&nodes));
                }
                AlarmFeedInput::OfOthers(WatchItem::Lost(count)) => {
                    return Some(StreamItem::lost_items(count));
                }
                AlarmFeedInput::OfOthers(WatchItem::Shared(
                    node,
                    SharedItem::Alarm {
                        change,
                        at_ms,
                        alarm,
                    },
                )) => return Some(alarm_item(&change, at_ms, alarm, Some(&node))),
                // It was not asked for.
                AlarmFeedInput::OfOthers(WatchItem::Shared(..)) => {}
            }
        }
    }
}

/// The next change at another node; never, without a cluster.
async fn next_of_others(cluster: &mut Option<(String, ClusterWatch)>) -> WatchItem {
    match cluster {
        Some((_, watch)) => watch.next().await,
        None => std::future::pending().await,
    }
}

/// As in lists, the alarm has the name of its node in a cluster: for alarms of devices the one that has raised it.
fn alarm_item(change: &str, at_ms: u64, mut alarm: Value, node: Option<&str>) -> StreamItem {
    if let (Some(node), Value::Null) = (node, &alarm["node"]) {
        alarm["node"] = node.into();
    }
    let event = json!({"event": change, "at_ms": at_ms, "alarm": alarm});
    StreamItem::Event(change.to_owned(), event.to_string())
}

pub(super) async fn stream_alarms(mut call: ApiCall) -> ApiResult {
    let device = call.query.owned_text(DEVICE);
    if let Some(id) = &device {
        check_all_selected(&call, vec![id.clone()]).await?;
    }
    let filter = AlarmWatchFilter {
        device: device.clone(),
        product: call.query.owned_text(PRODUCT),
        kind: call.query.owned_text(TYPE),
        severities: call.query.comma_separated(SEVERITY),
        namespaces: namespace_names(&call.namespaces()),
    };
    let own = filter.clone();
    let own = run_blocking(&call.app, move |alarms| own.at_this_node(alarms)).await?;
    let own = own.ok_or_else(|| {
        let id = device.unwrap_or_default();
        ProblemDetails::not_found(format!("There is no device {id:?}."))
    })?;
    let place = events::begin_stream(&call)?;
    let updates = call.app.alarms.subscribe();
    let others = cluster_live::watch(&call.app, SharedWatch::Alarms(filter)).await;
    let cluster = call.app.program.cluster_backend();
    let feed = AlarmFeed {
        listener: StreamConnection::new(&call, place),
        updates,
        filter: own,
        cluster: cluster.map(|cluster| cluster.node().to_owned()).zip(others),
    };
    events::stream_response(&mut call, feed)
}
