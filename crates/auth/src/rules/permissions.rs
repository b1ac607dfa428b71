//! The permissions of one session: compiled rules, recompiled when the rules of the node or of the client change.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use hooks::relay::targets_relay_endpoint;
use hooks::{
    AccessDecision, Authorization, Client, ClientAction, ClientDevice, PeerAddress, Permissions,
};

use super::AclRule;
use super::compiled_rules::{CompiledRules, NodeRuleSet, RulePolicy};
use super::denied_actions::DeniedActions;
use super::topic_pattern::RuleSubject;
use crate::rule_sources::ExternalRules;

/// The rules of the node, shared by all sessions.
pub(crate) struct NodeRules {
    /// Generation of `rule_set`; read for each action.
    generation: AtomicU64,
    rule_set: ArcSwap<NodeRuleSet>,
    /// Serialises replacements of `rule_set`.
    change_lock: Mutex<()>,
    pub(crate) denied: AtomicU64,
    pub(crate) denied_actions: DeniedActions,
    /// Cached time in milliseconds since 1970, at most a quarter of a second old.
    pub(crate) clock_ms: AtomicU64,
}

impl NodeRules {
    pub(crate) fn new(policy: RulePolicy, file: Arc<[AclRule]>) -> Self {
        let rule_set = NodeRuleSet::new(1, policy, file, Arc::new([]));
        Self {
            generation: AtomicU64::new(1),
            rule_set: ArcSwap::from_pointee(rule_set),
            change_lock: Mutex::new(()),
            denied: AtomicU64::new(0),
            denied_actions: DeniedActions::default(),
            clock_ms: AtomicU64::new(wall_clock::now_ms()),
        }
    }

    pub(crate) fn rule_set(&self) -> Arc<NodeRuleSet> {
        self.rule_set.load_full()
    }

    /// Replaces the stored rules; sessions use them from their next action on.
    pub(crate) fn set_store_rules(&self, rules: Arc<[AclRule]>) {
        self.replace_rule_set(|old, next| {
            NodeRuleSet::new(next, old.policy, old.configured_rules.clone(), rules)
        });
    }

    /// Replaces the policy; sessions use it from their next action on.
    pub(crate) fn set_policy(&self, policy: RulePolicy) {
        if self.rule_set.load().policy != policy {
            self.replace_rule_set(|old, next| {
                NodeRuleSet::new(
                    next,
                    policy,
                    old.configured_rules.clone(),
                    old.stored_rules.clone(),
                )
            });
        }
    }

    fn replace_rule_set(&self, change: impl FnOnce(&NodeRuleSet, u64) -> NodeRuleSet) {
        let _changing = self
            .change_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let old = self.rule_set();
        let generation = old.generation + 1;
        self.rule_set.store(Arc::new(change(&old, generation)));
        self.generation.store(generation, Relaxed);
    }

    /// Checks an action against the rules of the node only.
    pub(crate) fn check_node_rules(
        &self,
        client: &Client<'_>,
        action: &ClientAction<'_>,
    ) -> Authorization {
        let who = rule_subject(client, None);
        let answer = self.rule_set.load().compile_for(&who, &[]).decide(action);
        match answer {
            Authorization::Allow => answer,
            denial => self.deny(client, action, denial, None),
        }
    }

    /// The decision of the rules of the node about an action of a client with these rules of its own, in the order of
    /// evaluation.
    pub(crate) fn explain(
        &self,
        who: &RuleSubject<'_>,
        own: &[(&'static str, &[AclRule])],
        action: &ClientAction<'_>,
        has_default: bool,
    ) -> AccessDecision {
        let rule_set = self.rule_set();
        let of_node = [
            ("file", &rule_set.configured_rules[..]),
            ("store", &rule_set.stored_rules[..]),
        ];
        for (source, rules) in own.iter().copied().chain(of_node) {
            let matching = rules.iter().find(|rule| {
                let concerns_action = match action {
                    ClientAction::Publish { .. } => rule.publish,
                    ClientAction::Subscribe { .. } => rule.subscribe,
                };
                let only = std::iter::once(*rule);
                concerns_action
                    && CompiledRules::new(rule_set.generation, only, who, rule_set.policy)
                        .has_matching_rule(action)
            });
            if let Some(rule) = matching {
                return AccessDecision {
                    is_allowed: rule.is_allowed,
                    source,
                    rule: rule.id.clone(),
                };
            }
        }
        AccessDecision {
            is_allowed: has_default
                && rule_set.policy.allow_unmatched
                && !targets_relay_endpoint(action),
            source: "default",
            rule: None,
        }
    }

    /// Counts and records a denial. With the policy to observe denials, the rules deny nothing, except for devices and at
    /// relay endpoints, which are closed unless something opens them.
    #[cold]
    fn deny(
        &self,
        client: &Client<'_>,
        action: &ClientAction<'_>,
        denial: Authorization,
        session: Option<&SessionPermissions>,
    ) -> Authorization {
        self.denied.fetch_add(1, Relaxed);
        let is_device = session.is_some_and(|session| session.device_grant().is_some());
        let is_observed = self.rule_set.load().policy.observes_denials
            && !is_device
            && !targets_relay_endpoint(action);
        let explain = || match session {
            Some(session) => session.explain(client, action),
            None => Some(self.explain(&rule_subject(client, None), &[], action, true)),
        };
        let now_ms = self.clock_ms.load(Relaxed);
        (self.denied_actions).record((client, action), !is_observed, now_ms, explain);
        match is_observed {
            true => Authorization::Allow,
            false => denial,
        }
    }
}

/// Attributes of a client beyond its names and address; most clients have none.
#[derive(Default)]
pub(crate) struct SubjectAttributes {
    pub(crate) common_name: Option<Box<str>>,
    pub(crate) attributes: Box<[(Box<str>, Box<str>)]>,
    pub(crate) is_superuser: bool,
    /// Rules from its token or its authenticator.
    pub(crate) own_rules: Box<[AclRule]>,
    /// The permissions of a device.
    pub(crate) device: Option<crate::device_directory::DeviceGrant>,
    /// Rules from external sources, refreshed periodically.
    pub(crate) external_rules: Option<Arc<ExternalRules>>,
}

pub(crate) struct SessionPermissions {
    node_rules: Arc<NodeRules>,
    attributes: Option<Box<SubjectAttributes>>,
    compiled: ArcSwap<CompiledRules>,
    /// Whether the external rules were too old to use at the last compilation.
    is_expired: AtomicBool,
}

fn rule_subject<'a>(
    client: &Client<'a>,
    attributes: Option<&'a SubjectAttributes>,
) -> RuleSubject<'a> {
    RuleSubject {
        client_id: client.client_id,
        username: client.username,
        common_name: attributes.and_then(|attributes| attributes.common_name.as_deref()),
        address: match client.peer {
            Some(PeerAddress::Tcp(address)) => Some(address.ip()),
            Some(PeerAddress::Unix | PeerAddress::Memory) | None => None,
        },
        attributes: attributes.map_or(&[], |attributes| &attributes.attributes),
    }
}

impl SessionPermissions {
    pub(crate) fn new(
        rights: Arc<NodeRules>,
        attributes: Option<Box<SubjectAttributes>>,
        who: &RuleSubject<'_>,
    ) -> Self {
        let compiled = match who.client_id {
            // The broker assigns a client id in a moment; rules are compiled at the first check.
            "" => Arc::new(CompiledRules::not_compiled()),
            _ => compile_rules(&rights.rule_set(), attributes.as_deref(), who),
        };
        Self {
            node_rules: rights,
            attributes,
            compiled: ArcSwap::new(compiled),
            is_expired: AtomicBool::new(false),
        }
    }

    fn device_grant(&self) -> Option<&crate::device_directory::DeviceGrant> {
        self.attributes.as_ref()?.device.as_ref()
    }

    fn external_rules(&self) -> Option<&Arc<ExternalRules>> {
        self.attributes.as_ref()?.external_rules.as_ref()
    }

    /// Whether the compiled rules are still valid.
    #[inline]
    fn is_current(&self, compiled: &CompiledRules) -> bool {
        if compiled.generation != self.node_rules.generation.load(Relaxed) {
            return false;
        }
        match self.external_rules() {
            None => true,
            Some(external) => {
                let now_ms = self.node_rules.clock_ms.load(Relaxed);
                let is_lapsed = external.is_expired(now_ms);
                let was_lapsed = self.is_expired.load(Relaxed);
                external.refresh_if_due(now_ms);
                is_lapsed == was_lapsed && !external.take_changed()
            }
        }
    }

    /// Checks the device's own permissions, then the rules. What neither allows is denied, whatever the policy.
    fn check_device<'c>(
        &self,
        rights: &crate::device_directory::DeviceGrant,
        client: &dyn Fn() -> Client<'c>,
        action: &ClientAction<'_>,
    ) -> Authorization {
        if rights.permissions.is_allowed(action) {
            return Authorization::Allow;
        }
        let compiled = self.compiled.load();
        let answer = match self.is_current(&compiled) {
            true => compiled.decide_strictly(action),
            false => self.recompile(&client()).decide_strictly(action),
        };
        match answer {
            Authorization::Allow => answer,
            denial => (self.node_rules).deny(&client(), action, denial, Some(self)),
        }
    }

    #[cold]
    fn recompile(&self, client: &Client<'_>) -> Arc<CompiledRules> {
        let attributes = self.attributes.as_deref();
        let who = rule_subject(client, attributes);
        if let Some(external) = self.external_rules() {
            let now_ms = self.node_rules.clock_ms.load(Relaxed);
            self.is_expired.store(external.is_expired(now_ms), Relaxed);
        }
        let rule_set = self.node_rules.rule_set();
        let compiled = match self.is_expired.load(Relaxed) {
            true => Arc::new(CompiledRules::unmatched_only(
                rule_set.generation,
                rule_set.policy,
            )),
            false => compile_rules(&rule_set, attributes, &who),
        };
        self.compiled.store(compiled.clone());
        compiled
    }
}

fn compile_rules(
    rule_set: &NodeRuleSet,
    attributes: Option<&SubjectAttributes>,
    who: &RuleSubject<'_>,
) -> Arc<CompiledRules> {
    let Some(attributes) = attributes else {
        return rule_set.compile_for(who, &[]);
    };
    if attributes.is_superuser {
        return Arc::new(CompiledRules::allow_all(rule_set.generation));
    }
    match &attributes.external_rules {
        None => rule_set.compile_for(who, &[&attributes.own_rules]),
        Some(external) => rule_set.compile_for(who, &[&attributes.own_rules, &external.rules()]),
    }
}

impl Permissions for SessionPermissions {
    #[inline]
    fn check<'c>(
        &self,
        client: &dyn Fn() -> Client<'c>,
        action: &ClientAction<'_>,
    ) -> Authorization {
        if let Some(attributes) = &self.attributes
            && let Some(rights) = &attributes.device
        {
            return self.check_device(rights, client, action);
        }
        let compiled = self.compiled.load();
        let answer = match self.is_current(&compiled) {
            true => compiled.decide(action),
            false => self.recompile(&client()).decide(action),
        };
        match answer {
            Authorization::Allow => answer,
            denial => (self.node_rules).deny(&client(), action, denial, Some(self)),
        }
    }

    fn explain(&self, client: &Client<'_>, action: &ClientAction<'_>) -> Option<AccessDecision> {
        let decision = |is_allowed, source| AccessDecision {
            is_allowed,
            source,
            rule: None,
        };
        if self.is_superuser() {
            return Some(decision(true, "superuser"));
        }
        let grant = self.device_grant();
        if grant.is_some_and(|grant| grant.permissions.is_allowed(action)) {
            return Some(decision(true, "device"));
        }
        if self.is_expired.load(Relaxed) {
            // Rules of external sources are too old, and other rules are not evaluated without them.
            return Some(decision(false, "external"));
        }
        let attributes = self.attributes.as_deref();
        let external = self.external_rules().map(|external| external.rules());
        let own = [
            (
                "client",
                attributes.map_or(&[][..], |attributes| &attributes.own_rules),
            ),
            (
                "external",
                external.as_ref().map_or(&[][..], |rules| &rules[..]),
            ),
        ];
        let who = rule_subject(client, attributes);
        Some(self.node_rules.explain(&who, &own, action, grant.is_none()))
    }

    fn is_superuser(&self) -> bool {
        self.attributes
            .as_ref()
            .is_some_and(|attributes| attributes.is_superuser)
    }

    fn device(&self) -> Option<ClientDevice<'_>> {
        let rights = self.attributes.as_ref()?.device.as_ref()?;
        let name = rights.name.as_ref()?;
        Some(ClientDevice {
            id: &name.id,
            product: &name.product,
        })
    }

    fn decision_source(
        &self,
        client: &Client<'_>,
        action: &ClientAction<'_>,
    ) -> Option<&'static str> {
        if self.is_superuser() {
            return Some("superuser");
        }
        if self.is_expired.load(Relaxed) {
            return Some("unknown");
        }
        let (rule_set, attributes) = (self.node_rules.rule_set(), self.attributes.as_deref());
        let who = rule_subject(client, attributes);
        let has_match = |rules: &[AclRule]| {
            CompiledRules::new(rule_set.generation, rules, &who, rule_set.policy)
                .has_matching_rule(action)
        };
        // In the order of evaluation.
        let sources = [
            (
                "client",
                attributes.is_some_and(|attributes| has_match(&attributes.own_rules)),
            ),
            (
                "external",
                (self.external_rules()).is_some_and(|external| has_match(&external.rules())),
            ),
            ("file", has_match(&rule_set.configured_rules)),
            ("store", has_match(&rule_set.stored_rules)),
        ];
        let decides = sources.into_iter().find(|(_, has_match)| *has_match);
        Some(decides.map_or("default", |(name, _)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqtt::{QoS, Version};
    use serde_json::{Value, json};

    fn rules(value: Value) -> Arc<[AclRule]> {
        AclRule::list_from_json(&value).unwrap().into()
    }

    fn ann() -> Client<'static> {
        Client {
            last_address: None,
            local_address: None,
            client_id: "c1",
            username: Some("ann"),
            peer: Some(PeerAddress::Unix),
            version: Version::V5,
            connection: Default::default(),
        }
    }

    fn may(permissions: &SessionPermissions, topic: &str) -> bool {
        let (qos, retain) = (QoS::AtMostOnce, false);
        let action = ClientAction::Publish { topic, qos, retain };
        permissions.check(&ann, &action) == Authorization::Allow
    }

    fn rights() -> Arc<NodeRules> {
        let policy = RulePolicy {
            allow_unmatched: false,
            disconnect_on_denial: false,
            observes_denials: false,
        };
        let file = rules(json!([{"permission": "allow", "topics": "file/#"}]));
        Arc::new(NodeRules::new(policy, file))
    }

    fn permissions(
        rights: &Arc<NodeRules>,
        attributes: Option<SubjectAttributes>,
    ) -> SessionPermissions {
        let who = rule_subject(&ann(), None);
        SessionPermissions::new(rights.clone(), attributes.map(Box::new), &who)
    }

    #[test]
    fn changed_rules_reach_existing_sessions() {
        let rights = rights();
        let session = permissions(&rights, None);
        assert!(may(&session, "file/x") && !may(&session, "store/c1"));
        rights.set_store_rules(rules(
            json!([{"permission": "allow", "topics": "store/${clientid}"}]),
        ));
        assert!(may(&session, "store/c1") && !may(&session, "store/c2"));
        rights.set_store_rules(rules(json!([])));
        assert!(!may(&session, "store/c1") && may(&session, "file/x"));
        assert_eq!(rights.denied.load(Relaxed), 3);
    }

    #[test]
    fn own_rules_come_before_those_of_the_node() {
        let rights = rights();
        let own = rules(json!([{"permission": "deny", "topics": "file/x"},
            {"permission": "allow", "topics": "own/${username}"}]));
        let attributes = SubjectAttributes {
            own_rules: own.iter().cloned().collect(),
            ..SubjectAttributes::default()
        };
        let session = permissions(&rights, Some(attributes));
        assert!(may(&session, "own/ann"));
        assert!(!may(&session, "file/x"));
        assert!(may(&session, "file/y"));
    }

    #[test]
    fn a_superuser_may_do_everything_whatever_the_rules() {
        let rights = rights();
        let attributes = SubjectAttributes {
            is_superuser: true,
            ..SubjectAttributes::default()
        };
        let session = permissions(&rights, Some(attributes));
        assert!(may(&session, "anything"));
        rights.set_store_rules(rules(json!([{"permission": "deny"}])));
        assert!(may(&session, "anything"));
    }
}
