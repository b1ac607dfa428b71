//! Firmware of devices: packages, and the devices that they are assigned to.
//!
//! A package ([`FirmwareDefinition`]) describes an image, which is a file of `transfer`. It is verified when it is written:
//! its digest, and its signature by a key that the node trusts. Assignments ([`AssignmentDefinition`]) say which devices
//! install it. [`FirmwareService`] answers which package a device is to install.

mod assignment;
mod catalog;
mod definition_error;
mod digest;
mod image;
mod package;
mod service;
mod signature;

pub use assignment::{ASSIGNMENT_KIND, AssignmentDefinition, AssignmentTarget, MAX_ASSIGNMENTS};
pub use catalog::AssignedPackage;
pub use definition_error::DefinitionError;
pub use digest::DigestAlgorithm;
pub use package::{FirmwareDefinition, FirmwarePackage, FirmwareType, KIND, MAX_PACKAGES};
pub use service::{FirmwareOpenError, FirmwareService};
pub use signature::{PackageSignature, SignatureScheme, TrustError, TrustSettings};
