//! Time series: typed points of numbered devices and named keys, embedded in the node.

#![allow(dead_code, reason = "segment files come next")]

mod cell;
mod config;
mod decimal;
mod directory;
mod error;
mod handle;
mod keeper;
mod keys;
mod memtable;
mod part;
mod point;
mod query;
mod shared;
mod table;
mod varint;
mod wal;

pub use config::{Config, Fsync, ParseFsyncError, Policy, Tier};
pub use error::{Error, OpenError};
pub use handle::{Health, OpenReport, RowsError, Series, Stats, Ticket};
pub use part::{MAX_POINTS, MAX_ROW_BYTES};
pub use point::{DeviceNo, KeyId, Point, Row, Rows, Value};
pub use query::{Aggregate, Intervals, MAX_INTERVALS, Order, Range, Summary};
pub use wal::recover::Cut;
