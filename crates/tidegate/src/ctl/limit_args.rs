//! The option that limits the rows of a list.

use clap::Args;

#[derive(Args)]
pub(super) struct LimitArgs {
    /// Maximum number of rows; 0: all
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(super) limit: usize,
}
