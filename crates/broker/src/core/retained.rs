//! Retained messages of the node: one trie by topic level, shared by all shards. It is locked when a retained message
//! is published or a subscription is made, never on the way of an ordinary message.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::message::{Message, MessageView};
use crate::config::Limits;

#[derive(Default)]
struct Node {
    children: BTreeMap<Box<str>, Node>,
    message: Option<Arc<Message>>,
}

impl Node {
    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.message.is_none()
    }
}

#[derive(Default)]
struct Trie {
    root: Node,
    count: usize,
    bytes: usize,
}

#[derive(Default)]
pub(crate) struct Retained {
    trie: RwLock<Trie>,
}

/// The message was not kept: one more would pass the bound on number or bytes.
#[derive(Debug, PartialEq)]
pub(crate) struct Full;

/// How many messages and bytes are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RetainedSize {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

impl Retained {
    /// Each change leaves the trie whole before anything in it can panic.
    fn read(&self) -> RwLockReadGuard<'_, Trie> {
        self.trie.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Trie> {
        self.trie.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn size(&self) -> RetainedSize {
        let trie = self.read();
        RetainedSize {
            count: trie.count,
            bytes: trie.bytes,
        }
    }

    /// Keeps the message, or with an empty payload removes what its topic had [MQTT-3.3.1-6].
    pub(crate) fn store(&self, view: &MessageView<'_>, limits: &Limits) -> Result<(), Full> {
        if view.payload.is_empty() {
            self.write().remove(view.topic);
            return Ok(());
        }
        let message = Arc::new(Message::new(view));
        let mut trie = self.write();
        let old = trie.find(view.topic).map_or(0, |old| old.size());
        let count = trie.count + usize::from(old == 0);
        let bytes = trie.bytes + message.size() - old;
        if count > limits.max_retained_messages as usize || bytes as u64 > limits.max_retained_bytes
        {
            return Err(Full);
        }
        let mut node = &mut trie.root;
        for level in mqtt::levels(view.topic) {
            if !node.children.contains_key(level) {
                node.children.insert(level.into(), Node::default());
            }
            node = node.children.get_mut(level).expect("inserted just now");
        }
        node.message = Some(message);
        (trie.count, trie.bytes) = (count, bytes);
        Ok(())
    }

    /// Everything that matches `filter` and has not expired, in the order of topics.
    pub(crate) fn matching(&self, filter: &str, now_ms: u64) -> Vec<Arc<Message>> {
        let levels: Vec<&str> = mqtt::levels(filter).collect();
        let trie = self.read();
        let mut found = Vec::new();
        collect(&trie.root, &levels, true, &mut |message: &Arc<Message>| {
            if !message.is_expired(now_ms) {
                found.push(message.clone());
            }
        });
        found
    }

    /// Removes what has expired; called now and then.
    pub(crate) fn sweep(&self, now_ms: u64) {
        let mut expired = Vec::new();
        collect_all(&self.read().root, &mut |message: &Arc<Message>| {
            if message.is_expired(now_ms) {
                expired.push(message.clone());
            }
        });
        if expired.is_empty() {
            return;
        }
        let mut trie = self.write();
        for message in expired {
            let topic = message.view().topic;
            // It may have been replaced since.
            if trie
                .find(topic)
                .is_some_and(|current| Arc::ptr_eq(current, &message))
            {
                trie.remove(topic);
            }
        }
    }
}

impl Trie {
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
        }
    }
}

fn remove(node: &mut Node, levels: &[&str]) -> Option<Arc<Message>> {
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

fn collect(node: &Node, levels: &[&str], is_root: bool, found: &mut impl FnMut(&Arc<Message>)) {
    // `$` topics are hidden from wildcards at the first level [MQTT-4.7.2-1].
    let visible = |name: &str| !(is_root && name.starts_with('$'));
    match levels.split_first() {
        None => {
            if let Some(message) = &node.message {
                found(message);
            }
        }
        Some((&"#", _)) => {
            if let Some(message) = &node.message {
                found(message);
            }
            for (_, child) in node.children.iter().filter(|(name, _)| visible(name)) {
                collect_all(child, found);
            }
        }
        Some((&"+", rest)) => {
            for (_, child) in node.children.iter().filter(|(name, _)| visible(name)) {
                collect(child, rest, false, found);
            }
        }
        Some((name, rest)) => {
            if let Some(child) = node.children.get(*name) {
                collect(child, rest, false, found);
            }
        }
    }
}

fn collect_all(node: &Node, found: &mut impl FnMut(&Arc<Message>)) {
    if let Some(message) = &node.message {
        found(message);
    }
    for child in node.children.values() {
        collect_all(child, found);
    }
}
