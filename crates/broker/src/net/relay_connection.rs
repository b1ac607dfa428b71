//! A handle to a relay connection, for threads other than its shard's.

use std::sync::Arc;

use super::inbox::{InboxItem, ShardInbox};
use super::layers::RelayUpgrade;
use super::shard_io::ShardIo;
use crate::core::shard::{ConnectionAction, Shard};
use crate::core::tables::ConnectionIx;
use hooks::relay::{RelayClose, RelayConnection, RelayRequest};

struct RemoteRelayConnection {
    inboxes: Arc<[ShardInbox]>,
    shard: u16,
    at: ConnectionIx,
    /// Distinguishes the connection from later ones with the same index.
    serial: u32,
}

impl RemoteRelayConnection {
    fn run(&self, call: impl FnOnce(&mut Shard, ConnectionIx, u32) + Send + 'static) {
        let (at, serial) = (self.at, self.serial);
        let query = Box::new(move |core: &mut Shard| call(core, at, serial));
        self.inboxes[usize::from(self.shard)].push(InboxItem::Query(query));
    }
}

impl RelayConnection for RemoteRelayConnection {
    fn send_text(&self, message: String) {
        self.run(move |core, at, serial| core.send_relay_text(at, serial, message));
    }

    fn close(&self, close: RelayClose) {
        self.run(move |core, at, serial| core.close_relay(at, serial, close));
    }
}

impl ShardIo {
    /// Asks the core to admit the client of a relay endpoint.
    pub(super) fn open_relay(
        &self,
        core: &mut Shard,
        at: ConnectionIx,
        upgrade: &RelayUpgrade,
    ) -> ConnectionAction {
        let connection = &core.delivery.connections[at];
        let handle = RemoteRelayConnection {
            inboxes: self.inboxes.clone(),
            shard: core.id,
            at,
            serial: connection.serial,
        };
        let node = core.node.clone();
        let listener = node.listeners[usize::from(connection.listener)].config();
        // A request for the prefix without its last slash names no endpoint.
        let prefix = listener.relay_path.as_deref().unwrap_or_default();
        let request = RelayRequest {
            target: upgrade.target.strip_prefix(prefix).unwrap_or_default(),
            origin: upgrade.origin.as_deref(),
            subprotocols: &upgrade.subprotocols,
            peer: connection.peer,
            listener: &listener.name,
            shard: core.id,
            now_ms: core.now_ms(),
        };
        core.open_relay(at, &request, upgrade.compression, Arc::new(handle))
    }
}
