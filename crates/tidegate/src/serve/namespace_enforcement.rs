//! Disconnects devices of namespaces that are disabled while they are connected.

use broker::BrokerHandle;
use broker::info::ListQuery;
use devices::Registry;
use namespaces::Namespaces;

/// Number of clients checked per batch.
const BATCH_CLIENTS: usize = 1000;

/// Ends the connections of devices when their namespace is disabled.
pub(super) fn disconnect_disabled(
    namespaces: &Namespaces,
    registry: &Registry,
    handle: &BrokerHandle,
) {
    let (registry, handle) = (registry.clone(), handle.clone());
    let (states, runtime) = (namespaces.downgrade(), tokio::runtime::Handle::current());
    namespaces.observe(move |id| {
        let is_disabled = states.upgrade().is_some_and(|states| !states.is_active(id));
        if is_disabled {
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
