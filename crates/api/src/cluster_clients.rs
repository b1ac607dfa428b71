//! Clients, sessions and subscriptions of all nodes of the cluster; without a cluster, of this node.

use std::cmp::Ordering;

use broker::info::{ClientInfo, SubscriptionInfo};
use futures_util::future::join_all;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call::json_response;
use crate::cluster_backend::ClusterBackend;
use crate::node_requests::{
    self, ClientListRequest, NodeRequest, NodeRows, SubscriptionListRequest, client_row_id,
    client_sort_value, decode,
};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::PageCursor;
use crate::state::ApiState;

/// A page of rows of several nodes.
pub(crate) struct ClusterRows<T> {
    /// At most `limit` rows; more only while two nodes have sessions of the same client id.
    pub(crate) rows: Vec<T>,
    pub(crate) has_more: bool,
    /// Names of the nodes that did not answer, whose rows are missing.
    pub(crate) missing_nodes: Vec<String>,
}

/// Answers of the other nodes.
struct NodeAnswers<T> {
    answers: Vec<T>,
    missing_nodes: Vec<String>,
}

/// Asks all other nodes at the same time.
async fn ask_others<T: DeserializeOwned>(
    cluster: Option<&dyn ClusterBackend>,
    request: &NodeRequest,
) -> NodeAnswers<T> {
    let mut all = NodeAnswers {
        answers: Vec::new(),
        missing_nodes: Vec::new(),
    };
    let Some(cluster) = cluster else {
        return all;
    };
    let others = cluster.other_nodes();
    let asked = others.iter().map(|node| ask(cluster, node, request));
    for (node, answer) in others.iter().zip(join_all(asked).await) {
        match answer {
            Ok(answer) => all.answers.push(answer),
            Err(_) => all.missing_nodes.push(node.clone()),
        }
    }
    all
}

async fn ask<T: DeserializeOwned>(
    cluster: &dyn ClusterBackend,
    node: &str,
    request: &NodeRequest,
) -> Result<T, String> {
    let body = serde_json::to_vec(request).map_err(|error| error.to_string())?;
    let answer = match cluster.request(node, body).await {
        Ok(answer) => decode(&answer),
        Err(reason) => Err(reason),
    };
    if let Err(reason) = &answer {
        tracing::debug!(node, reason, "another node of the cluster did not answer");
    }
    answer
}

/// A page of clients. `request.query.limit` is one more than `limit`.
pub(crate) async fn clients(
    app: &ApiState,
    request: ClientListRequest,
    limit: usize,
) -> Result<ClusterRows<ClientInfo>, ProblemDetails> {
    let cluster = app.program.cluster_backend();
    let order = request.order.clone();
    let to_others = NodeRequest::Clients(request.clone());
    let (own, others) = tokio::join!(
        node_requests::client_rows(&*app.node, own_name(cluster), request),
        ask_others::<NodeRows<ClientInfo>>(cluster, &to_others),
    );
    let mut pages = vec![NodeRows::complete(own?)];
    pages.extend(others.answers);
    if let Some(refusal) = pages.iter_mut().find_map(|page| page.refusal.take()) {
        return Err(ProblemDetails::invalid_parameter("sort", refusal));
    }
    let compare = |a: &ClientInfo, b: &ClientInfo| match &order {
        Some(order) => {
            let field = &order.field;
            let (a_value, b_value) = (client_sort_value(a, field), client_sort_value(b, field));
            order.compare((&a_value, &client_row_id(a)), (&b_value, &client_row_id(b)))
        }
        None => a.client_id.cmp(&b.client_id),
    };
    let node = |client: &ClientInfo| client.node.clone();
    Ok(merge(pages, limit, compare, node, others.missing_nodes))
}

/// A page of subscriptions. `request.query.limit` is one more than `limit`.
pub(crate) async fn subscriptions(
    app: &ApiState,
    request: SubscriptionListRequest,
    limit: usize,
) -> ClusterRows<SubscriptionInfo> {
    let cluster = app.program.cluster_backend();
    let to_others = NodeRequest::Subscriptions(request.clone());
    let (own, others) = tokio::join!(
        node_requests::subscription_rows(&*app.node, own_name(cluster), request),
        ask_others::<NodeRows<SubscriptionInfo>>(cluster, &to_others),
    );
    let mut pages = vec![NodeRows::complete(own)];
    pages.extend(others.answers);
    let compare = |a: &SubscriptionInfo, b: &SubscriptionInfo| {
        (&a.client_id, &a.topic_filter).cmp(&(&b.client_id, &b.topic_filter))
    };
    let node = |row: &SubscriptionInfo| row.node.clone();
    merge(pages, limit, compare, node, others.missing_nodes)
}

/// Merges the pages of nodes, each sorted by `compare`.
fn merge<T: Serialize>(
    pages: Vec<NodeRows<T>>,
    limit: usize,
    compare: impl Fn(&T, &T) -> Ordering,
    node: impl Fn(&T) -> Option<String>,
    missing_nodes: Vec<String>,
) -> ClusterRows<T> {
    let mut rows = Vec::new();
    let mut has_more = false;
    // Number of a page that ends early, and of its last row. What follows the least of these rows is not known.
    let mut end: Option<(usize, usize)> = None;
    for (number, page) in pages.iter().enumerate() {
        let Some(last) = page.rows.len().checked_sub(1).filter(|_| page.is_cut) else {
            continue;
        };
        has_more = true;
        let is_first = end.is_none_or(|(page_number, row)| {
            compare(&page.rows[last], &pages[page_number].rows[row]).is_lt()
        });
        if is_first {
            end = Some((number, last));
        }
    }
    let mut kept: Vec<usize> = pages.iter().map(|page| page.rows.len()).collect();
    if let Some((number, last)) = end {
        let end = &pages[number].rows[last];
        for (kept, page) in kept.iter_mut().zip(&pages) {
            *kept = page.rows.partition_point(|row| compare(row, end).is_le());
        }
    }
    for (page, kept) in pages.into_iter().zip(kept) {
        rows.extend(page.rows.into_iter().take(kept));
    }
    rows.sort_by(|a, b| compare(a, b).then_with(|| node(a).cmp(&node(b))));
    if rows.len() > limit {
        has_more = true;
        // The cursor does not name the node, so that equal rows of two nodes stay on one page.
        let mut page_end = limit;
        while page_end < rows.len() && compare(&rows[page_end - 1], &rows[page_end]).is_eq() {
            page_end += 1;
        }
        rows.truncate(page_end);
    }
    ClusterRows {
        rows,
        has_more,
        missing_nodes,
    }
}

fn own_name(cluster: Option<&dyn ClusterBackend>) -> Option<&str> {
    cluster.map(ClusterBackend::node)
}

/// The session of a client, at whichever node it is.
///
/// # Errors
/// If no node that answers has it, and a node does not answer.
pub(crate) async fn find_client(
    app: &ApiState,
    client_id: &str,
) -> Result<Option<ClientInfo>, ProblemDetails> {
    let cluster = app.program.cluster_backend();
    let own = node_requests::client_of(&*app.node, own_name(cluster), client_id).await;
    if cluster.is_none() || own.as_ref().is_some_and(|client| client.connected) {
        return Ok(own);
    }
    let request = NodeRequest::Client {
        client_id: client_id.to_owned(),
    };
    let others = ask_others::<Option<ClientInfo>>(cluster, &request).await;
    // While two nodes have a session, that of the connection is the valid one.
    let mut found: Vec<_> = own
        .into_iter()
        .chain(others.answers.into_iter().flatten())
        .collect();
    found.sort_by_key(|client| !client.connected);
    match found.into_iter().next() {
        Some(client) => Ok(Some(client)),
        None if others.missing_nodes.is_empty() => Ok(None),
        None => Err(ProblemDetails::unavailable(format!(
            "No node that answered has a session of a client {client_id:?}. These nodes did not answer: {}.",
            others.missing_nodes.join(", ")
        ))),
    }
}

/// The problem of a request for the session of a client that this node does not have.
pub(crate) async fn absent_session_problem(app: &ApiState, client_id: &str) -> ProblemDetails {
    match find_client(app, client_id).await {
        Err(problem) => problem,
        Ok(client) => match client.and_then(|client| client.node) {
            Some(node) => ProblemDetails::conflict(format!(
                "The session of client {client_id:?} is at node {node:?}; send the request to that node."
            )),
            None => {
                ProblemDetails::not_found(format!("There is no session of a client {client_id:?}."))
            }
        },
    }
}

/// Ends the connection and session of a client that [`find_client`] has found; false if it has neither any more.
pub(crate) async fn terminate_client(
    app: &ApiState,
    client: &ClientInfo,
) -> Result<bool, ProblemDetails> {
    let client_id = client.client_id.clone();
    match other_node(app, client) {
        None => Ok(app.node.terminate_client(&client_id).await),
        Some((cluster, node)) => {
            change_at(cluster, node, &NodeRequest::TerminateClient { client_id }).await
        }
    }
}

/// Ends a session without a connection that [`find_client`] has found; false if there is none any more.
pub(crate) async fn discard_session(
    app: &ApiState,
    client: &ClientInfo,
) -> Result<bool, ProblemDetails> {
    let client_id = client.client_id.clone();
    match other_node(app, client) {
        None => Ok(app.node.discard_session(&client_id).await),
        Some((cluster, node)) => {
            change_at(cluster, node, &NodeRequest::DiscardSession { client_id }).await
        }
    }
}

/// The node that has the session, if it is another one.
fn other_node<'a>(
    app: &'a ApiState,
    client: &'a ClientInfo,
) -> Option<(&'a dyn ClusterBackend, &'a str)> {
    let cluster = app.program.cluster_backend()?;
    let node = client.node.as_deref()?;
    (node != cluster.node()).then_some((cluster, node))
}

async fn change_at(
    cluster: &dyn ClusterBackend,
    node: &str,
    request: &NodeRequest,
) -> Result<bool, ProblemDetails> {
    ask(cluster, node, request).await.map_err(|reason| {
        ProblemDetails::unavailable(format!(
            "Node {node:?} has not confirmed the change, which may have been made: {reason}."
        ))
    })
}

/// One page of a list of all nodes of a cluster.
#[derive(Serialize)]
struct ClusterListPage<T> {
    data: Vec<T>,
    next: Option<String>,
    missing_nodes: Vec<String>,
}

/// Makes a page of rows of several nodes.
pub(crate) fn cluster_page<T: Serialize>(
    page: ClusterRows<T>,
    cursor: impl Fn(&T) -> PageCursor,
) -> ApiResult {
    let last = page.rows.last().filter(|_| page.has_more);
    let next = last.map(|row| cursor(row).encode());
    json_response(ClusterListPage {
        next,
        data: page.rows,
        missing_nodes: page.missing_nodes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows are letters with the node that has them.
    fn page(node: &str, rows: &str, is_cut: bool) -> NodeRows<(char, String)> {
        NodeRows {
            is_cut,
            ..NodeRows::complete(rows.chars().map(|row| (row, node.to_owned())).collect())
        }
    }

    fn merged(pages: Vec<NodeRows<(char, String)>>, limit: usize) -> (String, bool) {
        let compare = |a: &(char, String), b: &(char, String)| a.0.cmp(&b.0);
        let merged = merge(pages, limit, compare, |row| Some(row.1.clone()), Vec::new());
        let letters = merged.rows.iter().map(|row| row.0);
        (letters.collect(), merged.has_more)
    }

    #[test]
    fn pages_of_nodes_are_merged_in_order() {
        let pages = || {
            vec![
                page("1", "adg", false),
                page("2", "be", false),
                page("3", "", false),
            ]
        };
        assert_eq!(merged(pages(), 5), ("abdeg".to_owned(), false));
        assert_eq!(merged(pages(), 4), ("abde".to_owned(), true));
        assert_eq!(
            merged(vec![page("1", "", false)], 4),
            (String::new(), false)
        );
    }

    #[test]
    fn rows_behind_the_end_of_a_cut_page_wait_for_the_next_page() {
        let pages = vec![
            page("1", "afg", false),
            page("2", "bc", true),
            page("3", "de", true),
        ];
        assert_eq!(merged(pages, 10), ("abc".to_owned(), true));
        // Also if the page is full before.
        let pages = vec![page("1", "ab", false), page("2", "cd", true)];
        assert_eq!(merged(pages, 1), ("a".to_owned(), true));
    }

    #[test]
    fn equal_rows_of_two_nodes_stay_on_one_page() {
        let pages = || vec![page("2", "abc", false), page("1", "bc", false)];
        assert_eq!(merged(pages(), 2), ("abb".to_owned(), true));
        assert_eq!(merged(pages(), 1), ("a".to_owned(), true));
        assert_eq!(merged(pages(), 5), ("abbcc".to_owned(), false));
        let compare = |a: &(char, String), b: &(char, String)| a.0.cmp(&b.0);
        let rows = merge(pages(), 9, compare, |row| Some(row.1.clone()), Vec::new()).rows;
        let nodes: Vec<_> = rows.iter().map(|row| row.1.as_str()).collect();
        assert_eq!(nodes, ["2", "1", "2", "1", "2"]);
    }
}
