//! The verifier's thread: after a start it reads all segment files once, slowly, so that damage is reported
//! before a query needs the rows.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::SeriesError;
use crate::lock::lock;
use crate::segment::{Segment, SegmentReader};
use crate::shared::{SeriesShared, increment};

/// Bytes read between two pauses.
const BYTES_PER_PAUSE: u64 = 1 << 20;

pub(crate) fn run(shared: &Arc<SeriesShared>) {
    let rate = shared.config.verify_bytes_per_s;
    if rate == 0 {
        return;
    }
    let mut pace = ReadThrottle {
        shared,
        rate,
        read: 0,
    };
    for (partition, ids) in file_ids_by_partition(shared).into_iter().enumerate() {
        for id in ids {
            // Files that were merged meanwhile have been read by the merger.
            let found = {
                let part = lock(&shared.partitions[partition].partition);
                part.files.iter().find(|file| file.meta.id == id).cloned()
            };
            let Some(segment) = found else { continue };
            match verify_segment(&segment, &mut pace) {
                Ok(()) => {}
                Err(SeriesError::Closed) => return,
                Err(error) => {
                    increment(&shared.counters.errors, 1);
                    increment(&shared.counters.damaged_files, 1);
                    tracing::error!(
                        %error,
                        "telemetry segment is damaged; queries of its rows fail; restore a backup, or stop the node and run `tidegate store repair`"
                    );
                }
            }
        }
    }
}

/// The files of each partition.
fn file_ids_by_partition(shared: &SeriesShared) -> Vec<Vec<u64>> {
    let cells = shared.partitions.iter();
    let ids = cells.map(|cell| {
        let part = lock(&cell.partition);
        part.files.iter().map(|file| file.meta.id).collect()
    });
    ids.collect()
}

struct ReadThrottle<'a> {
    shared: &'a SeriesShared,
    rate: u64,
    read: u64,
}

impl ReadThrottle<'_> {
    fn add(&mut self, bytes: u64) -> Result<(), SeriesError> {
        self.read += bytes;
        if self.read >= BYTES_PER_PAUSE {
            let pause = Duration::from_secs_f64(self.read as f64 / self.rate as f64);
            self.read = 0;
            if !self.shared.is_closing.load(Ordering::Acquire) {
                std::thread::park_timeout(pause);
            }
        }
        match self.shared.is_closing.load(Ordering::Acquire) {
            true => Err(SeriesError::Closed),
            false => Ok(()),
        }
    }
}

fn verify_segment(segment: &Arc<Segment>, pace: &mut ReadThrottle<'_>) -> Result<(), SeriesError> {
    let mut reader = SegmentReader::open(segment)?;
    let mut bytes = Vec::new();
    for block in 0.. {
        let Some(places) = reader.index_block(block)?.map(<[_]>::to_vec) else {
            break;
        };
        for place in places {
            reader.read(&place, &mut bytes)?;
            pace.add(place.len.into())?;
        }
    }
    Ok(())
}
