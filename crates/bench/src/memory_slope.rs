//! How fast the broker's memory grows.

use crate::observer::SeriesPoint;

/// What a broker takes in its first minutes (buffers, caches, the heap's own reserves) is no growth.
const WARM_UP_S: f64 = 300.0;
/// A shorter run does not indicate the growth over an hour.
const MIN_SLOPE_S: f64 = 60.0;

/// Seconds and bytes of every point that has both.
pub(crate) fn memory_points(series: &[SeriesPoint]) -> Vec<(f64, f64)> {
    let known = series
        .iter()
        .filter_map(|point| Some((point.at_s, point.rss_bytes? as f64)));
    known.collect()
}

/// Bytes per hour by least squares over what comes after the first five minutes; nothing if that is less than a minute.
pub(crate) fn memory_slope(series: &[SeriesPoint]) -> Option<f64> {
    let settled: Vec<(f64, f64)> = memory_points(series)
        .into_iter()
        .filter(|(at_s, _)| *at_s >= WARM_UP_S)
        .collect();
    let (first, last) = (settled.first()?, settled.last()?);
    if last.0 - first.0 < MIN_SLOPE_S {
        return None;
    }
    let count = settled.len() as f64;
    let mean_x = settled.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = settled.iter().map(|(_, y)| y).sum::<f64>() / count;
    let (mut covariance, mut variance) = (0.0, 0.0);
    for (x, y) in &settled {
        covariance += (x - mean_x) * (y - mean_y);
        variance += (x - mean_x) * (x - mean_x);
    }
    Some(covariance / variance * 3600.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(minutes: u32, bytes: impl Fn(f64) -> f64) -> Vec<SeriesPoint> {
        let at = (0..minutes * 60).map(f64::from);
        at.map(|at_s| SeriesPoint {
            at_s,
            per_second: 1.0,
            broker_cpu: None,
            rss_bytes: Some(bytes(at_s) as u64),
        })
        .collect()
    }

    #[test]
    fn growth_counts_from_the_fifth_minute() {
        let grown = series(20, |at| {
            if at < 300.0 {
                at * 1e6
            } else {
                3e8 + at * 10.0
            }
        });
        let slope = memory_slope(&grown).expect("long enough");
        assert!((slope - 36_000.0).abs() < 100.0, "{slope}");
        let flat = series(20, |_| 5e7);
        assert_eq!(memory_slope(&flat), Some(0.0));
        assert_eq!(memory_slope(&series(5, |at| at)), None);
        let unknown: Vec<SeriesPoint> = flat
            .iter()
            .map(|&point| SeriesPoint {
                rss_bytes: None,
                ..point
            })
            .collect();
        assert_eq!(memory_slope(&unknown), None);
    }
}
