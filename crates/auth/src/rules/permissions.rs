//! What the client of one session may do: its compiled rules, made anew when the rules of the node or its own change.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use broker::hooks::{Action, Authorization, Client, DeviceNames, Peer, Permissions};

use super::compile::{Compiled, Policy, RuleBook};
use super::{Rule, Who};
use crate::sources::Sourced;

/// The rules of the node, shared by all sessions.
pub(crate) struct Rights {
    /// Of the book; looked at for each action.
    generation: AtomicU64,
    book: ArcSwap<RuleBook>,
    /// Held while there is to be another book.
    changing: Mutex<()>,
    pub(crate) denied: AtomicU64,
    /// Milliseconds since 1970, a quarter of a second old at most.
    pub(crate) clock_ms: AtomicU64,
}

impl Rights {
    pub(crate) fn new(policy: Policy, file: Arc<[Rule]>) -> Self {
        let book = RuleBook::new(1, policy, file, Arc::new([]));
        Self {
            generation: AtomicU64::new(1),
            book: ArcSwap::from_pointee(book),
            changing: Mutex::new(()),
            denied: AtomicU64::new(0),
            clock_ms: AtomicU64::new(crate::now_ms()),
        }
    }

    pub(crate) fn book(&self) -> Arc<RuleBook> {
        self.book.load_full()
    }

    /// Other rules from the store; every session takes them up with its next action.
    pub(crate) fn set_store_rules(&self, rules: Arc<[Rule]>) {
        self.change(|old, next| RuleBook::new(next, old.policy, old.file.clone(), rules));
    }

    /// Another policy; every session takes it up with its next action.
    pub(crate) fn set_policy(&self, policy: Policy) {
        if self.book.load().policy != policy {
            self.change(|old, next| {
                RuleBook::new(next, policy, old.file.clone(), old.store.clone())
            });
        }
    }

    fn change(&self, change: impl FnOnce(&RuleBook, u64) -> RuleBook) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.book();
        let generation = old.generation + 1;
        self.book.store(Arc::new(change(&old, generation)));
        self.generation.store(generation, Relaxed);
    }

    /// What a client may do by the rules of the node alone.
    pub(crate) fn check_plainly(&self, client: &Client<'_>, action: &Action<'_>) -> Authorization {
        let who = who_of(client, None);
        self.count(self.book.load().compile(&who, &[]).decide(action))
    }

    #[inline]
    fn count(&self, answer: Authorization) -> Authorization {
        if answer != Authorization::Allow {
            self.denied.fetch_add(1, Relaxed);
        }
        answer
    }
}

/// What is known of a client beyond its names and its address; most have none of it.
#[derive(Default)]
pub(crate) struct Facts {
    pub(crate) common_name: Option<Box<str>>,
    pub(crate) attributes: Box<[(Box<str>, Box<str>)]>,
    pub(crate) is_superuser: bool,
    /// From its token, or from who let it in.
    pub(crate) own: Box<[Rule]>,
    /// Of a device.
    pub(crate) rights: Option<crate::devices::Rights>,
    /// From outside, asked for anew from time to time.
    pub(crate) sourced: Option<Arc<Sourced>>,
}

pub(crate) struct SessionPermissions {
    rights: Arc<Rights>,
    facts: Option<Box<Facts>>,
    compiled: ArcSwap<Compiled>,
    /// Set when its sourced rules have become too old to go by.
    is_lapsed: AtomicBool,
}

fn who_of<'a>(client: &Client<'a>, facts: Option<&'a Facts>) -> Who<'a> {
    Who {
        client_id: client.client_id,
        username: client.username,
        common_name: facts.and_then(|facts| facts.common_name.as_deref()),
        address: match client.peer {
            Some(Peer::Tcp(address)) => Some(address.ip()),
            Some(Peer::Unix) | None => None,
        },
        attributes: facts.map_or(&[], |facts| &facts.attributes),
    }
}

impl SessionPermissions {
    pub(crate) fn new(rights: Arc<Rights>, facts: Option<Box<Facts>>, who: &Who<'_>) -> Self {
        let compiled = match who.client_id {
            // It is given one in a moment; rules are looked at then.
            "" => Arc::new(Compiled::unknown()),
            _ => compile(&rights.book(), facts.as_deref(), who),
        };
        Self {
            rights,
            facts,
            compiled: ArcSwap::new(compiled),
            is_lapsed: AtomicBool::new(false),
        }
    }

    fn sourced(&self) -> Option<&Arc<Sourced>> {
        self.facts.as_ref()?.sourced.as_ref()
    }

    /// Whether what was compiled still holds.
    #[inline]
    fn is_current(&self, compiled: &Compiled) -> bool {
        if compiled.generation != self.rights.generation.load(Relaxed) {
            return false;
        }
        match self.sourced() {
            None => true,
            Some(sourced) => {
                let now_ms = self.rights.clock_ms.load(Relaxed);
                let is_lapsed = sourced.is_too_old(now_ms);
                let was_lapsed = self.is_lapsed.load(Relaxed);
                sourced.refresh_if_due(now_ms);
                is_lapsed == was_lapsed && !sourced.take_news()
            }
        }
    }

    /// What a device is decides first, then rules; what neither speaks of is denied, whatever holds for others.
    fn check_device(
        &self,
        rights: &crate::devices::Rights,
        client: &Client<'_>,
        action: &Action<'_>,
    ) -> Authorization {
        if rights.rights.may(action) {
            return Authorization::Allow;
        }
        let compiled = self.compiled.load();
        let answer = match self.is_current(&compiled) {
            true => compiled.decide_strictly(action),
            false => self.recompile(client).decide_strictly(action),
        };
        self.rights.count(answer)
    }

    #[cold]
    fn recompile(&self, client: &Client<'_>) -> Arc<Compiled> {
        let facts = self.facts.as_deref();
        let who = who_of(client, facts);
        if let Some(sourced) = self.sourced() {
            let now_ms = self.rights.clock_ms.load(Relaxed);
            self.is_lapsed.store(sourced.is_too_old(now_ms), Relaxed);
        }
        let book = self.rights.book();
        let compiled = match self.is_lapsed.load(Relaxed) {
            true => Arc::new(Compiled::nothing(book.generation, book.policy)),
            false => compile(&book, facts, &who),
        };
        self.compiled.store(compiled.clone());
        compiled
    }
}

fn compile(book: &RuleBook, facts: Option<&Facts>, who: &Who<'_>) -> Arc<Compiled> {
    let Some(facts) = facts else {
        return book.compile(who, &[]);
    };
    if facts.is_superuser {
        return Arc::new(Compiled::everything(book.generation));
    }
    match &facts.sourced {
        None => book.compile(who, &[&facts.own]),
        Some(sourced) => book.compile(who, &[&facts.own, &sourced.rules()]),
    }
}

impl Permissions for SessionPermissions {
    #[inline]
    fn check(&self, client: &Client<'_>, action: &Action<'_>) -> Authorization {
        if let Some(facts) = &self.facts
            && let Some(rights) = &facts.rights
        {
            return self.check_device(rights, client, action);
        }
        let compiled = self.compiled.load();
        let answer = match self.is_current(&compiled) {
            true => compiled.decide(action),
            false => self.recompile(client).decide(action),
        };
        self.rights.count(answer)
    }

    fn is_superuser(&self) -> bool {
        self.facts.as_ref().is_some_and(|facts| facts.is_superuser)
    }

    fn device(&self) -> Option<DeviceNames<'_>> {
        let rights = self.facts.as_ref()?.rights.as_ref()?;
        let name = rights.name.as_ref()?;
        Some(DeviceNames {
            id: &name.id,
            product: &name.product,
        })
    }

    fn source(&self, client: &Client<'_>, action: &Action<'_>) -> Option<&'static str> {
        if self.is_superuser() {
            return Some("superuser");
        }
        if self.is_lapsed.load(Relaxed) {
            return Some("unknown");
        }
        let (book, facts) = (self.rights.book(), self.facts.as_deref());
        let who = who_of(client, facts);
        let speaks = |rules: &[Rule]| {
            Compiled::new(book.generation, rules, &who, book.policy).speaks_of(action)
        };
        // In the order in which they count.
        let sources = [
            ("client", facts.is_some_and(|facts| speaks(&facts.own))),
            (
                "outside",
                (self.sourced()).is_some_and(|sourced| speaks(&sourced.rules())),
            ),
            ("file", speaks(&book.file)),
            ("store", speaks(&book.store)),
        ];
        let decides = sources.into_iter().find(|(_, speaks)| *speaks);
        Some(decides.map_or("default", |(name, _)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqtt::{QoS, Version};
    use serde_json::{Value, json};

    fn rules(value: Value) -> Arc<[Rule]> {
        Rule::list_from_json(&value).unwrap().into()
    }

    fn ann() -> Client<'static> {
        Client {
            last_address: None,
            local: None,
            client_id: "c1",
            username: Some("ann"),
            peer: Some(Peer::Unix),
            version: Version::V5,
            connection: Default::default(),
        }
    }

    fn may(permissions: &SessionPermissions, topic: &str) -> bool {
        let (qos, retain) = (QoS::AtMostOnce, false);
        let action = Action::Publish { topic, qos, retain };
        permissions.check(&ann(), &action) == Authorization::Allow
    }

    fn rights() -> Arc<Rights> {
        let policy = Policy {
            allow_unmatched: false,
            disconnect_on_denial: false,
        };
        let file = rules(json!([{"permission": "allow", "topics": "file/#"}]));
        Arc::new(Rights::new(policy, file))
    }

    fn permissions(rights: &Arc<Rights>, facts: Option<Facts>) -> SessionPermissions {
        let who = who_of(&ann(), None);
        SessionPermissions::new(rights.clone(), facts.map(Box::new), &who)
    }

    #[test]
    fn changed_rules_reach_sessions_that_are_there() {
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
        let facts = Facts {
            own: own.iter().cloned().collect(),
            ..Facts::default()
        };
        let session = permissions(&rights, Some(facts));
        assert!(may(&session, "own/ann"));
        assert!(!may(&session, "file/x"));
        assert!(may(&session, "file/y"));
    }

    #[test]
    fn a_superuser_may_do_everything_whatever_the_rules() {
        let rights = rights();
        let facts = Facts {
            is_superuser: true,
            ..Facts::default()
        };
        let session = permissions(&rights, Some(facts));
        assert!(may(&session, "anything"));
        rights.set_store_rules(rules(json!([{"permission": "deny"}])));
        assert!(may(&session, "anything"));
    }
}
