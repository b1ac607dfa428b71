//! Counters over the time of a run, for charts.

use super::run_shared::RunProgress;

/// More points are thinned out: every second one stays.
const MAX_POINTS: usize = 1000;
const FIRST_INTERVAL_S: f64 = 0.5;

/// Sums since the start of the run at a time.
#[derive(Clone, Copy, Debug)]
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
}
