//! The device platform: products and their thing models, devices, what devices say and are told, telemetry and alarms.

pub mod alarm;
pub mod chain;
pub mod dialect;
pub mod hooks;
mod id;
pub mod ingest;
pub mod live;
mod scan;

pub use id::{DeviceId, InvalidId, ProductId};
