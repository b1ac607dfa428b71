//! JSON in and out: text into values in the arena, values into text. Own code because it borrows from the payload, keeps
//! 64-bit integers and the order of fields, and can leave parts unread.

mod read;
mod write;

pub(crate) use read::Reader;
pub use read::{JsonError, MAX_DEPTH, check, open, parse, parse_lazy};
pub use write::{Out, text, write, write_string};
