//! The authentication service of a node: one state shared by all shards.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use hooks::{
    AccessDecision, Client, ClientAction, Hooks, HooksFactory, MetricFamily, MetricKind,
    PeerAddress,
};
use serde_json::Value;
use store::Objects;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::auth_hooks::AuthHooks;
use crate::auth_state::{AuthState, LoginCounters};
use crate::authenticator_chain::AuthenticatorChain;
use crate::bans::{Ban, BanList};
use crate::device_directory::DeviceDirectory;
use crate::disk_lookups::DiskLookupQueue;
use crate::login_limits::LoginLimiter;
use crate::login_trial::{LoginTrial, TrialCredentials};
use crate::objects::{self, AuthObject, StoredAuthObjects};
use crate::password::PasswordCheckPool;
use crate::rule_sources::{RuleSource, RuleSources};
use crate::rules::{AclRule, DeniedAction, DeniedActionQuery, NodeRules, RulePolicy, RuleSubject};
use crate::settings::{
    self, AuthLimits, AuthObjectError, AuthSettings, AuthenticatorContext, AuthenticatorEntry,
    DenialPolicy, NoMatchPolicy,
};
use crate::tally::AuthenticatorStatus;
use crate::users::{UserRecord, UserRegistry};

const CLOCK_TICK: Duration = Duration::from_millis(250);

/// Authentication and authorisation of a node.
#[derive(Clone)]
pub struct AuthService {
    shared: Arc<AuthState>,
}

/// An error in the settings, with its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", section)]
pub struct AuthSettingsError {
    /// `user`, `auth.authenticator`, `auth.rule_source` or `auth.rule`.
    pub section: &'static str,
    /// Index of the entry in its section, from 0.
    pub index: usize,
    pub message: String,
}

fn rule_policy(limits: &AuthLimits, has_rules: bool) -> RulePolicy {
    RulePolicy {
        allow_unmatched: match limits.default_permission {
            NoMatchPolicy::Allow => true,
            NoMatchPolicy::Deny => false,
            NoMatchPolicy::Auto => !has_rules,
        },
        disconnect_on_denial: limits.deny_action == DenialPolicy::Disconnect,
        observes_denials: limits.deny_action == DenialPolicy::Observe,
    }
}

/// The users of the configuration.
fn read_users(
    settings: &AuthSettings,
    errors: &mut Vec<AuthSettingsError>,
) -> HashMap<String, UserRecord> {
    let mut users = HashMap::new();
    for (index, user) in settings.users.iter().enumerate() {
        match user.credential.parse() {
            Ok(credential) => {
                let record = UserRecord::from_configuration(credential);
                users.insert(user.username.clone(), record);
            }
            Err(error) => errors.push(AuthSettingsError {
                section: "user",
                index,
                message: error.to_string(),
            }),
        }
    }
    users
}

/// The authenticators of the configuration with these ids, after the built-in ones that it does not list.
fn build_authenticators(
    settings: &AuthSettings,
    ids: &[String],
    context: &AuthenticatorContext,
    errors: &mut Vec<AuthSettingsError>,
) -> Vec<Arc<AuthenticatorEntry>> {
    let mut entries = Vec::new();
    for (index, (value, id)) in settings.authenticators.iter().zip(ids).enumerate() {
        let mut value = value.clone();
        // Values that are not tables or have no text as `name` are reported by `build_authenticator`.
        if let Some(fields) = value.as_object_mut()
            && fields
                .get("name")
                .is_none_or(|name| name.as_str().is_some_and(|name| !name.is_empty()))
        {
            fields.insert("name".to_owned(), id.as_str().into());
        }
        match settings::build_authenticator(&value, context) {
            Ok(entry) => entries.extend(entry.map(Arc::new)),
            Err(message) => errors.push(AuthSettingsError {
                section: "auth.authenticator",
                index,
                message,
            }),
        }
    }
    for built_in in ["devices", "users"] {
        let is_listed = |value: &Value| value.get("type").and_then(Value::as_str) == Some(built_in);
        if !settings.authenticators.iter().any(is_listed) {
            let value = serde_json::json!({"type": built_in});
            let entry = settings::build_authenticator(&value, context)
                .ok()
                .flatten();
            entries.splice(0..0, entry.map(Arc::new));
        }
    }
    entries
}

fn build_rule_sources(
    settings: &AuthSettings,
    errors: &mut Vec<AuthSettingsError>,
) -> Vec<Arc<dyn RuleSource>> {
    let mut sources = Vec::new();
    for (index, value) in settings.rule_sources.iter().enumerate() {
        match settings::build_rule_source(value) {
            Ok(source) => sources.extend(source),
            Err(message) => errors.push(AuthSettingsError {
                section: "auth.rule_source",
                index,
                message,
            }),
        }
    }
    sources
}

/// The ACL rules of the configuration with these ids, in the order of evaluation.
fn read_rules(
    settings: &AuthSettings,
    ids: &[String],
    errors: &mut Vec<AuthSettingsError>,
) -> Arc<[AclRule]> {
    let mut rules = Vec::new();
    for (index, value) in settings.rules.iter().enumerate() {
        match settings::parse_rule(value) {
            Ok(rule) => rules.extend(rule.map(|(order, rule)| {
                let id = ids.get(index).map(|id| id.as_str().into());
                (order, AclRule { id, ..rule })
            })),
            Err(message) => errors.push(AuthSettingsError {
                section: "auth.rule",
                index,
                message,
            }),
        }
    }
    rules.sort_by_key(|(order, _)| *order);
    rules.into_iter().map(|(_, rule)| rule).collect()
}

impl AuthService {
    /// Creates the service, or returns all errors of the settings at once. Calls to external servers run on `runtime`.
    pub fn new(settings: &AuthSettings, runtime: Handle) -> Result<Self, Vec<AuthSettingsError>> {
        let mut errors = Vec::new();
        let limits = &settings.limits;
        let threads = match limits.password_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            given => given as usize,
        };
        let context = AuthenticatorContext {
            users: Arc::new(UserRegistry::new(read_users(settings, &mut errors))),
            checker: PasswordCheckPool::new(runtime.clone(), threads),
            runtime: runtime.clone(),
            devices: Arc::default(),
        };
        let _entered = runtime.enter();
        let ids = settings.authenticator_ids();
        let configured = build_authenticators(settings, &ids, &context, &mut errors);
        let sources = build_rule_sources(settings, &mut errors);
        let rule_ids = settings.rule_ids();
        let rules = read_rules(settings, &rule_ids, &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        let has_rules = !settings.rules.is_empty() || !settings.rule_sources.is_empty();
        let node_rules = Arc::new(NodeRules::new(rule_policy(limits, has_rules), rules));
        runtime.spawn(run_clock(Arc::downgrade(&node_rules)));
        let of = |kind| move |id| (kind, id);
        let declared = (ids.into_iter().map(of(objects::AUTHENTICATOR)))
            .chain(rule_ids.into_iter().map(of(objects::ACL_RULE)));
        let shared = AuthState {
            node_rules,
            bans: BanList::default(),
            login_limiter: LoginLimiter::new(limits),
            counters: LoginCounters::default(),
            lookups: DiskLookupQueue::new(threads),
            context,
            chain: ArcSwap::from_pointee(AuthenticatorChain::new(configured.clone())),
            configured,
            declared: declared.collect(),
            has_rules,
            rule_sources: Arc::new(RuleSources {
                sources,
                refresh_ms: AtomicU64::default(),
                max_age_ms: AtomicU64::default(),
                runtime,
            }),
            stored_objects: StoredAuthObjects::default(),
            check_slots: ArcSwap::from_pointee(Semaphore::new(limits.max_pending_logins as usize)),
            max_pending_logins: AtomicU32::new(limits.max_pending_logins),
            timeout_ms: AtomicU64::default(),
            ban_observer: Mutex::new(None),
        };
        shared.set_timeouts(limits);
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Sets the device directory. Called once, before clients connect.
    pub fn set_devices(&self, directory: Arc<dyn DeviceDirectory>) {
        if self.shared.context.devices.set(directory).is_err() {
            tracing::error!("device directory is already set; the new one is ignored");
        }
    }

    /// Replaces the limits at run time. `password_threads` is not changed.
    pub fn set_limits(&self, limits: &AuthLimits) {
        let shared = &self.shared;
        shared.login_limiter.set_limits(limits);
        shared
            .node_rules
            .set_policy(rule_policy(limits, shared.has_rules));
        shared.set_timeouts(limits);
        if shared
            .max_pending_logins
            .swap(limits.max_pending_logins, Relaxed)
            != limits.max_pending_logins
        {
            // Permits of the old semaphore stay valid in addition to the new ones.
            let slots = Semaphore::new(limits.max_pending_logins as usize);
            shared.check_slots.store(Arc::new(slots));
        }
    }

    /// Converts an object as written by an operator into the form to store. `current` is the stored object, if any.
    /// Hashing a user's password takes some 30 ms, and authenticators may read files: do not call this on a shard.
    pub fn prepare_object(
        &self,
        kind: &str,
        written: Value,
        current: Option<&Value>,
    ) -> Result<Value, AuthObjectError> {
        let prepared = objects::prepare_for_storage(kind, written, current)?;
        let _entered = self.shared.context.runtime.enter();
        objects::parse_object(kind, &prepared, &self.shared.context)?;
        Ok(prepared)
    }

    /// Loads all objects of a store and follows their changes from then on.
    pub fn watch_objects(&self, objects: &Objects) -> Result<(), store::StoreError> {
        let (auth, stored) = (self.clone(), objects.clone());
        objects.observe_changes(Box::new(move |change| {
            let kind = change.kind.as_str();
            if !objects::KINDS.contains(&kind) {
                return;
            }
            let object = match stored.get(kind, &change.id) {
                Ok(object) => object,
                Err(error) => {
                    tracing::error!(kind, id = change.id, %error, "changed object cannot be read from the store; it has no effect");
                    None
                }
            };
            auth.apply_object(kind, &change.id, object.map(|object| object.value).as_ref());
        }));
        for kind in objects::KINDS {
            objects.for_each(kind, |object| {
                self.store_object(kind, &object.id, Some(&object.value));
            })?;
            self.activate(kind);
        }
        Ok(())
    }

    /// Applies a stored or deleted (`None`) object. The change takes effect at once.
    pub(crate) fn apply_object(&self, kind: &str, id: &str, value: Option<&Value>) {
        let ban = self.store_object(kind, id, value);
        self.activate(kind);
        if let Some(ban) = ban {
            self.shared.notify_ban(&ban);
        }
    }

    /// Parses and registers an object, and returns it if it is a ban. An object that cannot be parsed (for example
    /// because its file is missing) is replaced by a fallback that denies access.
    fn store_object(&self, kind: &str, id: &str, value: Option<&Value>) -> Option<Ban> {
        let shared = &self.shared;
        if (shared.declared.iter()).any(|(of, known)| *of == kind && known == id) {
            return None;
        }
        let _entered = shared.context.runtime.enter();
        let mut object = value.and_then(|value| match objects::parse_object(kind, value, &shared.context) {
            Ok(object) => Some(object),
            Err(error) => {
                tracing::error!(kind, id, %error, "stored object is invalid; it denies access until corrected");
                objects::fallback_object(kind, id, value)
            }
        });
        if let Some(AuthObject::Authenticator(Some(entry))) = &mut object {
            // Use the API's id in log messages.
            id.clone_into(&mut entry.name);
        }
        if kind == objects::USER {
            let user = match object {
                Some(AuthObject::User(user)) => Some(user),
                _ => None,
            };
            shared.context.users.set_stored(id, user);
            return None;
        }
        let ban = match &object {
            Some(AuthObject::Ban(ban)) => Some(ban.clone()),
            _ => None,
        };
        shared.stored_objects.set(kind, id, object);
        ban
    }

    /// Activates the registered objects of a kind.
    fn activate(&self, kind: &str) {
        let shared = &self.shared;
        match kind {
            objects::AUTHENTICATOR => {
                let stored = shared.stored_objects.authenticators();
                let all = shared.configured.iter().cloned().chain(stored).collect();
                shared.chain.store(Arc::new(AuthenticatorChain::new(all)));
            }
            objects::ACL_RULE => shared
                .node_rules
                .set_store_rules(shared.stored_objects.rules()),
            objects::BAN => shared.stored_objects.publish_bans(&shared.bans),
            _ => {}
        }
    }

    /// The status of each authenticator, in the order of evaluation.
    pub fn authenticator_statuses(&self) -> Vec<AuthenticatorStatus> {
        self.shared.chain.load().statuses()
    }

    /// What the node would answer to these credentials. Nothing is counted, and no client is locked out.
    pub async fn try_login(&self, credentials: TrialCredentials) -> LoginTrial {
        self.shared.try_login(credentials).await
    }

    /// The decision of the rules of the node about an action of a client, without the rules that an authenticator may
    /// give it. May take milliseconds.
    #[must_use]
    pub fn explain_node_rules(
        &self,
        client: &Client<'_>,
        action: &ClientAction<'_>,
    ) -> AccessDecision {
        let who = RuleSubject {
            client_id: client.client_id,
            username: client.username,
            address: match client.peer {
                Some(PeerAddress::Tcp(address)) => Some(address.ip()),
                Some(PeerAddress::Unix | PeerAddress::Memory) | None => None,
            },
            ..RuleSubject::default()
        };
        self.shared.node_rules.explain(&who, &[], action, true)
    }

    /// Actions that rules have denied since the node started, those with the newest denials first.
    #[must_use]
    pub fn denied_actions(&self, query: &DeniedActionQuery) -> Vec<DeniedAction> {
        self.shared.node_rules.denied_actions.list(query)
    }

    /// Sets the observer that is called for each new ban, so that matching clients can be disconnected.
    pub fn on_ban(&self, listener: impl Fn(&Ban) + Send + Sync + 'static) {
        let mut slot = (self.shared.ban_observer.lock()).unwrap_or_else(PoisonError::into_inner);
        *slot = Some(Box::new(listener));
    }

    pub fn metrics(&self) -> Vec<MetricFamily> {
        let counts = &self.shared.counters;
        let results = [
            ("allowed", &counts.allowed),
            ("denied", &counts.denied),
            ("failed", &counts.failed),
            ("busy", &counts.busy),
            ("banned", &counts.banned),
            ("limited", &counts.limited),
        ];
        vec![
            MetricFamily::by_label(
                "auth_logins_total",
                "Login attempts by outcome.",
                MetricKind::Counter,
                "result",
                results.map(|(name, count)| (name, count.load(Relaxed) as f64)),
            ),
            MetricFamily::counter(
                "auth_denied_actions_total",
                "Publications and subscriptions denied by ACL rules.",
                self.shared.node_rules.denied.load(Relaxed),
            ),
        ]
    }
}

impl HooksFactory for AuthService {
    fn hooks_for(&self, _shard: u16) -> Box<dyn Hooks> {
        Box::new(AuthHooks::new(self.shared.clone()))
    }
}

/// Updates the cached clock, which the shards read with one atomic load.
async fn run_clock(node_rules: std::sync::Weak<NodeRules>) {
    loop {
        tokio::time::sleep(CLOCK_TICK).await;
        let Some(node_rules) = node_rules.upgrade() else {
            return;
        };
        node_rules.clock_ms.store(wall_clock::now_ms(), Relaxed);
    }
}
