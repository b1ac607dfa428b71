//! Which session stays if two nodes have one of the same client.

use std::cmp::Ordering;

use super::places::{Adopter, SessionHolder};
use super::{
    EndRequest, NO_ANSWER, PROVISIONAL_TIMEOUT_MS, SessionDirectory, SessionMessage,
    SessionRegistration,
};
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::tables::TableIx as _;

/// Longest time that a registration is on its way; after a longer one its node is lost. The session seems to have begun later by that
/// time.
const REGISTRATION_DELAY_MS: u64 = 5000;

impl SessionDirectory {
    /// A node begins to adopt the sessions of the node `of`; `None`: this one.
    pub(crate) fn begin_adoption(&mut self, of: &str, by: Option<PeerNodeIx>, now_ms: u64) {
        self.set_now(now_ms);
        (self.adopters).retain(|_, adopter| now_ms < adopter.since_ms + PROVISIONAL_TIMEOUT_MS);
        let number = self.next_request();
        if let Some(name) = self.holder_name(by) {
            let adopter = Adopter {
                name: name.into(),
                since_ms: now_ms,
                number,
            };
            self.adopters.insert(of.into(), adopter);
        }
    }

    /// A node has adopted the sessions of the node `of`. The begin may not be known.
    pub(crate) fn finish_adoption(&mut self, of: &str, by: Option<PeerNodeIx>, now_ms: u64) {
        if !self.is_adopter(of, by) {
            self.begin_adoption(of, by, now_ms);
        }
    }

    /// A node does not adopt the sessions of the node `of`.
    pub(crate) fn cancel_adoption(&mut self, of: &str, by: Option<PeerNodeIx>) {
        if self.is_adopter(of, by) {
            self.adopters.remove(of);
        }
    }

    fn is_adopter(&self, of: &str, by: Option<PeerNodeIx>) -> bool {
        let adopter = self.adopters.get(of);
        adopter.is_some_and(|adopter| self.holder_name(by) == Some(&*adopter.name))
    }

    fn holder_name(&self, holder: SessionHolder) -> Option<&str> {
        match holder {
            None => Some(&self.name),
            Some(peer) => (self.peers[peer.position()].as_ref()).map(|(name, _)| &**name),
        }
    }

    /// The number of the adoption by which the node of a session has got it from the node of the other one. `None`: they are not the
    /// same session. The other node ends all sessions that it had when the adoption began.
    fn adoption_number(
        &self,
        session: &SessionRegistration,
        other: &SessionRegistration,
    ) -> Option<u64> {
        let of = self.holder_name(other.holder)?;
        let adopter = self.adopters.get(of)?;
        // A session that the failed node has begun after the adoption is another one. This node may learn of the adoption long after it:
        // the adopting node reports it for some time, and again after a start if it was not recorded as complete.
        let other_until_ms = adopter.since_ms.min(session.since_ms) + REGISTRATION_DELAY_MS;
        // A node that has lost another one for a moment may say that it adopts the sessions of its own adopter, and have adopted the
        // session from a third node.
        let is_adopted = (session.adopted_from).is_some_and(|from| from.may_be(of))
            && self.holder_name(session.holder) == Some(&*adopter.name)
            && session.since_ms <= adopter.since_ms + REGISTRATION_DELAY_MS
            && other.since_ms <= other_until_ms;
        is_adopted.then_some(adopter.number)
    }

    /// Whether a session is the other one, adopted from its node. For adoptions of which this node has not learned: it did not reach the
    /// adopting node then, or has started since, and a node that starts again does not report adoptions that are complete.
    fn is_adopted_copy(&self, session: &SessionRegistration, other: &SessionRegistration) -> bool {
        let of = self.holder_name(other.holder);
        let is_from = |of: &str| session.adopted_from.is_some_and(|from| from.may_be(of));
        of.is_some_and(is_from)
            && session.since_ms.abs_diff(other.since_ms) <= REGISTRATION_DELAY_MS
    }

    /// Of two sessions of the same client, the one that stays, and the other one.
    fn choose(
        &self,
        known: SessionRegistration,
        new: SessionRegistration,
    ) -> (SessionRegistration, SessionRegistration) {
        // Each of the nodes may have adopted sessions of the other one. The last adoption counts.
        let of_known = self.adoption_number(&known, &new);
        match self.adoption_number(&new, &known).cmp(&of_known) {
            Ordering::Greater => return (new, known),
            Ordering::Less => return (known, new),
            Ordering::Equal => {}
        }
        let is_adopted = (
            self.is_adopted_copy(&known, &new),
            self.is_adopted_copy(&new, &known),
        );
        match is_adopted {
            (true, false) => return (known, new),
            (false, true) => return (new, known),
            _ => {}
        }
        // The one that began later stays, unless the client only got it because the earlier one was not known yet.
        let (earlier, later) = match known.since_ms > new.since_ms {
            true => (new, known),
            false => (known, new),
        };
        match later.gives_way(self.now_ms) {
            true => (earlier, later),
            false => (later, earlier),
        }
    }

    /// A node has a session of a client id that this node owns.
    pub(super) fn handle_register(&mut self, client_id: &str, new: SessionRegistration) {
        let known = self.owned.get(client_id).copied();
        let Some(known) = known.filter(|known| known.holder != new.holder) else {
            self.owned.insert(client_id.into(), new);
            return;
        };
        let (kept, ended) = self.choose(known, new);
        self.owned.insert(client_id.into(), kept);
        tracing::warn!(
            client_id,
            "two nodes had a session of the same client; one of them ends"
        );
        match ended.holder {
            None => {
                let waiting = EndRequest::Conflict {
                    client_id: client_id.into(),
                };
                self.end_local_session(client_id, false, waiting);
            }
            Some(peer) => {
                let message = SessionMessage::TakeOver {
                    request: NO_ANSWER,
                    keep: false,
                    client_id: client_id.into(),
                };
                self.to_peers.push((peer, message));
            }
        }
    }
}
