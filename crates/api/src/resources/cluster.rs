//! The cluster that the node is a member of.

use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::cluster_backend::{
    ClusterBackend, ClusterChangeError, ClusterServers, ClusterServersError, ClusterStatus,
};
use crate::endpoint::{Endpoint, EndpointScope, delete, get, post};
use crate::problem_details::{ApiResult, ProblemDetails};

const DRAIN: &str = "/api/v1/cluster/members/{node}/drain";

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/cluster", "getCluster", status)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("cluster")
            .summary("Read the state of the cluster")
            .description("Members, links and counters as this node sees them.")
            .response::<ClusterStatus>(200, "The cluster.")
            .problem_response(404, "The node is not a member of a cluster."),
        get("/api/v1/cluster/servers", "listClusterServers", servers)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("cluster")
            .summary("List the NATS servers of the cluster")
            .description(
                "The managed servers that count for the majority, those of witnesses among them, as the leader of the servers sees them. While fewer \
                 than a majority run, there is no leader.",
            )
            .response::<ClusterServers>(200, "The servers.")
            .problem_response(404, "The node is not a member of a cluster, or the servers are not managed by the nodes.")
            .problem_response(503, "The servers have no leader, or do not answer."),
        delete("/api/v1/cluster/members/{node}", "evictMember", evict)
            .role(Role::Admin, EndpointScope::Node)
            .tag("cluster")
            .summary("Remove a member that has ended for good")
            .description(
                "A node that stops leaves the cluster itself. This is for one that was lost: the other nodes forget it, and with managed servers \
                 its server counts no longer for the majority.",
            )
            .path_parameter("node", "The name of the node.")
            .empty_response(204, "Removed.")
            .problem_response(404, "The node is not a member of a cluster, or there is no such member.")
            .problem_response(409, "The member can be reached. It leaves the cluster when it is stopped."),
        post(DRAIN, "drainMember", drain)
            .role(Role::Admin, EndpointScope::Node)
            .tag("cluster")
            .summary("Drain a node before you stop it")
            .description(
                "The member accepts no new clients and disconnects those that it has, `cluster.drain_rate` per second. Its durable sessions stay, \
                 and other nodes pass their clients on to it until it is stopped. Ends with the member's process.",
            )
            .path_parameter("node", "The name of the node.")
            .empty_response(204, "The member is draining. A repeated request changes nothing.")
            .problem_response(404, "The node is not a member of a cluster, or there is no such member.")
            .problem_response(503, "The member does not answer."),
        delete(DRAIN, "cancelDrain", cancel_drain)
            .role(Role::Admin, EndpointScope::Node)
            .tag("cluster")
            .summary("Cancel the drain of a member")
            .path_parameter("node", "The name of the node.")
            .empty_response(204, "The member accepts clients.")
            .problem_response(404, "The node is not a member of a cluster, or there is no such member.")
            .problem_response(503, "The member does not answer."),
    ]
}

pub(super) fn backend(call: &ApiCall) -> Result<&dyn ClusterBackend, ProblemDetails> {
    call.app.program.cluster_backend().ok_or_else(|| {
        ProblemDetails::not_found(
            "This node is not a member of a cluster; set cluster.node and cluster.managed or cluster.urls.",
        )
    })
}

async fn status(call: ApiCall) -> ApiResult {
    let status = backend(&call)?.status();
    call::json_response(status)
}

async fn servers(call: ApiCall) -> ApiResult {
    let servers = backend(&call)?.servers().await.map_err(|error| match error {
        ClusterServersError::External => ProblemDetails::not_found(
            "The nodes run no NATS servers themselves (cluster.urls is set); ask the servers for their state.",
        ),
        ClusterServersError::Unavailable(reason) => {
            ProblemDetails::unavailable(format!("The NATS servers cannot be listed: {reason}."))
        }
    })?;
    call::json_response(servers)
}

async fn evict(call: ApiCall) -> ApiResult {
    let node = call.path("node").to_owned();
    backend(&call)?
        .evict(&node)
        .await
        .map_err(|error| match error {
            ClusterChangeError::NotFound => {
                ProblemDetails::not_found(format!("There is no other member {node:?}."))
            }
            ClusterChangeError::Reachable => ProblemDetails::conflict(format!(
                "The member {node:?} can be reached; stop it, then it leaves the cluster."
            )),
            ClusterChangeError::Unavailable(reason) => {
                ProblemDetails::unavailable(format!("The member was not removed: {reason}."))
            }
        })?;
    audit::record_action(&call, "cluster.evict", Some(&node), None).await;
    call::no_content()
}

async fn drain(call: ApiCall) -> ApiResult {
    set_draining(&call, true, "cluster.drain").await
}

async fn cancel_drain(call: ApiCall) -> ApiResult {
    set_draining(&call, false, "cluster.cancel_drain").await
}

async fn set_draining(call: &ApiCall, is_draining: bool, action: &'static str) -> ApiResult {
    let node = call.path("node");
    backend(call)?
        .set_draining(node, is_draining)
        .await
        .map_err(|error| match error {
            ClusterChangeError::Unavailable(reason) => ProblemDetails::unavailable(format!(
                "The member {node:?} has not confirmed the change: {reason}."
            )),
            ClusterChangeError::NotFound | ClusterChangeError::Reachable => {
                ProblemDetails::not_found(format!("There is no member {node:?}."))
            }
        })?;
    audit::record_action(call, action, Some(node), None).await;
    call::no_content()
}
