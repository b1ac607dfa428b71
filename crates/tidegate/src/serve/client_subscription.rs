//! Subscriptions that the node makes for a client which expects messages without having subscribed to them.

use broker::BrokerHandle;
use broker::control::{ControlError, SubscriptionRequest};

/// Subscribes a client with its own permissions; retained messages are not sent. `None`: it has no session.
pub(super) async fn subscribe_for_client(
    broker: &BrokerHandle,
    client_id: &str,
    topic_filter: String,
    qos: u8,
) -> Option<Result<u8, ControlError>> {
    let subscription = SubscriptionRequest {
        topic_filter,
        qos,
        no_local: false,
        retain_as_published: false,
        retain_handling: 2,
    };
    broker.subscribe(client_id, subscription).await
}
