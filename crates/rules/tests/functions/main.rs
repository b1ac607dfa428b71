//! The functions, as their tables and the documentation of other products describe them.

mod examples;
mod expression;
#[cfg(feature = "jq")]
mod jq;
mod published;
mod robust;
