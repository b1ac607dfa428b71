//! The topics on which messages are published, with their last message, rate and count. It is filled
//! only while clients read it.
//!
//! Each shard fills a table of its own, so that shards do not wait for each other; a reader merges
//! them. A shard records a bounded number of messages per second and counts the others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use hooks::{MessageView, carries_secret};

use crate::message_copy::MessageCopy;
use crate::topic_rate::TopicRate;

/// Maximum number of topics of all shards.
const MAX_TOPICS: usize = 50_000;
/// Longer topics are not recorded.
const MAX_TOPIC_BYTES: usize = 512;
/// Bytes of the last payload that are kept.
const MAX_PAYLOAD_BYTES: usize = 256;
/// Messages that one shard records per second.
const MAX_PER_SHARD_S: u32 = 5000;
/// Time after the last read when recording ends, and the tree is emptied.
const IDLE_MS: u64 = 5 * 60 * 1000;

/// A node of the tree: a topic, or a part of topics.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicNode {
    /// Its level.
    pub name: String,
    /// All levels up to this one.
    pub path: String,
    /// Number of topics at and below this node.
    pub topics: u64,
    /// Whether there are topics below it.
    pub has_children: bool,
    /// Messages recorded on these topics.
    pub messages: u64,
    pub bytes: u64,
    pub messages_per_s: f64,
    /// Last message on the topic itself.
    pub last: Option<MessageCopy>,
    /// Time of the last message at or below the node, in milliseconds since the Unix epoch.
    pub last_ms: u64,
}

/// Selects nodes of the tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicQuery {
    /// The parent; `None`: the root.
    pub parent: Option<String>,
    /// Only nodes after this name.
    pub after: Option<String>,
    /// Part of a topic below the parent, without regard to case. Then whole topics are returned instead of children.
    pub contains: Option<String>,
    pub limit: usize,
}

/// Nodes ordered by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TopicPage {
    pub nodes: Vec<TopicNode>,
    pub has_more: bool,
    pub status: TopicTreeStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicTreeStatus {
    /// Time since which messages are recorded.
    pub since_ms: u64,
    /// A topic that clients of several shards publish counts several times.
    pub topics: u64,
    pub recorded: u64,
    /// Messages left out because there were too many per second, or too many topics.
    pub skipped: u64,
    /// Whether new topics are left out because the maximum number is reached.
    pub is_full: bool,
}

#[derive(Debug, Clone)]
struct TopicRecord {
    messages: u64,
    bytes: u64,
    rate: TopicRate,
    last: MessageCopy,
}

#[derive(Default)]
struct ShardTable {
    topics: HashMap<Box<str>, TopicRecord, foldhash::fast::RandomState>,
    second: u64,
    in_second: u32,
    recorded: u64,
    skipped: u64,
}

/// The tree of one node.
#[derive(Default)]
pub struct TopicTree {
    tables: Mutex<Vec<Arc<Mutex<ShardTable>>>>,
    topics: AtomicUsize,
    /// 0: not active.
    since_ms: AtomicU64,
    last_read_ms: AtomicU64,
    /// Messages left out while a reader had the table.
    skipped: AtomicU64,
}

/// The table of one shard.
#[derive(Clone)]
pub(crate) struct TopicRecorder(Arc<Mutex<ShardTable>>);

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TopicTree {
    pub(crate) fn is_active(&self) -> bool {
        self.since_ms.load(Relaxed) != 0
    }

    pub(crate) fn recorder(&self) -> TopicRecorder {
        let table = Arc::<Mutex<ShardTable>>::default();
        lock(&self.tables).push(table.clone());
        TopicRecorder(table)
    }

    /// Starts recording; returns whether it was off.
    pub(crate) fn activate(&self, now_ms: u64) -> bool {
        self.last_read_ms.store(now_ms, Relaxed);
        let started = self
            .since_ms
            .compare_exchange(0, now_ms.max(1), Relaxed, Relaxed);
        started.is_ok()
    }

    /// Ends recording if the tree has not been read for a while; returns whether it ended.
    pub(crate) fn deactivate_if_idle(&self, now_ms: u64) -> bool {
        let idle_ms = now_ms.saturating_sub(self.last_read_ms.load(Relaxed));
        if idle_ms < IDLE_MS || self.since_ms.swap(0, Relaxed) == 0 {
            return false;
        }
        for table in lock(&self.tables).iter() {
            *lock(table) = ShardTable::default();
        }
        self.topics.store(0, Relaxed);
        self.skipped.store(0, Relaxed);
        true
    }

    pub(crate) fn record(&self, recorder: &TopicRecorder, view: &MessageView<'_>, now_ms: u64) {
        if carries_secret(view.topic) || !self.is_active() {
            return;
        }
        // A shard does not wait for a reader.
        let Ok(mut table) = recorder.0.try_lock() else {
            self.skipped.fetch_add(1, Relaxed);
            return;
        };
        let table = &mut *table;
        if table.second != now_ms / 1000 {
            (table.second, table.in_second) = (now_ms / 1000, 0);
        }
        table.in_second += 1;
        if table.in_second > MAX_PER_SHARD_S || view.topic.len() > MAX_TOPIC_BYTES {
            table.skipped += 1;
            return;
        }
        let last = MessageCopy::new(view, MAX_PAYLOAD_BYTES);
        match table.topics.get_mut(view.topic) {
            Some(record) => {
                record.messages += 1;
                record.bytes += view.payload.len() as u64;
                record.rate.count(now_ms);
                record.last = last;
            }
            None if self.topics.load(Relaxed) >= MAX_TOPICS => {
                table.skipped += 1;
                return;
            }
            None => {
                self.topics.fetch_add(1, Relaxed);
                let mut rate = TopicRate::default();
                rate.count(now_ms);
                let record = TopicRecord {
                    messages: 1,
                    bytes: view.payload.len() as u64,
                    rate,
                    last,
                };
                table.topics.insert(view.topic.into(), record);
            }
        }
        table.recorded += 1;
    }

    /// Nodes of the tree. The caller has activated it.
    pub(crate) fn page(&self, query: &TopicQuery, now_ms: u64) -> TopicPage {
        let prefix = query.parent.as_ref().map(|parent| format!("{parent}/"));
        let prefix = prefix.as_deref().unwrap_or_default();
        let wanted = query.contains.as_ref().map(|part| part.to_lowercase());
        let mut nodes: BTreeMap<String, TopicNode> = BTreeMap::new();
        let mut status = TopicTreeStatus {
            since_ms: self.since_ms.load(Relaxed),
            topics: self.topics.load(Relaxed) as u64,
            skipped: self.skipped.load(Relaxed),
            is_full: self.topics.load(Relaxed) >= MAX_TOPICS,
            ..TopicTreeStatus::default()
        };
        for table in lock(&self.tables).iter() {
            let table = lock(table);
            status.recorded += table.recorded;
            status.skipped += table.skipped;
            for (topic, record) in &table.topics {
                let Some(rest) = topic.strip_prefix(prefix) else {
                    continue;
                };
                let name = match &wanted {
                    Some(part) if rest.to_lowercase().contains(part) => rest,
                    Some(_) => continue,
                    None => mqtt::levels(rest).next().unwrap_or_default(),
                };
                if query.after.as_deref().is_some_and(|after| name <= after) {
                    continue;
                }
                add_topic(&mut nodes, (prefix, name, rest), record, now_ms);
                // Only the first nodes are returned.
                if nodes.len() > query.limit + 1 {
                    nodes.pop_last();
                }
            }
        }
        let has_more = nodes.len() > query.limit;
        TopicPage {
            nodes: nodes.into_values().take(query.limit).collect(),
            has_more,
            status,
        }
    }
}

impl TopicTree {
    /// The recorded ones of these topics, without what is below them. The caller has activated the tree.
    pub(crate) fn nodes_of(&self, topics: &[String], now_ms: u64) -> Vec<TopicNode> {
        let mut nodes = BTreeMap::new();
        for table in lock(&self.tables).iter() {
            let table = lock(table);
            for topic in topics {
                if let Some(record) = table.topics.get(topic.as_str()) {
                    add_topic(&mut nodes, ("", topic, topic), record, now_ms);
                }
            }
        }
        nodes.into_values().collect()
    }
}

/// Adds a topic to the node with this name. `rest` is the topic below the parent.
fn add_topic(
    nodes: &mut BTreeMap<String, TopicNode>,
    (prefix, name, rest): (&str, &str, &str),
    record: &TopicRecord,
    now_ms: u64,
) {
    let node = nodes.entry(name.to_owned()).or_insert_with(|| TopicNode {
        name: name.to_owned(),
        path: format!("{prefix}{name}"),
        topics: 0,
        has_children: false,
        messages: 0,
        bytes: 0,
        messages_per_s: 0.0,
        last: None,
        last_ms: 0,
    });
    node.messages += record.messages;
    node.bytes += record.bytes;
    node.messages_per_s += record.rate.per_s(now_ms);
    node.last_ms = node.last_ms.max(record.last.received_ms);
    if rest.len() > name.len() {
        node.has_children = true;
        node.topics += 1;
        return;
    }
    // The same topic may be in the tables of several shards.
    node.topics += u64::from(node.last.is_none());
    let is_newer = |last: &MessageCopy| last.received_ms <= record.last.received_ms;
    if node.last.as_ref().is_none_or(is_newer) {
        node.last = Some(record.last.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(parent: Option<&str>) -> TopicQuery {
        TopicQuery {
            parent: parent.map(str::to_owned),
            limit: 100,
            ..TopicQuery::default()
        }
    }

    fn filled() -> TopicTree {
        let tree = TopicTree::default();
        let (one, other) = (tree.recorder(), tree.recorder());
        tree.record(&one, &MessageView::from_client("c", "early", b"", 1), 1);
        assert!(tree.activate(1000) && !tree.activate(1000));
        for (recorder, topic, payload) in [
            (&one, "plant/1/t", "20"),
            (&one, "plant/1/p", "3"),
            (&other, "plant/2/t", "21"),
            (&other, "plant/1/t", "22"),
            (&one, "plant", "x"),
            (&one, "plantation", "y"),
            (&one, "/provision/request", "secret"),
        ] {
            let view = MessageView::from_client("c", topic, payload.as_bytes(), 1000);
            tree.record(recorder, &view, 1000);
        }
        tree
    }

    #[test]
    fn nodes_have_the_sums_of_what_is_below_them() {
        let tree = filled();
        let root = tree.page(&query(None), 1000);
        let names: Vec<_> = root.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["plant", "plantation"]);
        let plant = &root.nodes[0];
        // A topic that two shards have recorded counts twice among those below.
        assert_eq!((plant.messages, plant.has_children), (5, true));
        assert_eq!(
            plant.last.as_ref().map(|last| &last.payload[..]),
            Some(&b"x"[..])
        );
        assert_eq!((root.status.recorded, root.status.skipped), (6, 0));

        let below = tree.page(&query(Some("plant/1")), 1000).nodes;
        let leaf = below.iter().find(|node| node.name == "t").expect("t");
        assert_eq!(
            (leaf.path.as_str(), leaf.topics, leaf.messages),
            ("plant/1/t", 1, 2)
        );
        assert!(!leaf.has_children && leaf.messages_per_s > 0.1);
    }

    #[test]
    fn pages_and_search() {
        let tree = filled();
        let mut first = query(None);
        first.limit = 1;
        let page = tree.page(&first, 1000);
        assert!(page.has_more && page.nodes[0].name == "plant" && page.nodes[0].messages == 5);
        first.after = Some("plant".to_owned());
        let page = tree.page(&first, 1000);
        assert!(!page.has_more && page.nodes[0].name == "plantation");
        let found = TopicQuery {
            contains: Some("/T".to_owned()),
            ..query(Some("plant"))
        };
        let found = tree.page(&found, 1000).nodes;
        let names: Vec<_> = found.iter().map(|node| node.path.as_str()).collect();
        assert_eq!(names, ["plant/1/t", "plant/2/t"]);
    }

    #[test]
    fn named_topics_are_found_without_what_is_below_them() {
        let tree = filled();
        let topics = ["plant/1/t", "plant", "plant/1", "none"].map(str::to_owned);
        let nodes = tree.nodes_of(&topics, 1000);
        let found = nodes
            .iter()
            .map(|node| (node.path.as_str(), node.topics, node.messages));
        let found: Vec<_> = found.collect();
        // Two shards have recorded a message on plant/1/t.
        assert_eq!(found, [("plant", 1, 1), ("plant/1/t", 1, 2)]);
        let last = nodes[1].last.as_ref().map(|last| &last.payload[..]);
        assert_eq!(last, Some(&b"22"[..]));
    }

    #[test]
    fn recording_ends_some_time_after_the_last_read() {
        let tree = filled();
        assert!(!tree.deactivate_if_idle(1000 + IDLE_MS - 1));
        assert!(tree.deactivate_if_idle(1000 + IDLE_MS));
        assert!(!tree.deactivate_if_idle(1000 + IDLE_MS) && !tree.is_active());
        assert_eq!(tree.page(&query(None), 2000).nodes, []);
    }

    #[test]
    fn a_shard_records_a_bounded_number_of_messages_per_second() {
        let tree = TopicTree::default();
        let recorder = tree.recorder();
        tree.activate(1000);
        let view = MessageView::from_client("c", "t", b"", 1000);
        for _ in 0..MAX_PER_SHARD_S + 10 {
            tree.record(&recorder, &view, 1000);
        }
        tree.record(&recorder, &view, 2000);
        let long = "x".repeat(MAX_TOPIC_BYTES + 1);
        tree.record(
            &recorder,
            &MessageView::from_client("c", &long, b"", 2000),
            2000,
        );
        let status = tree.page(&query(None), 2000).status;
        let recorded = u64::from(MAX_PER_SHARD_S) + 1;
        assert_eq!((status.recorded, status.skipped), (recorded, 11));
        assert_eq!((status.topics, status.is_full), (1, false));
    }
}
