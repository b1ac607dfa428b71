//! The broker hooks of one shard for authentication and authorisation.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hooks::{
    Authentication, Authorization, Client, ClientAction, Credentials, Hooks, Interest, PeerAddress,
};
use mqtt::ReasonCode;
use scram::ScramCredential;

use crate::auth_state::AuthState;
use crate::authenticator::LoginRequest;
use crate::bans::{Ban, BanTarget};
use crate::rules::RuleSubject;

pub(crate) struct AuthHooks {
    shared: Arc<AuthState>,
}

impl AuthHooks {
    pub(crate) fn new(shared: Arc<AuthState>) -> Self {
        Self { shared }
    }

    /// The reason to reject a client before its credentials are checked, if any.
    fn check_bans_and_limits(
        &self,
        who: &RuleSubject<'_>,
        has_password: bool,
    ) -> Option<ReasonCode> {
        let now_ms = wall_clock::now_ms();
        if self.shared.bans.is_banned(who, now_ms) {
            self.shared.counters.banned.fetch_add(1, Relaxed);
            return Some(ReasonCode::BANNED);
        }
        let guards = &self.shared.login_limiter;
        if guards.is_locked_out(who, has_password, now_ms) || !guards.try_acquire(now_ms) {
            self.shared.counters.limited.fetch_add(1, Relaxed);
            return Some(ReasonCode::CONNECTION_RATE_EXCEEDED);
        }
        None
    }
}

impl Hooks for AuthHooks {
    fn interest(&self) -> Interest {
        // Always subscribe to disconnects: flapping detection can be enabled at run time.
        Interest::AUTHENTICATE | Interest::AUTHORIZE | Interest::DISCONNECT
    }

    fn authenticate(&mut self, credentials: &Credentials<'_>) -> Authentication {
        let request = LoginRequest::from_credentials(credentials);
        let has_password = request.password.is_some() || credentials.method.is_some();
        if let Some(code) = self.check_bans_and_limits(&request.rule_subject(), has_password) {
            return Authentication::Deny(code);
        }
        if credentials.method.is_some() {
            // The broker runs the enhanced authentication exchange and then calls again with the
            // user.
            return Authentication::Ignore;
        }
        self.shared.authenticate(request)
    }

    fn enhanced_auth_succeeded(&mut self, credentials: &Credentials<'_>) -> Authentication {
        let request = LoginRequest::from_credentials(credentials);
        let now_ms = wall_clock::now_ms();
        // The user name of the exchange may differ from that of CONNECT.
        if self
            .shared
            .login_limiter
            .is_locked_out(&request.rule_subject(), true, now_ms)
        {
            self.shared.counters.limited.fetch_add(1, Relaxed);
            return Authentication::Deny(ReasonCode::CONNECTION_RATE_EXCEEDED);
        }
        self.shared.authenticate_proven(request)
    }

    fn enhanced_auth_failed(&mut self, username: &str, peer: PeerAddress) {
        let who = RuleSubject {
            username: Some(username),
            address: match peer {
                PeerAddress::Tcp(address) => Some(address.ip()),
                PeerAddress::Unix | PeerAddress::Memory => None,
            },
            ..RuleSubject::default()
        };
        self.shared.counters.denied.fetch_add(1, Relaxed);
        self.shared
            .login_limiter
            .record_failure(&who, wall_clock::now_ms());
    }

    fn offers_scram(&self) -> bool {
        !self.shared.users().is_empty()
    }

    fn scram_credential(&mut self, username: &str) -> Option<ScramCredential> {
        self.shared.users().scram_credential(username)
    }

    fn authorize(&mut self, client: &Client<'_>, action: &ClientAction<'_>) -> Authorization {
        self.shared.node_rules.check_node_rules(client, action)
    }

    fn disconnected(&mut self, client: &Client<'_>, reason: &'static str) {
        let now_ms = wall_clock::now_ms();
        let guards = &self.shared.login_limiter;
        if let Some(until_ms) = guards.record_disconnect(client.client_id, reason, now_ms) {
            tracing::warn!(
                client_id = client.client_id,
                "client banned temporarily: too many disconnects"
            );
            self.shared.bans.add_temporary(client.client_id, until_ms);
            self.shared.notify_ban(&Ban {
                target: BanTarget::ClientId(client.client_id.to_owned()),
                until_ms: Some(until_ms),
                reason: "flapping".into(),
            });
        }
    }
}
