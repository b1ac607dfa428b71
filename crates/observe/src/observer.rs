//! The observation of one node: what the shards record, and what readers ask for.

use std::sync::{Arc, OnceLock};

use hooks::{BrokerPort, Hooks, HooksFactory};
use wall_clock::now_ms;

use crate::live_messages::{LiveMessages, MessageSelection, MessageTaps, TooManyStreamsError};
use crate::message_trace::{
    MessageTraceEntry, MessageTraceQuery, RecordingSelection, RecordingStatus, RuleLookup,
};
use crate::observer_hooks::{ObserverHooks, ShardObservation};
use crate::rejected_connections::{RejectedConnection, RejectedConnectionQuery};
use crate::topic_tree::{TopicNode, TopicPage, TopicQuery};

/// Observes a node. Clones share the same state.
#[derive(Clone, Default)]
pub struct Observer {
    observed: Arc<ShardObservation>,
    port: Arc<OnceLock<Arc<dyn BrokerPort>>>,
}

impl Observer {
    /// Connects it with the running broker.
    pub fn start(&self, port: Arc<dyn BrokerPort>) {
        // A second broker does not exist.
        let _ = self.port.set(port);
    }

    /// Opens a stream of messages with at most `max_per_s` messages per second, each with at most `max_payload_bytes`
    /// of its payload.
    ///
    /// # Errors
    /// The maximum number of streams is open.
    pub fn watch_messages(
        &self,
        selection: MessageSelection,
        max_per_s: u32,
        max_payload_bytes: usize,
    ) -> Result<LiveMessages, TooManyStreamsError> {
        let port = self.port.clone();
        let refresh = Box::new(move || refresh_interest(&port));
        let taps: &Arc<MessageTaps> = &self.observed.taps;
        let limits = (max_per_s, max_payload_bytes);
        let stream = LiveMessages::open(taps, selection, limits, refresh)?;
        refresh_interest(&self.port);
        Ok(stream)
    }

    /// Nodes of the tree of published topics. The first call begins to record them; that ends some minutes after the last call.
    #[must_use]
    pub fn topics(&self, query: &TopicQuery) -> TopicPage {
        let now_ms = self.activate_topics();
        self.observed.tree.page(query, now_ms)
    }

    /// The recorded ones of these topics, by name. Begins to record as [`Self::topics`] does.
    #[must_use]
    pub fn topics_named(&self, topics: &[String]) -> Vec<TopicNode> {
        let now_ms = self.activate_topics();
        self.observed.tree.nodes_of(topics, now_ms)
    }

    /// Starts to record published topics, or continues for some minutes; returns the present time.
    fn activate_topics(&self) -> u64 {
        let now_ms = now_ms();
        if self.observed.tree.activate(now_ms) {
            refresh_interest(&self.port);
        }
        now_ms
    }

    /// Sets how the log of messages finds the rules that evaluate a message.
    pub fn set_rule_lookup(&self, rules: RuleLookup) {
        self.observed.log.set_rules(rules);
    }

    /// Begins to record what happens to messages, and discards the previous recording.
    pub fn start_recording(&self, selection: RecordingSelection, duration_s: u64) {
        self.observed.log.start(selection, duration_s, now_ms());
        refresh_interest(&self.port);
    }

    /// Ends the recording; its entries stay.
    pub fn stop_recording(&self) {
        if self.observed.log.stop(now_ms()) {
            refresh_interest(&self.port);
        }
    }

    #[must_use]
    pub fn recording_status(&self) -> RecordingStatus {
        self.observed.log.status(now_ms())
    }

    /// Entries of the recording in order, and whether there are more.
    #[must_use]
    pub fn recorded_entries(&self, query: &MessageTraceQuery) -> (Vec<MessageTraceEntry>, bool) {
        self.observed.log.entries(query)
    }

    /// Rejected connections, those with the newest attempts first.
    #[must_use]
    pub fn rejected_connections(&self, query: &RejectedConnectionQuery) -> Vec<RejectedConnection> {
        self.observed.rejected.list(query)
    }
}

fn refresh_interest(port: &OnceLock<Arc<dyn BrokerPort>>) {
    // Before the broker runs, its shards read the interest when they start.
    if let Some(port) = port.get() {
        port.refresh_hook_interest();
    }
}

impl HooksFactory for Observer {
    fn hooks_for(&self, _shard: u16) -> Box<dyn Hooks> {
        let port = self.port.clone();
        let refresh = Box::new(move || refresh_interest(&port));
        Box::new(ObserverHooks::new(self.observed.clone(), refresh))
    }
}

#[cfg(test)]
mod tests {
    use hooks::{Interest, MessageOrigin, MessageView};

    use super::*;

    #[test]
    fn messages_are_wanted_only_while_somebody_observes_them() {
        let observer = Observer::default();
        let hooks = observer.hooks_for(0);
        assert_eq!(hooks.interest(), Interest::CONNECT_REJECTED);
        let selection = MessageSelection::TopicFilter("a/#".to_owned());
        let stream = observer.watch_messages(selection, 10, 10).expect("room");
        assert!(hooks.interest().contains(Interest::PUBLISH));
        assert!(!hooks.interest().contains(Interest::DELIVER));
        drop(stream);
        let selection = MessageSelection::Client("c".to_owned());
        let stream = observer.watch_messages(selection, 10, 10).expect("room");
        let both = Interest::PUBLISH | Interest::DELIVER;
        assert!(hooks.interest().contains(both));
        drop(stream);
        assert_eq!(hooks.interest(), Interest::CONNECT_REJECTED);
    }

    #[test]
    fn a_reader_of_topics_turns_their_recording_on() {
        let observer = Observer::default();
        let mut hooks = observer.hooks_for(0);
        let mut publish = |topic: &str| {
            if hooks.interest().contains(Interest::PUBLISH) && hooks.wants_topic(topic) {
                let view = MessageView::from_client("c", topic, b"", 1);
                hooks.publish(&view, &MessageOrigin::default());
            }
        };
        let query = TopicQuery {
            limit: 10,
            ..TopicQuery::default()
        };
        publish("before");
        assert_eq!(observer.topics(&query).nodes, []);
        publish("after");
        assert_eq!(observer.topics(&query).nodes[0].path, "after");
    }
}
