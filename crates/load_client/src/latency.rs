//! Histograms of latencies, and the classes in which JetLinks' report counts connects.

use hdrhistogram::Histogram;

/// A histogram of latencies in nanoseconds, up to ten minutes, exact to 0.1 %.
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("these bounds are valid")
}

/// Upper bounds of the classes that JetLinks' load generator counts connects in, in milliseconds.
pub const LATENCY_CLASSES_MS: [u64; 7] = [10, 100, 200, 500, 1000, 2000, 5000];

/// Counts a histogram of nanoseconds in classes: at most 10 ms, at most 100 ms, ... and above 5000 ms.
pub fn latency_classes(histogram: &Histogram<u64>) -> Vec<(String, u64)> {
    let mut below = 0;
    let mut counted = Vec::with_capacity(LATENCY_CLASSES_MS.len() + 1);
    let mut lower = None;
    for bound in LATENCY_CLASSES_MS {
        let up_to = histogram.iter_recorded().map(|step| {
            let inside = step.value_iterated_to() <= bound * 1_000_000;
            if inside { step.count_at_value() } else { 0 }
        });
        let up_to: u64 = up_to.sum();
        let label = match lower {
            None => format!("<= {bound} ms"),
            Some(lower) => format!("> {lower} ms"),
        };
        counted.push((label, up_to - below));
        below = up_to;
        lower = Some(bound);
    }
    let last = LATENCY_CLASSES_MS[LATENCY_CLASSES_MS.len() - 1];
    counted.push((format!("> {last} ms"), histogram.len() - below));
    counted.reverse();
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_the_bounds_of_the_report() {
        let mut histogram = latency_histogram();
        for ms in [1, 9, 11, 150, 250, 700, 1500, 3000, 6000, 7000] {
            histogram.record(ms * 1_000_000).expect("within bounds");
        }
        let counted: Vec<(String, u64)> = latency_classes(&histogram);
        let shown: Vec<String> = counted.iter().map(|(l, n)| format!("{l}: {n}")).collect();
        assert_eq!(
            shown,
            [
                "> 5000 ms: 2",
                "> 2000 ms: 1",
                "> 1000 ms: 1",
                "> 500 ms: 1",
                "> 200 ms: 1",
                "> 100 ms: 1",
                "> 10 ms: 1",
                "<= 10 ms: 2"
            ]
        );
    }
}
