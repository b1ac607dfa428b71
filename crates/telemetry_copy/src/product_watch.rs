//! The products that are copied. A change is followed when it was seen twice, so that the pipeline knows it too: what it has stored
//! before is read from the time series.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::ports::CopiedDevices;

/// Time between two looks at the products.
const INTERVAL: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(crate) struct ProductWatch {
    current: BTreeSet<String>,
    seen: BTreeSet<String>,
    seen_at: Option<Instant>,
    empty_since: Option<Instant>,
}

impl ProductWatch {
    pub(crate) fn look(&mut self, devices: &dyn CopiedDevices, now: Instant) {
        let is_due = self
            .seen_at
            .is_none_or(|at| now.saturating_duration_since(at) >= INTERVAL);
        if is_due {
            let products = devices.products();
            if products == self.seen || self.seen_at.is_none() {
                self.current.clone_from(&products);
            }
            self.seen = products;
            self.seen_at = Some(now);
            self.empty_since = match self.current.is_empty() {
                true => self.empty_since.or(Some(now)),
                false => None,
            };
        }
    }

    /// Since when there are none; `None`: there are some, or it is not known yet.
    pub(crate) fn empty_since(&self) -> Option<Instant> {
        self.empty_since
    }

    pub(crate) fn current(&self) -> &BTreeSet<String> {
        &self.current
    }
}
