//! Disconnects devices and clients of relay endpoints of namespaces that are disabled while they are connected.

use broker::BrokerHandle;
use broker::info::ListQuery;
use devices::Registry;
use namespaces::Namespaces;
use relay::RelayService;

/// Number of clients checked per batch.
const BATCH_CLIENTS: usize = 1000;

/// Ends the connections of devices and relay endpoints when their namespace is disabled.
pub(super) fn disconnect_disabled(
    namespaces: &Namespaces,
    registry: &Registry,
    relay: &RelayService,
    handle: &BrokerHandle,
) {
    let (registry, relay, handle) = (registry.clone(), relay.clone(), handle.clone());
    let (states, runtime) = (namespaces.downgrade(), tokio::runtime::Handle::current());
    namespaces.observe(move |id| {
        let Some(states) = states.upgrade() else {
            return;
        };
        let limits = states.get(id);
        if let Some(reason) = limits.and_then(|limits| limits.disabled_reason.clone()) {
            relay.close_disabled_namespace(id, &reason);
        }
        if !states.is_active(id) {
            let (registry, handle) = (registry.clone(), handle.clone());
            let id = id.to_owned();
            runtime.spawn(async move { disconnect_devices(&registry, &handle, &id).await });
        }
    });
}

async fn disconnect_devices(registry: &Registry, handle: &BrokerHandle, namespace: &str) {
    let is_inside = |product: &str| {
        let product = registry.product(product);
        product.is_some_and(|product| product.get().namespace() == namespace)
    };
    let mut query = ListQuery {
        limit: BATCH_CLIENTS,
        connected: Some(true),
        ..ListQuery::default()
    };
    loop {
        let clients = handle.clients(query.clone()).await;
        for client in &clients {
            if client.product.as_deref().is_some_and(is_inside) {
                handle.terminate_client(&client.client_id).await;
            }
        }
        let Some(last) = clients.last().filter(|_| clients.len() == BATCH_CLIENTS) else {
            return;
        };
        query.after = Some(last.client_id.clone());
    }
}
