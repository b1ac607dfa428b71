//! Rules compiled for one client: the applicable rules in order, with placeholders filled in. Large rule lists are
//! indexed by the first topic level.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hooks::relay::targets_relay_endpoint;
use hooks::{Authorization, ClientAction};

use super::AclRule;
use super::topic_pattern::{RuleSubject, SubjectTopics, without_subscription_prefix};

/// Number of rules from which the index by first level is faster.
const MIN_INDEXED_RULES: usize = 12;

/// The compiled rules of one client.
pub struct CompiledRules {
    /// Generation of the rule set they were compiled from.
    pub(crate) generation: u64,
    /// The answer to every action, if it does not depend on the action.
    constant_answer: Option<Authorization>,
    rules: Box<[CompiledRule]>,
    index: Option<FirstLevelIndex>,
    no_match: Authorization,
    denial: Authorization,
}

#[derive(Clone)]
struct CompiledRule {
    is_allowed: bool,
    publish: bool,
    subscribe: bool,
    qos: u8,
    retain: Option<bool>,
    topics: SubjectTopics,
}

/// Rules by the first level of their topics, in order.
struct FirstLevelIndex {
    by_first_level: HashMap<Box<str>, Box<[u32]>, RandomState>,
    /// Rules for first levels that no rule names.
    wildcard_rules: Box<[u32]>,
}

/// The result for unmatched actions, and the effect of a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RulePolicy {
    pub allow_unmatched: bool,
    pub disconnect_on_denial: bool,
    /// Denied actions are allowed and recorded.
    pub observes_denials: bool,
}

impl RulePolicy {
    fn denial_outcome(self) -> Authorization {
        match self.disconnect_on_denial {
            true => Authorization::Disconnect,
            false => Authorization::Deny,
        }
    }
}

impl CompiledRules {
    /// Compiles ordered rules for one client.
    pub fn new<'r>(
        generation: u64,
        rules: impl IntoIterator<Item = &'r AclRule>,
        who: &RuleSubject<'_>,
        policy: RulePolicy,
    ) -> Self {
        let denial = policy.denial_outcome();
        let mut entries = Vec::new();
        for rule in rules.into_iter().filter(|rule| rule.applies_to(who)) {
            let entry = |topics| CompiledRule {
                is_allowed: rule.is_allowed,
                publish: rule.publish,
                subscribe: rule.subscribe,
                qos: rule.qos,
                retain: rule.retain,
                topics,
            };
            if rule.topics.is_empty() {
                let is_last = rule.publish && rule.subscribe && rule.qos == 0b111;
                entries.push(entry(SubjectTopics::All));
                if is_last && rule.retain.is_none() {
                    // Rules after this one never match.
                    break;
                }
                continue;
            }
            let topics = rule.topics.iter();
            entries.extend(topics.filter_map(|topic| topic.resolve(who)).map(entry));
        }
        let no_match = match policy.allow_unmatched {
            true => Authorization::Allow,
            false => denial,
        };
        let decides_all = |entry: &CompiledRule| {
            entry.topics == SubjectTopics::All
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
        let index = (entries.len() >= MIN_INDEXED_RULES).then(|| FirstLevelIndex::new(&entries));
        Self {
            generation,
            constant_answer: fixed,
            rules: entries.into(),
            index,
            no_match,
            denial,
        }
    }

    /// Allows everything; for superusers.
    pub(crate) fn allow_all(generation: u64) -> Self {
        Self::constant(generation, Authorization::Allow)
    }

    /// A placeholder that must be recompiled before use.
    pub(crate) fn not_compiled() -> Self {
        Self::constant(0, Authorization::Deny)
    }

    /// Denies everything; for a client whose external rules have expired.
    pub(crate) fn unmatched_only(generation: u64, policy: RulePolicy) -> Self {
        Self::constant(generation, policy.denial_outcome())
    }

    fn constant(generation: u64, answer: Authorization) -> Self {
        Self {
            generation,
            constant_answer: Some(answer),
            rules: Box::default(),
            index: None,
            no_match: answer,
            denial: answer,
        }
    }

    #[inline]
    pub fn decide(&self, action: &ClientAction<'_>) -> Authorization {
        match targets_relay_endpoint(action) {
            true => self.decide_strictly(action),
            false => self.decide_with_default(action, self.no_match),
        }
    }

    /// Like [`decide`](Self::decide), but denies actions that no rule matches.
    pub(crate) fn decide_strictly(&self, action: &ClientAction<'_>) -> Authorization {
        self.decide_with_default(action, self.denial)
    }

    #[inline]
    fn decide_with_default(
        &self,
        action: &ClientAction<'_>,
        no_match: Authorization,
    ) -> Authorization {
        match self.constant_answer {
            // The answer is constant because there are no rules.
            Some(_) if self.rules.is_empty() => return no_match,
            Some(answer) => return answer,
            None => {}
        }
        match self.deciding_rule(action) {
            Some(entry) if entry.is_allowed => Authorization::Allow,
            Some(_) => self.denial,
            None => no_match,
        }
    }

    /// Whether any rule matches an action.
    pub(crate) fn has_matching_rule(&self, action: &ClientAction<'_>) -> bool {
        match self.constant_answer {
            // A constant answer comes from a first rule that matches everything, or from the absence of rules.
            Some(_) => !self.rules.is_empty(),
            None => self.deciding_rule(action).is_some(),
        }
    }

    #[inline]
    fn deciding_rule(&self, action: &ClientAction<'_>) -> Option<&CompiledRule> {
        match action {
            ClientAction::Publish { topic, qos, retain } => {
                let qos = 1 << (*qos as u8);
                let speaks_of = |entry: &&CompiledRule| {
                    entry.publish
                        && entry.qos & qos != 0
                        && entry.retain.is_none_or(|wanted| wanted == *retain)
                        && entry.topics.matches_topic(topic)
                };
                match &self.index {
                    None => self.rules.iter().find(speaks_of),
                    Some(index) => {
                        let mut candidates = index
                            .candidates(topic)
                            .iter()
                            .map(|&at| &self.rules[at as usize]);
                        candidates.find(speaks_of)
                    }
                }
            }
            ClientAction::Subscribe { filter, options } => {
                let filter = without_subscription_prefix(filter);
                let qos = 1 << (options.qos as u8);
                self.rules.iter().find(|entry| {
                    // A deny rule applies if the filter overlaps its topics; an allow rule only if it covers the
                    // whole filter.
                    entry.subscribe
                        && entry.qos & qos != 0
                        && match entry.is_allowed {
                            true => entry.topics.covers_filter(&filter),
                            false => entry.topics.overlaps_filter(&filter),
                        }
                })
            }
        }
    }
}

impl FirstLevelIndex {
    fn new(entries: &[CompiledRule]) -> Self {
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
            wildcard_rules: others.into(),
        }
    }

    fn candidates(&self, topic: &str) -> &[u32] {
        let first = mqtt::levels(topic).next().unwrap_or_default();
        self.by_first_level
            .get(first)
            .unwrap_or(&self.wildcard_rules)
    }
}

/// The rules of a node. They are compiled per client unless they are the same for all clients.
pub(crate) struct NodeRuleSet {
    pub(crate) generation: u64,
    pub(crate) policy: RulePolicy,
    /// Rules of the configuration.
    pub(crate) configured_rules: Arc<[AclRule]>,
    /// Rules of the store.
    pub(crate) stored_rules: Arc<[AclRule]>,
    /// Set if the rules are the same for every client.
    pub(crate) shared_rules: Option<Arc<CompiledRules>>,
}

impl NodeRuleSet {
    pub(crate) fn new(
        generation: u64,
        policy: RulePolicy,
        file: Arc<[AclRule]>,
        store: Arc<[AclRule]>,
    ) -> Self {
        let mut all = file.iter().chain(store.iter());
        let for_all = all.all(AclRule::is_client_independent).then(|| {
            let rules = file.iter().chain(store.iter());
            Arc::new(CompiledRules::new(
                generation,
                rules,
                &RuleSubject::default(),
                policy,
            ))
        });
        Self {
            generation,
            policy,
            configured_rules: file,
            stored_rules: store,
            shared_rules: for_all,
        }
    }

    /// Compiles the rules of one client: its own first, then those of the configuration, then those of the store.
    pub(crate) fn compile_for(
        &self,
        who: &RuleSubject<'_>,
        own: &[&[AclRule]],
    ) -> Arc<CompiledRules> {
        if own.iter().all(|rules| rules.is_empty())
            && let Some(for_all) = &self.shared_rules
        {
            return for_all.clone();
        }
        let own = own.iter().flat_map(|rules| rules.iter());
        let rules = own
            .chain(self.configured_rules.iter())
            .chain(self.stored_rules.iter());
        Arc::new(CompiledRules::new(self.generation, rules, who, self.policy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqtt::{QoS, SubscriptionOptions};
    use serde_json::{Value, json};

    const POLICY: RulePolicy = RulePolicy {
        allow_unmatched: false,
        disconnect_on_denial: false,
        observes_denials: false,
    };

    fn compiled(rules: Value) -> CompiledRules {
        let rules = AclRule::list_from_json(&rules).unwrap();
        let who = RuleSubject {
            client_id: "c1",
            username: Some("ann"),
            address: Some([10, 0, 0, 1].into()),
            ..RuleSubject::default()
        };
        CompiledRules::new(1, &rules, &who, POLICY)
    }

    fn publishes(compiled: &CompiledRules, topic: &str, qos: QoS, retain: bool) -> bool {
        let action = ClientAction::Publish { topic, qos, retain };
        compiled.decide(&action) == Authorization::Allow
    }

    fn may_publish(compiled: &CompiledRules, topic: &str) -> bool {
        publishes(compiled, topic, QoS::AtMostOnce, false)
    }

    fn may_subscribe(compiled: &CompiledRules, filter: &str) -> bool {
        let options = SubscriptionOptions::new(QoS::AtMostOnce);
        compiled.decide(&ClientAction::Subscribe { filter, options }) == Authorization::Allow
    }

    #[test]
    fn the_first_matching_rule_decides() {
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
        let plain = CompiledRules {
            index: None,
            rules: indexed.rules.clone(),
            ..CompiledRules::constant(1, Authorization::Deny)
        };
        let plain = CompiledRules {
            constant_answer: None,
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
        let rules = |value| AclRule::list_from_json(&value).unwrap().into();
        let same = rules(json!([{"permission": "allow", "topics": "a"}]));
        let book = NodeRuleSet::new(1, POLICY, same, Arc::new([]));
        let who = RuleSubject::default();
        let (one, other) = (book.compile_for(&who, &[]), book.compile_for(&who, &[]));
        assert!(Arc::ptr_eq(&one, &other));
        let own = rules(json!([{"permission": "allow", "topics": "own"}]));
        assert!(may_publish(&book.compile_for(&who, &[&own]), "own"));
        let different = rules(json!([{"permission": "allow", "topics": "${clientid}"}]));
        let book = NodeRuleSet::new(1, POLICY, different, Arc::new([]));
        assert!(book.shared_rules.is_none());
    }
}
