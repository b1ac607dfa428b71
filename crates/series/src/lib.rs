//! Time series: typed points of numbered devices and named keys, embedded in the node.

mod cell;
mod codec;
mod config;
mod decimal;
mod deletions;
mod directory;
mod downsample;
mod error;
mod flush;
mod handle;
mod keeper;
mod keys;
mod latest;
mod memtable;
mod merge;
mod part;
mod point;
mod query;
mod replay;
mod scan;
mod segment;
mod shared;
mod summary;
mod table;
mod varint;
mod wal;

pub use config::{Config, Fsync, ParseFsyncError, Policy, Tier};
pub use error::{Error, OpenError};
pub use handle::{Health, OpenReport, RowsError, Series, Stats, Ticket};
pub use part::{MAX_POINTS, MAX_ROW_BYTES};
pub use point::{DeviceNo, KeyId, Point, Row, Rows, Value};
pub use query::{Order, Range};
pub use summary::{Aggregate, Intervals, MAX_INTERVALS, Summary};

/// For the fuzzer: reads bytes as a group of a segment file; how many values it has.
#[doc(hidden)]
pub fn read_group(bytes: &[u8]) -> usize {
    codec::group::read_any(bytes)
}
pub use wal::recover::Cut;
