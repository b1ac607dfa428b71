//! Tests of the log below the store: torn and damaged files, and a file layer that fails.

#[path = "../../../tests/common/mod.rs"]
mod common;
mod damage;
mod failing;
mod faults;
