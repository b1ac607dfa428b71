//! Lists in the order of a field: `sort=size` or `sort=-size`, page by page.
//!
//! Rows are examined one after the other, and only those of the page are kept. Rows with equal values are in the order of their
//! ids, so that pages do not overlap. Rows without a value come last in both directions.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::call::paged_rows;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{PageCursor, Parameter, ParameterType, QueryParameters};

/// Maximum number of rows that one request sorts.
const MAX_SORTED_ROWS: usize = 500_000;

/// Value of the field of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "Value", from = "Value")]
pub(crate) enum SortValue {
    Missing,
    Number(f64),
    Text {
        text: String,
        /// In lower case, converted once and not for each comparison.
        folded: String,
    },
}

impl SortValue {
    pub(crate) fn number(value: u64) -> Self {
        Self::Number(value as f64)
    }

    pub(crate) fn optional_number(value: Option<u64>) -> Self {
        value.map_or(Self::Missing, Self::number)
    }

    pub(crate) fn text(value: &str) -> Self {
        Self::Text {
            text: value.to_owned(),
            folded: value.to_lowercase(),
        }
    }

    pub(crate) fn optional_text(value: Option<&str>) -> Self {
        value.map_or(Self::Missing, Self::text)
    }

    /// A field of a JSON object.
    pub(crate) fn json(value: &Value) -> Self {
        match value {
            Value::Bool(value) => Self::number(u64::from(*value)),
            Value::Number(number) => number.as_f64().map_or(Self::Missing, Self::Number),
            Value::String(text) => Self::text(text),
            Value::Null | Value::Array(_) | Value::Object(_) => Self::Missing,
        }
    }

    fn compare(&self, other: &Self, is_descending: bool) -> Ordering {
        let order = match (self, other) {
            (Self::Missing, Self::Missing) => return Ordering::Equal,
            // Last in both directions.
            (Self::Missing, _) => return Ordering::Greater,
            (_, Self::Missing) => return Ordering::Less,
            (Self::Number(left), Self::Number(right)) => left.total_cmp(right),
            (Self::Number(_), Self::Text { .. }) => Ordering::Less,
            (Self::Text { .. }, Self::Number(_)) => Ordering::Greater,
            // Without regard to case first, as people expect it.
            (
                Self::Text { text, folded },
                Self::Text {
                    text: other_text,
                    folded: other_folded,
                },
            ) => (folded, text).cmp(&(other_folded, other_text)),
        };
        match is_descending {
            true => order.reverse(),
            false => order,
        }
    }

    fn to_cursor(&self) -> Value {
        match self {
            Self::Missing => Value::Null,
            Self::Number(number) => json!(number),
            Self::Text { text, .. } => json!(text),
        }
    }
}

impl From<SortValue> for Value {
    fn from(value: SortValue) -> Self {
        value.to_cursor()
    }
}

impl From<Value> for SortValue {
    fn from(value: Value) -> Self {
        Self::json(&value)
    }
}

/// The order that a request selects.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SortOrder {
    /// Field with its sign, as given.
    text: String,
    pub(crate) field: String,
    is_descending: bool,
    /// The last row of the previous page.
    after: Option<(SortValue, String)>,
}

/// The parameter of a list with these fields.
pub(crate) const fn sort_parameter(fields: &'static [&'static str]) -> Parameter {
    Parameter {
        name: "sort",
        description: "Field by which the list is sorted; with `-` in descending order. Rows with equal values are in the order of their ids; \
                      rows without a value come last. Rows that change between two pages may be missing or repeated.",
        shape: ParameterType::Sort(fields),
    }
}

impl SortOrder {
    /// The order of a request; `None`: the default order of the list.
    pub(crate) fn read(query: &QueryParameters) -> Result<Option<Self>, ProblemDetails> {
        let Some(text) = query.text_value("sort") else {
            return Ok(None);
        };
        let (is_descending, field) = match text.strip_prefix('-') {
            Some(field) => (true, field),
            None => (false, text),
        };
        let after = query.after().map(|cursor| {
            let (sort, value) = cursor.first.split_once(' ').unwrap_or_default();
            let value = serde_json::from_str::<Value>(value).ok();
            let value = value.filter(|_| sort == text);
            value.map(|value| (SortValue::json(&value), cursor.second))
        });
        let wrong = || {
            let detail = format!("after must be a cursor from this list with sort={text}.");
            ProblemDetails::invalid_parameter("after", detail)
        };
        let after = match after {
            None => None,
            Some(after) => Some(after.ok_or_else(wrong)?),
        };
        Ok(Some(Self {
            text: text.to_owned(),
            field: field.to_owned(),
            is_descending,
            after,
        }))
    }

    /// The default order of a list whose newest rows come first: by a field with a time, then by the id, both descending.
    pub(crate) fn newest(field: &str, query: &QueryParameters) -> Result<Self, ProblemDetails> {
        let after = query.after().map(|cursor| {
            let time = cursor.first.parse().map(SortValue::number);
            time.map(|time| (time, cursor.second))
        });
        let after = after.transpose().map_err(|_| {
            let detail = "after must be a cursor from this list without sort.";
            ProblemDetails::invalid_parameter("after", detail)
        })?;
        Ok(Self {
            text: String::new(),
            field: field.to_owned(),
            is_descending: true,
            after,
        })
    }

    /// Compares two rows by their values and ids.
    pub(crate) fn compare(&self, left: (&SortValue, &str), right: (&SortValue, &str)) -> Ordering {
        let by_value = left.0.compare(right.0, self.is_descending);
        by_value.then_with(|| match self.text.is_empty() {
            false => left.1.cmp(right.1),
            true => right.1.cmp(left.1),
        })
    }

    /// The cursor behind a row.
    pub(crate) fn cursor(&self, value: &SortValue, id: &str) -> PageCursor {
        match (self.text.is_empty(), value) {
            (true, SortValue::Number(time)) => PageCursor::new(&format!("{time:.0}"), id),
            _ => PageCursor::new(&format!("{} {}", self.text, value.to_cursor()), id),
        }
    }
}

struct SortedRow<T> {
    value: SortValue,
    id: String,
    row: T,
}

/// The page of a list in an order: keeps the rows that belong to it while all rows are offered.
pub(crate) struct SortedPage<T> {
    order: SortOrder,
    limit: usize,
    offered: usize,
    rows: Vec<SortedRow<T>>,
}

impl<T> SortedPage<T> {
    pub(crate) fn new(order: SortOrder, limit: usize) -> Self {
        Self {
            order,
            limit,
            offered: 0,
            rows: Vec::new(),
        }
    }

    pub(crate) fn field(&self) -> &str {
        &self.order.field
    }

    /// Offers a row; `id` is unique in the list.
    ///
    /// # Errors
    /// If the list has too many rows.
    pub(crate) fn offer(
        &mut self,
        value: SortValue,
        id: &str,
        row: T,
    ) -> Result<(), ProblemDetails> {
        self.offered += 1;
        if self.offered > MAX_SORTED_ROWS {
            let detail = format!(
                "The list has more than {MAX_SORTED_ROWS} rows, which cannot be sorted; filter it, or leave out sort."
            );
            return Err(ProblemDetails::invalid_parameter("sort", detail));
        }
        if let Some((last, last_id)) = &self.order.after
            && self.order.compare((&value, id), (last, last_id)) != Ordering::Greater
        {
            return Ok(());
        }
        self.rows.push(SortedRow {
            value,
            id: id.to_owned(),
            row,
        });
        // Twice the page, so that a row costs constant time on average.
        if self.rows.len() >= 2 * (self.limit + 1) {
            self.keep_page();
        }
        Ok(())
    }

    /// Keeps the rows of the page and one more, which shows that there is a next page.
    fn keep_page(&mut self) {
        let mut rows = std::mem::take(&mut self.rows);
        rows.sort_by(|a, b| self.order.compare((&a.value, &a.id), (&b.value, &b.id)));
        rows.truncate(self.limit + 1);
        self.rows = rows;
    }

    /// The rows of the page, and one more if there is a next page.
    pub(crate) fn into_rows(mut self) -> Vec<T> {
        self.keep_page();
        self.rows.into_iter().map(|row| row.row).collect()
    }
}

impl<T> SortedPage<T> {
    /// The rows of the page, and the cursor of the next one.
    pub(crate) fn into_page(mut self) -> (Vec<T>, Option<String>) {
        self.keep_page();
        let has_next = self.rows.len() > self.limit;
        self.rows.truncate(self.limit);
        let last = self.rows.last().filter(|_| has_next);
        let next = last.map(|row| self.order.cursor(&row.value, &row.id).encode());
        (self.rows.into_iter().map(|row| row.row).collect(), next)
    }
}

impl<T: Serialize> SortedPage<T> {
    /// Keeps as many rows as have this size as JSON, and at least one. All rows must have been offered.
    pub(crate) fn limit_bytes(&mut self, max_bytes: usize) {
        self.keep_page();
        let rows = self.rows.iter().map(|row| &row.row);
        self.limit = self.limit.min(rows_within(rows, max_bytes));
    }

    pub(crate) fn into_response(mut self) -> ApiResult {
        self.keep_page();
        let last = self.rows.get(self.limit.saturating_sub(1));
        let next = last.map(|row| self.order.cursor(&row.value, &row.id));
        let rows = self.rows.into_iter().map(|row| row.row).collect();
        paged_rows(rows, self.limit, |_| {
            next.clone().unwrap_or_else(|| PageCursor::new("", ""))
        })
    }
}

/// Number of the first rows that have this size as JSON, at least one.
pub(crate) fn rows_within<'r, T: Serialize + 'r>(
    rows: impl Iterator<Item = &'r T>,
    max_bytes: usize,
) -> usize {
    let mut bytes = 0;
    let sizes = rows.map(|row| serde_json::to_vec(row).map_or(0, |json| json.len()));
    let kept = sizes.take_while(|size| {
        bytes += size;
        bytes <= max_bytes
    });
    kept.count().max(1)
}

#[cfg(test)]
mod tests {
    use axum::http::Uri;

    use super::*;
    use crate::query_parameters::{AFTER, LIMIT};

    const SORT: Parameter = sort_parameter(&["size", "name"]);

    fn order(query: &str) -> Result<Option<SortOrder>, ProblemDetails> {
        let uri: Uri = format!("/x?{query}").parse().unwrap();
        SortOrder::read(&QueryParameters::read(&uri, &[LIMIT, AFTER, SORT])?)
    }

    /// The ids of all pages.
    fn pages(sort: &str, rows: &[(SortValue, &str)], limit: usize) -> Vec<Vec<String>> {
        let mut pages = Vec::new();
        let mut after = String::new();
        loop {
            let order = order(&format!("sort={sort}{after}")).unwrap().unwrap();
            let mut page = SortedPage::new(order, limit);
            for (value, id) in rows {
                page.offer(value.clone(), id, ()).unwrap();
            }
            page.keep_page();
            let has_next = page.rows.len() > limit;
            page.rows.truncate(limit);
            let last = page.rows.last();
            after = last.map_or_else(String::new, |row| {
                let first = format!("{sort} {}", row.value.to_cursor());
                format!("&after={}", PageCursor::new(&first, &row.id).encode())
            });
            pages.push(page.rows.into_iter().map(|row| row.id).collect());
            if !has_next {
                return pages;
            }
        }
    }

    #[test]
    fn pages_are_in_order_and_do_not_overlap() {
        let number = |value: u64| SortValue::number(value);
        let rows = [
            (number(3), "d"),
            (SortValue::Missing, "a"),
            (number(1), "c"),
            (number(3), "b"),
            (SortValue::Missing, "f"),
            (number(2), "e"),
        ];
        for limit in 1..8 {
            assert_eq!(
                pages("size", &rows, limit).concat(),
                ["c", "e", "b", "d", "a", "f"]
            );
            assert_eq!(
                pages("-size", &rows, limit).concat(),
                ["b", "d", "e", "c", "a", "f"]
            );
        }
        assert_eq!(
            pages("size", &rows, 2),
            [["c", "e"], ["b", "d"], ["a", "f"]]
        );
        let texts = ["b", "A", "a", "C"].map(|text| (SortValue::text(text), text));
        assert_eq!(pages("name", &texts, 3).concat(), ["A", "a", "b", "C"]);
    }

    #[test]
    fn other_fields_and_cursors_are_refused() {
        assert!(order("").unwrap().is_none());
        let unknown = order("sort=weight").err().unwrap();
        assert!(unknown.detail.contains("size, name"), "{}", unknown.detail);
        let cursor = PageCursor::new("size 3", "b").encode();
        assert!(order(&format!("sort=size&after={cursor}")).is_ok());
        for sort in ["-size", "name"] {
            let error = order(&format!("sort={sort}&after={cursor}")).err().unwrap();
            assert_eq!(error.parameter.as_deref(), Some("after"));
        }
    }
}
