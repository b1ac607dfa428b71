//! Rules for one client: those that hold for it, with its names filled in, in their order; looked at from the first
//! level of a topic when they are many.

use std::collections::HashMap;
use std::sync::Arc;

use broker::hooks::{Action, Authorization};
use foldhash::fast::RandomState;

use super::pattern::{Topics, subscribed};
use super::{Rule, Who};

/// From so many entries on a table by first level pays off.
const INDEX_FROM: usize = 12;

/// What one client may do.
pub struct Compiled {
    /// Of the rules it was made from.
    pub(crate) generation: u64,
    /// Nothing has to be looked at: that is the answer.
    fixed: Option<Authorization>,
    entries: Box<[Entry]>,
    index: Option<Index>,
    no_match: Authorization,
    denial: Authorization,
}

#[derive(Clone)]
struct Entry {
    is_allowed: bool,
    publish: bool,
    subscribe: bool,
    qos: u8,
    retain: Option<bool>,
    topics: Topics,
}

/// Entries by the first level of the topics they speak of, in their order.
struct Index {
    by_first_level: HashMap<Box<str>, Box<[u32]>, RandomState>,
    /// For first levels that no entry names.
    others: Box<[u32]>,
}

/// What holds when no rule speaks of an action, and what a denial does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub allow_unmatched: bool,
    pub disconnect_on_denial: bool,
}

impl Policy {
    fn denial(self) -> Authorization {
        match self.disconnect_on_denial {
            true => Authorization::Disconnect,
            false => Authorization::Deny,
        }
    }
}

impl Compiled {
    /// Rules in their order for one client.
    pub fn new<'r>(
        generation: u64,
        rules: impl IntoIterator<Item = &'r Rule>,
        who: &Who<'_>,
        policy: Policy,
    ) -> Self {
        let denial = policy.denial();
        let mut entries = Vec::new();
        for rule in rules.into_iter().filter(|rule| rule.concerns(who)) {
            let entry = |topics| Entry {
                is_allowed: rule.is_allowed,
                publish: rule.publish,
                subscribe: rule.subscribe,
                qos: rule.qos,
                retain: rule.retain,
                topics,
            };
            if rule.topics.is_empty() {
                let is_last = rule.publish && rule.subscribe && rule.qos == 0b111;
                entries.push(entry(Topics::All));
                if is_last && rule.retain.is_none() {
                    // Nothing behind it is ever looked at.
                    break;
                }
                continue;
            }
            let topics = rule.topics.iter();
            entries.extend(topics.filter_map(|topic| topic.for_client(who)).map(entry));
        }
        let no_match = match policy.allow_unmatched {
            true => Authorization::Allow,
            false => denial,
        };
        let decides_all = |entry: &Entry| {
            entry.topics == Topics::All
                && entry.publish
                && entry.subscribe
                && entry.qos == 0b111
                && entry.retain.is_none()
        };
        let fixed = match entries.first() {
            None => Some(no_match),
            Some(first) if decides_all(first) => Some(match first.is_allowed {
                true => Authorization::Allow,
                false => denial,
            }),
            Some(_) => None,
        };
        let index = (entries.len() >= INDEX_FROM).then(|| Index::new(&entries));
        Self {
            generation,
            fixed,
            entries: entries.into(),
            index,
            no_match,
            denial,
        }
    }

    /// For those who may do everything.
    pub(crate) fn everything(generation: u64) -> Self {
        Self::fixed(generation, Authorization::Allow)
    }

    /// Of no rules: has to be made anew before it is asked.
    pub(crate) fn unknown() -> Self {
        Self::fixed(0, Authorization::Deny)
    }

    /// For those of whom nothing is known any more.
    pub(crate) fn nothing(generation: u64, policy: Policy) -> Self {
        Self::fixed(generation, policy.denial())
    }

    fn fixed(generation: u64, answer: Authorization) -> Self {
        Self {
            generation,
            fixed: Some(answer),
            entries: Box::default(),
            index: None,
            no_match: answer,
            denial: answer,
        }
    }

    #[inline]
    pub fn decide(&self, action: &Action<'_>) -> Authorization {
        self.decide_or(action, self.no_match)
    }

    /// The same where what no rule speaks of is denied.
    pub(crate) fn decide_strictly(&self, action: &Action<'_>) -> Authorization {
        self.decide_or(action, self.denial)
    }

    #[inline]
    fn decide_or(&self, action: &Action<'_>, no_match: Authorization) -> Authorization {
        match self.fixed {
            // Fixed because there is no rule.
            Some(_) if self.entries.is_empty() => return no_match,
            Some(answer) => return answer,
            None => {}
        }
        match self.deciding(action) {
            Some(entry) if entry.is_allowed => Authorization::Allow,
            Some(_) => self.denial,
            None => no_match,
        }
    }

    /// Whether a rule says anything about an action.
    pub(crate) fn speaks_of(&self, action: &Action<'_>) -> bool {
        match self.fixed {
            // A first rule about everything, or none.
            Some(_) => !self.entries.is_empty(),
            None => self.deciding(action).is_some(),
        }
    }

    #[inline]
    fn deciding(&self, action: &Action<'_>) -> Option<&Entry> {
        match action {
            Action::Publish { topic, qos, retain } => {
                let qos = 1 << (*qos as u8);
                let speaks_of = |entry: &&Entry| {
                    entry.publish
                        && entry.qos & qos != 0
                        && entry.retain.is_none_or(|wanted| wanted == *retain)
                        && entry.topics.has_topic(topic)
                };
                match &self.index {
                    None => self.entries.iter().find(speaks_of),
                    Some(index) => {
                        let mut candidates =
                            index.of(topic).iter().map(|&at| &self.entries[at as usize]);
                        candidates.find(speaks_of)
                    }
                }
            }
            Action::Subscribe { filter, options } => {
                let filter = subscribed(filter);
                let qos = 1 << (options.qos as u8);
                self.entries.iter().find(|entry| {
                    // A subscription that reaches anything forbidden is forbidden; one is allowed only as a whole.
                    entry.subscribe
                        && entry.qos & qos != 0
                        && match entry.is_allowed {
                            true => entry.topics.covers(&filter),
                            false => entry.topics.overlaps(&filter),
                        }
                })
            }
        }
    }
}

impl Index {
    fn new(entries: &[Entry]) -> Self {
        let mut lists: HashMap<Box<str>, Vec<u32>> = HashMap::new();
        let mut others = Vec::new();
        for entry in entries {
            if let Some(first) = entry.topics.first_level() {
                lists.entry(first.into()).or_default();
            }
        }
        for (at, entry) in (0_u32..).zip(entries).filter(|(_, entry)| entry.publish) {
            match entry.topics.first_level() {
                Some(first) => lists.entry(first.into()).or_default().push(at),
                None => {
                    lists.values_mut().for_each(|list| list.push(at));
                    others.push(at);
                }
            }
        }
        Self {
            by_first_level: (lists.into_iter())
                .map(|(first, list)| (first, list.into()))
                .collect(),
            others: others.into(),
        }
    }

    fn of(&self, topic: &str) -> &[u32] {
        let first = mqtt::levels(topic).next().unwrap_or_default();
        self.by_first_level.get(first).unwrap_or(&self.others)
    }
}

/// The rules of a node, compiled once more for each client unless they mean the same for all.
pub(crate) struct RuleBook {
    pub(crate) generation: u64,
    pub(crate) policy: Policy,
    /// From the configuration.
    pub(crate) file: Arc<[Rule]>,
    /// From the store.
    pub(crate) store: Arc<[Rule]>,
    /// Set if the rules mean the same for every client.
    pub(crate) for_all: Option<Arc<Compiled>>,
}

impl RuleBook {
    pub(crate) fn new(
        generation: u64,
        policy: Policy,
        file: Arc<[Rule]>,
        store: Arc<[Rule]>,
    ) -> Self {
        let mut all = file.iter().chain(store.iter());
        let for_all = all.all(Rule::is_same_for_all).then(|| {
            let rules = file.iter().chain(store.iter());
            Arc::new(Compiled::new(generation, rules, &Who::default(), policy))
        });
        Self {
            generation,
            policy,
            file,
            store,
            for_all,
        }
    }

    /// The rules for one client: its own first, then those of the configuration, then those of the store.
    pub(crate) fn compile(&self, who: &Who<'_>, own: &[&[Rule]]) -> Arc<Compiled> {
        if own.iter().all(|rules| rules.is_empty())
            && let Some(for_all) = &self.for_all
        {
            return for_all.clone();
        }
        let own = own.iter().flat_map(|rules| rules.iter());
        let rules = own.chain(self.file.iter()).chain(self.store.iter());
        Arc::new(Compiled::new(self.generation, rules, who, self.policy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqtt::{QoS, SubscriptionOptions};
    use serde_json::{Value, json};

    const POLICY: Policy = Policy {
        allow_unmatched: false,
        disconnect_on_denial: false,
    };

    fn compiled(rules: Value) -> Compiled {
        let rules = Rule::list_from_json(&rules).unwrap();
        let who = Who {
            client_id: "c1",
            username: Some("ann"),
            address: Some([10, 0, 0, 1].into()),
            ..Who::default()
        };
        Compiled::new(1, &rules, &who, POLICY)
    }

    fn publishes(compiled: &Compiled, topic: &str, qos: QoS, retain: bool) -> bool {
        let action = Action::Publish { topic, qos, retain };
        compiled.decide(&action) == Authorization::Allow
    }

    fn may_publish(compiled: &Compiled, topic: &str) -> bool {
        publishes(compiled, topic, QoS::AtMostOnce, false)
    }

    fn may_subscribe(compiled: &Compiled, filter: &str) -> bool {
        let options = SubscriptionOptions::new(QoS::AtMostOnce);
        compiled.decide(&Action::Subscribe { filter, options }) == Authorization::Allow
    }

    #[test]
    fn the_first_rule_that_speaks_of_it_decides() {
        let compiled = compiled(json!([
            {"permission": "deny", "action": "publish", "topics": "d/${clientid}/secret"},
            {"permission": "allow", "topics": "d/${clientid}/#"},
            {"permission": "allow", "action": "subscribe", "topics": "news/#"},
        ]));
        assert!(may_publish(&compiled, "d/c1/x"));
        assert!(!may_publish(&compiled, "d/c1/secret"));
        assert!(!may_publish(&compiled, "d/c2/x"));
        assert!(!may_publish(&compiled, "news/1"));
        assert!(may_subscribe(&compiled, "news/#"));
        assert!(may_subscribe(&compiled, "$share/g/news/+"));
        assert!(!may_subscribe(&compiled, "#"));
    }

    #[test]
    fn a_wide_subscription_does_not_slip_past_a_denial() {
        let compiled = compiled(json!([
            {"permission": "deny", "topics": "secret/#"},
            {"permission": "deny", "topics": "eq a/#"},
            {"permission": "allow"},
        ]));
        assert!(!may_subscribe(&compiled, "#"));
        assert!(!may_subscribe(&compiled, "+/x"));
        assert!(!may_subscribe(&compiled, "$queue/secret/+"));
        assert!(!may_subscribe(&compiled, "a/#"));
        assert!(may_subscribe(&compiled, "a/b"));
        assert!(may_subscribe(&compiled, "b/#"));
        assert!(may_subscribe(&compiled, "$SYS/#"));
    }

    #[test]
    fn conditions_on_the_message_and_the_client() {
        let compiled = compiled(json!([
            {"permission": "allow", "topics": "q", "qos": [1, 2]},
            {"permission": "allow", "topics": "r", "retain": false},
            {"permission": "allow", "topics": "u", "username": ["bob", "a*"]},
            {"permission": "allow", "topics": "v", "username": "bob"},
            {"permission": "allow", "topics": "i", "address": "10.0.0.0/24"},
            {"permission": "allow", "topics": "j", "address": "11.0.0.0/24"},
            {"permission": "allow", "topics": "k", "client_id": "c?"},
        ]));
        assert!(publishes(&compiled, "q", QoS::AtLeastOnce, false));
        assert!(!publishes(&compiled, "q", QoS::AtMostOnce, false));
        assert!(publishes(&compiled, "r", QoS::AtMostOnce, false));
        assert!(!publishes(&compiled, "r", QoS::AtMostOnce, true));
        assert!(may_publish(&compiled, "u"));
        assert!(!may_publish(&compiled, "v"));
        assert!(may_publish(&compiled, "i"));
        assert!(!may_publish(&compiled, "j"));
        assert!(!may_publish(&compiled, "k"));
    }

    #[test]
    fn many_rules_decide_as_few_do() {
        let mut rules = vec![json!({"permission": "deny", "topics": "+/never"})];
        for n in 0..40 {
            rules.push(json!({"permission": "allow", "topics": format!("t{n}/#")}));
            rules.push(json!({"permission": "deny", "topics": format!("t{n}/x")}));
        }
        rules.push(json!({"permission": "allow", "topics": "+/all"}));
        let indexed = compiled(Value::Array(rules));
        assert!(indexed.index.is_some());
        let plain = Compiled {
            index: None,
            entries: indexed.entries.clone(),
            ..Compiled::fixed(1, Authorization::Deny)
        };
        let plain = Compiled {
            fixed: None,
            ..plain
        };
        for topic in [
            "t1/x", "t39/y", "t40/x", "t3/never", "z/all", "z/never", "z",
        ] {
            assert_eq!(
                may_publish(&indexed, topic),
                may_publish(&plain, topic),
                "{topic}"
            );
        }
        assert!(may_publish(&indexed, "t39/y") && !may_publish(&indexed, "t40/x"));
    }

    #[test]
    fn rules_that_are_the_same_for_all_are_compiled_once() {
        let rules = |value| Rule::list_from_json(&value).unwrap().into();
        let same = rules(json!([{"permission": "allow", "topics": "a"}]));
        let book = RuleBook::new(1, POLICY, same, Arc::new([]));
        let who = Who::default();
        let (one, other) = (book.compile(&who, &[]), book.compile(&who, &[]));
        assert!(Arc::ptr_eq(&one, &other));
        let own = rules(json!([{"permission": "allow", "topics": "own"}]));
        assert!(may_publish(&book.compile(&who, &[&own]), "own"));
        let different = rules(json!([{"permission": "allow", "topics": "${clientid}"}]));
        let book = RuleBook::new(1, POLICY, different, Arc::new([]));
        assert!(book.for_all.is_none());
    }
}
