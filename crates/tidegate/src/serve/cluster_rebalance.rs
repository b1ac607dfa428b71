//! Rebalancing of the cluster: asks all nodes for their connections, and lets those with too many disconnect clients.

use std::sync::Arc;

use api::{
    ClusterRebalance, RebalanceError, RebalanceExclusion, RebalanceNode, RebalanceRun,
    RebalanceState,
};
use bytes::Bytes;
use cluster::{ClusterNode, NodeName, NodeRequests, RequestError};
use serde::{Deserialize, Serialize};

use super::cluster_drain::NodeDrain;
use super::node_rebalance::NodeRebalance;
use super::rebalance_plan::{NodeConnections, RebalancePlan};

/// A request of this subject.
#[derive(Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
enum RebalanceRequest {
    Read,
    Start { target: u64 },
    Cancel,
}

/// The answer to all requests.
#[derive(Serialize, Deserialize)]
struct NodeAnswer {
    connections: u64,
    bound: u64,
    is_draining: bool,
    run: Option<RebalanceRun>,
}

/// Answers the request of another node.
///
/// # Errors
/// Why it cannot be done.
pub(super) async fn answer(
    rebalance: Arc<NodeRebalance>,
    drain: Arc<NodeDrain>,
    body: Bytes,
) -> Result<Bytes, String> {
    let request = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    let answer = execute(&rebalance, &drain, &request).await?;
    let answer = serde_json::to_vec(&answer).map_err(|error| error.to_string())?;
    Ok(answer.into())
}

async fn execute(
    rebalance: &NodeRebalance,
    drain: &NodeDrain,
    request: &RebalanceRequest,
) -> Result<NodeAnswer, String> {
    match *request {
        RebalanceRequest::Read => {}
        RebalanceRequest::Start { target } => rebalance.start(target)?,
        RebalanceRequest::Cancel => rebalance.cancel(),
    }
    let (connections, bound) = rebalance.connections().await?;
    Ok(NodeAnswer {
        connections,
        bound,
        is_draining: drain.is_draining(),
        run: rebalance.last_run(),
    })
}

/// The rebalancing of the cluster, as this node reads and changes it.
pub(super) struct ClusterRebalancing<'a> {
    pub(super) subject: u8,
    pub(super) node: &'a ClusterNode,
    pub(super) requests: &'a Arc<NodeRequests>,
    pub(super) rebalance: &'a NodeRebalance,
    pub(super) drain: &'a NodeDrain,
}

impl ClusterRebalancing<'_> {
    /// The connections of all members, and what would be done about them.
    pub(super) async fn read(&self) -> ClusterRebalance {
        let mut nodes = Vec::new();
        // All are asked before the first answer is waited for.
        let asked = self.node.members().into_iter().map(|info| {
            let name = info.member.node.clone();
            let answer = info
                .is_reachable
                .then(|| self.request(&name, &RebalanceRequest::Read));
            (info.member, answer)
        });
        let own = self.node.local().node;
        let own_answer = execute(self.rebalance, self.drain, &RebalanceRequest::Read);
        let asked: Vec<_> = asked.collect();
        nodes.push(surveyed(&own, (0, false), Some(own_answer.await)));
        for (member, answer) in asked {
            let answer = match answer {
                Some(answer) => Some(answer.await.map_err(|error| error.to_string())),
                None => None,
            };
            let seen = (member.connections, member.is_draining);
            nodes.push(surveyed(&member.node, seen, answer));
        }
        nodes.sort_by(|a, b| a.node.cmp(&b.node));
        with_plan(nodes)
    }

    /// Lets the nodes with too many connections disconnect clients.
    pub(super) async fn start(&self) -> Result<ClusterRebalance, RebalanceError> {
        let mut rebalance = self.read().await;
        if let Some(obstacle) = rebalance.obstacle {
            return Err(RebalanceError::Conflict(obstacle));
        }
        let donors: Vec<_> = donors(&rebalance.nodes).collect();
        let unanswered = donors
            .iter()
            .find_map(|(node, _)| Some((&node.node, node.error.as_ref()?)));
        if let Some((node, error)) = unanswered {
            return Err(RebalanceError::Unavailable(format!(
                "The node {node} has too many connections, but does not answer: {error}. No client is disconnected."
            )));
        }
        let mut started = Vec::new();
        let mut failure = None;
        for (node, target) in donors {
            let request = RebalanceRequest::Start { target };
            match self.change(&node.node, &request).await {
                Ok(answer) => started.push((node.node.clone(), answer)),
                Err(error) => {
                    failure = Some(format!(
                        "The node {} did not start: {error}. No node disconnects clients.",
                        node.node
                    ));
                    break;
                }
            }
        }
        if let Some(reason) = failure {
            for (node, _) in started {
                if let Err(error) = self.change(&node, &RebalanceRequest::Cancel).await {
                    tracing::warn!(node, %error, "a node may continue to disconnect clients although the rebalancing was not started");
                }
            }
            return Err(RebalanceError::Unavailable(reason));
        }
        for (name, answer) in started {
            let mut nodes = rebalance.nodes.iter_mut();
            if let Some(node) = nodes.find(|node| node.node == name) {
                node.run = answer.run;
            }
        }
        rebalance.is_running = true;
        rebalance.obstacle = running_obstacle(&rebalance.nodes);
        Ok(rebalance)
    }

    /// Lets all nodes stop.
    pub(super) async fn cancel(&self) -> Result<(), RebalanceError> {
        self.rebalance.cancel();
        let members = self.node.members().into_iter();
        let reachable = members.filter(|info| info.is_reachable);
        let asked = reachable.map(|info| {
            let name = info.member.node;
            let answer = self.request(&name, &RebalanceRequest::Cancel);
            (name, answer)
        });
        let mut failures = Vec::new();
        for (name, answer) in asked.collect::<Vec<_>>() {
            match answer.await {
                // Its version disconnects no clients for this.
                Ok(_) | Err(RequestError::Unsupported) => {}
                Err(error) => failures.push(format!("{name}: {error}")),
            }
        }
        match failures.is_empty() {
            true => Ok(()),
            false => Err(RebalanceError::Unavailable(format!(
                "Nodes may continue to disconnect clients, because they have not answered: {}. Repeat the request.",
                failures.join("; ")
            ))),
        }
    }

    /// Executes a request at this node or at another one.
    async fn change(&self, node: &str, request: &RebalanceRequest) -> Result<NodeAnswer, String> {
        let name = NodeName::new(node).map_err(|error| error.to_string())?;
        if name == self.node.local().node {
            return execute(self.rebalance, self.drain, request).await;
        }
        let answer = self.request(&name, request).await;
        answer.map_err(|error| error.to_string())
    }

    /// Sends the request at once.
    fn request(
        &self,
        node: &NodeName,
        request: &RebalanceRequest,
    ) -> impl Future<Output = Result<NodeAnswer, RequestError>> + Send + use<> {
        let body = serde_json::to_vec(request).expect("names and numbers can be written as JSON");
        let answer = self.requests.request(node, self.subject, &body);
        async move {
            let answer = answer.await?;
            serde_json::from_slice(&answer).map_err(|error| RequestError::Failed(error.to_string()))
        }
    }
}

/// A node by its answer, or by what its entry says (connections, whether it is drained). `None`: it was not asked.
fn surveyed(
    node: &NodeName,
    (connections, is_draining): (u64, bool),
    answer: Option<Result<NodeAnswer, String>>,
) -> RebalanceNode {
    let is_asked = answer.is_some();
    let (answer, error) = match answer {
        Some(Ok(answer)) => (Some(answer), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let said = answer.as_ref();
    let connections = said.map_or(connections, |answer| answer.connections);
    let is_draining = said.map_or(is_draining, |answer| answer.is_draining);
    let exclusion = match is_asked {
        false => Some(RebalanceExclusion::Unreachable),
        true => is_draining.then_some(RebalanceExclusion::Draining),
    };
    RebalanceNode {
        node: node.to_string(),
        connections,
        bound: said.map(|answer| answer.bound),
        target: None,
        after: connections,
        exclusion,
        error,
        run: answer.and_then(|answer| answer.run),
    }
}

/// Adds what a rebalancing does.
fn with_plan(mut nodes: Vec<RebalanceNode>) -> ClusterRebalance {
    let taking_part: Vec<usize> = (0..nodes.len())
        .filter(|&index| nodes[index].exclusion.is_none())
        .collect();
    let connections: Vec<_> = taking_part
        .iter()
        .map(|&index| NodeConnections {
            connections: nodes[index].connections,
            bound: nodes[index].bound,
        })
        .collect();
    let plan = RebalancePlan::new(&connections);
    for (&index, planned) in taking_part.iter().zip(&plan.nodes) {
        nodes[index].target = planned.target;
        nodes[index].after = planned.after;
    }
    for node in &mut nodes {
        let run = node.run.as_ref();
        if let Some(run) = run.filter(|run| run.state == RebalanceState::Running) {
            node.target = Some(run.target);
        }
    }
    let running = running_obstacle(&nodes);
    let average = plan.average;
    let obstacle = if running.is_some() {
        running.clone()
    } else if !plan.is_empty() {
        None
    } else if taking_part.len() < 2 {
        Some("There is no other node that could take clients: one that can be reached and is not drained.".to_owned())
    } else if plan.is_bound {
        Some("Nothing is to be done: the connections that a node has too many would stay, because their durable sessions are there.".to_owned())
    } else {
        Some(format!(
            "Nothing is to be done: no node has over 5 %, and at least 5, more connections than the average of {average}."
        ))
    };
    ClusterRebalance {
        average,
        is_running: running.is_some(),
        obstacle,
        nodes,
    }
}

fn donors(nodes: &[RebalanceNode]) -> impl Iterator<Item = (&RebalanceNode, u64)> {
    nodes.iter().filter_map(|node| Some((node, node.target?)))
}

/// That a rebalancing is running, and where.
fn running_obstacle(nodes: &[RebalanceNode]) -> Option<String> {
    let is_running = |node: &&RebalanceNode| {
        let run = node.run.as_ref();
        run.is_some_and(|run| run.state == RebalanceState::Running)
    };
    let names: Vec<_> = nodes
        .iter()
        .filter(is_running)
        .map(|node| node.node.as_str())
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "A rebalancing is running at {}; wait for its end, or cancel it.",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(name: &str, connections: u64, bound: u64) -> RebalanceNode {
        let answer = NodeAnswer {
            connections,
            bound,
            is_draining: false,
            run: None,
        };
        surveyed(&NodeName::new(name).unwrap(), (0, false), Some(Ok(answer)))
    }

    fn targets(rebalance: &ClusterRebalance) -> Vec<Option<u64>> {
        rebalance.nodes.iter().map(|node| node.target).collect()
    }

    #[test]
    fn nodes_that_are_drained_or_not_reachable_take_no_part() {
        let name = |name| NodeName::new(name).unwrap();
        let nodes = vec![
            answered("a", 100, 0),
            answered("b", 0, 0),
            surveyed(&name("c"), (900, true), Some(Err("no".to_owned()))),
            surveyed(&name("d"), (900, false), None),
        ];
        let rebalance = with_plan(nodes);
        assert_eq!(rebalance.average, 50);
        assert_eq!(targets(&rebalance), [Some(50), None, None, None]);
        let exclusions: Vec<_> = rebalance.nodes.iter().map(|node| node.exclusion).collect();
        let (draining, unreachable) = (
            RebalanceExclusion::Draining,
            RebalanceExclusion::Unreachable,
        );
        assert_eq!(exclusions, [None, None, Some(draining), Some(unreachable)]);
        assert_eq!(rebalance.obstacle, None);
    }

    #[test]
    fn the_reason_why_nothing_is_done_is_named() {
        let alone = with_plan(vec![answered("a", 100, 0)]).obstacle.unwrap();
        assert!(alone.starts_with("There is no other node"), "{alone}");
        let even = vec![answered("a", 100, 0), answered("b", 98, 0)];
        let even = with_plan(even).obstacle.unwrap();
        assert!(even.contains("the average of 99."), "{even}");
        let bound = vec![answered("a", 100, 100), answered("b", 0, 0)];
        let bound = with_plan(bound).obstacle.unwrap();
        assert!(bound.contains("durable sessions"), "{bound}");
        let mut running = answered("a", 100, 0);
        running.run = Some(RebalanceRun {
            since_ms: 1,
            target: 50,
            disconnected: 0,
            state: RebalanceState::Running,
        });
        let running = with_plan(vec![running, answered("b", 0, 0)]);
        assert!(running.is_running);
        assert!(running.obstacle.unwrap().contains("running at a;"));
    }

    #[test]
    fn an_earlier_version_may_have_too_many_connections() {
        let error = RequestError::Unsupported.to_string();
        let name = NodeName::new("a").unwrap();
        let earlier = surveyed(&name, (100, false), Some(Err(error)));
        let rebalance = with_plan(vec![earlier, answered("b", 0, 0)]);
        assert_eq!(targets(&rebalance), [Some(50), None]);
        let error = rebalance.nodes[0].error.as_ref().unwrap();
        assert!(error.contains("update it"), "{error}");
    }
}
