//! Relay endpoints beyond their objects: states, connections, last messages.

use relay::{ConnectionSummary, EndpointStatus, HistoryEntry};

use super::connectors::page_by_name;
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, delete, get};
use crate::endpoint_place::{EndpointPlace, MergedAnswer};
use crate::objects::BackendObjectKind;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{NAMESPACE, PageCursor};

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint, role: Role| {
        endpoint
            .role(
                role,
                EndpointScope::object(BackendObjectKind::RelayEndpoint, "id"),
            )
            .tag("relay")
            .path_parameter("id", "The relay endpoint's id.")
    };
    vec![
        get("/api/v1/endpoint-status", "listRelayEndpointStatus", list)
            .role(Role::Viewer, EndpointScope::Selected)
            .tag("relay")
            .parameters(&[NAMESPACE])
            .place(EndpointPlace::AllNodes(MergedAnswer::RelayStatuses))
            .summary("List the states of relay endpoints")
            .description("In a cluster, the statistics of all nodes are added.")
            .node_paged::<EndpointStatus>(),
        one(get(
            "/api/v1/endpoints/{id}/status",
            "relayEndpointStatus",
            status,
        ), Role::Viewer)
        .place(EndpointPlace::AllNodes(MergedAnswer::RelayStatus))
        .summary("Read state and statistics of a relay endpoint")
        .description("The totals survive a restart; they are stored every five seconds. In a cluster, the statistics of all nodes are added.")
        .response::<EndpointStatus>(200, "The state."),
        one(get(
            "/api/v1/endpoints/{id}/messages",
            "relayEndpointMessages",
            messages,
        ), Role::Viewer)
        .place(EndpointPlace::AllNodes(MergedAnswer::RelayMessages))
        .summary("Read the last messages of a relay endpoint")
        .description("Newest first, as they were sent. They are kept in memory; see the fields `history_messages` and `history_bytes`. In a \
             cluster, each node keeps those of its connections; they have the additional field `node`, and the field `Tidegate-Missing-Nodes` \
             of the response names the nodes that did not answer.")
        .response::<Vec<HistoryEntry>>(200, "The messages."),
        one(get(
            "/api/v1/endpoints/{id}/connections",
            "relayEndpointConnections",
            connections,
        ), Role::Viewer)
        .place(EndpointPlace::AllNodes(MergedAnswer::RelayConnections))
        .summary("List the connections of a relay endpoint")
        .description("In a cluster, the connections at all nodes, each with the additional field `node`.")
        .node_paged::<ConnectionSummary>(),
        one(delete(
            "/api/v1/endpoints/{id}/connections/{connection_id}",
            "closeRelayConnection",
            close,
        ), Role::Operator)
        .place(EndpointPlace::AllNodes(MergedAnswer::ExecutedByOwner))
        .summary("Close a connection of a relay endpoint")
        .description("The client gets a system message with the code `DISCONNECTED` and close code 1008.")
        .path_parameter("connection_id", "The connection's id.")
        .empty_response(204, "The connection is being closed."),
    ]
}

fn endpoint_not_found(id: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no relay endpoint {id:?}."))
}

async fn list(call: ApiCall) -> ApiResult {
    let namespaces = call.namespaces();
    let mut statuses = call.app.relay.all_statuses();
    statuses.retain(|status| namespaces.contains(&status.namespace));
    page_by_name(&call, statuses, |status| &status.id)
}

async fn status(call: ApiCall) -> ApiResult {
    let id = call.path("id");
    let status = call.app.relay.status(id);
    call::json_response(status.ok_or_else(|| endpoint_not_found(id))?)
}

async fn messages(call: ApiCall) -> ApiResult {
    let id = call.path("id");
    let messages = call.app.relay.history(id, usize::MAX);
    call::json_response(messages.ok_or_else(|| endpoint_not_found(id))?)
}

async fn connections(call: ApiCall) -> ApiResult {
    let id = call.path("id");
    let limit = call.query.limit();
    let after = call.query.after().map(|cursor| cursor.first);
    let rows = (call.app.relay).connections(id, after.as_deref(), limit + 1);
    let rows = rows.ok_or_else(|| endpoint_not_found(id))?;
    call::paged_rows(rows, limit, |row| PageCursor::new(&row.connection_id, ""))
}

async fn close(call: ApiCall) -> ApiResult {
    let (id, connection_id) = (call.path("id"), call.path("connection_id"));
    if !call.app.relay.disconnect(id, connection_id) {
        let detail = format!("Relay endpoint {id:?} has no connection {connection_id:?}.");
        return Err(ProblemDetails::not_found(detail));
    }
    let target = format!("{id}/{connection_id}");
    audit::record_action(&call, "endpoint.connection.close", Some(&target), None).await;
    call::no_content()
}
