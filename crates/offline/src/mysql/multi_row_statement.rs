//! Statements with many rows, divided by their size.

/// Maximum number of rows per statement.
pub(super) const MAX_ROWS_PER_STATEMENT: usize = 500;
/// Maximum text of a statement with bodies, unless a single body is larger.
const MAX_STATEMENT_BYTES: usize = 1 << 20;

/// Builds statements with many rows.
pub(super) struct MultiRowStatement {
    head: String,
    tail: &'static str,
    text: String,
}

impl MultiRowStatement {
    pub(super) fn new(head: String, tail: &'static str) -> Self {
        Self {
            head,
            tail,
            text: String::new(),
        }
    }

    /// Starts a row; returns the text to append it to.
    pub(super) fn begin_row(&mut self) -> &mut String {
        let before = if self.text.is_empty() {
            &self.head
        } else {
            ","
        };
        self.text.push_str(before);
        &mut self.text
    }

    pub(super) fn take_full(&mut self) -> Option<String> {
        (self.text.len() > MAX_STATEMENT_BYTES)
            .then(|| self.take_rest())
            .flatten()
    }

    pub(super) fn take_rest(&mut self) -> Option<String> {
        if self.text.is_empty() {
            return None;
        }
        self.text.push_str(self.tail);
        Some(std::mem::take(&mut self.text))
    }
}
