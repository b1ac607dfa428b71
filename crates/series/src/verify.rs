//! The verifier's thread: after a start it reads all segment files once, slowly, so that damage is reported before somebody asks for
//! the rows.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::Error;
use crate::segment::{Segment, SegmentReader};
use crate::shared::{Shared, count, lock};

/// What is read before it pauses.
const PIECE_BYTES: u64 = 1 << 20;

pub(crate) fn run(shared: &Arc<Shared>) {
    let rate = shared.config.verify_bytes_per_s;
    if rate == 0 {
        return;
    }
    let mut pace = Pace {
        shared,
        rate,
        read: 0,
    };
    for (partition, ids) in files(shared).into_iter().enumerate() {
        for id in ids {
            // Files that were merged meanwhile have been read.
            let found = {
                let part = lock(&shared.parts[partition].part);
                part.files.iter().find(|file| file.meta.id == id).cloned()
            };
            let Some(segment) = found else { continue };
            match verify(&segment, &mut pace) {
                Ok(()) => {}
                Err(Error::Closed) => return,
                Err(error) => {
                    count(&shared.counters.errors, 1);
                    count(&shared.counters.damaged_files, 1);
                    tracing::error!(
                        %error,
                        "a telemetry file is damaged; queries of its rows fail. Restore a backup, or stop the node and run `tidegate store repair`"
                    );
                }
            }
        }
    }
}

/// Files of each partition.
fn files(shared: &Shared) -> Vec<Vec<u64>> {
    let cells = shared.parts.iter();
    let ids = cells.map(|cell| {
        let part = lock(&cell.part);
        part.files.iter().map(|file| file.meta.id).collect()
    });
    ids.collect()
}

struct Pace<'a> {
    shared: &'a Shared,
    rate: u64,
    read: u64,
}

impl Pace<'_> {
    fn add(&mut self, bytes: u64) -> Result<(), Error> {
        self.read += bytes;
        if self.read >= PIECE_BYTES {
            let pause = Duration::from_secs_f64(self.read as f64 / self.rate as f64);
            self.read = 0;
            if !self.shared.is_closing.load(Ordering::Acquire) {
                std::thread::park_timeout(pause);
            }
        }
        match self.shared.is_closing.load(Ordering::Acquire) {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }
}

fn verify(segment: &Arc<Segment>, pace: &mut Pace<'_>) -> Result<(), Error> {
    let mut reader = SegmentReader::open(segment)?;
    let mut bytes = Vec::new();
    for block in 0.. {
        let Some(places) = reader.places(block)?.map(<[_]>::to_vec) else {
            break;
        };
        for place in places {
            reader.read(&place, &mut bytes)?;
            pace.add(place.len.into())?;
        }
    }
    Ok(())
}
