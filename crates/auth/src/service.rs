//! The authentication service of a node: one state shared by all shards.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use broker::hooks::{Authentication, ClientGrant, Hooks, HooksFactory};
use broker::info::{MetricFamily, MetricKind, MetricSample, MetricValue};
use mqtt::ReasonCode;
use serde_json::Value;
use store::Objects;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth_hooks::AuthHooks;
use crate::authenticator::{AuthenticatedIdentity, LoginRequest};
use crate::authenticator_chain::{AuthenticatorChain, ChainProgress, LoginError};
use crate::bans::{Ban, BanList};
use crate::device_authenticator::DeviceDirectory;
use crate::disk_lookups::DiskLookupQueue;
use crate::login_limits::LoginLimiter;
use crate::objects::{self, AuthObject, StoredAuthObjects};
use crate::password::PasswordCheckPool;
use crate::rule_sources::{ExternalRules, RuleSources};
use crate::rules::{AclRule, NodeRules, RulePolicy, SessionPermissions, SubjectAttributes};
use crate::settings::{
    self, AuthLimits, AuthObjectError, AuthSettings, AuthenticatorContext, AuthenticatorEntry,
    DenialPolicy, NoMatchPolicy,
};
use crate::tally::AuthenticatorStatus;
use crate::users::{UserRecord, UserRegistry};

const CLOCK_TICK: Duration = Duration::from_millis(250);
/// Objects read from the store per page.
const PAGE_OBJECTS: usize = 1000;

/// Authentication and authorisation of a node.
#[derive(Clone)]
pub struct AuthService {
    shared: Arc<AuthState>,
}

type BanObserver = Box<dyn Fn(&Ban) + Send + Sync>;

pub(crate) struct AuthState {
    pub(crate) node_rules: Arc<NodeRules>,
    pub(crate) bans: BanList,
    pub(crate) login_limiter: LoginLimiter,
    pub(crate) counters: LoginCounters,
    pub(crate) lookups: DiskLookupQueue,
    context: AuthenticatorContext,
    chain: ArcSwap<AuthenticatorChain>,
    configured: Vec<Arc<AuthenticatorEntry>>,
    /// Kinds and ids of the objects in the configuration file. A stored object with the same id is ignored.
    declared: HashSet<(&'static str, String)>,
    /// Whether the configuration defines rules or rule sources.
    has_rules: bool,
    rule_sources: Arc<RuleSources>,
    stored_objects: StoredAuthObjects,
    check_slots: ArcSwap<Semaphore>,
    max_checks: AtomicU32,
    timeout_ms: AtomicU64,
    ban_observer: Mutex<Option<BanObserver>>,
}

/// Counts of login attempts by outcome.
#[derive(Default)]
pub(crate) struct LoginCounters {
    pub(crate) allowed: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) busy: AtomicU64,
    pub(crate) banned: AtomicU64,
    pub(crate) limited: AtomicU64,
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
        allow_unmatched: match limits.no_match {
            NoMatchPolicy::Allow => true,
            NoMatchPolicy::Deny => false,
            NoMatchPolicy::Auto => !has_rules,
        },
        disconnect_on_denial: limits.on_denial == DenialPolicy::Disconnect,
    }
}

impl AuthService {
    /// Creates the service, or returns all errors of the settings at once. Calls to external servers run on `runtime`.
    pub fn new(settings: &AuthSettings, runtime: Handle) -> Result<Self, Vec<AuthSettingsError>> {
        let mut errors = Vec::new();
        let mut add_error = |section, at, message: String| {
            errors.push(AuthSettingsError {
                section,
                index: at,
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
                    users.insert(
                        user.username.clone(),
                        UserRecord::from_configuration(credential),
                    );
                }
                Err(error) => add_error("user", at, error.to_string()),
            }
        }
        let context = AuthenticatorContext {
            users: Arc::new(UserRegistry::new(users)),
            checker: PasswordCheckPool::new(runtime.clone(), threads),
            runtime: runtime.clone(),
            devices: Arc::default(),
        };
        let _entered = runtime.enter();
        let mut configured = Vec::new();
        let ids = settings.authenticator_ids();
        for (at, (value, id)) in settings.authenticators.iter().zip(&ids).enumerate() {
            let mut value = value.clone();
            // Values that are not tables or have no text as `name` are reported by `build_authenticator`.
            if let Some(fields) = value.as_object_mut()
                && fields
                    .get("name")
                    .is_none_or(|name| name.as_str().is_some_and(|name| !name.is_empty()))
            {
                fields.insert("name".to_owned(), id.as_str().into());
            }
            match settings::build_authenticator(&value, &context) {
                Ok(entry) => configured.extend(entry.map(Arc::new)),
                Err(message) => add_error("auth.authenticator", at, message),
            }
        }
        // The built-in `devices` and `users` come first unless the configuration lists them.
        for own in ["devices", "users"] {
            let names_it = |value: &Value| value.get("type").and_then(Value::as_str) == Some(own);
            if !settings.authenticators.iter().any(names_it) {
                let value = serde_json::json!({"type": own});
                let entry = settings::build_authenticator(&value, &context)
                    .ok()
                    .flatten();
                configured.splice(0..0, entry.map(Arc::new));
            }
        }
        let mut sources = Vec::new();
        for (at, value) in settings.rule_sources.iter().enumerate() {
            match settings::build_rule_source(value) {
                Ok(source) => sources.extend(source),
                Err(message) => add_error("auth.rule_source", at, message),
            }
        }
        let mut rules = Vec::new();
        for (at, value) in settings.rules.iter().enumerate() {
            match settings::parse_rule(value) {
                Ok(rule) => rules.extend(rule),
                Err(message) => add_error("auth.rule", at, message),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        rules.sort_by_key(|(order, _)| *order);
        let rules: Arc<[AclRule]> = rules.into_iter().map(|(_, rule)| rule).collect();
        let has_rules = !settings.rules.is_empty() || !settings.rule_sources.is_empty();
        let node_rules = Arc::new(NodeRules::new(rule_policy(limits, has_rules), rules));
        runtime.spawn(run_clock(Arc::downgrade(&node_rules)));
        let of = |kind| move |id| (kind, id);
        let declared = (ids.into_iter().map(of(objects::AUTHENTICATOR)))
            .chain(settings.rule_ids().into_iter().map(of(objects::ACL_RULE)));
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
            check_slots: ArcSwap::from_pointee(Semaphore::new(limits.max_checks as usize)),
            max_checks: AtomicU32::new(limits.max_checks),
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
        if shared.max_checks.swap(limits.max_checks, Relaxed) != limits.max_checks {
            // Permits of the old semaphore stay valid in addition to the new ones.
            let slots = Semaphore::new(limits.max_checks as usize);
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
            let mut after: Option<String> = None;
            loop {
                let page = objects.list(kind, after.as_deref(), PAGE_OBJECTS)?;
                for object in &page {
                    self.store_object(kind, &object.id, Some(&object.value));
                }
                match page.last() {
                    Some(last) if page.len() == PAGE_OBJECTS => after = Some(last.id.clone()),
                    _ => break,
                }
            }
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
        let number = |count: &AtomicU64| MetricValue::Number(count.load(Relaxed) as f64);
        let results = results.into_iter().map(|(name, count)| MetricSample {
            labels: vec![("result", name.to_owned())],
            value: number(count),
        });
        let denied = MetricSample {
            labels: Vec::new(),
            value: number(&self.shared.node_rules.denied),
        };
        vec![
            MetricFamily {
                name: "auth_logins_total",
                help: "Login attempts by outcome.",
                kind: MetricKind::Counter,
                samples: results.collect(),
            },
            MetricFamily {
                name: "auth_denied_actions_total",
                help: "Publications and subscriptions denied by ACL rules.",
                kind: MetricKind::Counter,
                samples: vec![denied],
            },
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
        node_rules.clock_ms.store(crate::now_ms(), Relaxed);
    }
}

impl AuthState {
    fn set_timeouts(&self, limits: &AuthLimits) {
        self.rule_sources
            .set_intervals(limits.rules_refresh_s, limits.rules_max_age_s);
        self.timeout_ms.store(limits.timeout_ms, Relaxed);
    }

    pub(crate) fn users(&self) -> &UserRegistry {
        &self.context.users
    }

    pub(crate) fn notify_ban(&self, ban: &Ban) {
        let listener = (self.ban_observer.lock()).unwrap_or_else(PoisonError::into_inner);
        if let Some(listener) = &*listener {
            listener(ban);
        }
    }

    /// Authenticates a client. The result is immediate if no backend has to be asked, otherwise pending.
    pub(crate) fn authenticate(self: &Arc<Self>, request: LoginRequest) -> Authentication {
        let chain = self.chain.load_full();
        match chain.check_now(0, &request, self.has_users()) {
            ChainProgress::Decided(result) if self.can_finish_now(&result) => {
                self.finish_login(request, result, None)
            }
            // Rule sources have to be asked too, so the whole check runs on the I/O runtime.
            ChainProgress::Decided(_) => {
                self.check_later(request, PendingCheck::Authenticators(chain, 0))
            }
            ChainProgress::Pending(at) if chain.uses_disk_lookup(at) => {
                self.queue_disk_lookup(request, chain, at)
            }
            ChainProgress::Pending(at) => {
                self.check_later(request, PendingCheck::Authenticators(chain, at))
            }
        }
    }

    /// Grants permissions to a user who has authenticated by SCRAM.
    pub(crate) fn authenticate_proven(self: &Arc<Self>, request: LoginRequest) -> Authentication {
        let name = request.username.clone().unwrap_or_default();
        let identity = self.users().identity(&name);
        if self.rule_sources.is_empty() {
            return self.finish_login(request, Ok(identity), None);
        }
        self.check_later(request, PendingCheck::RuleSources(identity))
    }

    pub(crate) fn has_users(&self) -> bool {
        !self.users().is_empty()
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.context.runtime
    }

    /// Whether the login can be completed without asking a rule source.
    pub(crate) fn can_finish_now(
        &self,
        result: &Result<AuthenticatedIdentity, LoginError>,
    ) -> bool {
        self.rule_sources.is_empty() || result.is_err()
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.load(Relaxed))
    }

    /// Acquires a slot for a pending check; `None` if `max_checks` are pending.
    pub(crate) fn try_acquire_slot(&self) -> Option<OwnedSemaphorePermit> {
        let slot = self.check_slots.load_full().try_acquire_owned().ok();
        if slot.is_none() {
            self.counters.busy.fetch_add(1, Relaxed);
        }
        slot
    }

    /// Runs the remaining checks on the I/O runtime, if a slot is free.
    fn check_later(
        self: &Arc<Self>,
        request: LoginRequest,
        pending: PendingCheck,
    ) -> Authentication {
        let Some(slot) = self.try_acquire_slot() else {
            return Authentication::Deny(ReasonCode::SERVER_BUSY);
        };
        let check = self.clone().run_checks(request, pending, slot);
        let task = self.context.runtime.spawn(check);
        Authentication::Pending(Box::pin(async move {
            match task.await {
                Ok(Ok(grant)) => Authentication::Allow(grant),
                Ok(Err(code)) => Authentication::Deny(code),
                // The runtime is shutting down, or the task panicked.
                Err(_) => Authentication::Deny(ReasonCode::SERVER_UNAVAILABLE),
            }
        }))
    }

    pub(crate) async fn run_checks(
        self: Arc<Self>,
        request: LoginRequest,
        pending: PendingCheck,
        _slot: OwnedSemaphorePermit,
    ) -> LoginOutcome {
        let check = async {
            let identity = match pending {
                PendingCheck::RuleSources(identity) => identity,
                PendingCheck::Authenticators(chain, at) => {
                    chain.check(at, &request, self.has_users()).await?
                }
            };
            let external_rules = match self.rule_sources.is_empty() || identity.is_superuser {
                true => None,
                false => {
                    let named = with_granted_names(&request, &identity);
                    let fetched = ExternalRules::fetch(&self.rule_sources, named).await;
                    Some(fetched.map_err(|failure| {
                        tracing::debug!(client_id = request.client_id, %failure, "rule source failed; client is refused");
                        LoginError::BackendFailed
                    })?)
                }
            };
            Ok((identity, external_rules))
        };
        let result = tokio::time::timeout(self.timeout(), check).await;
        let result = result.unwrap_or(Err(LoginError::BackendFailed));
        let (result, external_rules) = match result {
            Ok((identity, external_rules)) => (Ok(identity), external_rules),
            Err(refusal) => (Err(refusal), None),
        };
        login_outcome(self.finish_login(request, result, external_rules))
    }

    /// Updates counters and limits for a finished login and builds the grant of an accepted client.
    pub(crate) fn finish_login(
        &self,
        request: LoginRequest,
        result: Result<AuthenticatedIdentity, LoginError>,
        external_rules: Option<Arc<ExternalRules>>,
    ) -> Authentication {
        let now_ms = crate::now_ms();
        let identity = match result {
            Ok(identity) => identity,
            Err(refusal) => {
                match refusal {
                    LoginError::BackendFailed => self.counters.failed.fetch_add(1, Relaxed),
                    _ => self.counters.denied.fetch_add(1, Relaxed),
                };
                if refusal == LoginError::WrongCredentials {
                    self.login_limiter
                        .record_failure(&request.rule_subject(), now_ms);
                }
                return Authentication::Deny(refusal.reason_code());
            }
        };
        if request.common_name_as_username
            && identity.device.is_none()
            && let (Some(certified), Some(given)) = (&request.common_name, &identity.username)
            && certified != given
        {
            self.counters.denied.fetch_add(1, Relaxed);
            tracing::warn!(
                client_id = request.client_id,
                certificate = certified,
                username = given,
                "client refused: its certificate and its other credentials name different users"
            );
            return Authentication::Deny(ReasonCode::BAD_USER_NAME_OR_PASSWORD);
        }
        let granted_request = with_granted_names(&request, &identity);
        // The granted name or client id may be banned although the requested one is not.
        if self.bans.is_banned(&granted_request.rule_subject(), now_ms) {
            self.counters.banned.fetch_add(1, Relaxed);
            return Authentication::Deny(ReasonCode::BANNED);
        }
        if identity.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            self.counters.denied.fetch_add(1, Relaxed);
            return Authentication::Deny(ReasonCode::NOT_AUTHORIZED);
        }
        if !identity.is_anonymous {
            self.login_limiter.record_success(&request.rule_subject());
        }
        self.counters.allowed.fetch_add(1, Relaxed);
        let permissions = self.build_permissions(&granted_request, &identity, external_rules);
        Authentication::Allow(Box::new(ClientGrant {
            username: identity.username.map(Into::into),
            is_anonymous: identity.is_anonymous,
            client_id: identity.client_id.map(Into::into),
            permissions: Some(Arc::new(permissions)),
            expires_at_ms: identity.expires_at_ms,
        }))
    }

    fn build_permissions(
        &self,
        granted_request: &LoginRequest,
        identity: &AuthenticatedIdentity,
        external_rules: Option<Arc<ExternalRules>>,
    ) -> SessionPermissions {
        let attributes = SubjectAttributes {
            common_name: granted_request.common_name.as_deref().map(Into::into),
            attributes: identity.attributes.clone().into(),
            is_superuser: identity.is_superuser,
            own_rules: identity.rules.clone().into(),
            device: identity.device.clone(),
            external_rules,
        };
        let is_plain = attributes.common_name.is_none()
            && attributes.attributes.is_empty()
            && !attributes.is_superuser
            && attributes.own_rules.is_empty()
            && attributes.device.is_none()
            && attributes.external_rules.is_none();
        let attributes = (!is_plain).then(|| Box::new(attributes));
        SessionPermissions::new(
            self.node_rules.clone(),
            attributes,
            &granted_request.rule_subject(),
        )
    }
}

/// The grant of an accepted client, or the reason code of the refusal.
pub(crate) type LoginOutcome = Result<Box<ClientGrant>, ReasonCode>;

/// Converts a final authentication result.
pub(crate) fn login_outcome(concluded: Authentication) -> LoginOutcome {
    match concluded {
        Authentication::Allow(grant) => Ok(grant),
        Authentication::Deny(code) => Err(code),
        Authentication::Ignore | Authentication::Pending(_) => Err(ReasonCode::NOT_AUTHORIZED),
    }
}

/// The checks of a client that remain to be done.
pub(crate) enum PendingCheck {
    /// The authenticators from this index on, then the rule sources.
    Authenticators(Arc<AuthenticatorChain>, usize),
    /// The rule sources only.
    RuleSources(AuthenticatedIdentity),
}

/// The request with the user name, client id and attributes of the identity.
fn with_granted_names(request: &LoginRequest, identity: &AuthenticatedIdentity) -> LoginRequest {
    let mut named = LoginRequest {
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
