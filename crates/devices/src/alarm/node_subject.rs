//! The node itself as the subject of alarms.

use series::DeviceNo;

/// The device number that stands for the node itself. No device has it: numbers are dense and never reach it.
pub const NODE_NO: DeviceNo = DeviceNo(u32::MAX);
/// The product of the node's own alarms.
pub const NODE_PRODUCT: &str = "$node";
