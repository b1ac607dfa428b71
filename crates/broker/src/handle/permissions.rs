//! The permissions of one client, for explanations outside the shards.

use std::sync::Arc;

use hooks::{AccessDecision, Authorization, Client, ClientAction, PeerAddress, Permissions};
use mqtt::QoS;

use super::BrokerHandle;
use crate::core::delivery::hook_client;
use crate::core::shard::Shard;
use crate::core::tables::SessionIx;

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

/// The device that a client is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectedDevice {
    pub id: String,
    pub product: String,
}

impl BrokerHandle {
    /// The device that a connected client is, if it is one; `None`: the client is not connected.
    pub async fn connected_device(&self, client_id: &str) -> Option<Option<ConnectedDevice>> {
        let find = |shard: &mut Shard, session: SessionIx| {
            let permissions = shard.delivery.sessions[session].permissions.as_ref();
            let device = permissions.and_then(|permissions| permissions.device());
            device.map(|device| ConnectedDevice {
                id: device.id.to_owned(),
                product: device.product.to_owned(),
            })
        };
        self.query_connected(client_id, find).await
    }

    /// Whether a connected client may publish to a topic with QoS 1. The decision is reported like that about a message.
    /// `None`: the client is not connected.
    pub async fn authorize_publish(&self, client_id: &str, topic: String) -> Option<bool> {
        let decide = move |shard: &mut Shard, session: SessionIx| {
            let action = ClientAction::Publish {
                topic: &topic,
                qos: QoS::AtLeastOnce,
                retain: false,
            };
            !shard.needs_authorization(session)
                || shard.authorize(session, &action) == Authorization::Allow
        };
        self.query_connected(client_id, decide).await
    }

    /// Queries the shard of a client; `None`: the client is not connected.
    async fn query_connected<T: Send + 'static>(
        &self,
        client_id: &str,
        query: impl FnOnce(&mut Shard, SessionIx) -> T + Send + 'static,
    ) -> Option<T> {
        let shard = self.shared.node.directory.shard_of(client_id)?;
        let client_id = client_id.to_owned();
        let find = move |shard: &mut Shard| {
            let &session = shard.by_client_id.get(&*client_id)?;
            let is_connected = shard.delivery.sessions[session].connection.is_some();
            is_connected.then(|| query(shard, session))
        };
        self.query_shard(shard, find).await.flatten()
    }

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
