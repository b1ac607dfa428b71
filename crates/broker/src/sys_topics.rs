//! Publishes the state of the node as retained messages on `$SYS/broker/...`, for users without Prometheus.

use hooks::{MessageView, NEVER_MS};
use mqtt::{Properties, QoS};

use crate::core::shard::Shard;
use crate::metrics::{Metric, sum_over_shards};

/// Publishes all topics; called periodically on the first shard.
pub(crate) fn publish_sys_topics(shard: &mut Shard) {
    let node = shard.node.clone();
    let sum = |metrics: &[Metric]| -> u64 {
        metrics.iter().fold(0, |sum, &m| {
            sum.wrapping_add(sum_over_shards(&node.metrics, m))
        })
    };
    let now_ms = shard.now_ms();
    let uptime_s = now_ms.saturating_sub(node.started_ms) / 1000;
    let connected = sum(&[Metric::ClientsConnected]);
    let sessions = sum(&[Metric::Sessions]);
    let received = [
        Metric::ReceivedQos0,
        Metric::ReceivedQos1,
        Metric::ReceivedQos2,
    ];
    let sent = [Metric::SentQos0, Metric::SentQos1, Metric::SentQos2];
    let dropped = [
        Metric::DroppedNoSubscribers,
        Metric::DroppedQueueFull,
        Metric::DroppedExpired,
        Metric::DroppedTooLarge,
        Metric::DroppedNotAuthorized,
        Metric::DroppedSessionEnded,
        Metric::DroppedOffline,
    ];
    let retained = node.retained.size();
    let values = [
        (
            "version",
            concat!("Tidegate ", env!("CARGO_PKG_VERSION")).to_owned(),
        ),
        ("uptime", uptime_s.to_string()),
        ("clients/connected", connected.to_string()),
        (
            "clients/disconnected",
            sessions.saturating_sub(connected).to_string(),
        ),
        ("clients/total", sessions.to_string()),
        (
            "subscriptions/count",
            sum(&[Metric::Subscriptions]).to_string(),
        ),
        ("retained messages/count", retained.count.to_string()),
        (
            "store/messages/count",
            sum(&[Metric::QueuedMessages]).to_string(),
        ),
        (
            "store/messages/bytes",
            sum(&[Metric::QueuedBytes]).to_string(),
        ),
        ("messages/received", sum(&received).to_string()),
        ("messages/sent", sum(&sent).to_string()),
        ("messages/dropped", sum(&dropped).to_string()),
        ("bytes/received", sum(&[Metric::BytesReceived]).to_string()),
        ("bytes/sent", sum(&[Metric::BytesSent]).to_string()),
        ("shards", node.metrics.len().to_string()),
    ];
    for (name, value) in values {
        shard.publish_internal(&MessageView {
            topic: &format!("$SYS/broker/{name}"),
            properties: Properties::EMPTY,
            payload: value.as_bytes(),
            shared_payload: None,
            qos: QoS::AtMostOnce,
            retain: true,
            received_ms: now_ms,
            expires_ms: NEVER_MS,
            from_client_id: "",
            from_username: "",
            is_derived: false,
            number: 0,
        });
    }
}
