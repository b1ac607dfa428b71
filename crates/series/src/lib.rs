//! Time series: typed points of numbered devices and named keys, embedded in the node.
//!
//! [`Series`] is one directory. [`append`](Series::append) takes a row, which has the points of one device
//! and one time. Queries return rows, latest values and aggregates. docs/operations/telemetry-storage.md describes
//! files, the effects of a crash and retention; docs/internals/series.md describes the bytes.
//!
//! **Write path.** Devices are spread over eight partitions by their number. Under the partition's lock
//! (`partition/`) a row is encoded once (`cell.rs`). It is copied to the memory-mapped write-ahead log
//! (`wal/`) and to the rows of the memtable (`memtable/`). This path has no system call, no file operation
//! and no compression.
//!
//! **Flush to disk.** Full or old memtables are frozen. The flusher (`flusher.rs`) turns them into columns
//! (`column_table.rs`), compresses these in row groups (`codec/`) and writes segment files (`segment/`), one
//! per partition and day. The committer (`committer.rs`) forces them to disk and gives them their names. The
//! merger (`merger.rs`) combines many files into few and applies policies (`downsample.rs`) and deletions
//! (`deletions.rs`). The maintenance thread (`maintenance.rs`) forces the log to disk, prepares its next file
//! and checks the free disk space.
//!
//! **Order.** Rows of a partition are numbered. A segment file states up to which row all rows are in segment files. A
//! start (`replay.rs`) thus reads only the rest from the log. It also states the number of its last row, so that the
//! younger of two values of one time is known.
//!
//! **Read path.** A scan (`scan.rs`) takes a snapshot under the lock and visits the windows in order of time.
//! It merges only what overlaps: late rows, files that are not merged yet, and memory. Aggregates use the
//! statistics of a row group that lies within one interval (`query.rs`).

mod append;
mod cell;
mod changes;
mod codec;
mod column_table;
mod column_values;
mod committer;
mod config;
mod decimal;
mod deletions;
mod device_merge;
mod directory;
mod downsample;
mod encoding_hint;
mod error;
mod file_operations;
mod flusher;
mod handle;
mod inspection;
mod key_dictionary;
mod latest;
mod lock;
mod maintenance;
mod memtable;
mod merger;
mod owner_usage;
mod partition;
mod partitioning;
mod point;
mod policy_table;
mod query;
mod replay;
mod scan;
mod segment;
mod series_marks;
mod shared;
mod snapshot;
mod summary;
mod text_dictionary;
mod tools;
mod verifier;
mod wal;

pub use append::SyncTicket;
pub use changes::SeriesPositions;
pub use config::{
    DownsamplingTier, Fsync, ParseFsyncError, PolicyAssignment, PolicyResolver, RetentionPolicy,
    SeriesConfig,
};
pub use error::{SeriesError, SeriesOpenError};
pub use handle::{Series, SeriesHealth, SeriesOpenReport, SeriesStats};
pub use owner_usage::{BytesByOwner, OwnerUsageMeter};
pub use partitioning::{PARTITION_COUNT, partition_of};
pub use point::{DeviceNo, KeyId, MAX_POINTS, MAX_ROW_BYTES, Point, PointValue, SeriesRow};
pub use query::{RangeQuery, RowOrder};
pub use shared::DurableCallback;
pub use snapshot::{SeriesSnapshot, SnapshotFile, finish_snapshot_directory, snapshot_path};
pub use summary::{Aggregate, IntervalSummary, Intervals, MAX_INTERVALS, NumericSum, NumericValue};
pub use tools::{SeriesCheckReport, SeriesRepairReport, check, repair};
pub use wal::recovery::WalTruncation;

/// For the fuzzer: decodes bytes as a group of a segment file and returns the number of values.
#[doc(hidden)]
pub fn read_group(bytes: &[u8]) -> usize {
    codec::row_group::fuzz_decode(bytes)
}
