//! Decides whether clients may publish and subscribe.

use hooks::relay::targets_relay_endpoint;
use hooks::{Authorization, ClientAction, Interest};

use super::delivery::hook_client;
use super::shard::Shard;
use super::tables::SessionIx;

impl Shard {
    /// Decides whether a client may do something.
    pub(crate) fn authorize(
        &mut self,
        session: SessionIx,
        action: &ClientAction<'_>,
    ) -> Authorization {
        let state = &self.delivery.sessions[session];
        let answer = match &state.permissions {
            Some(permissions) => {
                let client = || hook_client(state, &self.delivery.connections);
                permissions.check(&client, action)
            }
            None => self.authorize_with_hooks(session, action),
        };
        let points = self.delivery.interest;
        if points.contains(Interest::AUTHORIZATION_DECIDED) {
            self.report_authorization(session, action, answer);
        }
        answer
    }

    #[inline(never)]
    fn report_authorization(
        &mut self,
        session: SessionIx,
        action: &ClientAction<'_>,
        answer: Authorization,
    ) {
        let state = &self.delivery.sessions[session];
        let source = state.permissions.as_ref().and_then(|permissions| {
            let client = hook_client(state, &self.delivery.connections);
            permissions.decision_source(&client, action)
        });
        self.call_hook(session, |hooks, client| {
            hooks.authorized(client, action, answer, source);
        });
    }

    /// Decides for a client whose permissions are not known.
    #[inline(never)]
    fn authorize_with_hooks(
        &mut self,
        session: SessionIx,
        action: &ClientAction<'_>,
    ) -> Authorization {
        if !self.delivery.interest.contains(Interest::AUTHORIZE) {
            return match targets_relay_endpoint(action) {
                true => Authorization::Deny,
                false => Authorization::Allow,
            };
        }
        self.call_hook(session, |hooks, client| hooks.authorize(client, action))
    }

    /// Whether permissions have to be checked, or decisions reported, for the client of a session.
    #[inline]
    pub(crate) fn needs_authorization(&self, session: SessionIx) -> bool {
        let points = Interest::AUTHORIZE | Interest::AUTHORIZATION_DECIDED;
        self.delivery.interest.intersects(points)
            || self.delivery.sessions[session].permissions.is_some()
    }
}
