//! Lists, reads and deletes retained messages.

use super::BrokerHandle;
use crate::control::{ControlError, RetainedInfo, RetainedQuery, StoredMessage};
use crate::core::message_info::{retained_info, stored_message};

impl BrokerHandle {
    /// Retained messages, sorted by topic, level by level.
    pub async fn retained(&self, query: RetainedQuery) -> Vec<RetainedInfo> {
        let retained = &self.shared.node.retained;
        let now_ms = self.shared.clock.now_ms();
        let filter = query.filter.as_deref();
        let is_wildcard = |level: &&str| mqtt::has_wildcards(level);
        let below: Vec<&str> = filter
            .into_iter()
            .flat_map(|filter| mqtt::levels(filter).take_while(|level| !is_wildcard(level)))
            .collect();
        let mut rows = Vec::new();
        if let Some(topic) = filter.filter(|filter| !mqtt::has_wildcards(filter)) {
            let is_behind = |after: &str| mqtt::levels(topic).gt(mqtt::levels(after));
            if query.limit > 0 && query.after.as_deref().is_none_or(is_behind) {
                let found = retained.get(topic, now_ms);
                rows.extend(found.map(|message| retained_info(&message.view())));
            }
            return rows;
        }
        let mut after = query.after.clone();
        while rows.len() < query.limit {
            let (found, last) = retained.scan_below(&below, after.as_deref(), now_ms);
            let room = query.limit - rows.len();
            let wanted = found.iter().map(|message| message.view()).filter(|view| {
                filter.is_none_or(|filter| mqtt::filter_matches(filter, view.topic))
            });
            rows.extend(wanted.take(room).map(|view| retained_info(&view)));
            let Some(last) = last else {
                break;
            };
            after = Some(last.view().topic.to_owned());
            tokio::task::yield_now().await;
        }
        rows
    }

    pub fn retained_message(&self, topic: &str) -> Option<StoredMessage> {
        let now_ms = self.shared.clock.now_ms();
        let message = self.shared.node.retained.get(topic, now_ms)?;
        let view = message.view();
        Some(stored_message(&view, view.qos, true, usize::MAX))
    }

    /// Deletes a retained message without notifying subscribers; false if there is none.
    pub async fn delete_retained(&self, topic: &str) -> Result<bool, ControlError> {
        let shard = self.shard_for(topic);
        let topic = topic.to_owned();
        let answer =
            self.query_shard_durably(shard, move |shard| (shard.delete_retained(&topic), 0));
        answer.await.unwrap_or(Err(ControlError::Unavailable))
    }
}
