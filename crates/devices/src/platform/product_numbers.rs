//! Numbers of products in the pipeline.

use std::sync::{Mutex, PoisonError};

use hashbrown::HashMap;

use crate::id::ProductId;
use crate::ingest::ProductNo;

/// Product numbers, assigned on first use.
#[derive(Default)]
pub(super) struct ProductNumbers(Mutex<HashMap<ProductId, ProductNo>>);

impl ProductNumbers {
    pub(super) fn number_for(&self, product: &ProductId) -> ProductNo {
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = ProductNo(numbers.len() as u32);
        *numbers.entry(product.clone()).or_insert(next)
    }
}
