//! The node's retained messages: one trie by topic level, shared by all shards. It is locked when a retained message is
//! published or a subscription is made, never on the path of an ordinary message.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use hooks::MessageView;
use store::{StateKind, Store};

use super::message::Message;
use super::records;
use super::retained_versions::{RetainedDigests, RetainedVersions, bucket_of};
use crate::config::BrokerLimits;

/// Messages examined by a sweep under one lock.
const SWEEP_BATCH: usize = 1024;

#[derive(Default)]
struct RetainedNode {
    children: BTreeMap<Box<str>, RetainedNode>,
    message: Option<Arc<Message>>,
}

impl RetainedNode {
    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.message.is_none()
    }
}

#[derive(Default)]
struct RetainedTrie {
    root: RetainedNode,
    count: usize,
    bytes: usize,
    /// `None` outside a cluster.
    versions: Option<Box<RetainedVersions>>,
}

#[derive(Default)]
pub(crate) struct RetainedStore {
    trie: RwLock<RetainedTrie>,
}

/// The message was not retained: it would exceed the limit on number or bytes.
#[derive(Debug, PartialEq)]
pub(crate) struct RetainedLimitError;

/// Number and bytes of the retained messages.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RetainedSize {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

impl RetainedStore {
    /// The store of a node that shares its retained messages with others.
    pub(crate) fn in_cluster() -> Self {
        let trie = RetainedTrie {
            versions: Some(Box::default()),
            ..RetainedTrie::default()
        };
        Self {
            trie: RwLock::new(trie),
        }
    }

    /// A poisoned lock is safe to use, since each change completes before anything in it can panic.
    fn read(&self) -> RwLockReadGuard<'_, RetainedTrie> {
        self.trie.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, RetainedTrie> {
        self.trie.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn size(&self) -> RetainedSize {
        let trie = self.read();
        RetainedSize {
            count: trie.count,
            bytes: trie.bytes,
        }
    }

    /// Retains the message, or with an empty payload removes the topic's message [MQTT-3.3.1-6]. Returns the time under
    /// which it is retained, which is the version of the topic's message for other nodes. In a cluster it is later than
    /// that of the message before.
    pub(crate) fn store(
        &self,
        view: &MessageView<'_>,
        limits: &BrokerLimits,
    ) -> Result<u64, RetainedLimitError> {
        let mut trie = self.write();
        let mut view = *view;
        if let Some(versions) = &trie.versions {
            let before = trie.version(versions, view.topic);
            view.received_ms = view.received_ms.max(before.map_or(0, |before| before + 1));
        }
        trie.set(&view, limits)?;
        Ok(view.received_ms)
    }

    /// Retains a message, or its removal, that another node has retained, unless this node has a later version. Returns
    /// whether it was retained.
    pub(crate) fn store_copy(
        &self,
        view: &MessageView<'_>,
        limits: &BrokerLimits,
        now_ms: u64,
    ) -> Result<bool, RetainedLimitError> {
        let mut trie = self.write();
        let Some(versions) = &trie.versions else {
            return Ok(false);
        };
        let before = trie.version(versions, view.topic).unwrap_or(0);
        let is_later = match before.cmp(&view.received_ms) {
            Ordering::Less => true,
            Ordering::Greater => false,
            // Two nodes have published at the same time; all nodes choose the same message.
            Ordering::Equal => {
                let known = trie.find(view.topic);
                view.payload > known.map_or(&[][..], |known| known.view().payload)
            }
        };
        if !is_later || view.expires_ms <= now_ms {
            return Ok(false);
        }
        trie.set(view, limits)?;
        Ok(true)
    }

    /// A digest of the messages of each bucket of topics; `None` outside a cluster. Nodes with the same messages have the
    /// same digests.
    pub(crate) fn digests(&self) -> Option<RetainedDigests> {
        let trie = self.read();
        trie.versions.as_ref().map(|versions| versions.digests)
    }

    /// Examines some messages, after the message `after`. Returns those in the given buckets, and the last one examined if
    /// there may be more.
    pub(super) fn scan_buckets(
        &self,
        is_requested: impl Fn(usize) -> bool,
        after: Option<&Arc<Message>>,
    ) -> (Vec<Arc<Message>>, Option<Arc<Message>>) {
        let last_topic = after.map(|message| message.view().topic);
        self.scan_batch(None, last_topic, |message| {
            is_requested(bucket_of(message.view().topic))
        })
    }

    /// The topics in the given buckets whose messages were removed, and when.
    pub(super) fn removals_in_buckets(
        &self,
        is_requested: impl Fn(usize) -> bool,
    ) -> Vec<(Box<str>, u64)> {
        match &self.read().versions {
            Some(versions) => versions.removals_in(is_requested),
            None => Vec::new(),
        }
    }

    /// At most `limit` messages that match `filter` and have not expired, after the topic `after` in the order of
    /// topics.
    pub(crate) fn matching(
        &self,
        filter: &str,
        after: Option<&str>,
        limit: usize,
        now_ms: u64,
    ) -> Vec<Arc<Message>> {
        let levels: Vec<&str> = mqtt::levels(filter).collect();
        let after: Option<Vec<&str>> = after.map(|topic| mqtt::levels(topic).collect());
        let mut found = Vec::new();
        let mut take = |message: &Arc<Message>| {
            if !message.is_expired(now_ms) {
                found.push(message.clone());
            }
            found.len() < limit
        };
        collect(
            &self.read().root,
            Some(&levels),
            true,
            after.as_deref(),
            &mut take,
        );
        found
    }

    pub(crate) fn get(&self, topic: &str, now_ms: u64) -> Option<Arc<Message>> {
        let found = self.read().find(topic).cloned();
        found.filter(|message| !message.is_expired(now_ms))
    }

    /// Scans a batch of the messages whose topics begin with the levels `below`, after the topic `after`. Returns those
    /// that have not expired, and the last topic examined if there may be more.
    pub(crate) fn scan_below(
        &self,
        below: &[&str],
        after: Option<&str>,
        now_ms: u64,
    ) -> (Vec<Arc<Message>>, Option<Arc<Message>>) {
        let mut levels = below.to_vec();
        levels.push("#");
        self.scan_batch(Some(&levels), after, |message| !message.is_expired(now_ms))
    }

    /// Scans a batch of the messages that match the levels of a filter (`None`: all), after the topic `after`. Unlike for
    /// a subscriber at the root, topics that begin with `$` are included. Returns those for which `is_found` is true, and
    /// the last one examined if there may be more.
    fn scan_batch(
        &self,
        filter: Option<&[&str]>,
        after: Option<&str>,
        is_found: impl Fn(&Arc<Message>) -> bool,
    ) -> (Vec<Arc<Message>>, Option<Arc<Message>>) {
        let after: Option<Vec<&str>> = after.map(|topic| mqtt::levels(topic).collect());
        let (mut found, mut last, mut examined) = (Vec::new(), None, 0);
        let mut examine = |message: &Arc<Message>| {
            if is_found(message) {
                found.push(message.clone());
            }
            examined += 1;
            if examined == SWEEP_BATCH {
                last = Some(message.clone());
            }
            examined < SWEEP_BATCH
        };
        let root = &self.read().root;
        collect(root, filter, false, after.as_deref(), &mut examine);
        (found, last)
    }

    /// Removes expired messages, here and in the store; called periodically. It locks for one batch at a time, so that
    /// neither publishers nor subscribers wait for the whole sweep.
    pub(crate) fn remove_expired(&self, store: Option<&Store>, now_ms: u64) {
        let mut after: Option<Arc<Message>> = None;
        loop {
            let last_topic = after.as_ref().map(|message| message.view().topic);
            let is_expired = |message: &Arc<Message>| message.is_expired(now_ms);
            let (expired, last) = self.scan_batch(None, last_topic, is_expired);
            if !expired.is_empty() {
                self.remove_all(&expired);
                if let Some(store) = store {
                    remove_stored(store, &expired, now_ms);
                }
            }
            after = last;
            if after.is_none() {
                return;
            }
        }
    }

    fn remove_all(&self, messages: &[Arc<Message>]) {
        let mut trie = self.write();
        for message in messages {
            let topic = message.view().topic;
            // It may have been replaced since.
            if trie
                .find(topic)
                .is_some_and(|current| Arc::ptr_eq(current, message))
            {
                trie.remove(topic);
            }
        }
    }
}

/// Removes expired messages under these topics from the store. It does not use the journal of a shard. Any shard may
/// have stored a new message there meanwhile, and the order of their batches is not defined.
fn remove_stored(store: &Store, expired: &[Arc<Message>], now_ms: u64) {
    let mut topics = expired
        .iter()
        .map(|message| message.view().topic.as_bytes());
    let mut is_expired = |value: &[u8]| {
        records::read_message(value).is_some_and(|message| message.is_expired(now_ms))
    };
    if let Err(error) = store.prune(StateKind::Retained, &mut topics, &mut is_expired) {
        tracing::warn!(%error, "cannot remove expired retained messages from the store; they stay until the next start");
    }
}

impl RetainedTrie {
    fn find(&self, topic: &str) -> Option<&Arc<Message>> {
        let mut node = &self.root;
        for level in mqtt::levels(topic) {
            node = node.children.get(level)?;
        }
        node.message.as_ref()
    }

    fn remove(&mut self, topic: &str) {
        let levels: Vec<&str> = mqtt::levels(topic).collect();
        if let Some(message) = remove(&mut self.root, &levels) {
            self.count -= 1;
            self.bytes -= message.size();
            if let Some(versions) = &mut self.versions {
                versions.toggle(&message.view());
            }
        }
    }

    /// The time of the topic's message or of its removal.
    fn version(&self, versions: &RetainedVersions, topic: &str) -> Option<u64> {
        let message = self.find(topic).map(|message| message.received_ms());
        message.or_else(|| versions.removals.get(topic).copied())
    }

    fn set(
        &mut self,
        view: &MessageView<'_>,
        limits: &BrokerLimits,
    ) -> Result<(), RetainedLimitError> {
        if view.payload.is_empty() {
            self.remove(view.topic);
            if let Some(versions) = &mut self.versions {
                versions.record_removal(view.topic, view.received_ms);
            }
            return Ok(());
        }
        let message = Arc::new(Message::new(view));
        let old = self.find(view.topic).map_or(0, |old| old.size());
        let count = self.count + usize::from(old == 0);
        let bytes = self.bytes + message.size() - old;
        if count > limits.max_retained_messages as usize || bytes as u64 > limits.max_retained_bytes
        {
            return Err(RetainedLimitError);
        }
        let mut node = &mut self.root;
        for level in mqtt::levels(view.topic) {
            if !node.children.contains_key(level) {
                node.children.insert(level.into(), RetainedNode::default());
            }
            node = node.children.get_mut(level).expect("inserted above");
        }
        let replaced = node.message.replace(message);
        (self.count, self.bytes) = (count, bytes);
        if let Some(versions) = &mut self.versions {
            if let Some(replaced) = replaced {
                versions.toggle(&replaced.view());
            }
            versions.toggle(view);
            versions.removals.remove(view.topic);
        }
        Ok(())
    }
}

fn remove(node: &mut RetainedNode, levels: &[&str]) -> Option<Arc<Message>> {
    let Some((first, rest)) = levels.split_first() else {
        return node.message.take();
    };
    let child = node.children.get_mut(*first)?;
    let removed = remove(child, rest);
    if child.is_empty() {
        node.children.remove(*first);
    }
    removed
}

/// Visits the messages below a node in the order of topics, as long as `take` returns true. `filter` contains the
/// remaining levels of the filter, `None` for all messages; `after` is the remaining part of the topic to start after.
fn collect(
    node: &RetainedNode,
    filter: Option<&[&str]>,
    is_root: bool,
    after: Option<&[&str]>,
    take: &mut impl FnMut(&Arc<Message>) -> bool,
) -> bool {
    let (level, rest) = match filter {
        None | Some(["#", ..]) => (None, None),
        Some([level, rest @ ..]) => (Some(*level), Some(rest)),
        Some([]) => return after.is_some() || node.message.as_ref().is_none_or(take),
    };
    let takes_this = level.is_none() && after.is_none();
    if takes_this && !node.message.as_ref().is_none_or(&mut *take) {
        return false;
    }
    let mut visit = |name: &str, child: &RetainedNode| {
        // `$` topics are hidden from wildcards at the first level [MQTT-4.7.2-1].
        let by_wildcard = level.is_none_or(|level| level == "+");
        if is_root && by_wildcard && name.starts_with('$') {
            return true;
        }
        let after = match after {
            Some([first, after @ ..]) if name == *first => Some(after),
            _ => None,
        };
        collect(child, rest, false, after, take)
    };
    let first = match after {
        Some([first, ..]) => Bound::Included(*first),
        _ => Bound::Unbounded,
    };
    match level {
        Some(name) if name != "+" => match first {
            Bound::Included(first) if name < first => true,
            _ => node
                .children
                .get(name)
                .is_none_or(|child| visit(name, child)),
        },
        _ => node
            .children
            .range::<str, _>((first, Bound::Unbounded))
            .all(|(name, child)| visit(name, child)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooks::NEVER_MS;
    use mqtt::{Properties, QoS};

    fn keep(retained: &RetainedStore, topic: &str) {
        keep_until(retained, topic, NEVER_MS);
    }

    fn keep_until(retained: &RetainedStore, topic: &str, expires_ms: u64) {
        let view = MessageView {
            topic,
            properties: Properties::EMPTY,
            payload: b"x",
            shared_payload: None,
            qos: QoS::AtMostOnce,
            retain: true,
            received_ms: 0,
            expires_ms,
            from_client_id: "",
            from_username: "",
            is_derived: false,
            number: 0,
        };
        let _ = retained.store(&view, &BrokerLimits::default()).unwrap();
    }

    #[test]
    fn pages_of_any_size_agree_with_the_naive_matcher() {
        let retained = RetainedStore::default();
        let names = ["a", "b", "", "$x", "aa"];
        let mut topics = Vec::new();
        for first in names {
            for second in names {
                topics.extend([
                    first.to_owned(),
                    format!("{first}/{second}"),
                    format!("{first}/{second}/a"),
                ]);
            }
        }
        topics.sort();
        topics.dedup();
        topics.retain(|topic| !topic.is_empty());
        for topic in &topics {
            keep(&retained, topic);
        }
        for filter in [
            "#", "+", "a", "a/#", "+/b", "a/+/a", "$x/#", "/+", "+/+/#", "a/b",
        ] {
            let mut expected: Vec<&String> = topics
                .iter()
                .filter(|topic| mqtt::filter_matches(filter, topic))
                .collect();
            expected.sort();
            for page in [1, 2, 3, 100] {
                let mut got: Vec<String> = Vec::new();
                loop {
                    let after = got.last().cloned();
                    let found = retained.matching(filter, after.as_deref(), page, 0);
                    if found.is_empty() {
                        break;
                    }
                    got.extend(found.iter().map(|message| message.view().topic.to_owned()));
                }
                got.sort();
                let expected: Vec<&str> = expected.iter().map(|topic| topic.as_str()).collect();
                assert_eq!(got, expected, "{filter} by {page}");
            }
        }
    }

    #[test]
    fn a_batched_sweep_removes_exactly_the_expired_messages() {
        let retained = RetainedStore::default();
        let total = 3 * SWEEP_BATCH + 7;
        for n in 0..total {
            let expires_ms = if n % 3 == 0 { 1000 } else { 3000 };
            keep_until(&retained, &format!("{}/{n}", n % 5), expires_ms);
            if n % 5 == 0 {
                keep_until(&retained, &format!("$x/{n}"), expires_ms);
            }
        }
        retained.remove_expired(None, 2000);
        let kept = |n: &usize| !n.is_multiple_of(3);
        let by_five = (0..total).filter(|n| n.is_multiple_of(5)).filter(kept);
        let expected = (0..total).filter(kept).count() + by_five.count();
        assert_eq!(retained.size().count, expected);
        retained.remove_expired(None, 4000);
        assert_eq!(retained.size(), RetainedSize::default());
    }

    #[test]
    fn a_sweep_removes_expired_messages_from_the_store_but_not_their_replacements() {
        struct NoopObserver;
        impl store::StoreObserver for NoopObserver {
            fn on_logged(&self, _shard: u16, _number: u64) {}
            fn on_fetched(&self, _shard: u16, _page: store::QueuePage) {}
        }
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), store::StoreConfig::default()).unwrap();
        store.start(Arc::new(NoopObserver)).unwrap();
        let retained = RetainedStore::default();
        let mut batch = store.recycled_batch();
        batch.number = 1;
        let mut keep = |topic: &str, expires_ms, stored_expires_ms| {
            keep_until(&retained, topic, expires_ms);
            let message = retained.get(topic, 0).unwrap();
            let mut view = message.view();
            view.expires_ms = stored_expires_ms;
            let bytes = records::message_bytes(&view);
            batch.put(StateKind::Retained, topic.as_bytes(), &bytes);
        };
        keep("gone", 1000, 1000);
        keep("stays", 3000, 3000);
        // The sweep has seen the old message when a shard stores another.
        keep("replaced", 1000, NEVER_MS);
        store.submit(0, batch);
        let topics = || {
            let mut topics = Vec::new();
            let mut each = |topic: &[u8], _: &[u8]| topics.push(topic.to_vec());
            store.scan(StateKind::Retained, &mut each).unwrap();
            topics
        };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while topics().len() < 3 {
            assert!(std::time::Instant::now() < deadline, "it is not applied");
            std::thread::yield_now();
        }
        retained.remove_expired(Some(&store), 2000);
        assert_eq!(topics(), [&b"replaced"[..], b"stays"]);
        store.close();
    }
}
