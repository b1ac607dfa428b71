//! Tests of the log below the store: torn and damaged files, a file layer that fails, and reading for a copy.

#[path = "../../../tests/common/mod.rs"]
mod common;
mod copying;
mod damage;
mod failing;
mod faults;
