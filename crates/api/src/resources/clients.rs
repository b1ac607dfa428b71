//! Connected clients: list, read, disconnect.

use broker::info::{ClientInfo, ListQuery};

use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, delete, get};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{
    CLIENT_ID, CLIENT_ID_CONTAINS, CONNECTED, PageCursor, Parameter, USERNAME,
};
use crate::sorted_list::{SortOrder, SortValue, SortedPage, sort_parameter};

pub(super) const ABOUT_CLIENT_ID: &str = "Client id, percent-encoded.";

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/clients", "listClients", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("clients")
            .summary("List connected clients")
            .description("A client is a connection that has sent CONNECT. Its session may outlive the connection.")
            .parameters(&[CLIENT_ID, CLIENT_ID_CONTAINS, USERNAME, CLIENT_SORT])
            .paged::<ClientInfo>(),
        get("/api/v1/clients/{client_id}", "getClient", read)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("clients")
            .summary("Read a connected client")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .response::<ClientInfo>(200, "The client."),
        delete("/api/v1/clients/{client_id}", "disconnectClient", terminate)
            .role(Role::Operator, EndpointScope::Node)
            .tag("clients")
            .summary("End a client's connection and session")
            .path_parameter("client_id", ABOUT_CLIENT_ID)
            .empty_response(204, "The client's connection and session were ended."),
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
/// Clients that are read at a time for a sorted list.
const SORTED_CHUNK: usize = 10_000;

fn sort_value(client: &ClientInfo, field: &str) -> SortValue {
    let count = |count: usize| SortValue::number(count as u64);
    match field {
        "username" => SortValue::optional_text(client.username.as_deref()),
        "product" => SortValue::optional_text(client.product.as_deref()),
        "device" => SortValue::optional_text(client.device.as_deref()),
        "connected" => SortValue::number(u64::from(client.connected)),
        "connected_at_ms" => SortValue::optional_number(client.connected_at_ms),
        "disconnected_at_ms" => SortValue::optional_number(client.disconnected_at_ms),
        "session_created_at_ms" => SortValue::number(client.session_created_at_ms),
        "protocol_version" => SortValue::text(client.protocol_version),
        "peer_address" => SortValue::optional_text(client.peer_address.as_deref()),
        "listener" => SortValue::optional_text(client.listener.as_deref()),
        "subscriptions" => count(client.subscriptions),
        "inflight" => count(client.inflight),
        "queued_messages" => count(client.queued_messages),
        "queued_bytes" => count(client.queued_bytes),
        "messages_received" => SortValue::number(client.messages_received),
        "messages_sent" => SortValue::number(client.messages_sent),
        "messages_dropped" => SortValue::number(client.messages_dropped),
        _ => SortValue::text(&client.client_id),
    }
}

/// A page of all selected clients in an order.
async fn sorted_page(call: &ApiCall, query: ListQuery, order: SortOrder) -> ApiResult {
    let mut page = SortedPage::new(order, call.query.limit());
    let mut after = None;
    loop {
        let chunk = ListQuery {
            after: after.take(),
            limit: SORTED_CHUNK,
            ..query.clone()
        };
        let rows = call.app.node.clients(chunk).await;
        let is_last = rows.len() < SORTED_CHUNK;
        after = rows.last().map(|row| row.client_id.clone());
        for row in rows {
            let (value, id) = (sort_value(&row, page.field()), row.client_id.clone());
            page.offer(value, &id, row)?;
        }
        if is_last {
            return page.into_response();
        }
    }
}

pub(super) async fn client_page(call: &ApiCall, query: ListQuery) -> ApiResult {
    if let Some(order) = SortOrder::read(&call.query)? {
        return sorted_page(call, query, order).await;
    }
    let rows = call.app.node.clients(query).await;
    call::paged_rows(rows, call.query.limit(), |row| {
        PageCursor::new(&row.client_id, "")
    })
}

async fn find_connected(call: &ApiCall) -> Result<ClientInfo, ProblemDetails> {
    let client_id = call.path("client_id");
    let known = call.app.node.client(client_id).await;
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
    if !call.app.node.terminate_client(&client.client_id).await {
        let detail = format!("Client {:?} has just disconnected.", client.client_id);
        return Err(ProblemDetails::not_found(detail));
    }
    audit::record_action(&call, "client.disconnect", Some(&client.client_id), None).await;
    call::no_content()
}
