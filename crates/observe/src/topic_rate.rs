//! The rate of messages of a topic, from two counts.

/// Length of a bucket in seconds.
const BUCKET_S: u64 = 10;

/// Counts of the current bucket of time and of the one before.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TopicRate {
    bucket: u64,
    current: u32,
    previous: u32,
}

impl TopicRate {
    pub(crate) fn count(&mut self, now_ms: u64) {
        self.advance(now_ms);
        self.current = self.current.saturating_add(1);
    }

    fn advance(&mut self, now_ms: u64) {
        let bucket = now_ms / (BUCKET_S * 1000);
        self.previous = match bucket.saturating_sub(self.bucket) {
            0 => return,
            1 => self.current,
            _ => 0,
        };
        (self.bucket, self.current) = (bucket, 0);
    }

    /// Messages per second during the last ten seconds, assuming that those of the previous bucket were spread evenly.
    pub(crate) fn per_s(mut self, now_ms: u64) -> f64 {
        self.advance(now_ms);
        let elapsed = (now_ms % (BUCKET_S * 1000)) as f64 / (BUCKET_S * 1000) as f64;
        (f64::from(self.previous) * (1.0 - elapsed) + f64::from(self.current)) / BUCKET_S as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_the_messages() {
        let mut rate = TopicRate::default();
        for second in 0..30 {
            for _ in 0..5 {
                rate.count(second * 1000);
            }
        }
        assert!((rate.per_s(29_999) - 5.0).abs() < 0.01);
        assert!((rate.per_s(35_000) - 2.5).abs() < 0.01);
        assert!(rate.per_s(50_000).abs() < f64::EPSILON);
    }
}
