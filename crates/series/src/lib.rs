//! Time series: typed points of numbered devices and named keys, embedded in the node.

mod point;

pub use point::{DeviceNo, KeyId, Point, Value};
