//! The size of chunks: as large as the carrier transmits in a short time, so that nothing waits long behind one.

use std::time::{Duration, Instant};

/// A chunk takes an eighth of the round-trip time, within these limits.
const MIN_CHUNK_TIME: Duration = Duration::from_millis(1);
const MAX_CHUNK_TIME: Duration = Duration::from_millis(10);
const SHARE_OF_ROUND_TRIP: u32 = 8;
/// The rate is measured over transmissions that take at least this long together.
const MEASURED_TIME: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct ChunkSize {
    min_bytes: usize,
    max_bytes: usize,
    round_trip: Option<Duration>,
    bytes_per_second: Option<f64>,
    /// Duration and bytes of the transmissions since the last measurement.
    transmitted: (Duration, u64),
}

impl ChunkSize {
    pub(crate) fn new(min_bytes: usize, max_bytes: usize) -> Self {
        Self {
            min_bytes,
            max_bytes,
            round_trip: None,
            bytes_per_second: None,
            transmitted: (Duration::ZERO, 0),
        }
    }

    pub(crate) fn record_round_trip(&mut self, sample: Duration) {
        self.round_trip = Some(match self.round_trip {
            None => sample,
            Some(smoothed) => (smoothed * 7 + sample) / 8,
        });
    }

    /// Bytes that were ready at `start` have been passed to the carrier at `end`. The time between two transmissions does
    /// not count: it says nothing about the carrier.
    pub(crate) fn record_transmission(&mut self, bytes: usize, start: Instant, end: Instant) {
        let (time, sum) = self.transmitted;
        let time = time + end.saturating_duration_since(start);
        let sum = sum + bytes as u64;
        if time < MEASURED_TIME {
            self.transmitted = (time, sum);
            return;
        }
        let sample = sum as f64 / time.as_secs_f64();
        self.bytes_per_second = Some(match self.bytes_per_second {
            None => sample,
            Some(smoothed) => smoothed * 0.5 + sample * 0.5,
        });
        self.transmitted = (Duration::ZERO, 0);
    }

    pub(crate) fn bytes(&self) -> usize {
        // Until something is known: small enough for slow carriers, large enough for fast ones.
        let default = (64 * 1024).clamp(self.min_bytes, self.max_bytes);
        let Some(rate) = self.bytes_per_second else {
            return default;
        };
        let round_trip = self.round_trip.unwrap_or(MAX_CHUNK_TIME);
        let time = (round_trip / SHARE_OF_ROUND_TRIP).clamp(MIN_CHUNK_TIME, MAX_CHUNK_TIME);
        let bytes = (rate * time.as_secs_f64()) as usize;
        // Powers of two: the receiver can use the buffers of former chunks.
        let bytes = 1 << bytes.max(1).ilog2();
        bytes.clamp(self.min_bytes, self.max_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(bytes_per_ms: usize, round_trip: Duration) -> usize {
        let mut size = ChunkSize::new(16 * 1024, 1024 * 1024);
        size.record_round_trip(round_trip);
        let mut now = Instant::now();
        for _ in 0..100 {
            let end = now + Duration::from_millis(1);
            size.record_transmission(bytes_per_ms, now, end);
            now = end;
        }
        size.bytes()
    }

    #[test]
    fn chunks_grow_with_rate_and_delay() {
        let (near, far) = (Duration::from_micros(100), Duration::from_millis(200));
        assert_eq!(measured(100, near), 16 * 1024, "100 kB/s");
        assert_eq!(measured(40_000, near), 32 * 1024, "40 MB/s, 1 ms");
        assert_eq!(measured(40_000, far), 256 * 1024, "40 MB/s, 10 ms");
        assert_eq!(measured(4_000_000, near), 1024 * 1024, "4 GB/s");
    }

    #[test]
    fn pauses_do_not_count() {
        let mut size = ChunkSize::new(16 * 1024, 1024 * 1024);
        let start = Instant::now();
        size.record_transmission(1000, start, start + Duration::from_millis(1));
        let later = start + Duration::from_secs(60);
        size.record_transmission(2_000_000_000, later, later + Duration::from_millis(500));
        assert_eq!(size.bytes(), 1024 * 1024);
    }
}
