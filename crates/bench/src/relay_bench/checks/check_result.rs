//! What a check has found.

use hdrhistogram::Histogram;

/// The measured values of a check, and what was wrong.
pub(super) struct CheckResult {
    pub(super) name: String,
    /// Name, value and unit.
    pub(super) values: Vec<(&'static str, f64, &'static str)>,
    pub(super) failures: Vec<String>,
}

impl CheckResult {
    pub(super) fn value(&mut self, name: &'static str, value: f64, unit: &'static str) {
        self.values.push((name, value, unit));
    }

    /// Adds the latencies of a histogram of nanoseconds.
    pub(super) fn latencies(&mut self, names: [&'static str; 3], histogram: &Histogram<u64>) {
        let ms = |ns: u64| ns as f64 / 1e6;
        self.value(names[0], ms(histogram.value_at_quantile(0.5)), "ms");
        self.value(names[1], ms(histogram.value_at_quantile(0.99)), "ms");
        self.value(names[2], ms(histogram.max()), "ms");
    }

    /// Notes a failure unless both are the same.
    pub(super) fn expect(&mut self, what: &str, found: u64, expected: u64) {
        if found != expected {
            let failure = format!("{what}: {found}, and not {expected}");
            self.failures.push(failure);
        }
    }
}
