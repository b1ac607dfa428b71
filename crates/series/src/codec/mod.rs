//! Column compression: integers (`ints.rs`), floats (`floats.rs`), texts (`texts.rs`), and groups of rows
//! (`row_group.rs`).
//!
//! Decoders accept any bytes: invalid input is rejected, and memory use is bounded by the number of rows.

pub(crate) mod bits;
pub(crate) mod floats;
pub(crate) mod ints;
pub(crate) mod row_group;
pub(crate) mod texts;
