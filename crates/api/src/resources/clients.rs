//! Connected clients: list, read, disconnect.

use broker::info::{ClientInfo, ListQuery};

use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::cluster_clients;
use crate::endpoint::{Endpoint, EndpointScope, delete, get};
use crate::node_requests::{ClientListRequest, client_row_id, client_sort_value};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{
    CLIENT_ID, CLIENT_ID_CONTAINS, CONNECTED, PageCursor, Parameter, USERNAME,
};
use crate::sorted_list::{SortOrder, sort_parameter};

pub(super) const ABOUT_CLIENT_ID: &str = "Client id, percent-encoded.";

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/clients", "listClients", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("clients")
            .summary("List connected clients")
            .description(
                "A client is a connection that has sent CONNECT. Its session may outlive the connection. Clients of all nodes of a cluster are \
                 listed.",
            )
            .parameters(&[CLIENT_ID, CLIENT_ID_CONTAINS, USERNAME, CLIENT_SORT])
            .cluster_paged::<ClientInfo>(),
        get("/api/v1/clients/{client_id}", "getClient", read)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("clients")
            .summary("Read a connected client")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .response::<ClientInfo>(200, "The client.")
            .problem_response(503, "A node of the cluster that may have the client does not answer."),
        delete("/api/v1/clients/{client_id}", "disconnectClient", terminate)
            .role(Role::Operator, EndpointScope::Node)
            .tag("clients")
            .summary("End a client's connection and session")
            .description("The client may be connected to any node of the cluster.")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .empty_response(204, "The client's connection and session were ended.")
            .problem_response(503, "A node of the cluster that may have the client does not answer."),
    ]
}

async fn list(call: ApiCall) -> ApiResult {
    let query = ListQuery {
        connected: Some(true),
        ..client_query(&call)
    };
    client_page(&call, query).await
}

/// The filter of a request for clients or sessions.
pub(super) fn client_query(call: &ApiCall) -> ListQuery {
    ListQuery {
        client_id: call.query.owned_text(CLIENT_ID),
        client_id_contains: call.query.owned_text(CLIENT_ID_CONTAINS),
        username: call.query.owned_text(USERNAME),
        connected: call.query.flag_value(CONNECTED),
        after: call.query.after().map(|cursor| cursor.first),
        limit: call.query.limit() + 1,
        ..ListQuery::default()
    }
}

pub(super) const CLIENT_SORT: Parameter = sort_parameter(&[
    "client_id",
    "node",
    "username",
    "product",
    "device",
    "connected",
    "connected_at_ms",
    "disconnected_at_ms",
    "session_created_at_ms",
    "protocol_version",
    "peer_address",
    "listener",
    "subscriptions",
    "inflight",
    "queued_messages",
    "queued_bytes",
    "messages_received",
    "messages_sent",
    "messages_dropped",
]);
pub(super) async fn client_page(call: &ApiCall, query: ListQuery) -> ApiResult {
    let order = SortOrder::read(&call.query)?;
    let request = ClientListRequest {
        query: ListQuery {
            // The cursor of a sorted list is in its order.
            after: query.after.filter(|_| order.is_none()),
            ..query
        },
        order: order.clone(),
    };
    let page = cluster_clients::clients(&call.app, request, call.query.limit()).await?;
    cluster_clients::cluster_page(page, |row| match &order {
        Some(order) => order.cursor(&client_sort_value(row, &order.field), &client_row_id(row)),
        None => PageCursor::new(&row.client_id, ""),
    })
}

async fn find_connected(call: &ApiCall) -> Result<ClientInfo, ProblemDetails> {
    let client_id = call.path("client_id");
    let known = cluster_clients::find_client(&call.app, client_id).await?;
    let hint = match known {
        Some(_) => " Its session is under /api/v1/sessions.",
        None => "",
    };
    known.filter(|client| client.connected).ok_or_else(|| {
        ProblemDetails::not_found(format!("No client {client_id:?} is connected.{hint}"))
    })
}

async fn read(call: ApiCall) -> ApiResult {
    call::json_response(find_connected(&call).await?)
}

async fn terminate(call: ApiCall) -> ApiResult {
    let client = find_connected(&call).await?;
    if !cluster_clients::terminate_client(&call.app, &client).await? {
        let detail = format!("Client {:?} has just disconnected.", client.client_id);
        return Err(ProblemDetails::not_found(detail));
    }
    audit::record_action(&call, "client.disconnect", Some(&client.client_id), None).await;
    call::no_content()
}
