//! A node made of lists, the program around it, and a server that shows them on a port of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use api::{Answer, HttpConfig, Node, NotReady, Program};
use broker::info::{
    ClientInfo, ListenerInfo, MetricFamily, MetricKind, MetricSample, MetricValue, Query,
    SubscriptionInfo, TopicInfo,
};
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

#[derive(Default)]
pub(crate) struct FakeState {
    pub(crate) clients: Mutex<Vec<ClientInfo>>,
    pub(crate) subscriptions: Mutex<Vec<SubscriptionInfo>>,
    pub(crate) not_ready: Mutex<Option<NotReady>>,
    /// Lists of topics are answered only after a permit here, if set.
    pub(crate) hold_topics: AtomicBool,
    pub(crate) topics_asked: Notify,
    pub(crate) let_topics_go: Notify,
    pub(crate) level: Mutex<String>,
}

/// Clients `c000`, `c001` and so on, every third away, and one with an awkward name before them.
impl FakeState {
    pub(crate) fn with_clients(count: usize) -> Arc<Self> {
        let mut clients: Vec<_> = (0..count)
            .map(|index| client(&format!("c{index:03}"), index % 3 != 2))
            .collect();
        clients.push(client("b/ä \"1\"", true));
        clients.sort_by(|a, b| a.client_id.cmp(&b.client_id));
        Arc::new(Self {
            clients: Mutex::new(clients),
            level: Mutex::new("info".into()),
            ..Self::default()
        })
    }
}

pub(crate) fn client(client_id: &str, connected: bool) -> ClientInfo {
    ClientInfo {
        client_id: client_id.into(),
        username: connected.then(|| "ada".into()),
        connected,
        protocol_version: "5.0",
        listener: connected.then(|| "mqtt".into()),
        peer_address: connected.then(|| "127.0.0.1:5000".into()),
        shard: 0,
        clean_start: true,
        keep_alive_s: 60,
        connected_at_ms: connected.then_some(1_700_000_000_000),
        disconnected_at_ms: None,
        session_created_at_ms: 1_700_000_000_000,
        session_expiry_s: 0,
        subscriptions: 0,
        inflight: 0,
        queued_messages: 0,
        queued_bytes: 0,
        queue_age_ms: 0,
        outbox_bytes: 0,
        messages_received: 0,
        messages_sent: 0,
        messages_dropped: 0,
    }
}

pub(crate) fn subscription(client_id: &str, topic_filter: &str) -> SubscriptionInfo {
    SubscriptionInfo {
        client_id: client_id.into(),
        topic_filter: topic_filter.into(),
        qos: 1,
        no_local: false,
        retain_as_published: false,
        retain_handling: 0,
        subscription_identifier: None,
        shard: 0,
    }
}

fn is_asked_for(query: &Query, client_id: &str) -> bool {
    query
        .client_id
        .as_ref()
        .is_none_or(|only| only == client_id)
        && query
            .client_id_contains
            .as_ref()
            .is_none_or(|part| client_id.contains(part))
        && query
            .after
            .as_ref()
            .is_none_or(|after| client_id > after.as_str())
}

#[derive(Clone)]
struct Fake(Arc<FakeState>);

impl Node for Fake {
    fn not_ready(&self) -> Option<NotReady> {
        *self.0.not_ready.lock().unwrap()
    }

    fn listeners(&self) -> Vec<ListenerInfo> {
        vec![ListenerInfo {
            name: "mqtt".into(),
            protocol: "mqtt",
            address: "127.0.0.1:1883".into(),
            running: true,
            connections: 7,
            max_connections: 10,
        }]
    }

    fn clients(&self, query: Query) -> Answer<'_, Vec<ClientInfo>> {
        Box::pin(async move {
            let clients = self.0.clients.lock().unwrap();
            let matching = clients.iter().filter(|client| {
                is_asked_for(&query, &client.client_id)
                    && query
                        .connected
                        .is_none_or(|connected| client.connected == connected)
                    && (query.username.is_none() || client.username == query.username)
            });
            matching.take(query.limit).cloned().collect()
        })
    }

    fn client<'a>(&'a self, client_id: &'a str) -> Answer<'a, Option<ClientInfo>> {
        Box::pin(async move {
            let clients = self.0.clients.lock().unwrap();
            clients
                .iter()
                .find(|client| client.client_id == client_id)
                .cloned()
        })
    }

    fn subscriptions(&self, query: Query) -> Answer<'_, Vec<SubscriptionInfo>> {
        Box::pin(async move {
            let subscriptions = self.0.subscriptions.lock().unwrap();
            let matching = subscriptions.iter().filter(|row| {
                is_asked_for(&query, &row.client_id)
                    && query
                        .topic_filter
                        .as_ref()
                        .is_none_or(|filter| row.topic_filter == *filter)
            });
            matching.take(query.limit).cloned().collect()
        })
    }

    fn topics(&self, query: Query) -> Answer<'_, Vec<TopicInfo>> {
        Box::pin(async move {
            if self.0.hold_topics.load(Ordering::SeqCst) {
                self.0.topics_asked.notify_one();
                self.0.let_topics_go.notified().await;
            }
            let topic = TopicInfo {
                topic_filter: query.matches_topic.unwrap_or_else(|| "a/#".into()),
                subscribers: 2,
                shards: vec![0, 1],
            };
            vec![topic]
        })
    }

    fn kick<'a>(&'a self, client_id: &'a str) -> Answer<'a, bool> {
        Box::pin(async move { self.discard_session(client_id).await })
    }

    fn discard_session<'a>(&'a self, client_id: &'a str) -> Answer<'a, bool> {
        Box::pin(async move {
            let mut clients = self.0.clients.lock().unwrap();
            let before = clients.len();
            clients.retain(|client| client.client_id != client_id);
            clients.len() < before
        })
    }

    fn metrics(&self) -> Answer<'_, Vec<MetricFamily>> {
        Box::pin(async move {
            let labels = vec![("listener", "a\"\\\nb".to_owned())];
            let family = |name, kind, value| MetricFamily {
                name,
                help: "What it is.",
                kind,
                samples: vec![MetricSample {
                    labels: labels.clone(),
                    value,
                }],
            };
            vec![
                family(
                    "messages_received_total",
                    MetricKind::Counter,
                    MetricValue::Number(12.0),
                ),
                family("connections", MetricKind::Gauge, MetricValue::Number(3.0)),
                family(
                    "publish_to_socket_seconds",
                    MetricKind::Histogram,
                    MetricValue::Histogram {
                        buckets: vec![(0.0001, 1), (0.001, 4)],
                        sum: 0.01,
                        count: 5,
                    },
                ),
            ]
        })
    }
}

impl Program for FakeState {
    fn log_level(&self) -> String {
        self.level.lock().unwrap().clone()
    }

    fn set_log_level(&self, level: &str) -> Result<(), String> {
        if !["info", "debug"].contains(&level) {
            return Err("expected info or debug.".into());
        }
        *self.level.lock().unwrap() = level.into();
        Ok(())
    }

    fn metrics(&self) -> Vec<MetricFamily> {
        vec![MetricFamily {
            name: "allocated_bytes",
            help: "Memory handed out by the allocator.",
            kind: MetricKind::Gauge,
            samples: vec![MetricSample {
                labels: vec![],
                value: MetricValue::Number(1024.0),
            }],
        }]
    }
}

/// A server that runs until it is told to stop.
pub(crate) struct Server {
    pub(crate) address: std::net::SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<(), api::Error>>,
}

impl Server {
    pub(crate) async fn start(state: &Arc<FakeState>) -> Self {
        Self::start_with(state, config()).await
    }

    pub(crate) async fn start_with(state: &Arc<FakeState>, config: HttpConfig) -> Self {
        let listener: TcpListener = api::bind(&config).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let (node, program) = (Fake(state.clone()), state.clone());
        let running = tokio::spawn(async move {
            let shutdown = async { stopped.await.unwrap_or(()) };
            api::serve(listener, &config, node, program, shutdown).await
        });
        Self {
            address,
            stop,
            running,
        }
    }

    /// Asks the server to stop; the handle ends when it has.
    pub(crate) fn stop(self) -> JoinHandle<Result<(), api::Error>> {
        self.stop.send(()).unwrap();
        self.running
    }
}

pub(crate) fn config() -> HttpConfig {
    HttpConfig::new("127.0.0.1:0".parse().unwrap())
}
