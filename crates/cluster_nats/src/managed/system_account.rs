//! Requests to the system account of managed servers: the servers that JetStream counts, and the removal of one.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::client::RequestErrorKind;
use bytes::Bytes;
use cluster::{ClusterError, NodeName};
use serde::Deserialize;
use serde_json::json;

use crate::client::{self, ClientEvents, ClientPurpose};
use crate::connection::unreachable;
use crate::settings::NatsSettings;

/// A server that JetStream counts when it looks for a majority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsServer {
    /// The name of its node.
    pub node: String,
    /// Whether it decides on streams.
    pub is_leader: bool,
    /// Whether it has all changes of streams.
    pub is_current: bool,
    pub is_offline: bool,
    /// Time since the leader has heard of it.
    pub silent: Duration,
    /// Changes of streams that it does not have yet.
    pub lag: u64,
}

/// The leader hears of each server every second. NATS itself reports a server as offline much later.
const DISCONNECTED_AFTER: Duration = Duration::from_secs(5);

impl NatsServer {
    /// Whether the leader has heard of it recently.
    pub fn is_connected(&self) -> bool {
        !self.is_offline && self.silent < DISCONNECTED_AFTER
    }
}

#[derive(Deserialize)]
struct JetStreamAnswer {
    data: JetStreamData,
}

#[derive(Deserialize)]
struct JetStreamData {
    meta_cluster: Option<MetaCluster>,
}

#[derive(Deserialize)]
struct MetaCluster {
    #[serde(default)]
    leader: String,
    #[serde(default)]
    replicas: Vec<Replica>,
}

#[derive(Deserialize)]
struct Replica {
    name: String,
    #[serde(default)]
    current: bool,
    #[serde(default)]
    offline: bool,
    /// Nanoseconds.
    #[serde(default)]
    active: u64,
    #[serde(default)]
    lag: u64,
}

#[derive(Deserialize)]
struct RemoveAnswer {
    #[serde(default)]
    success: bool,
    error: Option<async_nats::jetstream::Error>,
}

/// A connection to the system account, which exists for a few requests.
pub(super) struct SystemAccount {
    client: Client,
    events: Arc<ClientEvents>,
}

impl SystemAccount {
    /// `settings` are those of the system account.
    pub(super) async fn connect(settings: &NatsSettings) -> Result<Self, ClusterError> {
        let events = Arc::new(ClientEvents::default());
        let purpose = ClientPurpose {
            name: "tidegate system".to_owned(),
            command_capacity: 16,
            subscription_capacity: 64,
        };
        let client = client::start(settings, purpose, &events)
            .await
            .map_err(|error| ClusterError::Rejected(error.to_string()))?;
        Ok(Self { client, events })
    }

    /// The servers, by the leader of JetStream.
    pub(super) async fn servers(&self) -> Result<Vec<NatsServer>, ClusterError> {
        let question = json!({"leader_only": true}).to_string();
        let answer = self
            .request("$SYS.REQ.SERVER.PING.JSZ", question.into())
            .await?;
        let answer: JetStreamAnswer =
            serde_json::from_slice(&answer).map_err(|error| unreadable(&error))?;
        let Some(cluster) = answer.data.meta_cluster else {
            return Ok(Vec::new());
        };
        let leader = NatsServer {
            node: cluster.leader,
            is_leader: true,
            is_current: true,
            is_offline: false,
            silent: Duration::ZERO,
            lag: 0,
        };
        let others = cluster.replicas.into_iter().map(|replica| NatsServer {
            node: replica.name,
            is_leader: false,
            is_current: replica.current,
            is_offline: replica.offline,
            silent: Duration::from_nanos(replica.active),
            lag: replica.lag,
        });
        let mut servers: Vec<NatsServer> = std::iter::once(leader).chain(others).collect();
        servers.sort_by(|a, b| a.node.cmp(&b.node));
        Ok(servers)
    }

    /// Removes a server that does not come back from those that are counted for a majority.
    pub(super) async fn remove_server(&self, node: &NodeName) -> Result<(), ClusterError> {
        let request = json!({"peer": node.as_str()}).to_string();
        let answer = self
            .request("$JS.API.SERVER.REMOVE", request.into())
            .await?;
        let answer: RemoveAnswer =
            serde_json::from_slice(&answer).map_err(|error| unreadable(&error))?;
        match answer.error {
            None if answer.success => Ok(()),
            None => Err(ClusterError::Rejected(format!(
                "the server {node} was not removed"
            ))),
            Some(error) => Err(ClusterError::Rejected(error.to_string())),
        }
    }

    async fn request(&self, subject: &'static str, body: Bytes) -> Result<Bytes, ClusterError> {
        match self.client.request(subject, body).await {
            Ok(message) => Ok(message.payload),
            Err(error) => Err(match error.kind() {
                RequestErrorKind::TimedOut | RequestErrorKind::NoResponders => unreachable(
                    "JetStream has no leader now; more than half of the NATS servers must be running",
                ),
                _ => unreachable(error.to_string()),
            }),
        }
    }
}

impl Drop for SystemAccount {
    fn drop(&mut self) {
        self.events.close();
    }
}

fn unreadable(error: &serde_json::Error) -> ClusterError {
    ClusterError::Unreadable {
        what: "an answer of a NATS server".to_owned(),
        detail: error.to_string(),
    }
}
