//! Time series: typed points of numbered devices and named keys, embedded in the node.
//!
//! [`Series`] is one directory. [`append`](Series::append) takes a row, points of one device and one time; queries give rows,
//! latest values and aggregates. Files, bytes, what a crash can take and how old rows go are in docs/telemetry-storage.md.
//!
//! **The way in.** Devices are spread over eight partitions by their number. Under the partition's lock (`part.rs`) a row is
//! encoded once (`cell.rs`), copied to the write-ahead log (`wal/`), which is mapped into memory, and to the device's bytes
//! in the memtable (`memtable.rs`). No system call, no file and no compression is on this way.
//!
//! **To disk.** Full or old memtables are frozen; the flusher (`flush.rs`) makes columns of them (`table.rs`), compresses these in
//! groups (`codec/`) and writes segment files (`segment.rs`), one per partition and day. The settler (`settle.rs`) forces them to disk
//! and names them. The merger (`merge.rs`) makes few files of
//! many and applies policies (`downsample.rs`) and deletions (`deletions.rs`). The keeper (`keeper.rs`) forces the log to disk,
//! prepares its next file and looks at the room that is left.
//!
//! **Order.** Rows of a partition are numbered. A segment file says up to which row it has all of them, so that a start
//! (`replay.rs`) reads the rest from the log; and which row is its last, so that of two values of one time the younger one is known.
//!
//! **The way out.** A scan (`scan.rs`) takes a snapshot under the lock, walks through the windows in order of time, and puts
//! together only what overlaps: late rows, files that were not merged yet, and memory. Aggregates use the statistics of a
//! group where it lies within one interval (`query.rs`).

mod append;
mod cell;
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
mod error;
mod flusher;
mod handle;
mod inspection;
mod key_dictionary;
mod latest;
mod maintenance;
mod memtable;
mod merger;
mod partition;
mod point;
mod policy_table;
mod query;
mod replay;
mod scan;
mod segment;
mod series_marks;
mod shared;
mod summary;
mod tools;
mod verifier;
mod wal;

pub use append::{DurableCallback, RowsError, SyncTicket};
pub use config::{
    DownsamplingTier, Fsync, ParseFsyncError, PolicyAssignment, PolicyResolver, RetentionPolicy,
    SeriesConfig,
};
pub use error::{SeriesError, SeriesOpenError};
pub use handle::{Series, SeriesHealth, SeriesOpenReport, SeriesStats};
pub use partition::{MAX_POINTS, MAX_ROW_BYTES, PARTITION_COUNT, partition_of};
pub use point::{DeviceNo, KeyId, Point, PointValue, RowBatch, SeriesRow};
pub use query::{RangeQuery, RowOrder};
pub use summary::{Aggregate, IntervalSummary, Intervals, MAX_INTERVALS, NumericSum, NumericValue};

/// For the fuzzer: reads bytes as a group of a segment file; how many values it has.
#[doc(hidden)]
pub fn read_group(bytes: &[u8]) -> usize {
    codec::row_group::fuzz_decode(bytes)
}
pub use tools::{SeriesCheckReport, SeriesRepairReport, check, repair};
pub use wal::recovery::WalTruncation;
