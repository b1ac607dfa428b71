//! Call-backs for the acknowledgements of messages that the node has sent to one client.

use super::tables::SessionIx;
use std::collections::HashMap;

use super::hash_state::RandomState;

/// Messages watched at once on one shard; the acknowledgements of further messages are not reported.
const MAX_WATCHED: usize = 65_536;

pub(crate) type AckCallback = Box<dyn FnOnce() + Send>;

/// By session and packet id.
#[derive(Default)]
pub(crate) struct AckWatchers(HashMap<(SessionIx, u16), AckCallback, RandomState>);

impl AckWatchers {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether there was room.
    pub(crate) fn add(&mut self, session: SessionIx, packet_id: u16, watcher: AckCallback) -> bool {
        let has_room = self.0.len() < MAX_WATCHED;
        if has_room {
            self.0.insert((session, packet_id), watcher);
        }
        has_room
    }

    pub(crate) fn acknowledge(&mut self, session: SessionIx, packet_id: u16) {
        if let Some(watcher) = self.0.remove(&(session, packet_id)) {
            watcher();
        }
    }

    /// Removes the call-backs of a session that has ended.
    pub(crate) fn remove_session(&mut self, session: SessionIx) {
        if !self.0.is_empty() {
            self.0.retain(|(known, _), _| *known != session);
        }
    }
}
