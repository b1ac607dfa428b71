//! What subscribers of this node watch at all other nodes of the cluster.
//!
//! While there are subscribers, a task for each other node keeps a session there, see [`node_live`](crate::node_live). If the
//! node does not answer, subscribers learn that it is missing, and again when a new session has begun; what arrived in
//! between is not sent. Sessions never contain what arrives from other nodes, so that nothing goes in circles.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::Value;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::live_watches::{ClusterWatch, NodeState, Watch, WatchItem};
use crate::node_calls::ask_for_live_items;
use crate::node_live::{LiveAnswer, LiveQuestion, SharedItem, SharedWatch};
use crate::state::ApiState;
use crate::telemetry_backend::{LiveTelemetryItem, LiveTelemetryStream};

/// Time for which a new subscriber waits until the other nodes watch for it.
const BEGIN_TIME: Duration = Duration::from_secs(3);
/// Pause before a new session at a node that did not answer.
const RETRY_TIME: Duration = Duration::from_secs(1);
/// Pause before a watch that a node has refused is begun again.
const REFUSED_RETRY_TIME: Duration = Duration::from_secs(10);
/// Interval in which the members of the cluster are compared with the sessions.
const MEMBERS_INTERVAL: Duration = Duration::from_secs(1);
/// Size of the watches in one request.
const MAX_REQUEST_BYTES: usize = 512 << 10;

/// Watches at all other nodes. `None`: this node is in no cluster.
pub(crate) async fn watch(app: &Arc<ApiState>, shared: SharedWatch) -> Option<ClusterWatch> {
    let cluster = app.program.cluster_backend()?;
    let (subscriber, is_first) = app.live.add(shared, cluster.other_nodes());
    if is_first {
        tokio::spawn(keep_sessions(app.clone()));
    }
    // A node that takes longer counts as missing until it has begun.
    let _ = timeout(BEGIN_TIME, subscriber.begun()).await;
    Some(subscriber)
}

/// Keeps a session at each other node while there are subscribers.
async fn keep_sessions(app: Arc<ApiState>) {
    let mut stopping = app.stopping.clone();
    let mut tasks: HashMap<String, AbortHandle> = HashMap::new();
    loop {
        if app.live.end_if_unused() {
            break;
        }
        let Some(cluster) = app.program.cluster_backend() else {
            break;
        };
        let members = cluster.other_nodes();
        tasks.retain(|node, task| {
            let is_member = members.contains(node);
            if !is_member {
                task.abort();
            }
            is_member
        });
        app.live.retain_nodes(&members);
        for node in members {
            tasks.entry(node).or_insert_with_key(|node| {
                tokio::spawn(keep_session(app.clone(), node.clone())).abort_handle()
            });
        }
        tokio::select! {
            () = sleep(MEMBERS_INTERVAL) => {}
            () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => break,
        }
    }
    for task in tasks.values() {
        task.abort();
    }
}

/// Keeps a session at one node until it is aborted.
async fn keep_session(app: Arc<ApiState>, node: String) {
    loop {
        let Err(reason) = run_session(&app, &node).await;
        tracing::debug!(
            node,
            reason,
            "a session at another node of the cluster ended"
        );
        app.live.set_missing(&node);
        sleep(RETRY_TIME).await;
    }
}

type Answering<'a> = Pin<Box<dyn Future<Output = Result<LiveAnswer, String>> + Send + 'a>>;

/// Runs a session until it ends; returns why.
async fn run_session(app: &Arc<ApiState>, node: &str) -> Result<std::convert::Infallible, String> {
    let session = random_number();
    let mut changes = app.live.changes();
    let mut begun = BTreeSet::new();
    let mut refused = BTreeSet::new();
    let mut retry_at = Instant::now();
    let mut polling: Option<Answering<'_>> = None;
    loop {
        changes.mark_unchanged();
        let watches = app.live.watches();
        if retry_at <= Instant::now() {
            refused.clear();
            retry_at = Instant::now() + REFUSED_RETRY_TIME;
        }
        let known = (&mut begun, &mut refused);
        begin_watches(app, node, session, &watches, known).await?;
        let has_refused = !refused.is_empty();
        let ended = begun.iter().filter(|number| !watches.contains_key(number));
        let ended: Vec<u64> = ended.copied().collect();
        if !ended.is_empty() {
            begun.retain(|number| watches.contains_key(number));
            let question = LiveQuestion::End {
                session,
                watches: ended,
            };
            ask_for_live_items::<Value>(app, node, question).await?;
        }
        if begun.is_empty() {
            // There is nothing to ask for.
            tokio::select! {
                changed = changes.changed() => changed.map_err(|_| "this node stops".to_owned())?,
                () = sleep_until(retry_at), if has_refused => {}
            }
            continue;
        }
        let poll = polling.get_or_insert_with(|| {
            let question = LiveQuestion::Poll { session };
            Box::pin(ask_for_live_items(app, node, question))
        });
        tokio::select! {
            answer = poll => {
                polling = None;
                let answer = answer?;
                for (number, item) in answer.items {
                    if let Some(watch) = watches.get(&number) {
                        watch.push(node, item);
                    }
                }
                if !answer.is_open {
                    return Err("the node has ended the session".to_owned());
                }
            }
            changed = changes.changed() => changed.map_err(|_| "this node stops".to_owned())?,
            () = sleep_until(retry_at), if has_refused => {}
        }
    }
}

/// Begins those watches at a node that have not begun and that it has not refused.
async fn begin_watches(
    app: &Arc<ApiState>,
    node: &str,
    session: u64,
    watches: &BTreeMap<u64, Arc<Watch>>,
    (begun, refused): (&mut BTreeSet<u64>, &mut BTreeSet<u64>),
) -> Result<(), String> {
    let own = app.program.cluster_backend();
    let own = own.map(|cluster| cluster.node().to_owned());
    refused.retain(|number| watches.contains_key(number));
    let mut new = Vec::new();
    for (number, watch) in watches {
        if begun.contains(number) || refused.contains(number) {
            continue;
        }
        let bytes = request_bytes(&watch.shared);
        if bytes > MAX_REQUEST_BYTES {
            tracing::debug!(node, bytes, "a watch is too large for other nodes");
            watch.set_node(node, NodeState::Missing);
            refused.insert(*number);
            continue;
        }
        new.push((number, watch, bytes));
    }
    let mut rest = &new[..];
    while !rest.is_empty() {
        let mut bytes = 0;
        let fitting = rest.iter().take_while(|(.., of_watch)| {
            bytes += of_watch;
            bytes <= MAX_REQUEST_BYTES
        });
        let (now, later) = rest.split_at(fitting.count());
        rest = later;
        let shared = now.iter();
        let shared = shared.map(|(number, watch, _)| (**number, watch.shared.clone()));
        let question = LiveQuestion::Begin {
            node: own.clone().unwrap_or_default(),
            session,
            may_open: begun.is_empty(),
            watches: shared.collect(),
        };
        let reasons: Vec<Option<String>> = ask_for_live_items(app, node, question).await?;
        app.live.set_answering(node);
        for (at, (number, watch, _)) in now.iter().enumerate() {
            match reasons.get(at) {
                Some(None) => {
                    begun.insert(**number);
                    watch.set_node(node, NodeState::Watching);
                }
                reason => {
                    refused.insert(**number);
                    tracing::debug!(
                        node,
                        ?reason,
                        "another node does not watch telemetry or alarms"
                    );
                    watch.set_node(node, NodeState::Missing);
                }
            }
        }
    }
    Ok(())
}

/// Size of a watch in a request, with its number. Characters that are escaped count as they are written.
fn request_bytes(shared: &SharedWatch) -> usize {
    const NUMBER_BYTES: usize = 24;
    let json = serde_json::to_vec(shared).map_or(usize::MAX / 2, |json| json.len());
    json + NUMBER_BYTES
}

fn random_number() -> u64 {
    let mut bytes = [0; 8];
    // Only uniqueness is needed; without a source of randomness the time provides it.
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => wall_clock::now_ms(),
    }
}

/// Live telemetry of this node and of all others.
pub(crate) struct ClusterLiveStream {
    pub(crate) local: Box<dyn LiveTelemetryStream>,
    pub(crate) others: ClusterWatch,
}

impl ClusterLiveStream {
    async fn next_item(&mut self) -> Option<LiveTelemetryItem> {
        loop {
            let item = tokio::select! {
                item = self.local.next() => return item,
                item = self.others.next() => item,
            };
            return Some(match item {
                WatchItem::MissingNodes(nodes) => LiveTelemetryItem::MissingNodes(nodes),
                WatchItem::Lost(count) => LiveTelemetryItem::Lost(count),
                WatchItem::Shared(
                    _,
                    SharedItem::Row {
                        device,
                        ts_ms,
                        values,
                    },
                ) => LiveTelemetryItem::Row {
                    device,
                    ts_ms,
                    values: (values.into_iter())
                        .map(|(key, value)| (key, value.into()))
                        .collect(),
                },
                // It was not asked for.
                WatchItem::Shared(..) => continue,
            });
        }
    }
}

impl LiveTelemetryStream for ClusterLiveStream {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<LiveTelemetryItem>> + Send + '_>> {
        Box::pin(self.next_item())
    }
}
