//! Authentication of a client: on its shard if possible, otherwise on threads that may wait.

use std::sync::Arc;

use hooks::Authentication;
use mqtt::ReasonCode;

use crate::auth_state::{AuthState, PendingCheck};
use crate::authenticator::LoginRequest;
use crate::authenticator_chain::ChainProgress;

impl AuthState {
    /// Authenticates a client. The result is immediate if no backend has to be queried, otherwise pending.
    pub(crate) fn authenticate(self: &Arc<Self>, request: LoginRequest) -> Authentication {
        let chain = self.chain.load_full();
        match chain.check_now(0, &request, self.has_users()) {
            ChainProgress::Decided(result) if self.can_finish_now(&result) => {
                self.finish_login(request, result, None)
            }
            // Rule sources have to be queried too, so the whole check runs on the I/O runtime.
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
}
