//! Counters over the time of a run, for charts.

use serde::{Deserialize, Serialize};

use super::run_shared::RunProgress;

/// More points are thinned out: every second one stays.
const MAX_POINTS: usize = 1000;
const FIRST_INTERVAL_S: f64 = 0.5;

/// Sums since the start of the run at a time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SeriesPoint {
    pub(crate) at_s: f64,
    pub(crate) progress: RunProgress,
}

#[derive(Debug)]
pub(super) struct RunSeries {
    points: Vec<SeriesPoint>,
    interval_s: f64,
}

impl RunSeries {
    pub(super) fn new() -> Self {
        Self {
            points: Vec::new(),
            interval_s: FIRST_INTERVAL_S,
        }
    }

    /// Adds a point if the last one is old enough.
    pub(super) fn record(&mut self, at_s: f64, progress: RunProgress) {
        let is_due = self
            .points
            .last()
            .is_none_or(|last| at_s - last.at_s >= self.interval_s);
        if !is_due {
            return;
        }
        self.points.push(SeriesPoint { at_s, progress });
        if self.points.len() > MAX_POINTS {
            let mut number = 0;
            self.points.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.interval_s *= 2.0;
        }
    }

    pub(super) fn into_points(self) -> Vec<SeriesPoint> {
        self.points
    }
}

/// Adds the counters of another machine to a series, at the times of the series.
pub(crate) fn add_series(sum: &mut [SeriesPoint], other: &[SeriesPoint]) {
    for point in sum {
        let later = other.partition_point(|known| known.at_s <= point.at_s);
        if let Some(known) = later.checked_sub(1).and_then(|at| other.get(at)) {
            point.progress.add(&known.progress);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_have_fewer_points_per_second() {
        let mut series = RunSeries::new();
        for tick in 0..1_000_000 {
            series.record(f64::from(tick) * 0.02, RunProgress::default());
        }
        let points = series.into_points();
        assert!((MAX_POINTS / 2..=MAX_POINTS).contains(&points.len()));
        assert!(points[0].at_s == 0.0 && points[points.len() - 1].at_s > 19_900.0);
    }

    #[test]
    fn series_of_machines_are_added_at_the_same_times() {
        let point = |at_s, sent| SeriesPoint {
            at_s,
            progress: RunProgress {
                sent,
                ..RunProgress::default()
            },
        };
        let mut sum = [
            point(0.0, 0),
            point(1.0, 10),
            point(2.0, 20),
            point(9.0, 30),
        ];
        let other = [point(0.5, 1), point(1.6, 5), point(2.1, 7)];
        add_series(&mut sum, &other);
        assert_eq!(sum.map(|point| point.progress.sent), [0, 11, 25, 37]);
    }
}
