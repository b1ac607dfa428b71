//! `cargo xtask bench`.

use crate::Failure;

pub(crate) fn run(_arguments: &[String]) -> Result<(), Failure> {
    Err("not here yet".into())
}
