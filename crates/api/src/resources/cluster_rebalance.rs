//! Rebalancing: clients of nodes with too many connections are disconnected, so that they connect to others.

use super::cluster::backend;
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::cluster_rebalance::{ClusterRebalance, RebalanceError};
use crate::endpoint::{Endpoint, EndpointScope, delete, get, post};
use crate::problem_details::{ApiResult, ProblemDetails};

const PATH: &str = "/api/v1/cluster/rebalance";

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get(PATH, "getRebalance", read)
            .role(Role::Admin, EndpointScope::Node)
            .tag("cluster")
            .summary("Read what a rebalancing would change")
            .description(
                "Asks all members for their connections, and for the progress of their last rebalancing. Nodes that are drained or cannot be \
                 reached take no part.",
            )
            .response::<ClusterRebalance>(200, "The members with their connections before and after a rebalancing.")
            .problem_response(404, "The node is not a member of a cluster."),
        post(PATH, "startRebalance", start)
            .role(Role::Admin, EndpointScope::Node)
            .tag("cluster")
            .summary("Distribute the connections evenly over the nodes")
            .description(
                "Members whose connections exceed the average by more than 5 %, and by 5 or more, disconnect clients, \
                 `cluster.drain_rate` per second. The clients connect again, through a balancer or their list of servers, and the members \
                 accept all of them. Clients with a durable session at the member stay. A member is done when it has the average. It also ends when \
                 only connections are left that stay, and when it has disconnected three times as many clients as it had too many.",
            )
            .response::<ClusterRebalance>(200, "The members are disconnecting clients.")
            .problem_response(404, "The node is not a member of a cluster.")
            .problem_response(409, "There is nothing to do, or a rebalancing is running; the detail says which.")
            .problem_response(503, "A member with too many connections does not answer. None disconnects clients."),
        delete(PATH, "cancelRebalance", cancel)
            .role(Role::Admin, EndpointScope::Node)
            .tag("cluster")
            .summary("Cancel the rebalancing at all nodes")
            .description("Nothing changes if none is running.")
            .empty_response(204, "No member disconnects clients.")
            .problem_response(404, "The node is not a member of a cluster.")
            .problem_response(503, "A member does not answer, so that it may continue."),
    ]
}

async fn read(call: ApiCall) -> ApiResult {
    let rebalance = backend(&call)?.rebalance().await;
    call::json_response(rebalance)
}

async fn start(call: ApiCall) -> ApiResult {
    let started = backend(&call)?.start_rebalance().await;
    let started = started.map_err(problem)?;
    audit::record_action(&call, "cluster.rebalance", None, None).await;
    call::json_response(started)
}

async fn cancel(call: ApiCall) -> ApiResult {
    backend(&call)?.cancel_rebalance().await.map_err(problem)?;
    audit::record_action(&call, "cluster.cancel_rebalance", None, None).await;
    call::no_content()
}

fn problem(error: RebalanceError) -> ProblemDetails {
    match error {
        RebalanceError::Conflict(reason) => ProblemDetails::conflict(reason),
        RebalanceError::Unavailable(reason) => ProblemDetails::unavailable(reason),
    }
}
