//! Firmware of devices: packages, and the devices that they are assigned to.
//!
//! A package ([`FirmwareDefinition`]) describes an image, which is a file of `transfer`. It is verified when it is written:
//! its digest, and its signature by a key that the node trusts. Assignments ([`AssignmentDefinition`]) say which devices
//! install it. [`FirmwareService`] answers which package a device is to install, notifies it of the package, and records how far it
//! is. In a cluster, all nodes have the packages, what devices install, and how far they are ([`SharedFirmware`]);
//! [`ImageSource`] brings the images. [`FirmwareHooks`] receives requests for chunks over MQTT in ThingsBoard's protocol.

mod assignment;
mod campaign;
mod catalog;
mod chunk_cache;
mod chunk_queue;
mod chunk_worker;
mod definition_error;
mod device_state;
mod digest;
#[doc(hidden)]
pub mod fuzzing;
mod image;
mod images;
mod install_table;
mod jetlinks;
mod metrics;
mod mqtt_hooks;
mod package;
mod service;
mod settings;
mod shared_firmware;
mod sharing;
mod signature;
mod target_queue;
mod target_worker;
mod thingsboard;
mod threads;

pub use assignment::{ASSIGNMENT_KIND, AssignmentDefinition, AssignmentTarget, MAX_ASSIGNMENTS};
pub use campaign::{
    CampaignAction, CampaignCounts, CampaignDefinition, CampaignDevice, CampaignDeviceRow,
    CampaignDeviceState, CampaignError, CampaignInfo, CampaignStatus, CampaignWave, CampaignWindow,
    MAX_CAMPAIGN_DEVICES,
};
pub use catalog::AssignedPackage;
pub use chunk_worker::{ChunkRejection, ChunkSender};
pub use definition_error::DefinitionError;
pub use device_state::{InstallAttempt, InstallRecord, InstallReport, InstallState};
pub use digest::DigestAlgorithm;
pub use images::{ImageSource, ImageState, ImageStatus, ImageWake, MissingImage};
pub use metrics::ChunkTransport;
pub use mqtt_hooks::FirmwareHooks;
pub use package::{FirmwareDefinition, FirmwarePackage, FirmwareType, KIND, MAX_PACKAGES};
pub use service::{DeviceMessenger, DevicePresenceCheck, FirmwareOpenError, FirmwareService};
pub use settings::FirmwareSettings;
pub use shared_firmware::{FirmwareChanges, SharedFirmware};
pub use sharing::FirmwareSharingError;
pub use signature::{PackageSignature, SignatureScheme, TrustError, TrustSettings};
