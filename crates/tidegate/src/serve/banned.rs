//! Who is banned while it is connected has to go.

use std::net::SocketAddr;

use auth::{Auth, Ban, Banned};
use broker::Handle;
use broker::info::Query;

/// Clients looked at in one go.
const AT_ONCE: usize = 1000;

/// Ends the connections of clients that are banned while they are there.
pub(super) fn send_away(auth: &Auth, handle: &Handle) {
    let handle = handle.clone();
    let runtime = tokio::runtime::Handle::current();
    auth.on_ban(move |ban| {
        let (handle, ban) = (handle.clone(), ban.clone());
        runtime.spawn(async move { send_all_away(&handle, &ban).await });
    });
}

async fn send_all_away(handle: &Handle, ban: &Ban) {
    let mut query = Query {
        limit: AT_ONCE,
        connected: Some(true),
        ..Query::default()
    };
    match &ban.of {
        Banned::ClientId(client_id) => query.client_id = Some(client_id.clone()),
        Banned::Username(username) => query.username = Some(username.clone()),
        Banned::Address(_) => {}
    }
    loop {
        let clients = handle.clients(query.clone()).await;
        for client in &clients {
            let is_meant = match &ban.of {
                Banned::Address(range) => {
                    let peer = client.peer_address.as_deref();
                    let peer = peer.and_then(|peer| peer.parse::<SocketAddr>().ok());
                    peer.is_some_and(|peer| range.contains(peer.ip()))
                }
                Banned::ClientId(_) | Banned::Username(_) => true,
            };
            if is_meant {
                handle.kick(&client.client_id).await;
            }
        }
        let Some(last) = clients.last().filter(|_| clients.len() == AT_ONCE) else {
            return;
        };
        query.after = Some(last.client_id.clone());
    }
}
