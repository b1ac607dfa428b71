//! Actions that rules have denied, so that people can find out why a client cannot publish or
//! subscribe, and try rules before they take effect. Equal denials are one entry with a count.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex};

use hooks::{AccessDecision, Client, ClientAction};

/// Maximum number of entries; the one whose last denial is the oldest makes room.
const MAX_ENTRIES: usize = 1000;
/// New entries per second. Finding the deciding rule takes time, which a client must not cause at will.
const MAX_NEW_PER_S: u32 = 10;
/// Characters of topics and names that are kept.
const MAX_TEXT_CHARS: usize = 256;

/// Equal denials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeniedAction {
    /// Milliseconds since 1970.
    pub first_ms: u64,
    pub last_ms: u64,
    pub count: u64,
    pub client_id: Box<str>,
    pub username: Option<Box<str>>,
    /// `publish` or `subscribe`.
    pub action: &'static str,
    /// A topic, or the filter of a subscription.
    pub topic: Box<str>,
    /// Where the deciding rule is from, see [`AccessDecision::source`].
    pub source: &'static str,
    /// Id of the deciding rule, if it has one.
    pub rule: Option<Arc<str>>,
    /// Whether the action was denied; otherwise it was only recorded.
    pub is_enforced: bool,
}

/// Selects entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeniedActionQuery {
    pub client_id: Option<String>,
    pub username: Option<String>,
    /// Part of the topic.
    pub topic_contains: Option<String>,
    pub limit: usize,
}

#[derive(Default)]
pub(crate) struct DeniedActions {
    entries: Mutex<DeniedEntries>,
    hasher: foldhash::fast::RandomState,
}

#[derive(Default)]
struct DeniedEntries {
    by_hash: HashMap<u64, DeniedAction>,
    second: u64,
    new_in_second: u32,
}

fn shortened(text: &str) -> Box<str> {
    text.chars().take(MAX_TEXT_CHARS).collect::<String>().into()
}

impl DeniedActions {
    /// Records a denial. `explain` is called for a new entry.
    pub(crate) fn record(
        &self,
        (client, action): (&Client<'_>, &ClientAction<'_>),
        is_enforced: bool,
        now_ms: u64,
        explain: impl FnOnce() -> Option<AccessDecision>,
    ) {
        let (name, topic) = match action {
            ClientAction::Publish { topic, .. } => ("publish", *topic),
            ClientAction::Subscribe { filter, .. } => ("subscribe", *filter),
        };
        let hash = (self.hasher).hash_one((client.client_id, name, topic, is_enforced));
        // A shard does not wait for another one, or for a reader; the metric counts all denials.
        let Ok(mut entries) = self.entries.try_lock() else {
            return;
        };
        if let Some(entry) = entries.by_hash.get_mut(&hash) {
            (entry.last_ms, entry.count) = (now_ms, entry.count + 1);
            return;
        }
        if !entries.admit_new(now_ms) {
            return;
        }
        let decision = explain();
        let (source, rule) = decision.map_or(("default", None), |decision| {
            (decision.source, decision.rule)
        });
        if !is_enforced {
            tracing::info!(
                client_id = client.client_id,
                action = name,
                topic,
                source,
                rule = rule.as_deref(),
                "ACL rules deny this action; it is allowed because auth.deny_action is observe"
            );
        }
        let entry = DeniedAction {
            first_ms: now_ms,
            last_ms: now_ms,
            count: 1,
            client_id: shortened(client.client_id),
            username: client.username.map(shortened),
            action: name,
            topic: shortened(topic),
            source,
            rule,
            is_enforced,
        };
        entries.by_hash.insert(hash, entry);
    }

    /// The selected entries, those with the newest denials first.
    pub(crate) fn list(&self, query: &DeniedActionQuery) -> Vec<DeniedAction> {
        let entries = self
            .entries
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_selected = |entry: &&DeniedAction| {
            let is = |wanted: &Option<String>, text: Option<&str>| {
                wanted.as_deref().is_none_or(|wanted| text == Some(wanted))
            };
            is(&query.client_id, Some(&entry.client_id))
                && is(&query.username, entry.username.as_deref())
                && (query.topic_contains.as_deref()).is_none_or(|part| entry.topic.contains(part))
        };
        let mut selected: Vec<_> = entries
            .by_hash
            .values()
            .filter(is_selected)
            .cloned()
            .collect();
        selected.sort_by(|one, other| {
            let key =
                |entry: &DeniedAction| (std::cmp::Reverse(entry.last_ms), entry.client_id.clone());
            key(one).cmp(&key(other))
        });
        selected.truncate(query.limit);
        selected
    }
}

impl DeniedEntries {
    /// Whether one more entry may be added now; makes room for it.
    fn admit_new(&mut self, now_ms: u64) -> bool {
        if self.second != now_ms / 1000 {
            (self.second, self.new_in_second) = (now_ms / 1000, 0);
        }
        self.new_in_second = self.new_in_second.saturating_add(1);
        if self.new_in_second > MAX_NEW_PER_S {
            return false;
        }
        if self.by_hash.len() >= MAX_ENTRIES {
            let oldest = self.by_hash.iter().min_by_key(|(_, entry)| entry.last_ms);
            if let Some(oldest) = oldest.map(|(hash, _)| *hash) {
                self.by_hash.remove(&oldest);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use mqtt::{QoS, Version};

    use super::*;

    fn record(actions: &DeniedActions, client_id: &str, topic: &str, now_ms: u64) {
        let client = Client {
            client_id,
            username: Some("ann"),
            peer: None,
            last_address: None,
            local_address: None,
            version: Version::V5,
            connection: Default::default(),
        };
        let (qos, retain) = (QoS::AtMostOnce, false);
        let action = ClientAction::Publish { topic, qos, retain };
        let decision = AccessDecision {
            is_allowed: false,
            source: "store",
            rule: Some("no-secrets".into()),
        };
        actions.record((&client, &action), true, now_ms, || Some(decision));
    }

    #[test]
    fn equal_denials_are_counted_and_new_ones_are_limited() {
        let actions = DeniedActions::default();
        for now_ms in [1000, 1001, 1002] {
            record(&actions, "c", "secret", now_ms);
        }
        let all = DeniedActionQuery {
            limit: 100,
            ..DeniedActionQuery::default()
        };
        let listed = actions.list(&all);
        assert_eq!(
            (listed.len(), listed[0].count, listed[0].last_ms),
            (1, 3, 1002)
        );
        assert_eq!(listed[0].rule.as_deref(), Some("no-secrets"));
        for number in 0..100 {
            record(&actions, "d", &format!("t{number}"), 1003);
        }
        assert_eq!(actions.list(&all).len(), MAX_NEW_PER_S as usize);
        record(&actions, "d", "later", 2000);
        let later = DeniedActionQuery {
            client_id: Some("d".to_owned()),
            topic_contains: Some("ate".to_owned()),
            ..all
        };
        assert_eq!(actions.list(&later).len(), 1);
    }
}
