//! What the API shows of the cluster, and what it does there.

use std::sync::Arc;
use std::time::Duration;

use api::{
    ClusterBackend, ClusterChangeError, ClusterMember, ClusterMessages, ClusterNats,
    ClusterNatsServer, ClusterObjects, ClusterRebalance, ClusterServer, ClusterServers,
    ClusterServersError, ClusterServersFuture, ClusterStatus, EvictFuture, NatsConnectionState,
    NodeAnswerFuture, NodeCallHandler, RebalanceChangeFuture, RebalanceFuture, TelemetryCopyPlace,
};
use cluster::{
    ClusterError, Member, NodeName, ObjectName, PeerNodeInfo, PeerNodeObserver as _, ReplicaPhase,
};
use cluster_nats::{ManagedNatsState, NatsState};
use hooks::MetricFamily;
use telemetry_copy::TelemetryCopies;

use super::NodeCluster;
use crate::serve::cluster_rebalance::ClusterRebalancing;
use crate::serve::cluster_requests::{
    API_CALL_TIMEOUT, API_CALLS, CLIENT_REQUESTS, DRAINS, DrainRequest, REBALANCING,
};
use crate::serve::cluster_standby::{standby_metrics, standby_status};
use crate::serve::cluster_telemetry_copy::{telemetry_copy_metrics, telemetry_copy_status};

/// How long the leader of the NATS servers has for its answer.
const SERVERS_TIMEOUT: Duration = Duration::from_secs(3);

impl NodeCluster {
    fn rebalancing(&self) -> ClusterRebalancing<'_> {
        ClusterRebalancing {
            subject: REBALANCING,
            node: &self.shared.node,
            requests: &self.shared.observer.requests,
            rebalance: &self.shared.rebalance,
            drain: &self.shared.drain,
        }
    }

    fn objects_status(&self) -> ClusterObjects {
        let status = self.shared.objects.status();
        let name = |name: &ObjectName| format!("{}/{}", name.kind, name.id);
        ClusterObjects {
            is_synchronized: status.phase == ReplicaPhase::Synchronized,
            count: status.objects as u64,
            conflicts: status.conflicts.iter().map(name).collect(),
            local_only: status.local_only.iter().map(name).collect(),
            error: status.error,
        }
    }

    fn counters(&self) -> ClusterMessages {
        use std::sync::atomic::Ordering::Relaxed;
        let counters = self.shared.observer.inbox.counters();
        let status = self.shared.fabric.status();
        ClusterMessages {
            sent: counters.messages_sent.load(Relaxed),
            received: counters.messages_received.load(Relaxed),
            dropped_behind: counters.dropped_behind.load(Relaxed),
            dropped_no_member: counters.dropped_no_member.load(Relaxed),
            invalid: counters.invalid.load(Relaxed),
            lost_frames: status.dropped_outgoing_frames + status.dropped_incoming_frames,
        }
    }

    pub(in crate::serve) fn metrics(&self) -> Vec<MetricFamily> {
        let status = self.status();
        let reachable = status.members.iter().filter(|member| member.is_reachable);
        let queued: u64 = status
            .members
            .iter()
            .map(|member| member.queued_bytes)
            .sum();
        let messages = &status.messages;
        let mut families = vec![
            MetricFamily::gauge(
                "cluster_connected",
                "1 while the NATS servers can be used.",
                f64::from(u8::from(status.nats.state == NatsConnectionState::Ready)),
            ),
            MetricFamily::gauge(
                "cluster_members",
                "Members of the cluster, this one included.",
                status.members.len() as f64,
            ),
            MetricFamily::gauge(
                "cluster_reachable_members",
                "Members of the cluster that can be reached, this one included.",
                reachable.count() as f64,
            ),
            MetricFamily::gauge(
                "cluster_queued_bytes",
                "Bytes of messages to other nodes that are queued or not acknowledged yet.",
                queued as f64,
            ),
            MetricFamily::counter(
                "cluster_messages_sent_total",
                "Application messages sent to other nodes.",
                messages.sent,
            ),
            MetricFamily::counter(
                "cluster_messages_received_total",
                "Application messages received from other nodes.",
                messages.received,
            ),
            MetricFamily::counter(
                "cluster_messages_dropped_behind_total",
                "QoS 0 messages dropped because a node or a shard was behind.",
                messages.dropped_behind,
            ),
            MetricFamily::counter(
                "cluster_messages_dropped_no_member_total",
                "Messages for a shared subscription that had no member any more.",
                messages.dropped_no_member,
            ),
            MetricFamily::counter(
                "cluster_invalid_messages_total",
                "Messages of other nodes that could not be read.",
                messages.invalid,
            ),
            MetricFamily::counter(
                "cluster_lost_frames_total",
                "Frames between nodes that were lost and sent again.",
                messages.lost_frames,
            ),
        ];
        families.extend(standby_metrics(
            &self.shared.observer.session_copies.status(),
        ));
        let copies = self.shared.observer.telemetry_copies.get();
        families.extend(copies.into_iter().flat_map(telemetry_copy_metrics));
        families
    }
}

impl ClusterBackend for NodeCluster {
    fn node(&self) -> &str {
        self.shared.settings.node.as_str()
    }

    fn servers(&self) -> ClusterServersFuture<'_> {
        Box::pin(async move {
            let Some(managed) = &self.shared.managed else {
                return Err(ClusterServersError::External);
            };
            let listing = async {
                let monitor = &self.shared.server_monitor;
                let monitor = monitor.get_or_try_init(|| managed.monitor()).await?;
                monitor.servers().await
            };
            let servers = match tokio::time::timeout(SERVERS_TIMEOUT, listing).await {
                Ok(Ok(servers)) => servers,
                Ok(Err(error)) => return Err(ClusterServersError::Unavailable(error.to_string())),
                Err(_) => {
                    let reason = "they do not answer";
                    return Err(ClusterServersError::Unavailable(reason.to_owned()));
                }
            };
            let mut nodes = self.other_nodes();
            nodes.push(self.node().to_owned());
            let data = servers.into_iter().map(|server| ClusterNatsServer {
                has_node: nodes.contains(&server.node),
                is_leader: server.is_leader,
                is_connected: server.is_connected(),
                is_current: server.is_current,
                missing_changes: server.lag,
                silent_ms: server.silent.as_millis() as u64,
                name: server.node,
            });
            Ok(ClusterServers {
                data: data.collect(),
            })
        })
    }

    fn other_nodes(&self) -> Vec<String> {
        let members = self.shared.node.members();
        let mut names: Vec<_> = members
            .into_iter()
            .map(|info| info.member.node.to_string())
            .collect();
        names.sort();
        names
    }

    fn request<'a>(&'a self, node: &'a str, request: Vec<u8>) -> NodeAnswerFuture<'a> {
        Box::pin(async move {
            let node = NodeName::new(node).map_err(|error| error.to_string())?;
            let requests = &self.shared.observer.requests;
            let answer = requests.request(&node, CLIENT_REQUESTS, &request);
            answer.await.map_err(|error| error.to_string())
        })
    }

    fn attach_api(&self, api: Arc<dyn NodeCallHandler>) {
        // Set once.
        let _ = self.shared.observer.api.set(api);
    }

    fn call<'a>(&'a self, node: &'a str, request: Vec<u8>) -> NodeAnswerFuture<'a> {
        Box::pin(async move {
            let node = NodeName::new(node).map_err(|error| error.to_string())?;
            let requests = &self.shared.observer.requests;
            let answer = requests.request_within(API_CALL_TIMEOUT, &node, API_CALLS, &request);
            answer.await.map_err(|error| error.to_string())
        })
    }

    fn status(&self) -> ClusterStatus {
        let shared = &*self.shared;
        let status = shared.fabric.status();
        let problem = (shared.node.name_in_use())
            .map(|other| {
                format!(
                    "another running node has the name {}; give each node its own cluster.node",
                    other.node
                )
            })
            .or_else(|| shared.node.renewal_error());
        let load = shared.observer.load();
        let own = Member {
            connections: load.connections,
            sessions: load.sessions,
            is_draining: load.is_draining,
            rebalance_target: load.rebalance_target,
            ..shared.node.local()
        };
        let own = ClusterMember {
            is_self: true,
            ..member(PeerNodeInfo {
                member: own,
                is_reachable: true,
                silent_ms: 0,
                round_trip_ms: None,
                queued_bytes: 0,
                repeated_frames: 0,
            })
        };
        let mut members = vec![own];
        members.extend(shared.node.members().into_iter().map(member));
        members.sort_by(|a, b| a.node.cmp(&b.node));
        ClusterStatus {
            name: shared.settings.name.clone(),
            node: shared.settings.node.to_string(),
            is_complete: shared.observer.inbox.is_ready(),
            problem,
            nats: ClusterNats {
                state: match status.state {
                    NatsState::Ready => NatsConnectionState::Ready,
                    NatsState::Refused => NatsConnectionState::Unusable,
                    NatsState::Disconnected | NatsState::Examining => {
                        NatsConnectionState::Disconnected
                    }
                },
                since_ms: status.since_ms,
                server_name: status.server_name,
                server_version: status.server_version,
                last_error: status.last_error,
                round_trip_ms: status.round_trip.map(|time| time.as_secs_f64() * 1000.0),
                reconnects: status.reconnects,
                managed: shared.managed.as_ref().map(|managed| {
                    let server = managed.status();
                    ClusterServer {
                        is_running: server.state == ManagedNatsState::Running,
                        pid: server.pid,
                        version: server.version,
                        restarts: server.restarts,
                        last_error: server.last_error,
                        resident_bytes: server.resident_bytes,
                        cpu_seconds: server.cpu_ms.map(|ms| ms as f64 / 1000.0),
                    }
                }),
            },
            members,
            messages: self.counters(),
            objects: self.objects_status(),
            drain: shared.drain.status(),
            standby: standby_status(shared.observer.session_copies.status()),
            telemetry_copy: telemetry_copy_status(shared.observer.telemetry_copies.get()),
        }
    }

    fn set_draining<'a>(&'a self, node: &'a str, is_draining: bool) -> EvictFuture<'a> {
        Box::pin(async move {
            let Ok(name) = NodeName::new(node) else {
                return Err(ClusterChangeError::NotFound);
            };
            if name == self.shared.settings.node {
                let outcome = self.shared.drain.set_draining(is_draining);
                return outcome.map_err(ClusterChangeError::Unavailable);
            }
            let members = self.shared.node.members();
            if !members.iter().any(|info| info.member.node == name) {
                return Err(ClusterChangeError::NotFound);
            }
            let request = serde_json::to_vec(&DrainRequest { is_draining })
                .map_err(|error| ClusterChangeError::Unavailable(error.to_string()))?;
            let requests = &self.shared.observer.requests;
            match requests.request(&name, DRAINS, &request).await {
                Ok(_) => Ok(()),
                Err(error) => Err(ClusterChangeError::Unavailable(error.to_string())),
            }
        })
    }

    fn rebalance(&self) -> RebalanceFuture<'_> {
        Box::pin(async move { self.rebalancing().read().await })
    }

    fn start_rebalance(&self) -> RebalanceChangeFuture<'_, ClusterRebalance> {
        Box::pin(async move { self.rebalancing().start().await })
    }

    fn cancel_rebalance(&self) -> RebalanceChangeFuture<'_, ()> {
        Box::pin(async move { self.rebalancing().cancel().await })
    }

    fn telemetry_copies(&self) -> Vec<TelemetryCopyPlace> {
        let copies = self.shared.observer.telemetry_copies.get();
        let places = copies.map(TelemetryCopies::places).unwrap_or_default();
        let places = places.into_iter().map(|place| TelemetryCopyPlace {
            key: place.copy.key,
            node: place.copy.node,
            holder: place.holder,
            is_orphan: place.copy.is_orphan,
            sent_ms: place.copy.sent_ms,
        });
        places.collect()
    }

    fn evict<'a>(&'a self, node: &'a str) -> EvictFuture<'a> {
        Box::pin(async move {
            let Ok(name) = NodeName::new(node) else {
                return Err(ClusterChangeError::NotFound);
            };
            let members = self.shared.node.members();
            let known = members.iter().find(|info| info.member.node == name);
            if name == self.shared.settings.node {
                return Err(ClusterChangeError::NotFound);
            }
            if known.is_some_and(|known| known.is_reachable) {
                return Err(ClusterChangeError::Reachable);
            }
            let names = members.iter().map(|info| info.member.node.clone());
            let names: Vec<_> = names.chain([self.shared.settings.node.clone()]).collect();
            let (this, evicted) = (self.clone(), name.clone());
            let cancelled = tokio::task::spawn_blocking(move || {
                let copies = &this.shared.observer.session_copies;
                copies.cancel_adoptions(&evicted, &names)
            });
            match cancelled.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(ClusterChangeError::Unavailable(error)),
                Err(error) => return Err(ClusterChangeError::Unavailable(error.to_string())),
            }
            let unavailable =
                |error: ClusterError| ClusterChangeError::Unavailable(error.to_string());
            // First, so that the call can be repeated. The server counts for the majority until it is removed, also when
            // the entry of the member has expired.
            let mut had_server = false;
            if let Some(managed) = &self.shared.managed {
                let servers = managed.servers().await.map_err(unavailable)?;
                had_server = servers.iter().any(|server| server.node == name.as_str());
                if had_server {
                    managed.remove_server(&name).await.map_err(unavailable)?;
                }
            }
            if known.is_some() {
                self.shared.node.evict(&name).await.map_err(unavailable)?;
            } else if !had_server {
                return Err(ClusterChangeError::NotFound);
            }
            Ok(())
        })
    }
}

fn member(info: PeerNodeInfo) -> ClusterMember {
    ClusterMember {
        node: info.member.node.to_string(),
        is_self: false,
        is_reachable: info.is_reachable,
        version: info.member.version,
        started_ms: info.member.started_ms,
        silent_ms: info.silent_ms,
        round_trip_ms: info.round_trip_ms,
        queued_bytes: info.queued_bytes as u64,
        repeated_frames: info.repeated_frames,
        connections: info.member.connections,
        sessions: info.member.sessions,
        is_draining: info.member.is_draining,
        rebalance_target: info.member.rebalance_target,
        api_url: info.member.api_url,
        server_reference: info.member.server_reference,
    }
}
