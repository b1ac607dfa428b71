//! Claims that wait until all nodes have registered their sessions.

use std::collections::BTreeMap;

use super::places::{SessionClaim, SessionHolder};

/// At most one claim of each node for a client id.
#[derive(Default)]
pub(super) struct WaitingClaims {
    /// By client id, the claims of different nodes in the order of their arrival.
    claims: BTreeMap<Box<str>, Vec<SessionClaim>>,
}

impl WaitingClaims {
    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// Adds a claim. It replaces the one of the same node, and has waited as long as that.
    pub(super) fn push(&mut self, claim: SessionClaim) {
        let of_client = self.claims.entry(claim.client_id.clone()).or_default();
        let mut known = of_client.iter_mut();
        match known.find(|known| known.from.holder() == claim.from.holder()) {
            Some(known) => {
                let arrived_ms = known.arrived_ms.min(claim.arrived_ms);
                *known = SessionClaim {
                    arrived_ms,
                    ..claim
                };
            }
            None => of_client.push(claim),
        }
    }

    /// Removes the claim of a node for a client id.
    pub(super) fn remove(
        &mut self,
        client_id: &str,
        holder: SessionHolder,
    ) -> Option<SessionClaim> {
        let of_client = self.claims.get_mut(client_id)?;
        let mut known = of_client.iter();
        let position = known.position(|claim| claim.from.holder() == holder)?;
        let claim = of_client.remove(position);
        if of_client.is_empty() {
            self.claims.remove(client_id);
        }
        Some(claim)
    }

    /// Removes all claims of a node.
    pub(super) fn remove_all_of(&mut self, holder: SessionHolder) {
        self.claims.retain(|_, of_client| {
            of_client.retain(|claim| claim.from.holder() != holder);
            !of_client.is_empty()
        });
    }

    pub(super) fn take_all(&mut self) -> Vec<SessionClaim> {
        let claims = std::mem::take(&mut self.claims);
        claims.into_values().flatten().collect()
    }

    /// Takes the claims that arrived at this time or before.
    pub(super) fn take_until(&mut self, arrived_ms: u64) -> Vec<SessionClaim> {
        let mut taken = Vec::new();
        self.claims.retain(|_, of_client| {
            taken.extend(of_client.extract_if(.., |claim| claim.arrived_ms <= arrived_ms));
            !of_client.is_empty()
        });
        taken
    }
}
