//! The device platform: products and their thing models, devices, what devices say and are told, telemetry and alarms.

pub mod alarm;
pub mod dialect;
mod id;
mod scan;

pub use id::{DeviceId, InvalidId, ProductId};
