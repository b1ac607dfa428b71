//! The device platform: products with thing models, a device registry, telemetry, commands and alarms.
//!
//! - [`Registry`]: products and devices in the store, with recently used devices cached in memory.
//! - [`DeviceAuthenticator`]: identifies the device behind a client; [`Device::may_publish`] and
//!   [`Device::may_subscribe`]: its topic permissions.
//! - [`DeviceStates`]: which devices are online.
//! - [`platform`]: connects the registry to the telemetry pipeline.
//! - [`ThingModel`]: what messages of a product are validated against.

pub mod alarm;
mod authenticator;
pub mod chain;
pub mod command;
mod credential;
mod decimal;
mod device;
pub mod device_hooks;
pub mod group;
mod id;
pub mod ingest;
mod job_queue;
mod json_scanner;
pub mod live;
pub mod model;
pub mod platform;
mod presence;
mod product;
pub mod protocol;
pub mod pull;
mod queue_progress;
mod record_codec;
mod registry;
pub mod retention;
pub mod telemetry_usage;
mod topic_permissions;

pub use authenticator::{DeviceAdmission, DeviceAuthenticator, DeviceLookup, PresentedCredentials};
pub use credential::{
    CredentialError, CredentialSummary as ShownCredential, IssuedCredential, JwtAlgorithmName,
    NewCredential, PROVISION_USERNAME,
};
pub use device::Device;
pub use id::{DeviceId, IdError, ProductId, id_for_name};
pub use model::{ThingModel, UnknownKeys};
pub use presence::{DevicePresence, DeviceState, DeviceStateChange, DeviceStates};
pub use product::{
    CredentialKind, DownsamplingStep, KIND as PRODUCT_KIND, Product, ProductDefinition,
    ProductError, ProductMode, ProductProvisioning, ProductSlot, ProductStorage, ProvisionMode,
    SharedSecure,
};
pub use queue_progress::QueueProgress;
pub use registry::{
    AttributeChange, AttributeScope, DeviceAttribute, DeviceChange, DeviceEvent, DeviceEventFilter,
    DeviceFilter, DeviceIndexKey, DeviceListPage, DeviceWriteOutcome, ImportFormat, ImportMode,
    ImportRejection, ImportSummary, MAX_ATTRIBUTES, NewDevice, ProvisionRequest, ProvisionedDevice,
    Registry, RegistryChanges, RegistryConfig, RegistryError, SharedAttributes, SharedVersions,
    VersionRow, VersionTransaction, WritePrecondition, export_header,
};
pub use series::DeviceNo;
pub use topic_permissions::{PROVISION_REQUEST, PROVISION_RESPONSE};
