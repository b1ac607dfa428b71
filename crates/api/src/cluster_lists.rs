//! Alarms and commands of all nodes of the cluster, newest first; without a cluster, of this node.

use std::collections::VecDeque;
use std::sync::Arc;

use devices::alarm::Alarm;
use devices::command::Command;
use futures_util::future::join_all;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::alarm_service::AlarmQuery;
use crate::node_calls::ask_for_list;
use crate::node_lists::{ListQuestion, ListRows, SharedList, list_here, namespace_names};
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;

/// Rows that are read from a node at a time.
const PAGE_ROWS: usize = 1000;

/// Rows of all nodes. Those that all nodes have, see [`SharedList::of_other_nodes`], are read from this one.
pub(crate) struct NewestRows<R> {
    pub(crate) rows: Vec<R>,
    pub(crate) has_more: bool,
    /// Names of the nodes that did not answer, whose rows are missing.
    pub(crate) missing_nodes: Vec<String>,
}

/// Up to `query.limit` alarms behind the first `skip` ones. `query.before` is ignored.
pub(crate) async fn newest_alarms(
    app: &Arc<ApiState>,
    query: AlarmQuery,
    skip: usize,
) -> Result<NewestRows<Alarm>, ProblemDetails> {
    let namespaces = namespace_names(&query.namespaces);
    let list = SharedList::Alarms {
        device: query.device,
        product: query.product,
        kind: query.kind,
        states: query.states,
        severities: query.severities,
        from_ms: query.from_ms,
        to_ms: query.to_ms,
    };
    newest(app, list, namespaces, skip, query.limit).await
}

/// Up to `limit` commands of a device behind the first `skip` ones.
pub(crate) async fn newest_commands(
    app: &Arc<ApiState>,
    device: String,
    states: Vec<String>,
    (skip, limit): (usize, usize),
) -> Result<NewestRows<Command>, ProblemDetails> {
    let list = SharedList::Commands {
        device: Some(device),
        states,
    };
    newest(app, list, None, skip, limit).await
}

/// The rows of one node that are being merged.
struct ListSource {
    /// `None`: this one.
    node: Option<String>,
    rows: VecDeque<Value>,
    /// Where the next page begins.
    next: NextPage,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum NextPage {
    First,
    /// Behind the row with this number and, in lists of alarms, this time of raising.
    Behind(u64, Option<u64>),
    End,
    NotAnswered,
}

impl NextPage {
    fn of(page: &ListRows) -> Self {
        page.next
            .map_or(Self::End, |number| Self::Behind(number, page.next_ms))
    }
}

async fn newest<R: DeserializeOwned>(
    app: &Arc<ApiState>,
    list: SharedList,
    namespaces: Option<Vec<String>>,
    mut skip: usize,
    limit: usize,
) -> Result<NewestRows<R>, ProblemDetails> {
    let cluster = app.program.cluster_backend();
    let others = cluster.map(|cluster| cluster.other_nodes());
    let of_others = list.of_other_nodes();
    let others = others.filter(|_| of_others.is_some());
    let others = others.unwrap_or_default().into_iter().map(Some);
    let sources = [None].into_iter().chain(others).map(|node| ListSource {
        node,
        rows: VecDeque::new(),
        next: NextPage::First,
    });
    let mut sources: Vec<_> = sources.collect();
    let time_field = list.time_field();
    let mut found = NewestRows {
        rows: Vec::new(),
        has_more: false,
        missing_nodes: Vec::new(),
    };
    loop {
        let lists = (&list, of_others.as_ref().unwrap_or(&list));
        read_pages(app, lists, &namespaces, &mut sources, skip + limit + 1).await?;
        for source in &mut sources {
            if source.next == NextPage::NotAnswered {
                source.next = NextPage::End;
                found.missing_nodes.extend(source.node.clone());
            }
        }
        if sources
            .iter()
            .any(|source| source.rows.is_empty() && source.next != NextPage::End)
        {
            // A page may be empty although more follow.
            continue;
        }
        let newest = sources
            .iter_mut()
            .filter(|source| !source.rows.is_empty())
            .rev()
            .max_by_key(|source| source.rows.front().and_then(|row| row[time_field].as_u64()));
        let Some(row) = newest.and_then(|source| source.rows.pop_front()) else {
            break;
        };
        if skip > 0 {
            skip -= 1;
        } else if found.rows.len() < limit {
            let row = serde_json::from_value(row);
            found.rows.push(row.map_err(|error| {
                ProblemDetails::unavailable(format!(
                    "A node has sent a row that cannot be read: {error}."
                ))
            })?);
        } else {
            found.has_more = true;
            break;
        }
    }
    Ok(found)
}

/// Reads the next page of each node whose page has ended: of the first list at this node, of the second one at the others.
async fn read_pages(
    app: &Arc<ApiState>,
    (list, of_others): (&SharedList, &SharedList),
    namespaces: &Option<Vec<String>>,
    sources: &mut [ListSource],
    limit: usize,
) -> Result<(), ProblemDetails> {
    let ended = sources
        .iter_mut()
        .filter(|source| source.rows.is_empty() && source.next != NextPage::End);
    let reading = ended.map(|source| async move {
        let (before, before_ms) = match source.next {
            NextPage::Behind(number, ms) => (Some(number), ms),
            _ => (None, None),
        };
        let list = match source.node {
            None => list,
            Some(_) => of_others,
        };
        let question = ListQuestion {
            list: list.clone(),
            namespaces: namespaces.clone(),
            before,
            before_ms,
            limit: limit.min(PAGE_ROWS),
        };
        match &source.node {
            None => {
                let page = list_here(app.alarms.clone(), app.commands.clone(), question).await;
                let page = page.map_err(ProblemDetails::unavailable)?;
                source.next = NextPage::of(&page);
                source.rows.extend(page.rows);
            }
            Some(node) => match ask_for_list(app, node, question).await {
                Ok(page) => {
                    source.next = NextPage::of(&page);
                    source.rows.extend(page.rows);
                }
                Err(reason) => {
                    tracing::debug!(node, reason, "another node of the cluster did not answer");
                    source.next = NextPage::NotAnswered;
                }
            },
        }
        Ok::<_, ProblemDetails>(())
    });
    join_all(reading).await.into_iter().collect()
}
