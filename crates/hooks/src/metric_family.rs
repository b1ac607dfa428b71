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

impl MetricFamily {
    /// A family of one number without labels.
    pub fn single(name: &'static str, help: &'static str, kind: MetricKind, value: f64) -> Self {
        Self {
            name,
            help,
            kind,
            samples: vec![MetricSample {
                labels: Vec::new(),
                value: MetricValue::Number(value),
            }],
        }
    }

    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self::single(name, help, MetricKind::Counter, value as f64)
    }

    pub fn gauge(name: &'static str, help: &'static str, value: f64) -> Self {
        Self::single(name, help, MetricKind::Gauge, value)
    }

    /// A family of numbers that differ in the value of one label.
    pub fn by_label<'a>(
        name: &'static str,
        help: &'static str,
        kind: MetricKind,
        label: &'static str,
        values: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> Self {
        let samples = values.into_iter().map(|(of, value)| MetricSample {
            labels: vec![(label, of.to_owned())],
            value: MetricValue::Number(value),
        });
        Self {
            name,
            help,
            kind,
            samples: samples.collect(),
        }
    }

    /// The numbers of all samples. Histograms and summaries have none.
    pub fn numbers(&self) -> impl Iterator<Item = f64> {
        (self.samples.iter()).filter_map(|sample| match sample.value {
            MetricValue::Number(number) => Some(number),
            MetricValue::Histogram { .. } | MetricValue::Summary { .. } => None,
        })
    }
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
