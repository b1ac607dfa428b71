//! Messages whose acknowledgement somebody waits for: those the node has sent to one client and wants to know of.

use std::collections::HashMap;

use foldhash::fast::RandomState;

/// Messages that may be waited for on one shard; of more nobody is told.
const MAX_WATCHED: usize = 65_536;

pub(crate) type AckCallback = Box<dyn FnOnce() + Send>;

/// By session and packet id.
#[derive(Default)]
pub(crate) struct AckWatchers(HashMap<(u32, u16), AckCallback, RandomState>);

impl AckWatchers {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there was room.
    pub(crate) fn add(&mut self, session: u32, packet_id: u16, watcher: AckCallback) -> bool {
        let has_room = self.0.len() < MAX_WATCHED;
        if has_room {
            self.0.insert((session, packet_id), watcher);
        }
        has_room
    }

    pub(crate) fn acknowledge(&mut self, session: u32, packet_id: u16) {
        if let Some(watcher) = self.0.remove(&(session, packet_id)) {
            watcher();
        }
    }

    /// The session has ended.
    pub(crate) fn remove_session(&mut self, session: u32) {
        if !self.0.is_empty() {
            self.0.retain(|(known, _), _| *known != session);
        }
    }
}
