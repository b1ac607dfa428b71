//! Images of packages that this node does not have yet, because another node of the cluster has created the package.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use schemars::JsonSchema;
use serde::Serialize;
use transfer::FileDigest;

use crate::package::FirmwarePackage;

/// Is called when an image is missed.
pub type ImageWake = Box<dyn Fn() + Send + Sync>;

/// Copies images from other nodes of a cluster.
pub trait ImageSource: Send + Sync {
    /// Copies a file of a namespace that another node has, under its id, and waits for that for a limited time. Does nothing
    /// if no node has it. May block.
    ///
    /// # Errors
    /// Says why the file is not here yet.
    fn fetch(&self, file: &str, namespace: &str) -> Result<(), String>;
}

/// An image that has to be copied from another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingImage {
    /// Id of the file.
    pub file: String,
    pub size: u64,
    pub sha256: Option<FileDigest>,
}

/// Whether a node has the image of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageState {
    /// The node has it, and notifies devices.
    Present,
    /// The node copies it from another node.
    Copying,
    /// No node has sent it yet, or it could not be stored. The node tries again.
    Missing,
}

/// The image of a package at a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ImageStatus {
    /// Name of the node; only in a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub state: ImageState,
    /// Size of the image in bytes.
    pub size: u64,
    /// Bytes that the node has.
    pub received_bytes: u64,
    /// Why the last attempt to copy it failed.
    pub error: Option<String>,
}

struct ImageEntry {
    image: MissingImage,
    packages: BTreeSet<String>,
    received_bytes: u64,
    is_copying: bool,
    error: Option<String>,
}

/// The images that are missing, by the id of the file.
#[derive(Default)]
pub(crate) struct MissingImages {
    entries: Mutex<BTreeMap<String, ImageEntry>>,
    wake: OnceLock<ImageWake>,
}

impl MissingImages {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ImageEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `wake` when an image is missed from now on. To be called once.
    pub(crate) fn set_wake(&self, wake: ImageWake) {
        let _ = self.wake.set(wake);
    }

    pub(crate) fn add(&self, package: &FirmwarePackage) {
        let image = MissingImage {
            file: package.file.clone(),
            size: package.size,
            sha256: package.sha256,
        };
        let mut entries = self.lock();
        let entry = entries
            .entry(package.file.clone())
            .or_insert_with(|| ImageEntry {
                image,
                packages: BTreeSet::new(),
                received_bytes: 0,
                is_copying: false,
                error: None,
            });
        entry.packages.insert(package.id.clone());
        drop(entries);
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    /// A package no longer needs its image. Returns whether nobody else does.
    pub(crate) fn remove_package(&self, file: &str, package: &str) -> bool {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(file) else {
            return false;
        };
        entry.packages.remove(package);
        let is_unused = entry.packages.is_empty();
        if is_unused {
            entries.remove(file);
        }
        is_unused
    }

    /// The image has arrived. Returns the packages that have waited for it.
    pub(crate) fn remove(&self, file: &str) -> BTreeSet<String> {
        let removed = self.lock().remove(file);
        removed.map(|entry| entry.packages).unwrap_or_default()
    }

    pub(crate) fn list(&self) -> Vec<MissingImage> {
        let entries = self.lock();
        entries.values().map(|entry| entry.image.clone()).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn contains(&self, file: &str) -> bool {
        self.lock().contains_key(file)
    }

    /// Records how far the copy is.
    pub(crate) fn set_progress(&self, file: &str, received_bytes: u64) {
        if let Some(entry) = self.lock().get_mut(file) {
            entry.received_bytes = received_bytes;
            entry.is_copying = true;
            entry.error = None;
        }
    }

    /// Records why the copy failed. Returns whether the reason is another one than before.
    pub(crate) fn set_error(&self, file: &str, reason: &str) -> bool {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(file) else {
            return false;
        };
        entry.is_copying = false;
        let is_new = entry.error.as_deref() != Some(reason);
        entry.error = Some(reason.to_owned());
        is_new
    }

    /// `None`: the image is not missing.
    pub(crate) fn status(&self, file: &str) -> Option<ImageStatus> {
        let entries = self.lock();
        let entry = entries.get(file)?;
        Some(ImageStatus {
            node: None,
            state: match entry.is_copying {
                true => ImageState::Copying,
                false => ImageState::Missing,
            },
            size: entry.image.size,
            received_bytes: entry.received_bytes,
            error: entry.error.clone(),
        })
    }
}
