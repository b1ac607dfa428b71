//! The device platform: products and their thing models, devices, what devices say and are told, telemetry and alarms.
//!
//! - [`Registry`]: products and devices, in the store, the ones used lately in memory.
//! - [`Directory`]: whether a client is a device; [`Device::may_publish`] and [`Device::may_subscribe`]: what it may do.
//! - [`States`]: which devices are here.
//! - [`platform`]: registry and pipeline put together.
//! - [`Model`]: what messages of a product are checked against.

pub mod alarm;
pub mod chain;
pub mod command;
mod credential;
mod device;
pub mod dialect;
mod directory;
pub mod group;
pub mod hooks;
mod id;
pub mod ingest;
pub mod live;
pub mod model;
mod nearest;
pub mod platform;
mod product;
mod progress;
pub mod pull;
mod registry;
pub mod retention;
mod rights;
mod scan;
mod state;
mod work_queue;

pub use credential::{
    AlgorithmName, InvalidCredential, Issued, NewCredential, NoChance, PROVISION_USERNAME,
    Shown as ShownCredential,
};
pub use device::Device;
pub use directory::{Admission, Directory, Found, Shown};
pub use id::{DeviceId, InvalidId, ProductId, id_for_name};
pub use model::{Model, UnknownKeys};
pub use product::{
    CredentialKind, Definition, Dialect, InvalidProduct, KIND as PRODUCT_KIND, Mode, Product,
    ProductSlot, ProvisionMode, Provisioning, SharedSecure, Step, Storage,
};
pub use progress::Progress;
pub use registry::{
    Attribute, AttributeChange, Config, DeviceChange, DeviceEvent, EventQuery, Expected, Filter,
    ImportFormat, ImportMode, Imported, MAX_ATTRIBUTES, NewDevice, Page, Provision, Provisioned,
    Refused, Registry, RegistryError, Scope, Trait, Written, export_header,
};
pub use rights::{PROVISION_REQUEST, PROVISION_RESPONSE};
pub use series::DeviceNo;
pub use state::{Presence, State, StateChange, States};

fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
