//! Lists of alarms and commands between the nodes of a cluster: what a node asks another, and how it answers.

use std::sync::Arc;

use devices::alarm::{Alarm, AlarmId, AlarmPosition, NODE_PRODUCT};
use devices::command::Command;
use namespaces::NamespaceSelection;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::alarm_service::{AlarmQuery, AlarmService, AlarmServiceError};
use crate::blocking::run_blocking;
use crate::command_service::{CommandQuery, CommandService};
use crate::device_service::DeviceServiceError;

/// Rows of an answer in bytes. The remaining rows are left out, and asked for with the next page.
const MAX_ROWS_BYTES: usize = 2 << 20;

/// Asks for the newest rows of a list with numbers smaller than `before`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ListQuestion {
    pub(crate) list: SharedList,
    /// `None`: all namespaces.
    pub(crate) namespaces: Option<Vec<String>>,
    pub(crate) before: Option<u64>,
    /// The time of raising of the alarm with the number `before`.
    #[serde(default)]
    pub(crate) before_ms: Option<u64>,
    pub(crate) limit: usize,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SharedList {
    Alarms {
        device: Option<String>,
        product: Option<String>,
        kind: Option<String>,
        states: Vec<String>,
        severities: Vec<String>,
        from_ms: Option<u64>,
        to_ms: Option<u64>,
    },
    Commands {
        device: Option<String>,
        states: Vec<String>,
    },
}

/// The rows of one node.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ListRows {
    pub(crate) rows: Vec<Value>,
    /// Value of `before` for further rows; `None`: there are none.
    pub(crate) next: Option<u64>,
    /// Value of `before_ms` for further rows.
    #[serde(default)]
    pub(crate) next_ms: Option<u64>,
}

impl SharedList {
    /// The rows that only the nodes themselves have, of a list whose other rows all nodes have. `None`: there are none.
    ///
    /// All nodes have the alarms of devices, and each one those about itself. Commands are at one node.
    pub(crate) fn of_other_nodes(&self) -> Option<Self> {
        let mut list = self.clone();
        if let Self::Alarms {
            device, product, ..
        } = &mut list
        {
            if !may_be_of_node(device.as_deref(), product.as_deref()) {
                return None;
            }
            *product = Some(NODE_PRODUCT.to_owned());
        }
        Some(list)
    }

    /// The field with the time by which the rows of nodes are merged.
    pub(crate) fn time_field(&self) -> &'static str {
        match self {
            Self::Alarms { .. } => "raised_at_ms",
            Self::Commands { .. } => "created_at_ms",
        }
    }
}

/// Whether a list with these filters may contain alarms of nodes about themselves.
pub(crate) fn may_be_of_node(device: Option<&str>, product: Option<&str>) -> bool {
    let may_be = |filter: Option<&str>| filter.is_none_or(|filter| filter == NODE_PRODUCT);
    may_be(device) && may_be(product)
}

/// The selection as a list of names; `None`: all.
pub(crate) fn namespace_names(selection: &NamespaceSelection) -> Option<Vec<String>> {
    match selection {
        NamespaceSelection::All => None,
        NamespaceSelection::Only(names) => Some(names.iter().cloned().collect()),
    }
}

pub(crate) fn namespace_selection(names: Option<Vec<String>>) -> NamespaceSelection {
    names.map_or(NamespaceSelection::All, |names| {
        NamespaceSelection::Only(Arc::new(names.into_iter().collect()))
    })
}

/// Answers with the rows of this node.
pub(crate) async fn list_here(
    alarms: AlarmService,
    commands: CommandService,
    question: ListQuestion,
) -> Result<ListRows, String> {
    let read = move || {
        let namespaces = namespace_selection(question.namespaces);
        let (before, limit) = (question.before, question.limit);
        match question.list {
            SharedList::Alarms {
                device,
                product,
                kind,
                states,
                severities,
                from_ms,
                to_ms,
            } => {
                let query = AlarmQuery {
                    device,
                    product,
                    kind,
                    states,
                    severities,
                    from_ms,
                    to_ms,
                    before: before.map(|id| AlarmPosition {
                        // Without a time, the question is of a node of an earlier version.
                        raised_at_ms: question.before_ms.unwrap_or(u64::MAX),
                        id: AlarmId(id),
                    }),
                    limit,
                    namespaces,
                };
                let page = alarms.list(&query).map_err(alarm_reason)?;
                bounded(page.rows, page.next, Alarm::position, |position| {
                    (position.id.0, Some(position.raised_at_ms))
                })
            }
            SharedList::Commands { device, states } => {
                let query = CommandQuery {
                    device,
                    states,
                    batch: None,
                    before,
                    limit,
                    namespaces,
                };
                let page = match commands.list(&query) {
                    // A node may not know a new device yet.
                    Err(DeviceServiceError::NotFound(_)) => return Ok(ListRows::default()),
                    page => page.map_err(command_reason)?,
                };
                let number = |command: &Command| command.id;
                bounded(page.commands, page.next, number, |id| (id.0, None))
            }
        }
    };
    let read = run_blocking(read, "The list cannot be read now.").await;
    read.map_err(|problem| problem.detail)?
}

/// Keeps as many rows as an answer may have bytes, and at least one. `place` is that of a row, and `cursor` the values of
/// [`ListRows`] for rows behind it.
fn bounded<R: Serialize, P>(
    found: Vec<R>,
    mut next: Option<P>,
    place: impl Fn(&R) -> P,
    cursor: impl Fn(P) -> (u64, Option<u64>),
) -> Result<ListRows, String> {
    let count = found.len();
    let mut page = ListRows {
        rows: Vec::with_capacity(count),
        ..ListRows::default()
    };
    let mut bytes = 0;
    for row in found {
        let value = serde_json::to_value(&row).map_err(|error| error.to_string())?;
        bytes += value.to_string().len();
        page.rows.push(value);
        if bytes > MAX_ROWS_BYTES && page.rows.len() < count {
            next = Some(place(&row));
            break;
        }
    }
    if let Some((number, ms)) = next.map(cursor) {
        (page.next, page.next_ms) = (Some(number), ms);
    }
    Ok(page)
}

fn alarm_reason(error: AlarmServiceError) -> String {
    match error {
        AlarmServiceError::NotFound(detail)
        | AlarmServiceError::Conflict(detail)
        | AlarmServiceError::Field { detail, .. }
        | AlarmServiceError::Unavailable(detail) => detail,
    }
}

fn command_reason(error: DeviceServiceError) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_bounded() {
        let rows = |bytes: usize| vec!["x".repeat(bytes); 3];
        let numbers = |row: &String| row.len() as u64;
        let cursor = |number| (number, Some(3));
        let all = bounded(rows(10), None, numbers, cursor).unwrap();
        assert_eq!((all.rows.len(), all.next, all.next_ms), (3, None, None));
        let cut = bounded(rows(MAX_ROWS_BYTES), None, numbers, cursor).unwrap();
        assert_eq!((cut.rows.len(), cut.next), (1, Some(MAX_ROWS_BYTES as u64)));
        let last = vec!["x".repeat(MAX_ROWS_BYTES + 1)];
        let last = bounded(last, Some(7), numbers, cursor).unwrap();
        assert_eq!(
            (last.rows.len(), last.next, last.next_ms),
            (1, Some(7), Some(3))
        );
    }

    #[test]
    fn namespaces_are_the_same_at_the_other_node() {
        let some = NamespaceSelection::All.within("a");
        for selection in [NamespaceSelection::All, NamespaceSelection::none(), some] {
            assert_eq!(namespace_selection(namespace_names(&selection)), selection);
        }
    }
}
