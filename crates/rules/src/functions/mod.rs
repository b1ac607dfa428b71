//! All functions of the language: one file per family, one line per function in the family's table.
//! Documentation, completion and the tests of the examples are generated from these tables.

mod args;
mod arrays;
mod bits;
mod catalogue;
mod characters;
mod compress;
mod convert;
mod encoding;
mod function;
mod ids;
pub(crate) mod jq;
mod json_documents;
mod jsonpath;
mod maps;
mod math;
mod message;
mod reference;
mod search;
mod sprintf;
mod state_and_environment;
mod strings;
mod time;
mod time_format;
mod types;

pub use args::Args;
pub use catalogue::{FAMILIES, FunctionFamily, all, find, nearest};
pub use function::{Function, FunctionBody, UNLIMITED_ARGS};
pub(crate) use jsonpath::check as check_json_path;
pub use reference::render_reference;
pub(crate) use time::{check_constant as check_time_constant, time_ms};
