//! Metrics as the parts of a node report them, for the control plane to write in the format of Prometheus.

/// A metric family in the sense of Prometheus.
#[derive(Debug, Clone)]
pub struct MetricFamily {
    /// Name without the program's prefix: `messages_received_total`.
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricKind,
    pub samples: Vec<MetricSample>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
    Summary,
}

#[derive(Debug, Clone)]
pub struct MetricSample {
    pub labels: Vec<(&'static str, String)>,
    pub value: MetricValue,
}

#[derive(Debug, Clone)]
pub enum MetricValue {
    Number(f64),
    /// Cumulative buckets `(upper bound, count)` without `+Inf`, the sum, the count.
    Histogram {
        buckets: Vec<(f64, u64)>,
        sum: f64,
        count: u64,
    },
    /// Quantiles `(part, value)`, the sum, the count.
    Summary {
        quantiles: Vec<(f64, f64)>,
        sum: f64,
        count: u64,
    },
}
