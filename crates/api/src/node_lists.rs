//! Lists of alarms and commands between the nodes of a cluster: what a node asks another, and how it answers.

use std::sync::Arc;

use devices::alarm::Alarm;
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
}

impl SharedList {
    /// The field with the time by which the rows of nodes are merged.
    pub(crate) fn time_field(&self) -> &'static str {
        match self {
            Self::Alarms { .. } => "raised_at_ms",
            Self::Commands { .. } => "created_at_ms",
        }
    }
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
                    before,
                    limit,
                    namespaces,
                };
                let page = alarms.list(&query).map_err(alarm_reason)?;
                bounded(page.rows, page.next, |alarm: &Alarm| alarm.id.0)
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
                let next = page.next.map(|id| id.0);
                bounded(page.commands, next, |command: &Command| command.id.0)
            }
        }
    };
    let read = run_blocking(read, "The list cannot be read now.").await;
    read.map_err(|problem| problem.detail)?
}

/// Keeps as many rows as an answer may have bytes, and at least one.
fn bounded<R: Serialize>(
    found: Vec<R>,
    next: Option<u64>,
    number: impl Fn(&R) -> u64,
) -> Result<ListRows, String> {
    let count = found.len();
    let mut page = ListRows {
        rows: Vec::with_capacity(count),
        next,
    };
    let mut bytes = 0;
    for row in found {
        let value = serde_json::to_value(&row).map_err(|error| error.to_string())?;
        bytes += value.to_string().len();
        page.rows.push(value);
        if bytes > MAX_ROWS_BYTES && page.rows.len() < count {
            page.next = Some(number(&row));
            break;
        }
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
        let all = bounded(rows(10), None, numbers).unwrap();
        assert_eq!((all.rows.len(), all.next), (3, None));
        let cut = bounded(rows(MAX_ROWS_BYTES), None, numbers).unwrap();
        assert_eq!((cut.rows.len(), cut.next), (1, Some(MAX_ROWS_BYTES as u64)));
        let last = bounded(vec!["x".repeat(MAX_ROWS_BYTES + 1)], Some(7), numbers).unwrap();
        assert_eq!((last.rows.len(), last.next), (1, Some(7)));
    }

    #[test]
    fn namespaces_are_the_same_at_the_other_node() {
        let some = NamespaceSelection::All.within("a");
        for selection in [NamespaceSelection::All, NamespaceSelection::none(), some] {
            assert_eq!(namespace_selection(namespace_names(&selection)), selection);
        }
    }
}
