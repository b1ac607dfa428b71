//! The state of authentication that all shards share, and the completion of logins.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use hooks::{Authentication, ClientGrant};
use mqtt::ReasonCode;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::authenticator::{AuthenticatedIdentity, LoginRequest};
use crate::authenticator_chain::{AuthenticatorChain, LoginError};
use crate::bans::{Ban, BanList};
use crate::disk_lookups::DiskLookupQueue;
use crate::login_limits::LoginLimiter;
use crate::login_outcome::{LoginOutcome, login_outcome};
use crate::objects::StoredAuthObjects;
use crate::rule_sources::{ExternalRules, RuleSources};
use crate::rules::{NodeRules, SessionPermissions, SubjectAttributes};
use crate::settings::{AuthLimits, AuthenticatorContext, AuthenticatorEntry};
use crate::users::UserRegistry;

pub(crate) type BanObserver = Box<dyn Fn(&Ban) + Send + Sync>;

pub(crate) struct AuthState {
    pub(crate) node_rules: Arc<NodeRules>,
    pub(crate) bans: BanList,
    pub(crate) login_limiter: LoginLimiter,
    pub(crate) counters: LoginCounters,
    pub(crate) lookups: DiskLookupQueue,
    pub(crate) context: AuthenticatorContext,
    pub(crate) chain: ArcSwap<AuthenticatorChain>,
    pub(crate) configured: Vec<Arc<AuthenticatorEntry>>,
    /// Kinds and ids of the objects in the configuration file. A stored object with the same id is ignored.
    pub(crate) declared: HashSet<(&'static str, String)>,
    /// Whether the configuration defines rules or rule sources.
    pub(crate) has_rules: bool,
    pub(crate) rule_sources: Arc<RuleSources>,
    pub(crate) stored_objects: StoredAuthObjects,
    pub(crate) check_slots: ArcSwap<Semaphore>,
    pub(crate) max_pending_logins: AtomicU32,
    pub(crate) timeout_ms: AtomicU64,
    pub(crate) ban_observer: Mutex<Option<BanObserver>>,
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

/// The checks of a client that remain to be done.
pub(crate) enum PendingCheck {
    /// The authenticators from this index on, then the rule sources.
    Authenticators(Arc<AuthenticatorChain>, usize),
    /// The rule sources only.
    RuleSources(AuthenticatedIdentity),
}

impl AuthState {
    pub(crate) fn set_timeouts(&self, limits: &AuthLimits) {
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

    /// Acquires a slot for a pending check; `None` if `max_pending_logins` are pending.
    pub(crate) fn try_acquire_slot(&self) -> Option<OwnedSemaphorePermit> {
        let slot = self.check_slots.load_full().try_acquire_owned().ok();
        if slot.is_none() {
            self.counters.busy.fetch_add(1, Relaxed);
        }
        slot
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
                        tracing::debug!(client_id = request.client_id, %failure, "rule source failed; client is rejected");
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
            Err(rejection) => (Err(rejection), None),
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
        let now_ms = wall_clock::now_ms();
        let identity = match result {
            Ok(identity) => identity,
            Err(rejection) => {
                match rejection {
                    LoginError::BackendFailed => self.counters.failed.fetch_add(1, Relaxed),
                    _ => self.counters.denied.fetch_add(1, Relaxed),
                };
                if rejection == LoginError::WrongCredentials {
                    self.login_limiter
                        .record_failure(&request.rule_subject(), now_ms);
                }
                return Authentication::Deny(rejection.reason_code());
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
                "client rejected: its certificate and its other credentials name different users"
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

    pub(crate) fn build_permissions(
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

/// The request with the user name, client id and attributes of the identity.
pub(crate) fn with_granted_names(
    request: &LoginRequest,
    identity: &AuthenticatedIdentity,
) -> LoginRequest {
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
