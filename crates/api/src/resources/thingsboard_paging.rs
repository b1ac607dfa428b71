//! Numbered pages as in ThingsBoard. Lists of the node continue after a row, so a numbered page is
//! reached by reading the previous ones.

use schemars::JsonSchema;
use serde::Serialize;

use crate::call::ApiCall;
use crate::query_parameters::{Parameter, ParameterType, text_parameter};

const PAGE_SIZE: Parameter = Parameter {
    name: "pageSize",
    shape: ParameterType::Number(1, 1000),
    description: "Maximum number of rows per page; default 100.",
};
const PAGE: Parameter = Parameter {
    name: "page",
    shape: ParameterType::Number(0, 10_000),
    description: "Number of the page, from 0. All previous pages are read, so a high number is slow.",
};
pub(super) const PAGING: [Parameter; 4] = [
    PAGE_SIZE,
    PAGE,
    text_parameter("sortProperty", "Ignored: the order of a list is fixed."),
    text_parameter("sortOrder", "Ignored."),
];
const DEFAULT_SIZE: u64 = 100;

/// A page in ThingsBoard's form.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageData<T> {
    pub(super) data: Vec<T>,
    /// Number of known pages: this one, the previous ones, and the next one if it exists.
    total_pages: u64,
    /// Number of known rows: those of these pages, and at least one of the next one.
    total_elements: u64,
    has_next: bool,
}

/// The requested page.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageNumber {
    size: usize,
    page: u64,
}

/// Rows of a page of the node, and the cursor of the next one.
pub(super) type PageRows<T> = (Vec<T>, Option<u64>);

pub(super) fn has_page_parameters(call: &ApiCall) -> bool {
    call.query.number_value(PAGE_SIZE).is_some()
}

impl PageNumber {
    pub(super) fn from_call(call: &ApiCall) -> Self {
        Self {
            size: call.query.number_value(PAGE_SIZE).unwrap_or(DEFAULT_SIZE) as usize,
            page: call.query.number_value(PAGE).unwrap_or(0),
        }
    }

    /// The number of rows of the previous pages, and the maximum number of rows of this one.
    pub(super) fn range(self) -> (usize, usize) {
        (self.page as usize * self.size, self.size)
    }

    /// Reads the page; `read` gets the cursor and the maximum number of rows.
    pub(super) fn read_page<R, E>(
        self,
        mut read: impl FnMut(Option<u64>, usize) -> Result<PageRows<R>, E>,
    ) -> Result<PageRows<R>, E> {
        let mut begin = None;
        for _ in 0..self.page {
            match self.full_page(begin, &mut read)?.1 {
                Some(next) => begin = Some(next),
                None => return Ok((Vec::new(), None)),
            }
        }
        self.full_page(begin, &mut read)
    }

    /// Reads a full page, because a page of the node may be short although more rows follow.
    fn full_page<R, E>(
        self,
        mut begin: Option<u64>,
        read: &mut impl FnMut(Option<u64>, usize) -> Result<PageRows<R>, E>,
    ) -> Result<PageRows<R>, E> {
        let mut rows = Vec::new();
        loop {
            let (more, next) = read(begin, self.size - rows.len())?;
            rows.extend(more);
            if next.is_none() || rows.len() >= self.size {
                return Ok((rows, next));
            }
            begin = next;
        }
    }

    pub(super) fn to_page_data<R, T>(
        self,
        rows: Vec<R>,
        has_next: bool,
        shown: impl Fn(&R) -> T,
    ) -> PageData<T> {
        PageData {
            total_pages: self.page + 1 + u64::from(has_next),
            total_elements: self.page * self.size as u64 + rows.len() as u64 + u64::from(has_next),
            data: rows.iter().map(shown).collect(),
            has_next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn pages_are_counted_and_filled() {
        // A list of seven rows that returns two at a time, regardless of the limit.
        let read = |begin: Option<u64>, limit: usize| {
            let from = begin.unwrap_or(0);
            let end = (from + limit.min(2) as u64).min(7);
            let rows = (from..end).map(|row| json!(row)).collect();
            Ok::<PageRows<Value>, ()>((rows, (end < 7).then_some(end)))
        };
        let page = |page| PageNumber { size: 3, page };
        assert_eq!(
            page(0).read_page(read).unwrap().0,
            [json!(0), json!(1), json!(2)]
        );
        let last = page(2);
        assert_eq!(last.range(), (6, 3));
        let (rows, next) = last.read_page(read).unwrap();
        assert_eq!((&rows, next), (&vec![json!(6)], None));
        let shown = last.to_page_data(rows, false, Value::clone);
        assert_eq!((shown.total_elements, shown.total_pages), (7, 3));
        assert_eq!(page(3).read_page(read).unwrap(), (vec![], None));
    }
}
