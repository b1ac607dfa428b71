//! Counters of one shard, written by the shard alone with plain loads and stores and read by any thread. A new metric
//! is one line in the table below, which also provides its labels and help text.

use hooks::{MetricFamily, MetricKind, MetricSample, MetricValue};

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! shard_metrics {
    ($($variant:ident $kind:ident $family:literal [$($label:ident = $value:literal),*] $help:literal;)*) => {
        /// One counter or gauge of a shard.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Metric { $($variant),* }

        struct Spec { kind: MetricKind, family: &'static str, labels: &'static [(&'static str, &'static str)], help: &'static str }

        const SPECS: &[Spec] = &[$(Spec {
            kind: MetricKind::$kind,
            family: $family,
            labels: &[$((stringify!($label), $value)),*],
            help: $help,
        }),*];
    };
}

shard_metrics! {
    Connections Gauge "connections" [] "Open MQTT connections, from accept to close.";
    ClientsConnected Gauge "clients_connected" [] "Clients that have been accepted with CONNACK and are connected.";
    Sessions Gauge "sessions" [] "Sessions, with and without a connection.";
    Subscriptions Gauge "subscriptions" [] "Subscriptions of all sessions.";
    SubscriptionBytes Gauge "subscription_bytes" [] "Bytes of the filters of all subscriptions, with 64 for each.";
    SubscriptionsOverQuota Counter "subscriptions_over_quota_total" [] "Subscriptions rejected because a session or a shard had too many, or too many bytes of them.";
    QueuedMessages Gauge "session_queue_messages" [] "Messages waiting in session queues.";
    QueuedBytes Gauge "session_queue_bytes" [] "Bytes waiting in session queues.";
    OutboxBytes Gauge "outbox_bytes" [] "Encoded bytes waiting for sockets.";
    DelayedMessages Gauge "delayed_messages" [] "Messages published to $delayed that are not due yet.";
    ConnectionsOpened Counter "connections_opened_total" [] "Connections accepted by a listener.";
    ConnectionsClosed Counter "connections_closed_total" [] "Connections closed, for any reason.";
    ConnectionsRejectedLimit Counter "connections_rejected_total" [reason = "limit"] "Connections rejected before CONNECT.";
    ConnectionsRejectedHandshake Counter "connections_rejected_total" [reason = "handshake"] "Connections rejected before CONNECT.";
    ConnectionsRejectedTimeout Counter "connections_rejected_total" [reason = "connect_timeout"] "Connections rejected before CONNECT.";
    QuicRetries Counter "quic_retries_total" [] "QUIC clients that first had to prove their address.";
    ConnectAccepted Counter "connects_total" [result = "accepted"] "CONNECT packets by result.";
    ConnectRejected Counter "connects_total" [result = "rejected"] "CONNECT packets by result.";
    ConnectUnauthorized Counter "connects_total" [result = "not_authorized"] "CONNECT packets by result.";
    TakenOver Counter "sessions_taken_over_total" [] "Connections closed because the same client id connected again.";
    KeepAliveTimeouts Counter "keep_alive_timeouts_total" [] "Connections closed because the client was silent for too long.";
    PacketTimeouts Counter "packet_timeouts_total" [] "Connections closed because a packet was not completed in time.";
    PartialPacketsOverBudget Counter "partial_packets_over_budget_total" [] "Connections closed because of too many bytes of incomplete packets.";
    PartialPacketBytes Gauge "partial_packet_bytes" [] "Bytes of incomplete packets.";
    ProtocolErrors Counter "protocol_errors_total" [] "Connections closed because of a malformed packet or a protocol error.";
    Panics Counter "connection_panics_total" [] "Connections closed because of a panic in the broker; each is a bug.";
    BytesReceived Counter "bytes_received_total" [] "Bytes of MQTT packets received.";
    BytesSent Counter "bytes_sent_total" [] "Bytes written to sockets, TLS and WebSocket framing included.";
    PacketsReceived Counter "packets_received_total" [] "MQTT packets received, all types.";
    ReceivedQos0 Counter "messages_received_total" [qos = "0"] "PUBLISH packets accepted from clients.";
    ReceivedQos1 Counter "messages_received_total" [qos = "1"] "PUBLISH packets accepted from clients.";
    ReceivedQos2 Counter "messages_received_total" [qos = "2"] "PUBLISH packets accepted from clients.";
    SentQos0 Counter "messages_sent_total" [qos = "0"] "PUBLISH packets sent to clients, repetitions included.";
    SentQos1 Counter "messages_sent_total" [qos = "1"] "PUBLISH packets sent to clients, repetitions included.";
    SentQos2 Counter "messages_sent_total" [qos = "2"] "PUBLISH packets sent to clients, repetitions included.";
    Acknowledged Counter "messages_acknowledged_total" [] "QoS 1 and 2 messages acknowledged by their subscriber.";
    Redelivered Counter "messages_redelivered_total" [] "PUBLISH packets sent again with DUP after a reconnect.";
    DroppedNoSubscribers Counter "messages_dropped_total" [reason = "no_subscribers"] "Messages that did not reach a subscriber.";
    DroppedQueueFull Counter "messages_dropped_total" [reason = "queue_full"] "Messages that did not reach a subscriber.";
    DroppedExpired Counter "messages_dropped_total" [reason = "expired"] "Messages that did not reach a subscriber.";
    DroppedTooLarge Counter "messages_dropped_total" [reason = "too_large"] "Messages that did not reach a subscriber.";
    DroppedNoLocal Counter "messages_dropped_total" [reason = "no_local"] "Messages that did not reach a subscriber.";
    DroppedNotAuthorized Counter "messages_dropped_total" [reason = "not_authorized"] "Messages that did not reach a subscriber.";
    DroppedSessionEnded Counter "messages_dropped_total" [reason = "session_ended"] "Messages that did not reach a subscriber.";
    DroppedStoreFull Counter "messages_dropped_total" [reason = "store_full"] "Messages that did not reach a subscriber.";
    DroppedDerived Counter "messages_dropped_total" [reason = "derived_budget"] "Messages that did not reach a subscriber.";
    DroppedOffline Counter "messages_dropped_total" [reason = "offline"] "Messages that did not reach a subscriber.";
    RelayConnections Gauge "relay_connections" [] "Open connections of relay endpoints.";
    RelayBacklogBytes Gauge "relay_backlog_bytes" [] "Memory of messages that wait for slow receivers of relay endpoints.";
    RelayRejected Counter "relay_connections_rejected_total" [] "Connections that a relay endpoint rejected.";
    RelayReceived Counter "relay_messages_received_total" [] "Messages received from connections of relay endpoints.";
    RelaySent Counter "relay_messages_sent_total" [] "Messages sent to connections of relay endpoints, or queued for them.";
    CrossShardOut Counter "cross_shard_messages_total" [] "Messages sent to another shard.";
    PausedPublishers Counter "publisher_pauses_total" [] "Times a publisher was paused because a queue or its rate exceeded its limit.";
    WillsPublished Counter "wills_published_total" [] "Will messages published.";
    BusyNanoseconds Counter "shard_busy_seconds_total" [] "Time the shard spent working, since start.";
    InboxBytes Gauge "shard_inbox_bytes" [] "Bytes waiting from other shards.";
}

const METRIC_COUNT: usize = SPECS.len();

/// Upper bounds in microseconds of the publish-to-socket latency histogram.
const LATENCY_BOUNDS_US: [u64; 14] = [
    10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 1_000_000,
];

pub struct ShardMetrics {
    values: [AtomicU64; METRIC_COUNT],
    latency_buckets: [AtomicU64; LATENCY_BOUNDS_US.len() + 1],
    latency_sum_us: AtomicU64,
}

impl Default for ShardMetrics {
    fn default() -> Self {
        Self {
            values: std::array::from_fn(|_| AtomicU64::new(0)),
            latency_buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            latency_sum_us: AtomicU64::new(0),
        }
    }
}

impl ShardMetrics {
    /// Only the shard itself calls this, so that no read-modify-write is needed.
    #[inline]
    pub(crate) fn add(&self, metric: Metric, by: u64) {
        let value = &self.values[metric as usize];
        value.store(value.load(Relaxed).wrapping_add(by), Relaxed);
    }

    #[inline]
    pub(crate) fn inc(&self, metric: Metric) {
        self.add(metric, 1);
    }

    #[inline]
    pub(crate) fn sub(&self, metric: Metric, by: u64) {
        self.add(metric, by.wrapping_neg());
    }

    pub(crate) fn set(&self, metric: Metric, to: u64) {
        self.values[metric as usize].store(to, Relaxed);
    }

    pub fn get(&self, metric: Metric) -> u64 {
        self.values[metric as usize].load(Relaxed)
    }

    pub(crate) fn observe_latency(&self, us: u64) {
        let at = LATENCY_BOUNDS_US.iter().position(|&bound| us <= bound);
        let bucket = &self.latency_buckets[at.unwrap_or(LATENCY_BOUNDS_US.len())];
        bucket.store(bucket.load(Relaxed) + 1, Relaxed);
        self.latency_sum_us
            .store(self.latency_sum_us.load(Relaxed) + us, Relaxed);
    }
}

/// The sum of one metric over all shards.
pub fn sum_over_shards(shards: &[std::sync::Arc<ShardMetrics>], metric: Metric) -> u64 {
    shards
        .iter()
        .fold(0, |sum, shard| sum.wrapping_add(shard.get(metric)))
}

/// Metrics reported per shard, since they show how evenly the shards are loaded.
const PER_SHARD_METRICS: [Metric; 4] = [
    Metric::Connections,
    Metric::BusyNanoseconds,
    Metric::InboxBytes,
    Metric::CrossShardOut,
];

/// All metrics of the shards, as families in the order of the table.
pub(crate) fn metric_families(shards: &[std::sync::Arc<ShardMetrics>]) -> Vec<MetricFamily> {
    let mut families: Vec<MetricFamily> = Vec::new();
    for (at, spec) in SPECS.iter().enumerate() {
        let read = |shard: &ShardMetrics| {
            let value = shard.values[at].load(Relaxed);
            if at == Metric::BusyNanoseconds as usize {
                value as f64 / 1e9
            } else {
                value as f64
            }
        };
        let labels: Vec<_> = spec
            .labels
            .iter()
            .map(|&(k, v)| (k, v.to_owned()))
            .collect();
        let samples = if PER_SHARD_METRICS
            .iter()
            .any(|&metric| metric as usize == at)
        {
            (0..)
                .zip(shards)
                .map(|(n, shard): (usize, _)| MetricSample {
                    labels: [labels.clone(), vec![("shard", n.to_string())]].concat(),
                    value: MetricValue::Number(read(shard)),
                })
                .collect()
        } else {
            let sum = shards.iter().map(|shard| read(shard)).sum();
            vec![MetricSample {
                labels,
                value: MetricValue::Number(sum),
            }]
        };
        match families
            .iter_mut()
            .find(|family| family.name == spec.family)
        {
            Some(family) => family.samples.extend(samples),
            None => families.push(MetricFamily {
                name: spec.family,
                help: spec.help,
                kind: spec.kind,
                samples,
            }),
        }
    }
    families.push(latency_family(shards));
    families
}

fn latency_family(shards: &[std::sync::Arc<ShardMetrics>]) -> MetricFamily {
    let sum_of = |pick: &dyn Fn(&ShardMetrics) -> u64| shards.iter().map(|s| pick(s)).sum::<u64>();
    let mut count = 0;
    let mut buckets = Vec::new();
    for (at, bound) in LATENCY_BOUNDS_US.iter().enumerate() {
        count += sum_of(&|shard| shard.latency_buckets[at].load(Relaxed));
        buckets.push((*bound as f64 / 1e6, count));
    }
    count += sum_of(&|shard| shard.latency_buckets[LATENCY_BOUNDS_US.len()].load(Relaxed));
    let sum = sum_of(&|shard| shard.latency_sum_us.load(Relaxed)) as f64 / 1e6;
    MetricFamily {
        name: "publish_to_socket_seconds",
        help: "Time from reading a PUBLISH to writing it to a subscriber's socket, one message in 1,024 sampled.",
        kind: MetricKind::Histogram,
        samples: vec![MetricSample {
            labels: Vec::new(),
            value: MetricValue::Histogram {
                buckets,
                sum,
                count,
            },
        }],
    }
}
