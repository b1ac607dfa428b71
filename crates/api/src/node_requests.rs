//! Requests about clients between the nodes of a cluster: what a node asks others, and how it answers them.
//!
//! Requests and answers are JSON. Nodes of different versions can work together: a node ignores fields that it does not
//! know, and refuses requests that it does not know.

use broker::info::{ClientInfo, ListQuery, SubscriptionInfo};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::node_backend::NodeBackend;
use crate::problem_details::ProblemDetails;
use crate::sorted_list::{SortOrder, SortValue, SortedPage};

/// Rows of one answer in bytes. The remaining rows are left out, and the node is asked for them with the next page.
const MAX_ROWS_BYTES: usize = 4 << 20;
/// Clients that are read at a time for a sorted list.
const SORTED_CHUNK: usize = 10_000;

/// What a node asks another.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NodeRequest {
    /// Is answered with [`NodeRows`] of [`ClientInfo`].
    Clients(ClientListRequest),
    /// Is answered with [`NodeRows`] of [`SubscriptionInfo`].
    Subscriptions(SubscriptionListRequest),
    /// Is answered with an optional [`ClientInfo`].
    Client { client_id: String },
    /// Ends a connection and its session. Is answered with a boolean.
    TerminateClient { client_id: String },
    /// Ends a session without a connection. Is answered with a boolean.
    DiscardSession { client_id: String },
}

/// A page of clients, at most `query.limit`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClientListRequest {
    pub(crate) query: ListQuery,
    /// `None`: by client id.
    #[serde(default)]
    pub(crate) order: Option<SortOrder>,
}

/// A page of subscriptions, at most `query.limit`, sorted by client id, then topic filter.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SubscriptionListRequest {
    pub(crate) query: ListQuery,
    /// Client id and topic filter of the last subscription of the previous page.
    #[serde(default)]
    pub(crate) after: Option<(String, String)>,
}

/// The rows of one node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NodeRows<T> {
    pub(crate) rows: Vec<T>,
    /// Further rows follow the last one, although there are fewer than requested.
    #[serde(default)]
    pub(crate) is_cut: bool,
    /// Why there are none, if the request was wrong.
    #[serde(default)]
    pub(crate) refusal: Option<String>,
}

impl<T> NodeRows<T> {
    pub(crate) fn complete(rows: Vec<T>) -> Self {
        Self {
            rows,
            is_cut: false,
            refusal: None,
        }
    }
}

impl<T: Serialize> NodeRows<T> {
    /// Keeps as many rows as an answer may have bytes, and at least one.
    fn cut(&mut self, max_bytes: usize) -> Result<(), serde_json::Error> {
        let mut bytes = 0;
        for (index, row) in self.rows.iter().enumerate() {
            bytes += serde_json::to_vec(row)?.len();
            if bytes > max_bytes && index > 0 {
                self.rows.truncate(index);
                self.is_cut = true;
                break;
            }
        }
        Ok(())
    }
}

/// Executes a request of another node of the cluster. `name` is that of this node.
///
/// # Errors
/// If the request cannot be read; contains the reason.
pub async fn answer_node_request(
    node: &dyn NodeBackend,
    name: &str,
    request: &[u8],
) -> Result<Vec<u8>, String> {
    let request: NodeRequest = decode(request)?;
    let answer = match request {
        NodeRequest::Clients(request) => {
            let mut rows = match client_rows(node, Some(name), request).await {
                Ok(rows) => NodeRows::complete(rows),
                Err(problem) => NodeRows {
                    refusal: Some(problem.detail),
                    ..NodeRows::complete(Vec::new())
                },
            };
            rows.cut(MAX_ROWS_BYTES)
                .and_then(|()| serde_json::to_vec(&rows))
        }
        NodeRequest::Subscriptions(request) => {
            let rows = subscription_rows(node, Some(name), request).await;
            let mut rows = NodeRows::complete(rows);
            rows.cut(MAX_ROWS_BYTES)
                .and_then(|()| serde_json::to_vec(&rows))
        }
        NodeRequest::Client { client_id } => {
            serde_json::to_vec(&client_of(node, Some(name), &client_id).await)
        }
        NodeRequest::TerminateClient { client_id } => {
            serde_json::to_vec(&node.terminate_client(&client_id).await)
        }
        NodeRequest::DiscardSession { client_id } => {
            serde_json::to_vec(&node.discard_session(&client_id).await)
        }
    };
    answer.map_err(|error| error.to_string())
}

pub(crate) fn decode<T: DeserializeOwned>(json: &[u8]) -> Result<T, String> {
    serde_json::from_slice(json).map_err(|error| {
        format!("nodes of different versions do not understand each other: {error}")
    })
}

/// A session of this node.
pub(crate) async fn client_of(
    node: &dyn NodeBackend,
    name: Option<&str>,
    client_id: &str,
) -> Option<ClientInfo> {
    let mut client = node.client(client_id).await?;
    client.node = name.map(str::to_owned);
    Some(client)
}

/// The clients of this node that belong to the page.
pub(crate) async fn client_rows(
    node: &dyn NodeBackend,
    name: Option<&str>,
    request: ClientListRequest,
) -> Result<Vec<ClientInfo>, ProblemDetails> {
    let mut rows = match request.order {
        Some(order) => sorted_clients(node, name, request.query, order).await?,
        None => node.clients(request.query).await,
    };
    for row in &mut rows {
        row.node = name.map(str::to_owned);
    }
    Ok(rows)
}

/// The page of all selected clients in an order.
async fn sorted_clients(
    node: &dyn NodeBackend,
    name: Option<&str>,
    query: ListQuery,
    order: SortOrder,
) -> Result<Vec<ClientInfo>, ProblemDetails> {
    // The page keeps one more.
    let mut page = SortedPage::new(order, query.limit.saturating_sub(1));
    let mut after = None;
    loop {
        let chunk = ListQuery {
            after: after.take(),
            limit: SORTED_CHUNK,
            ..query.clone()
        };
        let rows = node.clients(chunk).await;
        let is_last = rows.len() < SORTED_CHUNK;
        after = rows.last().map(|row| row.client_id.clone());
        for mut row in rows {
            row.node = name.map(str::to_owned);
            let (value, id) = (client_sort_value(&row, page.field()), client_row_id(&row));
            page.offer(value, &id, row)?;
        }
        if is_last {
            return Ok(page.into_rows());
        }
    }
}

/// Unique also while two nodes have a session of the same client id. Neither contains NUL.
pub(crate) fn client_row_id(client: &ClientInfo) -> String {
    match &client.node {
        Some(node) => format!("{}\0{node}", client.client_id),
        None => client.client_id.clone(),
    }
}

pub(crate) fn client_sort_value(client: &ClientInfo, field: &str) -> SortValue {
    let count = |count: usize| SortValue::number(count as u64);
    match field {
        "node" => SortValue::optional_text(client.node.as_deref()),
        "username" => SortValue::optional_text(client.username.as_deref()),
        "product" => SortValue::optional_text(client.product.as_deref()),
        "device" => SortValue::optional_text(client.device.as_deref()),
        "connected" => SortValue::number(u64::from(client.connected)),
        "connected_at_ms" => SortValue::optional_number(client.connected_at_ms),
        "disconnected_at_ms" => SortValue::optional_number(client.disconnected_at_ms),
        "session_created_at_ms" => SortValue::number(client.session_created_at_ms),
        "protocol_version" => SortValue::text(&client.protocol_version),
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

/// The subscriptions of this node that belong to the page.
pub(crate) async fn subscription_rows(
    node: &dyn NodeBackend,
    name: Option<&str>,
    request: SubscriptionListRequest,
) -> Vec<SubscriptionInfo> {
    let SubscriptionListRequest { query, after } = request;
    let wanted = query.limit;
    let mut rows = Vec::new();
    // A page may end within a client's subscriptions, but the node pages by client. The rest of
    // that client's subscriptions come first.
    if let Some((client_id, topic_filter)) = &after
        && query
            .client_id
            .as_ref()
            .is_none_or(|only| only == client_id)
    {
        let rest = ListQuery {
            client_id: Some(client_id.clone()),
            limit: usize::MAX,
            ..query.clone()
        };
        rows = node.subscriptions(rest).await;
        rows.retain(|row| row.topic_filter > *topic_filter);
        rows.truncate(wanted);
    }
    if rows.len() < wanted {
        let others = ListQuery {
            after: after.map(|(client_id, _)| client_id),
            limit: wanted - rows.len(),
            ..query
        };
        rows.extend(node.subscriptions(others).await);
    }
    for row in &mut rows {
        row.node = name.map(str::to_owned);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_cut_to_its_size() {
        let rows = || NodeRows::complete(vec!["12345678", "1234", "12"]);
        for (max_bytes, kept) in [(100, 3), (20, 3), (19, 2), (16, 2), (15, 1), (1, 1)] {
            let mut cut = rows();
            cut.cut(max_bytes).unwrap();
            assert_eq!(
                (cut.rows.len(), cut.is_cut),
                (kept, kept < 3),
                "{max_bytes}"
            );
        }
    }

    #[test]
    fn requests_of_other_versions_are_read_or_refused() {
        let later = br#"{"clients": {"query": {"limit": 5, "colour": "red"}, "shape": 1}}"#;
        let read: NodeRequest = decode(later).unwrap();
        assert!(matches!(read, NodeRequest::Clients(list) if list.query.limit == 5));
        let unknown = decode::<NodeRequest>(br#"{"paint": {}}"#);
        assert!(unknown.unwrap_err().contains("different versions"));
    }
}
