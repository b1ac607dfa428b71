//! Counts the stored bytes of devices by their owner, such as a product.
//!
//! Usage is derived from what is stored, and never from a counter of its own. It is therefore right after a crash, a
//! merge, a deletion or the end of a retention. A segment file is counted once, from its index; a memtable counts its
//! rows as they are appended. Owners are looked up without any lock of the store, because a lookup may wait.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::SeriesError;
use crate::handle::Series;
use crate::lock::lock;
use crate::memtable::Memtable;
use crate::partitioning::PARTITION_COUNT;
use crate::point::DeviceNo;
use crate::segment::{Segment, SegmentReader};

/// Stored bytes by owner.
pub type BytesByOwner = HashMap<u16, u64, foldhash::fast::RandomState>;

/// Counts stored bytes by owner. Owners are numbers above 0; the bytes of devices without an owner (0) are not counted.
pub struct OwnerUsageMeter {
    series: Series,
    of_files: [FileTotals; PARTITION_COUNT],
}

/// The files of one partition.
#[derive(Default)]
struct FileTotals {
    /// The partition's generation, plus 1.
    counted: u64,
    bytes: BytesByOwner,
}

/// What one partition stores at one moment.
struct PartitionContents {
    generation: u64,
    files: Arc<Vec<Arc<Segment>>>,
    frozen: Vec<Arc<Memtable>>,
    /// Bytes in the active memtable by owner, and of devices that have none so far.
    active: Vec<u64>,
    without_owner: Vec<(u32, u32)>,
}

impl OwnerUsageMeter {
    #[must_use]
    pub fn new(series: Series) -> Self {
        Self {
            series,
            of_files: Default::default(),
        }
    }

    /// Counts the stored bytes: those of groups in segment files, and of rows that are in no segment file yet. The owner
    /// of a device must not change while it has rows. The first call reads the indexes of all files. May wait.
    pub fn measure(&mut self, owner_of: &dyn Fn(DeviceNo) -> u16) -> BytesByOwner {
        let mut bytes = BytesByOwner::default();
        for partition in 0..PARTITION_COUNT {
            let contents = self.contents(partition);
            let of_files = &mut self.of_files[partition];
            if of_files.counted != contents.generation + 1 {
                of_files.bytes = files_by_owner(&contents.files, owner_of);
                of_files.counted = contents.generation + 1;
            }
            add_all(&mut bytes, of_files.bytes.iter().map(|(of, n)| (*of, *n)));
            for memtable in contents.frozen {
                let devices = memtable.device_bytes();
                let owners = devices.map(|(device, owner, n)| match owner {
                    0 => (owner_of(DeviceNo(device)), n.into()),
                    owner => (owner, n.into()),
                });
                add_all(&mut bytes, owners);
            }
            add_all(&mut bytes, (0..).zip(contents.active));
            let mut owners = Vec::with_capacity(contents.without_owner.len());
            for (device, n) in contents.without_owner {
                let owner = owner_of(DeviceNo(device));
                owners.push((device, owner));
                add_all(&mut bytes, [(owner, n.into())]);
            }
            if !owners.is_empty() {
                let cell = &self.series.shared().partitions[partition];
                lock(&cell.partition).active.set_owners(&owners);
            }
        }
        bytes.remove(&0);
        bytes
    }

    fn contents(&self, partition: usize) -> PartitionContents {
        let part = lock(&self.series.shared().partitions[partition].partition);
        PartitionContents {
            generation: part.generation,
            files: Arc::clone(&part.files),
            frozen: part.frozen.clone(),
            active: part.active.bytes_by_owner().to_vec(),
            without_owner: part.active.devices_without_owner(),
        }
    }
}

fn add_all(bytes: &mut BytesByOwner, added: impl IntoIterator<Item = (u16, u64)>) {
    for (owner, added) in added {
        if added > 0 {
            *bytes.entry(owner).or_default() += added;
        }
    }
}

fn files_by_owner(files: &[Arc<Segment>], owner_of: &dyn Fn(DeviceNo) -> u16) -> BytesByOwner {
    let mut bytes = BytesByOwner::default();
    for file in files {
        let counted = file.bytes_by_owner.get_or_init(|| {
            let counted = count_groups(file, owner_of);
            // Queries of these rows fail as well, and the verifier reports the damage.
            let counted = counted.inspect_err(|error| {
                tracing::warn!(%error, "the size of a telemetry segment file cannot be counted");
            });
            counted.unwrap_or_default()
        });
        add_all(&mut bytes, counted.iter().copied());
    }
    bytes
}

fn count_groups(
    file: &Arc<Segment>,
    owner_of: &dyn Fn(DeviceNo) -> u16,
) -> Result<Box<[(u16, u64)]>, SeriesError> {
    let mut bytes = BytesByOwner::default();
    let mut last = None;
    SegmentReader::open(file)?.for_each_group(&mut |group| {
        let owner = match last {
            Some((device, owner)) if device == group.device => owner,
            _ => owner_of(DeviceNo(group.device)),
        };
        last = Some((group.device, owner));
        add_all(&mut bytes, [(owner, u64::from(group.len))]);
        Ok(())
    })?;
    bytes.remove(&0);
    Ok(bytes.into_iter().collect())
}
