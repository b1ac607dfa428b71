//! The retained messages that another node lacks, read piece by piece while they are sent to it.

use std::collections::VecDeque;
use std::sync::Arc;

use hooks::MessageView;

use super::message::Message;
use super::retained_store::RetainedStore;
use super::retained_versions::{BUCKETS, NODE_TOPICS, RetainedDigests, removal_message};

/// The messages of the buckets in which two nodes differ, and then the removals in them.
///
/// [`send_some`](Self::send_some) is called until it returns false. What changes meanwhile is sent by its publisher's
/// shard; the receiver keeps the later version.
pub(super) struct RetainedTransfer {
    differs: Box<[bool; BUCKETS]>,
    /// The message that was examined last.
    after: Option<Arc<Message>>,
    /// Messages that were found and not sent yet.
    found: VecDeque<Arc<Message>>,
    is_examined: bool,
}

impl RetainedTransfer {
    pub(super) fn new(own: &RetainedDigests, theirs: &RetainedDigests) -> Self {
        let mut differs = Box::new([false; BUCKETS]);
        for (bucket, differs) in differs.iter_mut().enumerate() {
            *differs = own[bucket] != theirs[bucket];
        }
        Self {
            differs,
            after: None,
            found: VecDeque::new(),
            is_examined: false,
        }
    }

    /// Passes messages to `send`, which returns their size, until these exceed `most_bytes`. Returns whether there are more.
    pub(super) fn send_some(
        &mut self,
        store: &RetainedStore,
        most_bytes: usize,
        mut send: impl FnMut(&MessageView<'_>) -> usize,
    ) -> bool {
        let differs = &self.differs;
        let is_requested = |bucket: usize| differs[bucket];
        let mut bytes = 0;
        while bytes < most_bytes {
            if let Some(message) = self.found.pop_front() {
                let view = message.view();
                if !view.topic.starts_with(NODE_TOPICS) {
                    bytes += send(&view);
                }
                continue;
            }
            if self.is_examined {
                // They are limited in number, and small.
                for (topic, received_ms) in store.removals_in_buckets(is_requested) {
                    send(&removal_message(&topic, received_ms));
                }
                return false;
            }
            let (found, last) = store.scan_buckets(is_requested, self.after.as_ref());
            self.found = found.into();
            self.is_examined = last.is_none();
            self.after = last;
        }
        true
    }
}
