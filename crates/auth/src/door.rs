//! The door of one shard: what the broker asks about clients that come, act and go.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use broker::hooks::{
    Action, Authentication, Authorization, Client, Credential, Credentials, Hooks, Interest, Peer,
};
use mqtt::ReasonCode;

use crate::authenticator::Request;
use crate::bans::{Ban, Banned};
use crate::rules::Who;
use crate::service::Shared;

pub(crate) struct Door {
    shared: Arc<Shared>,
}

impl Door {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Why a client is not even looked at.
    fn is_kept_out(&self, who: &Who<'_>, has_password: bool) -> Option<ReasonCode> {
        let now_ms = crate::now_ms();
        if self.shared.bans.has(who, now_ms) {
            self.shared.counts.banned.fetch_add(1, Relaxed);
            return Some(ReasonCode::BANNED);
        }
        let guards = &self.shared.guards;
        if guards.is_locked_out(who, has_password, now_ms) || !guards.take_place(now_ms) {
            self.shared.counts.limited.fetch_add(1, Relaxed);
            return Some(ReasonCode::CONNECTION_RATE_EXCEEDED);
        }
        None
    }
}

impl Hooks for Door {
    fn interest(&self) -> Interest {
        // Disconnects may begin to be counted at any time.
        Interest::AUTHENTICATE | Interest::AUTHORIZE | Interest::DISCONNECT
    }

    fn authenticate(&mut self, credentials: &Credentials<'_>) -> Authentication {
        let request = Request::of(credentials);
        let has_password = request.password.is_some() || credentials.method.is_some();
        if let Some(code) = self.is_kept_out(&request.who(), has_password) {
            return Authentication::Deny(code);
        }
        if credentials.method.is_some() {
            // The broker conducts the exchange and comes back with who it is.
            return Authentication::Ignore;
        }
        self.shared.admit(request)
    }

    fn proven(&mut self, credentials: &Credentials<'_>) -> Authentication {
        let request = Request::of(credentials);
        let now_ms = crate::now_ms();
        // The name of the exchange may be another than that of CONNECT.
        if self
            .shared
            .guards
            .is_locked_out(&request.who(), true, now_ms)
        {
            self.shared.counts.limited.fetch_add(1, Relaxed);
            return Authentication::Deny(ReasonCode::CONNECTION_RATE_EXCEEDED);
        }
        self.shared.admit_proven(request)
    }

    fn proof_failed(&mut self, username: &str, peer: Peer) {
        let who = Who {
            username: Some(username),
            address: match peer {
                Peer::Tcp(address) => Some(address.ip()),
                Peer::Unix => None,
            },
            ..Who::default()
        };
        self.shared.counts.denied.fetch_add(1, Relaxed);
        self.shared.guards.login_failed(&who, crate::now_ms());
    }

    fn offers_scram(&self) -> bool {
        !self.shared.users().is_empty()
    }

    fn scram_credential(&mut self, username: &str) -> Option<Credential> {
        self.shared.users().scram(username)
    }

    fn authorize(&mut self, client: &Client<'_>, action: &Action<'_>) -> Authorization {
        self.shared.rights.check_plainly(client, action)
    }

    fn disconnected(&mut self, client: &Client<'_>, reason: &'static str) {
        let now_ms = crate::now_ms();
        let guards = &self.shared.guards;
        if let Some(until_ms) = guards.disconnected(client.client_id, reason, now_ms) {
            tracing::warn!(
                client_id = client.client_id,
                "a client is banned for a while: it comes and goes too often"
            );
            self.shared.bans.ban_for_now(client.client_id, until_ms);
            self.shared.tell_ban(&Ban {
                of: Banned::ClientId(client.client_id.to_owned()),
                until_ms: Some(until_ms),
                reason: "flapping".into(),
            });
        }
    }
}
