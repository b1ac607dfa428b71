//! Functions, as described by their tables and by the documentation of other products.

mod examples;
mod expression;
#[cfg(feature = "jq")]
mod jq;
mod published;
mod robust;
