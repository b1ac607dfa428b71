//! Pages with numbers, as ThingsBoard has them. Lists of the node have pages that begin behind a row, so a page with a
//! number is reached by reading those before it.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::call::ApiCall;
use crate::query_parameters::{Parameter, ParameterType, text_parameter};

const PAGE_SIZE: Parameter = Parameter {
    name: "pageSize",
    shape: ParameterType::Number(1, 1000),
    description: "Rows of a page; 100 without it.",
};
const PAGE: Parameter = Parameter {
    name: "page",
    shape: ParameterType::Number(0, 10_000),
    description: "The number of the page, from 0. All pages before it are read, so that a high number takes long.",
};
pub(super) const PAGING: [Parameter; 4] = [
    PAGE_SIZE,
    PAGE,
    text_parameter("sortProperty", "Ignored: the order of a list is fixed."),
    text_parameter("sortOrder", "Ignored."),
];
const DEFAULT_SIZE: u64 = 100;

/// A page as ThingsBoard's clients read it.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageData<T> {
    pub(super) data: Vec<T>,
    /// Pages that are known: this one, those before it, and the next one if there is one.
    total_pages: u64,
    /// Rows that are known: those of these pages, at least one of the next one.
    total_elements: u64,
    has_next: bool,
}

/// Which page is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageNumber {
    size: usize,
    page: u64,
}

/// Rows of a page of the node, and where the next one begins.
pub(super) type Rows = (Vec<Value>, Option<u64>);

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

    /// Reads this page; `read` is given where to begin and how many rows there may be.
    pub(super) fn read_page<E>(
        self,
        mut read: impl FnMut(Option<u64>, usize) -> Result<Rows, E>,
    ) -> Result<Rows, E> {
        let mut begin = None;
        for _ in 0..self.page {
            match self.full_page(begin, &mut read)?.1 {
                Some(next) => begin = Some(next),
                None => return Ok((Vec::new(), None)),
            }
        }
        self.full_page(begin, &mut read)
    }

    /// A page of the node may be short although more rows follow.
    fn full_page<E>(
        self,
        mut begin: Option<u64>,
        read: &mut impl FnMut(Option<u64>, usize) -> Result<Rows, E>,
    ) -> Result<Rows, E> {
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

    pub(super) fn to_page_data<T>(
        self,
        (rows, next): Rows,
        shown: impl Fn(&Value) -> T,
    ) -> PageData<T> {
        let has_next = next.is_some();
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
    use serde_json::json;

    #[test]
    fn pages_are_counted_and_filled() {
        // A list of seven rows that gives two at a time, whatever it is asked for.
        let read = |begin: Option<u64>, limit: usize| {
            let from = begin.unwrap_or(0);
            let end = (from + limit.min(2) as u64).min(7);
            let rows = (from..end).map(|row| json!(row)).collect();
            Ok::<Rows, ()>((rows, (end < 7).then_some(end)))
        };
        let page = |page| PageNumber { size: 3, page };
        assert_eq!(
            page(0).read_page(read).unwrap().0,
            [json!(0), json!(1), json!(2)]
        );
        let last = page(2);
        let rows = last.read_page(read).unwrap();
        assert_eq!(rows, (vec![json!(6)], None));
        let shown = last.to_page_data(rows, Value::clone);
        assert_eq!((shown.total_elements, shown.total_pages), (7, 3));
        assert_eq!(page(3).read_page(read).unwrap(), (vec![], None));
    }
}
