//! Everything that says who may come in and what they may do, in one place for all shards.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use broker::hooks::{Authentication, Grant, Hooks, HooksFactory};
use broker::info::{MetricFamily, MetricKind, MetricSample, MetricValue};
use mqtt::ReasonCode;
use serde_json::Value;
use store::Objects;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::authenticator::{Identity, Request};
use crate::bans::{Ban, Bans};
use crate::chain::{Chain, Checked, Refusal};
use crate::devices::DeviceDirectory;
use crate::door::Door;
use crate::limits::Guards;
use crate::lookups::Lookups;
use crate::objects::{self, Kept, Object};
use crate::password::Checker;
use crate::rules::{Facts, Policy, Rights, Rule, SessionPermissions};
use crate::settings::{self, Entry, Invalid, Limits, NoMatch, OnDenial, Settings, Workshop};
use crate::sources::{Sourced, Sources};
use crate::tally::AuthenticatorStatus;
use crate::users::{User, Users};

const CLOCK_TICK: Duration = Duration::from_millis(250);
/// Objects read from the store in one go.
const PAGE: usize = 1000;

/// Authentication and authorisation of a node.
#[derive(Clone)]
pub struct Auth {
    shared: Arc<Shared>,
}

type BanListener = Box<dyn Fn(&Ban) + Send + Sync>;

pub(crate) struct Shared {
    pub(crate) rights: Arc<Rights>,
    pub(crate) bans: Bans,
    pub(crate) guards: Guards,
    pub(crate) counts: Counts,
    pub(crate) lookups: Lookups,
    shop: Workshop,
    chain: ArcSwap<Chain>,
    configured: Vec<Arc<Entry>>,
    /// Kinds and ids of the objects of the configuration: stored ones of the same id have no effect.
    declared: HashSet<(&'static str, String)>,
    /// Whether the configuration has rules or sources of them.
    has_rules: bool,
    sources: Arc<Sources>,
    kept: Kept,
    places: ArcSwap<Semaphore>,
    max_checks: AtomicU32,
    timeout_ms: AtomicU64,
    ban_listener: Mutex<Option<BanListener>>,
}

/// What became of clients at the door.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) allowed: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) busy: AtomicU64,
    pub(crate) banned: AtomicU64,
    pub(crate) limited: AtomicU64,
}

/// What is wrong with the settings, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", section)]
pub struct SettingsError {
    /// `user`, `auth.authenticator`, `auth.rule_source` or `auth.rule`.
    pub section: &'static str,
    /// Which of them, from 0.
    pub at: usize,
    pub message: String,
}

fn policy(limits: &Limits, has_rules: bool) -> Policy {
    Policy {
        allow_unmatched: match limits.no_match {
            NoMatch::Allow => true,
            NoMatch::Deny => false,
            NoMatch::Auto => !has_rules,
        },
        disconnect_on_denial: limits.on_denial == OnDenial::Disconnect,
    }
}

impl Auth {
    /// Everything that is wrong with the settings comes back at once. What asks somebody outside does so on `runtime`.
    pub fn new(settings: &Settings, runtime: Handle) -> Result<Self, Vec<SettingsError>> {
        let mut errors = Vec::new();
        let mut tell = |section, at, message: String| {
            errors.push(SettingsError {
                section,
                at,
                message,
            });
        };
        let limits = &settings.limits;
        let threads = match limits.password_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            given => given as usize,
        };
        let mut users = HashMap::new();
        for (at, user) in settings.users.iter().enumerate() {
            match user.credential.parse() {
                Ok(credential) => {
                    users.insert(user.username.clone(), User::of_configuration(credential));
                }
                Err(error) => tell("user", at, error.to_string()),
            }
        }
        let shop = Workshop {
            users: Arc::new(Users::new(users)),
            checker: Checker::new(runtime.clone(), threads),
            runtime: runtime.clone(),
            devices: Arc::default(),
        };
        let _entered = runtime.enter();
        let mut configured = Vec::new();
        let ids = settings.authenticator_ids();
        for (at, (value, id)) in settings.authenticators.iter().zip(&ids).enumerate() {
            let mut value = value.clone();
            // What is not a table, or has no text as its name, is told by what reads it.
            if let Some(fields) = value.as_object_mut()
                && fields
                    .get("name")
                    .is_none_or(|name| name.as_str().is_some_and(|name| !name.is_empty()))
            {
                fields.insert("name".to_owned(), id.as_str().into());
            }
            match settings::authenticator(&value, &shop) {
                Ok(entry) => configured.extend(entry.map(Arc::new)),
                Err(message) => tell("auth.authenticator", at, message),
            }
        }
        // The users and devices of the node are always known; asked first unless a place is named.
        for own in ["devices", "users"] {
            let names_it = |value: &Value| value.get("type").and_then(Value::as_str) == Some(own);
            if !settings.authenticators.iter().any(names_it) {
                let value = serde_json::json!({"type": own});
                let entry = settings::authenticator(&value, &shop).ok().flatten();
                configured.splice(0..0, entry.map(Arc::new));
            }
        }
        let mut sources = Vec::new();
        for (at, value) in settings.rule_sources.iter().enumerate() {
            match settings::rule_source(value) {
                Ok(source) => sources.extend(source),
                Err(message) => tell("auth.rule_source", at, message),
            }
        }
        let mut rules = Vec::new();
        for (at, value) in settings.rules.iter().enumerate() {
            match settings::rule(value) {
                Ok(rule) => rules.extend(rule),
                Err(message) => tell("auth.rule", at, message),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        rules.sort_by_key(|(order, _)| *order);
        let rules: Arc<[Rule]> = rules.into_iter().map(|(_, rule)| rule).collect();
        let has_rules = !settings.rules.is_empty() || !settings.rule_sources.is_empty();
        let rights = Arc::new(Rights::new(policy(limits, has_rules), rules));
        runtime.spawn(keep_time(Arc::downgrade(&rights)));
        let of = |kind| move |id| (kind, id);
        let declared = (ids.into_iter().map(of(objects::AUTHENTICATOR)))
            .chain(settings.rule_ids().into_iter().map(of(objects::ACL_RULE)));
        let shared = Shared {
            rights,
            bans: Bans::default(),
            guards: Guards::new(limits),
            counts: Counts::default(),
            lookups: Lookups::new(threads),
            shop,
            chain: ArcSwap::from_pointee(Chain::new(configured.clone())),
            configured,
            declared: declared.collect(),
            has_rules,
            sources: Arc::new(Sources {
                sources,
                refresh_ms: AtomicU64::default(),
                max_age_ms: AtomicU64::default(),
                runtime,
            }),
            kept: Kept::default(),
            places: ArcSwap::from_pointee(Semaphore::new(limits.max_checks as usize)),
            max_checks: AtomicU32::new(limits.max_checks),
            timeout_ms: AtomicU64::default(),
            ban_listener: Mutex::new(None),
        };
        shared.set_times(limits);
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Who knows the devices of the node. Once, before clients come.
    pub fn set_devices(&self, directory: Arc<dyn DeviceDirectory>) {
        if self.shared.shop.devices.set(directory).is_err() {
            tracing::error!("the directory of devices is set already");
        }
    }

    /// Other limits while clients come and go, for what happens from now on. `password_threads` stays as it was.
    pub fn set_limits(&self, limits: &Limits) {
        let shared = &self.shared;
        shared.guards.set(limits);
        shared.rights.set_policy(policy(limits, shared.has_rules));
        shared.set_times(limits);
        if shared.max_checks.swap(limits.max_checks, Relaxed) != limits.max_checks {
            // Who has a place keeps it beside the new ones.
            let places = Semaphore::new(limits.max_checks as usize);
            shared.places.store(Arc::new(places));
        }
    }

    /// From what somebody wrote to what may be stored of it. `current` is what is stored now. Takes some 30 ms for a
    /// user, and reads files an authenticator names: not for a thread that routes messages.
    pub fn accept(
        &self,
        kind: &str,
        written: Value,
        current: Option<&Value>,
    ) -> Result<Value, Invalid> {
        let sealed = objects::seal(kind, written, current)?;
        let _entered = self.shared.shop.runtime.enter();
        objects::read(kind, &sealed, &self.shared.shop)?;
        Ok(sealed)
    }

    /// Takes over the objects of a store, and each of their changes from now on.
    pub fn follow(&self, objects: &Objects) -> Result<(), store::Error> {
        let (auth, stored) = (self.clone(), objects.clone());
        objects.on_change(Box::new(move |change| {
            let kind = change.kind.as_str();
            if !objects::KINDS.contains(&kind) {
                return;
            }
            let object = match stored.get(kind, &change.id) {
                Ok(object) => object,
                Err(error) => {
                    tracing::error!(kind, id = change.id, %error, "a changed object cannot be read; it is not gone by");
                    None
                }
            };
            auth.apply(kind, &change.id, object.map(|object| object.value).as_ref());
        }));
        for kind in objects::KINDS {
            let mut after: Option<String> = None;
            loop {
                let page = objects.list(kind, after.as_deref(), PAGE)?;
                for object in &page {
                    self.keep(kind, &object.id, Some(&object.value));
                }
                match page.last() {
                    Some(last) if page.len() == PAGE => after = Some(last.id.clone()),
                    _ => break,
                }
            }
            self.publish(kind);
        }
        Ok(())
    }

    /// An object was stored, or taken away (`None`); it takes effect at once.
    pub(crate) fn apply(&self, kind: &str, id: &str, value: Option<&Value>) {
        let ban = self.keep(kind, id, value);
        self.publish(kind);
        if let Some(ban) = ban {
            self.shared.tell_ban(&ban);
        }
    }

    /// Reads an object; gives a ban back. One that cannot be read (a file it names has gone) closes and never opens.
    fn keep(&self, kind: &str, id: &str, value: Option<&Value>) -> Option<Ban> {
        let shared = &self.shared;
        if (shared.declared.iter()).any(|(of, known)| *of == kind && known == id) {
            return None;
        }
        let _entered = shared.shop.runtime.enter();
        let mut object = value.and_then(|value| match objects::read(kind, value, &shared.shop) {
            Ok(object) => Some(object),
            Err(error) => {
                tracing::error!(kind, id, %error, "an object of the store cannot be read; nobody gets past it");
                objects::instead_of(kind, id, value)
            }
        });
        if let Some(Object::Authenticator(Some(entry))) = &mut object {
            // Logs name it as the API does.
            id.clone_into(&mut entry.name);
        }
        if kind == objects::USER {
            let user = match object {
                Some(Object::User(user)) => Some(user),
                _ => None,
            };
            shared.shop.users.keep(id, user);
            return None;
        }
        let ban = match &object {
            Some(Object::Ban(ban)) => Some(ban.clone()),
            _ => None,
        };
        shared.kept.set(kind, id, object);
        ban
    }

    /// Lets what was read of a kind take effect.
    fn publish(&self, kind: &str) {
        let shared = &self.shared;
        match kind {
            objects::AUTHENTICATOR => {
                let kept = shared.kept.authenticators();
                let all = shared.configured.iter().cloned().chain(kept).collect();
                shared.chain.store(Arc::new(Chain::new(all)));
            }
            objects::ACL_RULE => shared.rights.set_store_rules(shared.kept.rules()),
            objects::BAN => shared.kept.put_bans(&shared.bans),
            _ => {}
        }
    }

    /// How the authenticators do, in the order in which they are asked.
    pub fn authenticator_statuses(&self) -> Vec<AuthenticatorStatus> {
        self.shared.chain.load().statuses()
    }

    /// Called for each new ban, so that clients it is about can be sent away.
    pub fn on_ban(&self, listener: impl Fn(&Ban) + Send + Sync + 'static) {
        let mut slot = (self.shared.ban_listener.lock()).unwrap_or_else(PoisonError::into_inner);
        *slot = Some(Box::new(listener));
    }

    pub fn metrics(&self) -> Vec<MetricFamily> {
        let counts = &self.shared.counts;
        let results = [
            ("allowed", &counts.allowed),
            ("denied", &counts.denied),
            ("failed", &counts.failed),
            ("busy", &counts.busy),
            ("banned", &counts.banned),
            ("limited", &counts.limited),
        ];
        let number = |count: &AtomicU64| MetricValue::Number(count.load(Relaxed) as f64);
        let results = results.into_iter().map(|(name, count)| MetricSample {
            labels: vec![("result", name.to_owned())],
            value: number(count),
        });
        let denied = MetricSample {
            labels: Vec::new(),
            value: number(&self.shared.rights.denied),
        };
        vec![
            MetricFamily {
                name: "auth_logins_total",
                help: "Clients at the door, by what became of them.",
                kind: MetricKind::Counter,
                samples: results.collect(),
            },
            MetricFamily {
                name: "auth_denied_actions_total",
                help: "Publications and subscriptions the rules did not allow.",
                kind: MetricKind::Counter,
                samples: vec![denied],
            },
        ]
    }
}

impl HooksFactory for Auth {
    fn hooks_for(&self, _shard: u16) -> Box<dyn Hooks> {
        Box::new(Door::new(self.shared.clone()))
    }
}

/// A clock that costs nothing to read.
async fn keep_time(rights: std::sync::Weak<Rights>) {
    loop {
        tokio::time::sleep(CLOCK_TICK).await;
        let Some(rights) = rights.upgrade() else {
            return;
        };
        rights.clock_ms.store(crate::now_ms(), Relaxed);
    }
}

impl Shared {
    fn set_times(&self, limits: &Limits) {
        self.sources
            .set_times(limits.rules_refresh_s, limits.rules_max_age_s);
        self.timeout_ms.store(limits.timeout_ms, Relaxed);
    }

    pub(crate) fn users(&self) -> &Users {
        &self.shop.users
    }

    pub(crate) fn tell_ban(&self, ban: &Ban) {
        let listener = (self.ban_listener.lock()).unwrap_or_else(PoisonError::into_inner);
        if let Some(listener) = &*listener {
            listener(ban);
        }
    }

    /// Who a client is and what it may do. Answered at once if nobody has to be asked, else later.
    pub(crate) fn admit(self: &Arc<Self>, request: Request) -> Authentication {
        let chain = self.chain.load_full();
        match chain.check_now(0, &request, self.has_users()) {
            Checked::Judged(judged) if self.may_conclude(&judged) => {
                self.conclude(request, judged, None)
            }
            // By somebody who takes time, since he knows the rules, too.
            Checked::Judged(_) => self.later(request, Ask::Chain(chain, 0)),
            Checked::Asks(at) if chain.looks_up(at) => self.look_up_later(request, chain, at),
            Checked::Asks(at) => self.later(request, Ask::Chain(chain, at)),
        }
    }

    /// What a user may do that has proven itself by SCRAM.
    pub(crate) fn admit_proven(self: &Arc<Self>, request: Request) -> Authentication {
        let name = request.username.clone().unwrap_or_default();
        let identity = self.users().identity(&name);
        if self.sources.is_empty() {
            return self.conclude(request, Ok(identity), None);
        }
        self.later(request, Ask::Rules(identity))
    }

    pub(crate) fn has_users(&self) -> bool {
        !self.users().is_empty()
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.shop.runtime
    }

    /// Whether nobody has to be asked for rules.
    pub(crate) fn may_conclude(&self, judged: &Result<Identity, Refusal>) -> bool {
        self.sources.is_empty() || judged.is_err()
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.load(Relaxed))
    }

    /// A place among those that wait; `None`: there are too many.
    pub(crate) fn take_place(&self) -> Option<OwnedSemaphorePermit> {
        let place = self.places.load_full().try_acquire_owned().ok();
        if place.is_none() {
            self.counts.busy.fetch_add(1, Relaxed);
        }
        place
    }

    /// Judges on the I/O runtime, where there is a bounded number of places.
    fn later(self: &Arc<Self>, request: Request, ask: Ask) -> Authentication {
        let Some(place) = self.take_place() else {
            return Authentication::Deny(ReasonCode::SERVER_BUSY);
        };
        let judging = self.clone().judge(request, ask, place);
        let task = self.shop.runtime.spawn(judging);
        Authentication::Later(Box::pin(async move {
            match task.await {
                Ok(Ok(grant)) => Authentication::Allow(grant),
                Ok(Err(code)) => Authentication::Deny(code),
                // The runtime is going down, or the task broke.
                Err(_) => Authentication::Deny(ReasonCode::SERVER_UNAVAILABLE),
            }
        }))
    }

    pub(crate) async fn judge(
        self: Arc<Self>,
        request: Request,
        ask: Ask,
        _place: OwnedSemaphorePermit,
    ) -> Outcome {
        let judging = async {
            let identity = match ask {
                Ask::Rules(identity) => identity,
                Ask::Chain(chain, at) => chain.check(at, &request, self.has_users()).await?,
            };
            let sourced = match self.sources.is_empty() || identity.is_superuser {
                true => None,
                false => {
                    let named = named(&request, &identity);
                    let asked = Sourced::ask(&self.sources, named).await;
                    Some(asked.map_err(|failure| {
                        tracing::debug!(client_id = request.client_id, %failure, "no rules for a client");
                        Refusal::Failed
                    })?)
                }
            };
            Ok((identity, sourced))
        };
        let judged = tokio::time::timeout(self.timeout(), judging).await;
        let judged = judged.unwrap_or(Err(Refusal::Failed));
        let (judged, sourced) = match judged {
            Ok((identity, sourced)) => (Ok(identity), sourced),
            Err(refusal) => (Err(refusal), None),
        };
        outcome(self.conclude(request, judged, sourced))
    }

    /// Counts what came of it and says what a client is given that is let in.
    pub(crate) fn conclude(
        &self,
        request: Request,
        judged: Result<Identity, Refusal>,
        sourced: Option<Arc<Sourced>>,
    ) -> Authentication {
        let now_ms = crate::now_ms();
        let identity = match judged {
            Ok(identity) => identity,
            Err(refusal) => {
                match refusal {
                    Refusal::Failed => self.counts.failed.fetch_add(1, Relaxed),
                    _ => self.counts.denied.fetch_add(1, Relaxed),
                };
                if refusal == Refusal::WrongCredentials {
                    self.guards.login_failed(&request.who(), now_ms);
                }
                return Authentication::Deny(refusal.code());
            }
        };
        if request.common_name_as_username
            && identity.rights.is_none()
            && let (Some(certified), Some(given)) = (&request.common_name, &identity.username)
            && certified != given
        {
            self.counts.denied.fetch_add(1, Relaxed);
            tracing::warn!(
                client_id = request.client_id,
                certificate = certified,
                username = given,
                "a client is refused: its certificate and its other credentials name different users"
            );
            return Authentication::Deny(ReasonCode::BAD_USER_NAME_OR_PASSWORD);
        }
        let known = named(&request, &identity);
        // Under the name it really has, it may be one of those.
        if self.bans.has(&known.who(), now_ms) {
            self.counts.banned.fetch_add(1, Relaxed);
            return Authentication::Deny(ReasonCode::BANNED);
        }
        if identity.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            self.counts.denied.fetch_add(1, Relaxed);
            return Authentication::Deny(ReasonCode::NOT_AUTHORIZED);
        }
        if !identity.is_anonymous {
            self.guards.login_succeeded(&request.who());
        }
        self.counts.allowed.fetch_add(1, Relaxed);
        let permissions = self.permissions(&known, &identity, sourced);
        Authentication::Allow(Box::new(Grant {
            username: identity.username.map(Into::into),
            is_anonymous: identity.is_anonymous,
            client_id: identity.client_id.map(Into::into),
            permissions: Some(Arc::new(permissions)),
            expires_at_ms: identity.expires_at_ms,
        }))
    }

    fn permissions(
        &self,
        known: &Request,
        identity: &Identity,
        sourced: Option<Arc<Sourced>>,
    ) -> SessionPermissions {
        let facts = Facts {
            common_name: known.common_name.as_deref().map(Into::into),
            attributes: identity.attributes.clone().into(),
            is_superuser: identity.is_superuser,
            own: identity.rules.clone().into(),
            rights: identity.rights.clone(),
            sourced,
        };
        let is_plain = facts.common_name.is_none()
            && facts.attributes.is_empty()
            && !facts.is_superuser
            && facts.own.is_empty()
            && facts.rights.is_none()
            && facts.sourced.is_none();
        let facts = (!is_plain).then(|| Box::new(facts));
        SessionPermissions::new(self.rights.clone(), facts, &known.who())
    }
}

/// What a client is given, or why it is not let in.
pub(crate) type Outcome = Result<Box<Grant>, ReasonCode>;

/// Of what is concluded.
pub(crate) fn outcome(concluded: Authentication) -> Outcome {
    match concluded {
        Authentication::Allow(grant) => Ok(grant),
        Authentication::Deny(code) => Err(code),
        Authentication::Ignore | Authentication::Later(_) => Err(ReasonCode::NOT_AUTHORIZED),
    }
}

/// What is still to be asked about a client.
pub(crate) enum Ask {
    /// The authenticators from this one on, and whoever knows rules.
    Chain(Arc<Chain>, usize),
    /// Whoever knows rules.
    Rules(Identity),
}

/// The client as it is called once it is let in.
fn named(request: &Request, identity: &Identity) -> Request {
    let mut named = Request {
        password: None,
        attributes: identity.attributes.clone(),
        ..request.clone()
    };
    if identity.is_anonymous {
        named.username = None;
    }
    if let Some(username) = &identity.username {
        named.username = Some(username.clone());
    }
    if let Some(client_id) = &identity.client_id {
        named.client_id.clone_from(client_id);
    }
    named
}
