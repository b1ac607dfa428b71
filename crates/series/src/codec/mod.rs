//! Columns as few bytes: integers (`ints.rs`), floats (`floats.rs`), texts (`texts.rs`), and groups of rows (`group.rs`).
//!
//! Reading takes any bytes: what is no column is refused, and takes no more memory than its rows may.

pub(crate) mod bits;
pub(crate) mod floats;
pub(crate) mod ints;
pub(crate) mod row_group;
pub(crate) mod texts;
