//! Disconnects clients that are banned while they are connected, and closes the relay endpoints of banned owners.

use std::net::SocketAddr;

use auth::{AuthService, Ban, BanTarget};
use broker::BrokerHandle;
use broker::info::ListQuery;
use relay::RelayService;
use store::{Objects, StoreError};

/// Number of clients checked per batch.
const BATCH_CLIENTS: usize = 1000;

/// Ends the connections of banned clients.
pub(super) fn disconnect_banned(auth: &AuthService, handle: &BrokerHandle) {
    let handle = handle.clone();
    let runtime = tokio::runtime::Handle::current();
    auth.on_ban(move |ban| {
        let (handle, ban) = (handle.clone(), ban.clone());
        runtime.spawn(async move { disconnect_matching(&handle, &ban).await });
    });
}

/// Closes the relay endpoints of namespaces whose owners are banned, now and from now on.
pub(super) fn close_endpoints_of_banned_owners(
    objects: &Objects,
    relay: &RelayService,
) -> Result<(), StoreError> {
    let relay = relay.clone();
    api::watch_owner_bans(objects, move |namespace, ban| {
        relay.set_owner_ban(namespace, ban)
    })
}

async fn disconnect_matching(handle: &BrokerHandle, ban: &Ban) {
    let mut query = ListQuery {
        limit: BATCH_CLIENTS,
        connected: Some(true),
        ..ListQuery::default()
    };
    match &ban.target {
        BanTarget::ClientId(client_id) => query.client_id = Some(client_id.clone()),
        BanTarget::Username(username) => query.username = Some(username.clone()),
        BanTarget::Address(_) => {}
    }
    loop {
        let clients = handle.clients(query.clone()).await;
        for client in &clients {
            let is_meant = match &ban.target {
                BanTarget::Address(range) => {
                    let peer = client.peer_address.as_deref();
                    let peer = peer.and_then(|peer| peer.parse::<SocketAddr>().ok());
                    peer.is_some_and(|peer| range.contains(peer.ip()))
                }
                BanTarget::ClientId(_) | BanTarget::Username(_) => true,
            };
            if is_meant {
                handle.terminate_client(&client.client_id).await;
            }
        }
        let Some(last) = clients.last().filter(|_| clients.len() == BATCH_CLIENTS) else {
            return;
        };
        query.after = Some(last.client_id.clone());
    }
}
