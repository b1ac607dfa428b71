//! The permissions of one client, for explanations outside the shards.

use std::sync::Arc;

use hooks::{AccessDecision, Client, ClientAction, PeerAddress, Permissions};

use super::BrokerHandle;
use crate::core::delivery::hook_client;
use crate::core::shard::Shard;

/// The permissions of a client with a session, connected or not.
pub struct ClientPermissions {
    client_id: String,
    username: Option<String>,
    peer: Option<PeerAddress>,
    version: mqtt::Version,
    /// `None`: the client has no permissions of its own, and hooks decide.
    permissions: Option<Arc<dyn Permissions>>,
}

impl ClientPermissions {
    /// Whether the client may do something, and what decides; `None`: hooks decide. May take milliseconds.
    #[must_use]
    pub fn explain(&self, action: &ClientAction<'_>) -> Option<AccessDecision> {
        self.permissions.as_ref()?.explain(&self.client(), action)
    }

    #[must_use]
    pub fn client(&self) -> Client<'_> {
        Client {
            client_id: &self.client_id,
            username: self.username.as_deref(),
            peer: self.peer,
            last_address: None,
            local_address: None,
            version: self.version,
            connection: hooks::ConnectionInfo::default(),
        }
    }
}

impl BrokerHandle {
    /// The permissions of a client; `None`: it has no session.
    pub async fn client_permissions(&self, client_id: &str) -> Option<ClientPermissions> {
        let shard = self.shared.node.directory.shard_of(client_id)?;
        let client_id = client_id.to_owned();
        let find = move |shard: &mut Shard| {
            let &session = shard.by_client_id.get(&*client_id)?;
            let session = &shard.delivery.sessions[session];
            let client = hook_client(session, &shard.delivery.connections);
            Some(ClientPermissions {
                client_id: client.client_id.to_owned(),
                username: client.username.map(str::to_owned),
                peer: client.peer,
                version: client.version,
                permissions: session.permissions.clone(),
            })
        };
        self.query_shard(shard, find).await.flatten()
    }
}
