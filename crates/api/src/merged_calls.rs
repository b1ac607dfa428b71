//! A request that all nodes execute: how it is changed for them, and how their answers become one.

use axum::response::Response;
use serde_json::Value;

use crate::call;
use crate::endpoint_place::MergedAnswer;
use crate::merged_answers::{self, NodeAnswer};
use crate::merged_endpoints;
use crate::merged_pages::MergedPages;
use crate::node_lists::may_be_of_node;
use crate::problem_details::ProblemDetails;
use crate::query_parameters::QueryParameters;

pub(crate) struct MergedCall {
    merged: MergedAnswer,
    query: QueryParameters,
    pages: Option<MergedPages>,
}

impl MergedCall {
    pub(crate) fn new(
        merged: MergedAnswer,
        query: QueryParameters,
    ) -> Result<Self, ProblemDetails> {
        let pages = match merged {
            MergedAnswer::Rows(rows) => Some(MergedPages::new(rows, &query)?),
            MergedAnswer::Alarms(rows) => Some(MergedPages::shared(rows, &query)?),
            _ => None,
        };
        Ok(Self {
            merged,
            query,
            pages,
        })
    }

    /// The pages of a list, whose cursor is another one for each node.
    pub(crate) fn pages(&self) -> Option<&MergedPages> {
        self.pages.as_ref()
    }

    /// Whether this node has all rows, except those about other nodes.
    pub(crate) fn is_about_nodes(&self) -> bool {
        matches!(
            self.merged,
            MergedAnswer::Alarms(_) | MergedAnswer::AlarmCounts
        )
    }

    /// Whether other nodes may have rows about themselves.
    pub(crate) fn needs_other_nodes(&self) -> bool {
        let value = |name| self.query.text_value(name);
        !self.is_about_nodes() || may_be_of_node(value("device"), value("product"))
    }

    /// Whether nodes execute it and answer nothing.
    pub(crate) fn is_change(&self) -> bool {
        matches!(self.merged, MergedAnswer::Executed)
    }

    /// Whether one of the nodes has the object of the request.
    pub(crate) fn is_of_one_node(&self) -> bool {
        matches!(self.merged, MergedAnswer::ExecutedByOwner)
    }

    /// Whether an answer can be merged.
    pub(crate) fn is_form_of(&self, body: &Value) -> bool {
        match self.merged {
            MergedAnswer::RelayMessages => body.is_array(),
            _ => body.is_object(),
        }
    }

    /// Makes one response of the answers.
    pub(crate) fn respond(
        self,
        answers: Vec<NodeAnswer>,
        missing_nodes: Vec<String>,
    ) -> Result<Response, ProblemDetails> {
        let body = match self.pages {
            Some(pages) => pages.merge(answers),
            None => match self.merged {
                MergedAnswer::Lists(time_field) => merged_answers::lists(answers, time_field),
                MergedAnswer::DeviceCounts => merged_answers::device_counts(answers),
                MergedAnswer::RelayStatus => merged_endpoints::status(answers),
                MergedAnswer::RelayStatuses => merged_endpoints::statuses(answers, &self.query),
                MergedAnswer::RelayConnections => {
                    merged_endpoints::connections(answers, &self.query)
                }
                MergedAnswer::RelayMessages => {
                    let messages = call::json_response(merged_endpoints::messages(answers));
                    return call::with_missing_nodes(messages, &missing_nodes);
                }
                _ => merged_answers::add_numbers(answers),
            },
        };
        merged_answers::respond(body, missing_nodes)
    }
}
