//! Merges the pages of a list of rows with ids that several nodes have.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::endpoint_place::MergedRows;
use crate::merged_answers::NodeAnswer;
use crate::problem_details::ProblemDetails;
use crate::query_parameters::{AFTER, PageCursor, QueryParameters};
use crate::sorted_list::SortOrder;

/// The pages of a list of rows with ids: numbers or texts.
///
/// The rows of nodes are merged by a time, or by the field of the parameter `sort`. A cursor of the merged list contains
/// the cursor of each node, so that the next page can be read at any node. With `sort`, it is the same for all nodes.
pub(crate) struct MergedPages {
    rows: MergedRows,
    order: Option<SortOrder>,
    limit: usize,
    /// The cursor of each node; `None`: it has no further rows.
    cursors: BTreeMap<String, Option<String>>,
    /// The cursor for all nodes.
    sorted_after: Option<String>,
}

impl MergedPages {
    pub(crate) fn new(rows: MergedRows, query: &QueryParameters) -> Result<Self, ProblemDetails> {
        let order = SortOrder::read(query)?;
        let after = query.after();
        let (mut cursors, mut sorted_after) = (BTreeMap::new(), None);
        match (&order, after) {
            (_, None) => {}
            (Some(_), Some(after)) => sorted_after = Some(after.encode()),
            (None, Some(after)) => {
                cursors = serde_json::from_str(&after.first).map_err(|_| {
                    let detail = "after must be a cursor from this list of a cluster.";
                    ProblemDetails::invalid_parameter(AFTER.name, detail)
                })?;
            }
        }
        Ok(Self {
            rows,
            order,
            limit: query.limit(),
            cursors,
            sorted_after,
        })
    }

    /// Pages of a list whose rows have the same places at all nodes, so that the cursor is the same for all of them.
    pub(crate) fn shared(
        rows: MergedRows,
        query: &QueryParameters,
    ) -> Result<Self, ProblemDetails> {
        let order = match SortOrder::read(query)? {
            Some(order) => order,
            None => SortOrder::newest(rows.time_field, query)?,
        };
        Ok(Self {
            rows,
            order: Some(order),
            limit: query.limit(),
            cursors: BTreeMap::new(),
            sorted_after: query.after().map(|after| after.encode()),
        })
    }

    /// The cursor for a node; the inner `None` is the beginning of its list, the outer one its end.
    pub(crate) fn cursor_of(&self, node: &str) -> Option<Option<String>> {
        if self.order.is_some() {
            return Some(self.sorted_after.clone());
        }
        match self.cursors.get(node) {
            None => Some(None),
            Some(Some(cursor)) => Some(Some(cursor.clone())),
            Some(None) => None,
        }
    }

    fn compare(&self, left: &Value, right: &Value) -> Ordering {
        match &self.order {
            Some(order) => {
                let value = |row: &Value| (self.rows.sort_value)(row, &order.field);
                let (left_value, right_value) = (value(left), value(right));
                order.compare(
                    (&left_value, &sorted_id(left)),
                    (&right_value, &sorted_id(right)),
                )
            }
            // The newest first.
            None => {
                let time = |row: &Value| row[self.rows.time_field].as_u64();
                time(right).cmp(&time(left))
            }
        }
    }

    pub(crate) fn merge(mut self, answers: Vec<NodeAnswer>) -> Value {
        let mut pages: Vec<NodePage> = answers.into_iter().map(NodePage::new).collect();
        let mut data = Vec::new();
        while data.len() < self.limit {
            // What follows on such a page is not known, and might come next.
            if pages
                .iter()
                .any(|page| page.is_at_end() && page.next.is_some())
            {
                break;
            }
            let heads = pages.iter().enumerate();
            let heads = heads.filter_map(|(index, page)| Some((index, page.rows.get(page.taken)?)));
            let first = heads.min_by(|(_, left), (_, right)| self.compare(left, right));
            let Some((index, row)) = first else {
                break;
            };
            let mut row = row.clone();
            let page = &mut pages[index];
            if let Some(fields) = row.as_object_mut() {
                let node = fields.entry("node").or_insert(Value::Null);
                // An alarm has the node that has raised it.
                if !node.is_string() {
                    *node = page.node.as_str().into();
                }
            }
            page.taken += 1;
            data.push(row);
        }
        let next = self.next_cursor(&pages, data.last());
        json!({"data": data, "next": next})
    }

    fn next_cursor(&mut self, pages: &[NodePage], last: Option<&Value>) -> Option<String> {
        let has_more = |page: &NodePage| !page.is_at_end() || page.next.is_some();
        if !pages.iter().any(has_more) {
            return None;
        }
        if let Some(order) = &self.order {
            let row = last?;
            let value = (self.rows.sort_value)(row, &order.field);
            return Some(order.cursor(&value, &sorted_id(row)).encode());
        }
        for page in pages {
            let cursor = match page.taken {
                _ if page.is_at_end() => page.next.clone(),
                0 => match self.cursors.get(&page.node) {
                    Some(cursor) => cursor.clone(),
                    // The beginning.
                    None => continue,
                },
                taken => {
                    let id = match &page.rows[taken - 1]["id"] {
                        Value::String(id) => id.clone(),
                        number => number.to_string(),
                    };
                    Some(PageCursor::new(&id, "").encode())
                }
            };
            self.cursors.insert(page.node.clone(), cursor);
        }
        let cursors = json!(self.cursors).to_string();
        Some(PageCursor::new(&cursors, "").encode())
    }
}

/// The page of one node.
struct NodePage {
    node: String,
    rows: Vec<Value>,
    next: Option<String>,
    /// Rows that are part of the merged page.
    taken: usize,
}

impl NodePage {
    fn new(answer: NodeAnswer) -> Self {
        let NodeAnswer { node, mut body } = answer;
        let rows = match body["data"].take() {
            Value::Array(rows) => rows,
            _ => Vec::new(),
        };
        Self {
            node,
            rows,
            next: body["next"].as_str().map(str::to_owned),
            taken: 0,
        }
    }

    fn is_at_end(&self) -> bool {
        self.taken == self.rows.len()
    }
}

/// The id of a row as in the cursors of a sorted list of one node: a number with leading zeros, or a text.
fn sorted_id(row: &Value) -> String {
    match &row["id"] {
        Value::String(id) => id.clone(),
        number => format!("{:020}", number.as_u64().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query_parameters::{LIMIT, Parameter};
    use crate::sorted_list::{SortValue, sort_parameter};

    const KNOWN: [Parameter; 3] = [LIMIT, AFTER, sort_parameter(&["size"])];
    const BY_TIME: MergedRows = MergedRows {
        time_field: "at",
        sort_value: |row, field| SortValue::json(&row[field]),
    };

    fn query(query: &str) -> QueryParameters {
        QueryParameters::read(&format!("/rows?{query}").parse().unwrap(), &KNOWN).unwrap()
    }

    fn answer(node: &str, body: Value) -> NodeAnswer {
        NodeAnswer {
            node: node.to_owned(),
            body,
        }
    }

    /// A node whose rows are numbered from 1 on.
    struct TestNode {
        name: &'static str,
        /// The time of each row.
        times: Vec<u64>,
        /// Rows that it reads for a page.
        page: usize,
    }

    impl TestNode {
        fn read(&self, cursor: Option<String>, limit: usize) -> Value {
            let after = cursor.map(|cursor| query(&format!("after={cursor}")).after_number("rows"));
            let before: usize = after.and_then(|after| after.unwrap()).unwrap_or(usize::MAX);
            let count = limit.min(self.page);
            let numbers = (1..=self.times.len()).rev().filter(|id| *id < before);
            let ids: Vec<usize> = numbers.take(count).collect();
            let last = ids.last().copied().unwrap_or(1);
            let rows = ids
                .iter()
                .map(|id| json!({"id": id, "at": self.times[id - 1]}));
            let next = (last > 1).then(|| PageCursor::new(&last.to_string(), "").encode());
            json!({"data": rows.collect::<Vec<_>>(), "next": next})
        }
    }

    fn pages(nodes: &[TestNode], limit: usize) -> Vec<u64> {
        let (mut times, mut after) = (Vec::new(), None::<String>);
        for _ in 0..100 {
            let text = match &after {
                Some(after) => format!("limit={limit}&after={after}"),
                None => format!("limit={limit}"),
            };
            let pages = MergedPages::new(BY_TIME, &query(&text)).unwrap();
            let asked = nodes.iter().filter_map(|node| {
                let cursor = pages.cursor_of(node.name)?;
                Some(answer(node.name, node.read(cursor, limit)))
            });
            let asked = asked.collect();
            let page = pages.merge(asked);
            let rows = page["data"].as_array().unwrap();
            assert!(rows.len() <= limit);
            times.extend(rows.iter().map(|row| row["at"].as_u64().unwrap()));
            after = page["next"].as_str().map(str::to_owned);
            if after.is_none() {
                return times;
            }
        }
        panic!("the list has no end");
    }

    #[test]
    fn rows_of_nodes_are_merged_page_by_page() {
        for page in [1, 2, 100] {
            for limit in 1..=8 {
                let node = |name, times: &[u64]| TestNode {
                    name,
                    times: times.to_vec(),
                    page,
                };
                let nodes = [
                    node("a", &[1, 4, 7]),
                    node("b", &[]),
                    node("c", &[2, 3, 5, 6]),
                ];
                let times = pages(&nodes, limit);
                assert_eq!(times, [7, 6, 5, 4, 3, 2, 1], "{page} rows, limit {limit}");
            }
        }
    }

    #[test]
    fn ids_may_be_texts() {
        let page = |ids: &[&str]| {
            let rows = ids
                .iter()
                .map(|id| json!({"id": id, "at": id.len(), "size": 1}));
            json!({"data": rows.collect::<Vec<_>>(), "next": null})
        };
        let merged = |text: &str, pages_of: [&[&str]; 2]| {
            let pages = MergedPages::new(BY_TIME, &query(text)).unwrap();
            let answers = ["a", "b"].into_iter().zip(pages_of);
            let answers = answers.map(|(node, ids)| answer(node, page(ids)));
            pages.merge(answers.collect())
        };
        let first = merged("limit=2", [&["aaaa", "aa"], &["bbb", "b"]]);
        assert_eq!(first["data"][1]["id"], "bbb");
        let text = format!("limit=2&after={}", first["next"].as_str().unwrap());
        let pages = MergedPages::new(BY_TIME, &query(&text)).unwrap();
        let cursor = |id: &str| Some(Some(PageCursor::new(id, "").encode()));
        assert_eq!(pages.cursor_of("a"), cursor("aaaa"));
        assert_eq!(pages.cursor_of("b"), cursor("bbb"));
        // Rows with equal values are in the order of their ids, at whichever node they are.
        let first = merged("limit=3&sort=size", [&["aa", "aaaa"], &["b", "bbb"]]);
        let ids = first["data"].as_array().unwrap().iter();
        let ids: Vec<_> = ids.map(|row| row["id"].as_str().unwrap()).collect();
        assert_eq!(ids, ["aa", "aaaa", "b"]);
    }

    #[test]
    fn a_shared_list_has_one_cursor_for_all_nodes() {
        // The times and numbers of rows, the newest first: those of all nodes at the first one, and own ones at the second.
        let shared = [(9, 30), (9, 20), (7, 2), (5, 40)];
        let own = [(8, 1), (5, 3)];
        let page = |rows: &[(u64, u64)], after: Option<&str>| {
            let after = after.map(|after| query(&format!("after={after}")).after().unwrap());
            let place = after.map(|after| -> (u64, u64) {
                (after.first.parse().unwrap(), after.second.parse().unwrap())
            });
            let is_behind = |row: &&(u64, u64)| place.is_none_or(|place| **row < place);
            let rows: Vec<_> = rows.iter().filter(is_behind).collect();
            let page = rows.iter().take(2);
            let page: Vec<_> = page.map(|(at, id)| json!({"id": id, "at": at})).collect();
            let next = (rows.len() > 2).then(|| {
                let (at, id) = rows[1];
                PageCursor::new(&at.to_string(), &id.to_string()).encode()
            });
            json!({"data": page, "next": next})
        };
        let (mut ids, mut after) = (Vec::new(), None::<String>);
        for turn in 0..10 {
            let text = after
                .as_ref()
                .map_or_else(String::new, |after| format!("&after={after}"));
            let pages = MergedPages::shared(BY_TIME, &query(&format!("limit=2{text}"))).unwrap();
            let cursors = ["a", "b"].map(|node| pages.cursor_of(node).unwrap());
            assert_eq!(cursors, [after.clone(), after.clone()]);
            // Whichever node is asked for the next page.
            let (first, second) = if turn % 2 == 0 {
                ("a", "b")
            } else {
                ("b", "a")
            };
            let merged = pages.merge(vec![
                answer(first, page(&shared, after.as_deref())),
                answer(second, page(&own, after.as_deref())),
            ]);
            let rows = merged["data"].as_array().unwrap();
            ids.extend(rows.iter().map(|row| row["id"].as_u64().unwrap()));
            after = merged["next"].as_str().map(str::to_owned);
            if after.is_none() {
                break;
            }
        }
        assert_eq!(ids, [30, 20, 1, 2, 40, 3]);
        let invalid = PageCursor::new("size 3", "1").encode();
        let invalid = query(&format!("after={invalid}"));
        assert!(MergedPages::shared(BY_TIME, &invalid).is_err());
    }

    #[test]
    fn a_row_may_have_its_node() {
        let pages = MergedPages::new(BY_TIME, &query("limit=2")).unwrap();
        let rows =
            json!({"data": [{"id": 2, "at": 2, "node": "b"}, {"id": 1, "at": 1}], "next": null});
        let merged = pages.merge(vec![answer("a", rows)]);
        let nodes: Vec<_> = merged["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| &row["node"])
            .collect();
        assert_eq!(nodes, ["b", "a"]);
    }

    #[test]
    fn rows_are_merged_by_the_field_of_sort() {
        let pages = MergedPages::new(BY_TIME, &query("sort=-size&limit=2")).unwrap();
        let merged = pages.merge(vec![
            answer(
                "a",
                json!({"data": [{"id": 1, "size": 5}, {"id": 2, "size": 1}], "next": null}),
            ),
            answer("b", json!({"data": [{"id": 1, "size": 3}], "next": null})),
        ]);
        let sizes: Vec<_> = merged["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| &row["size"])
            .collect();
        assert_eq!(sizes, [5, 3]);
        assert_eq!(merged["data"][1]["node"], "b");
        let next = merged["next"].as_str().unwrap();
        let text = format!("sort=-size&limit=2&after={next}");
        let pages = MergedPages::new(BY_TIME, &query(&text)).unwrap();
        assert_eq!(pages.cursor_of("a"), Some(Some(next.to_owned())));
    }
}
