//! The subscribers of this node to what arrives at other nodes of the cluster, and what waits for each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, mpsc, watch};

use crate::node_live::{SharedItem, SharedWatch};

/// Maximum number of items that wait for a subscriber, and the size of their texts; a larger item waits alone.
const MAX_WAITING: usize = 1024;
const MAX_WAITING_BYTES: usize = 1 << 20;

/// All subscribers of this node.
#[derive(Default)]
pub(crate) struct ClusterLive {
    state: Mutex<LiveState>,
}

struct LiveState {
    last_number: u64,
    watches: BTreeMap<u64, Arc<Watch>>,
    /// Nodes that have not answered last.
    missing_nodes: BTreeSet<String>,
    /// Changes whenever `watches` do.
    changes: watch::Sender<u64>,
    /// Whether the task runs that keeps the sessions.
    is_running: bool,
}

impl Default for LiveState {
    fn default() -> Self {
        Self {
            last_number: 0,
            watches: BTreeMap::new(),
            missing_nodes: BTreeSet::new(),
            changes: watch::channel(0).0,
            is_running: false,
        }
    }
}

/// Whether a node watches for a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeState {
    Beginning,
    Watching,
    Missing,
}

/// What a subscriber watches, and what waits for it.
pub(crate) struct Watch {
    pub(crate) shared: SharedWatch,
    items: mpsc::Sender<(String, SharedItem)>,
    waiting_bytes: AtomicUsize,
    lost_items: AtomicU64,
    nodes: Mutex<BTreeMap<String, NodeState>>,
    /// The state of a node has changed, or items were lost.
    changed: Notify,
}

/// An item for a subscriber.
#[derive(Debug, PartialEq)]
pub(crate) enum WatchItem {
    /// Of the node with this name.
    Shared(String, SharedItem),
    /// The number of items that were lost.
    Lost(u64),
    /// The nodes that do not answer have changed to these.
    MissingNodes(Vec<String>),
}

/// A subscriber; dropping it ends the subscription.
pub(crate) struct ClusterWatch {
    live: Arc<ClusterLive>,
    number: u64,
    watch: Arc<Watch>,
    items: mpsc::Receiver<(String, SharedItem)>,
    /// The missing nodes that the subscriber knows of.
    missing_nodes: Vec<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// Queues an item, or counts it as lost.
    pub(crate) fn push(&self, node: &str, item: SharedItem) {
        if let SharedItem::Lost(count) = item {
            return self.add_lost(count);
        }
        let bytes = item.text_bytes();
        let before = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let has_space = before == 0 || before + bytes <= MAX_WAITING_BYTES;
        if !has_space || self.items.try_send((node.to_owned(), item)).is_err() {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.add_lost(1);
        }
    }

    fn add_lost(&self, count: u64) {
        self.lost_items.fetch_add(count, Ordering::Relaxed);
        self.changed.notify_one();
    }

    pub(crate) fn set_node(&self, node: &str, state: NodeState) {
        let earlier = lock(&self.nodes).insert(node.to_owned(), state);
        if earlier != Some(state) {
            self.changed.notify_one();
        }
    }

    fn retain_nodes(&self, members: &[String]) {
        let mut nodes = lock(&self.nodes);
        let count = nodes.len();
        nodes.retain(|node, _| members.contains(node));
        if nodes.len() != count {
            self.changed.notify_one();
        }
    }

    fn is_beginning(&self) -> bool {
        let nodes = lock(&self.nodes);
        nodes.values().any(|state| *state == NodeState::Beginning)
    }

    fn missing_nodes(&self) -> Vec<String> {
        let nodes = lock(&self.nodes);
        let missing = nodes
            .iter()
            .filter(|(_, state)| **state != NodeState::Watching);
        missing.map(|(node, _)| node.clone()).collect()
    }
}

impl ClusterLive {
    /// Adds a subscriber. The flag says that the sessions are not kept yet, and have to be from now on.
    pub(crate) fn add(
        self: &Arc<Self>,
        shared: SharedWatch,
        nodes: Vec<String>,
    ) -> (ClusterWatch, bool) {
        let (sender, items) = mpsc::channel(MAX_WAITING);
        let mut state = lock(&self.state);
        let nodes = nodes.into_iter().map(|node| {
            // Nobody waits for a node that is known to be missing.
            let begins = match state.missing_nodes.contains(&node) {
                true => NodeState::Missing,
                false => NodeState::Beginning,
            };
            (node, begins)
        });
        let watch = Arc::new(Watch {
            shared,
            items: sender,
            waiting_bytes: AtomicUsize::new(0),
            lost_items: AtomicU64::new(0),
            nodes: Mutex::new(nodes.collect()),
            changed: Notify::new(),
        });
        state.last_number += 1;
        let number = state.last_number;
        state.watches.insert(number, watch.clone());
        state.changes.send_modify(|count| *count += 1);
        let is_first = !std::mem::replace(&mut state.is_running, true);
        drop(state);
        let subscriber = ClusterWatch {
            live: self.clone(),
            number,
            watch,
            items,
            missing_nodes: Vec::new(),
        };
        (subscriber, is_first)
    }

    fn remove(&self, number: u64) {
        let mut state = lock(&self.state);
        state.watches.remove(&number);
        state.changes.send_modify(|count| *count += 1);
    }

    /// A node does not answer, so that the items of all subscribers are incomplete.
    pub(crate) fn set_missing(&self, node: &str) {
        let mut state = lock(&self.state);
        state.missing_nodes.insert(node.to_owned());
        for watch in state.watches.values() {
            watch.set_node(node, NodeState::Missing);
        }
    }

    /// A node has answered. Each subscriber learns of it when the node watches for it.
    pub(crate) fn set_answering(&self, node: &str) {
        lock(&self.state).missing_nodes.remove(node);
    }

    /// Forgets nodes that are no members of the cluster any more.
    pub(crate) fn retain_nodes(&self, members: &[String]) {
        let mut state = lock(&self.state);
        state.missing_nodes.retain(|node| members.contains(node));
        for watch in state.watches.values() {
            watch.retain_nodes(members);
        }
    }

    pub(crate) fn watches(&self) -> BTreeMap<u64, Arc<Watch>> {
        lock(&self.state).watches.clone()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        lock(&self.state).changes.subscribe()
    }

    /// Whether the sessions may end, because there are no subscribers.
    pub(crate) fn end_if_unused(&self) -> bool {
        let mut state = lock(&self.state);
        state.is_running = !state.watches.is_empty();
        if !state.is_running {
            // Nobody finds out any more when they answer again.
            state.missing_nodes.clear();
        }
        !state.is_running
    }
}

impl Drop for ClusterWatch {
    fn drop(&mut self) {
        self.live.remove(self.number);
    }
}

impl ClusterWatch {
    /// Waits until each other node watches for it, or does not answer.
    pub(crate) async fn begun(&self) {
        while self.watch.is_beginning() {
            self.watch.changed.notified().await;
        }
    }

    /// The next item. Cancel safe.
    pub(crate) async fn next(&mut self) -> WatchItem {
        loop {
            let missing_nodes = self.watch.missing_nodes();
            if missing_nodes != self.missing_nodes {
                self.missing_nodes.clone_from(&missing_nodes);
                return WatchItem::MissingNodes(missing_nodes);
            }
            let lost = self.watch.lost_items.swap(0, Ordering::Relaxed);
            if lost > 0 {
                return WatchItem::Lost(lost);
            }
            tokio::select! {
                item = self.items.recv() => if let Some((node, item)) = item {
                    let bytes = item.text_bytes();
                    self.watch.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
                    return WatchItem::Shared(node, item);
                },
                () = self.watch.changed.notified() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_value::SharedValue;

    fn subscriber(live: &Arc<ClusterLive>, nodes: &[&str]) -> ClusterWatch {
        let shared = SharedWatch::Telemetry {
            devices: vec!["d".to_owned()],
            keys: None,
        };
        let nodes = nodes.iter().map(|node| (*node).to_owned());
        live.add(shared, nodes.collect()).0
    }

    fn row(ts_ms: i64, text: &str) -> SharedItem {
        SharedItem::Row {
            device: "d".to_owned(),
            ts_ms,
            values: vec![("t".to_owned(), SharedValue::Text(text.to_owned()))],
        }
    }

    #[tokio::test]
    async fn a_slow_subscriber_loses_items_and_learns_how_many() {
        let live = Arc::new(ClusterLive::default());
        let mut slow = subscriber(&live, &[]);
        let watch = live.watches().into_values().next().unwrap();
        for ts_ms in 0..MAX_WAITING as i64 + 5 {
            watch.push("a", row(ts_ms, ""));
        }
        watch.push("a", SharedItem::Lost(3));
        assert_eq!(slow.next().await, WatchItem::Lost(8));
        for ts_ms in 0..MAX_WAITING as i64 {
            let expected = WatchItem::Shared("a".to_owned(), row(ts_ms, ""));
            assert_eq!(slow.next().await, expected);
        }
        let quarter = "x".repeat(MAX_WAITING_BYTES / 4);
        for ts_ms in 0..6 {
            watch.push("a", row(ts_ms, &quarter));
        }
        assert_eq!(slow.next().await, WatchItem::Lost(3));
        for _ in 0..3 {
            assert!(matches!(slow.next().await, WatchItem::Shared(..)));
        }
        watch.push("a", row(9, &quarter.repeat(5)));
        assert!(
            matches!(slow.next().await, WatchItem::Shared(..)),
            "a large item waits alone"
        );
        drop(slow);
        assert!(live.end_if_unused());
    }

    #[tokio::test]
    async fn missing_nodes_are_reported_when_they_change() {
        let live = Arc::new(ClusterLive::default());
        let mut first = subscriber(&live, &["a", "b"]);
        let watch = live.watches().into_values().next().unwrap();
        watch.set_node("a", NodeState::Watching);
        live.set_missing("b");
        first.begun().await;
        let missing = |nodes: &[&str]| {
            WatchItem::MissingNodes(nodes.iter().map(|node| (*node).to_owned()).collect())
        };
        assert_eq!(first.next().await, missing(&["b"]));
        // Nobody waits for a node that is known to be missing.
        let second = subscriber(&live, &["b"]);
        second.begun().await;
        live.set_answering("b");
        watch.set_node("b", NodeState::Watching);
        assert_eq!(first.next().await, missing(&[]));
        live.set_missing("a");
        assert_eq!(first.next().await, missing(&["a"]));
        // It is no member any more.
        live.retain_nodes(&["b".to_owned()]);
        assert_eq!(first.next().await, missing(&[]));
    }
}
