//! Requests of other nodes of the cluster, and who answers them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use broker::BrokerHandle;
use bytes::Bytes;
use cluster::{BoxFuture, NodeName, RequestHandler};
use relay::RelayService;
use serde::{Deserialize, Serialize};

use super::cluster_drain::NodeDrain;
use super::cluster_observer::BrokerObserver;
use super::node_rebalance::NodeRebalance;
use super::{cluster_pulls, cluster_rebalance};

/// Subject of requests that the API executes, see [`api::answer_node_request`].
pub(super) const CLIENT_REQUESTS: u8 = 1;
/// Subject of texts for the connections of a relay endpoint.
pub(super) const RELAY_TEXTS: u8 = 2;
/// Subject of the start and the end of a drain.
pub(super) const DRAINS: u8 = 3;
/// Subject of readings of pull sources for the devices of other nodes.
pub(super) const READINGS: u8 = 4;
/// Subject of calls of the API, see [`api::NodeCallHandler`].
pub(super) const API_CALLS: u8 = 5;
/// Subject of commands that wait for devices at other nodes.
pub(super) const COMMANDS: u8 = 6;
/// Subject of images of firmware that other nodes have.
pub(super) const FIRMWARE: u8 = 7;
/// Subject of rebalancing, see [`ClusterRebalancing`](super::cluster_rebalance::ClusterRebalancing).
pub(super) const REBALANCING: u8 = 8;
/// Subject of the places of devices, see [`ClusterAlarms`](super::cluster_alarms::ClusterAlarms).
pub(super) const ALARM_PLACES: u8 = 9;
/// Subject of copies of telemetry, see [`TelemetryCopies`](telemetry_copy::TelemetryCopies).
pub(super) const TELEMETRY_COPIES: u8 = 10;
/// Time for the answer to a request about a copy of telemetry, which may wait for the disk.
pub(super) const TELEMETRY_COPY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for the answer of a call of the API, which has limits of its own.
pub(super) const API_CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// A text that the connections of a relay endpoint get as it is, at all nodes.
#[derive(Serialize, Deserialize)]
pub(super) struct RelayText {
    pub(super) endpoint: String,
    pub(super) text: String,
}

/// Starts or cancels the drain of a node.
#[derive(Serialize, Deserialize)]
pub(super) struct DrainRequest {
    pub(super) is_draining: bool,
}

/// Answers requests of other nodes.
pub(super) struct BrokerRequests {
    pub(super) broker: BrokerHandle,
    pub(super) relay: RelayService,
    pub(super) drain: Arc<NodeDrain>,
    pub(super) rebalance: Arc<NodeRebalance>,
    pub(super) observer: Weak<BrokerObserver>,
    pub(super) node: NodeName,
}

impl RequestHandler for BrokerRequests {
    fn answer(
        &self,
        subject: u8,
        body: Bytes,
    ) -> Option<BoxFuture<'static, Result<Bytes, String>>> {
        match subject {
            CLIENT_REQUESTS => {
                let (broker, node) = (self.broker.clone(), self.node.clone());
                Some(Box::pin(async move {
                    let answer = api::answer_node_request(&broker, node.as_str(), &body);
                    answer.await.map(Bytes::from)
                }))
            }
            RELAY_TEXTS => {
                let relay = self.relay.clone();
                Some(Box::pin(async move {
                    let text: RelayText =
                        serde_json::from_slice(&body).map_err(|error| error.to_string())?;
                    // This node may not know a new endpoint yet, and then has no connections of it.
                    let _ = relay.send_to_all(&text.endpoint, &text.text);
                    Ok(Bytes::new())
                }))
            }
            DRAINS => {
                let drain = self.drain.clone();
                Some(Box::pin(async move {
                    let request: DrainRequest =
                        serde_json::from_slice(&body).map_err(|error| error.to_string())?;
                    drain.set_draining(request.is_draining)?;
                    Ok(Bytes::new())
                }))
            }
            REBALANCING => {
                let (rebalance, drain) = (self.rebalance.clone(), self.drain.clone());
                Some(Box::pin(cluster_rebalance::answer(rebalance, drain, body)))
            }
            READINGS => {
                let observer = self.observer.upgrade()?;
                Some(Box::pin(async move {
                    let store = move || {
                        let reporter = observer.reporter.get().ok_or("it is starting")?;
                        cluster_pulls::store_sent_readings(reporter, &body)
                    };
                    let stored = tokio::task::spawn_blocking(store).await;
                    stored.map_err(|error| error.to_string())?
                }))
            }
            COMMANDS => {
                let observer = self.observer.upgrade()?;
                Some(Box::pin(async move {
                    let commands = observer.commands.get().cloned();
                    let commands = commands.ok_or("it is starting")?;
                    drop(observer);
                    commands.answer(body).await
                }))
            }
            FIRMWARE => {
                let observer = self.observer.upgrade()?;
                Some(Box::pin(async move {
                    let images = observer.images.get().cloned();
                    let images = images.ok_or("it is starting")?;
                    drop(observer);
                    images.answer(body).await
                }))
            }
            ALARM_PLACES => {
                let observer = self.observer.upgrade()?;
                Some(Box::pin(async move {
                    let places = observer.device_places.get().cloned();
                    let places = places.ok_or("it is starting")?;
                    drop(observer);
                    places.answer(body).await
                }))
            }
            TELEMETRY_COPIES => {
                let observer = self.observer.upgrade()?;
                Some(Box::pin(async move {
                    let copies = observer.telemetry_copies.get().cloned();
                    let copies = copies.ok_or("it is starting")?;
                    drop(observer);
                    let answer = move || copies.answer(&body).map(Bytes::from);
                    let answered = tokio::task::spawn_blocking(answer).await;
                    answered.map_err(|error| error.to_string())?
                }))
            }
            API_CALLS => {
                let observer = self.observer.upgrade()?;
                Some(Box::pin(async move {
                    let api = observer.api.get().cloned();
                    // Not set before HTTP is served.
                    let api = api.ok_or("its HTTP API is not served")?;
                    drop(observer);
                    api.answer(body).await.map(Bytes::from)
                }))
            }
            _ => None,
        }
    }

    fn timeout(&self, subject: u8) -> Option<Duration> {
        match subject {
            API_CALLS => Some(API_CALL_TIMEOUT),
            TELEMETRY_COPIES => Some(TELEMETRY_COPY_TIMEOUT),
            _ => None,
        }
    }
}
