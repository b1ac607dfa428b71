//! Images that are copied from other nodes of a cluster.

use transfer::FileTarget;

use super::FirmwareService;
use crate::definition_error::DefinitionError;
use crate::images::{ImageSource, ImageState, ImageStatus, ImageWake, MissingImage};
use crate::package::FirmwarePackage;

impl FirmwareService {
    /// Images that packages need and this node does not have.
    #[must_use]
    pub fn missing_images(&self) -> Vec<MissingImage> {
        self.inner.images.list()
    }

    /// Calls `wake` when an image is missed from now on. To be called once.
    pub fn set_image_wake(&self, wake: ImageWake) {
        self.inner.images.set_wake(wake);
    }

    /// Copies images of packages that are created at this node from now on, if their files are at other nodes. To be called once.
    pub fn set_image_source(&self, source: Box<dyn ImageSource>) {
        let _ = self.inner.image_source.set(source);
    }

    /// Records how much of a missing image has arrived.
    pub fn image_progress(&self, file: &str, received_bytes: u64) {
        self.inner.images.set_progress(file, received_bytes);
    }

    /// Records why a missing image could not be copied; it is tried again.
    pub fn image_failed(&self, file: &str, reason: &str) {
        if self.inner.images.set_error(file, reason) {
            tracing::warn!(
                file,
                reason,
                "the image of a firmware package cannot be copied from another node yet; trying again"
            );
        }
    }

    /// A missing image is complete: it is kept, and devices are notified.
    pub fn image_arrived(&self, file: &str) {
        let inner = &self.inner;
        for id in inner.images.remove(file) {
            let holder = FirmwarePackage::holder(&id);
            if let Err(error) = inner.files.hold(file, &holder) {
                tracing::error!(package = id, file, %error, "the image of a firmware package cannot be kept; devices cannot download it");
                continue;
            }
            match self.package(&id).filter(|package| package.file == file) {
                Some(package) => inner.target_queue.push_product(&package.product),
                // It was deleted meanwhile.
                None => self.log_removal(file, inner.files.release(file, &holder)),
            }
        }
        self.log_removal(file, inner.files.remove_unused_copy(file));
    }

    fn log_removal(&self, file: &str, removed: Result<(), transfer::TransferError>) {
        if let Err(error) = removed {
            tracing::error!(file, %error, "the copy of an image cannot be removed");
        }
    }

    /// Whether this node has the image of a package. Otherwise it is on its way from another node.
    #[must_use]
    pub fn has_image(&self, package: &FirmwarePackage) -> bool {
        !self.inner.images.contains(&package.file)
    }

    /// Whether a file is the image of a package, and is on its way from another node.
    #[must_use]
    pub fn is_awaited(&self, file: &str) -> bool {
        self.inner.images.contains(file)
    }

    /// How much of the image of a package this node has; `None`: there is no such package.
    #[must_use]
    pub fn image_status(&self, package: &str) -> Option<ImageStatus> {
        let package = self.package(package)?;
        let status = self.inner.images.status(&package.file);
        let mut status = status.unwrap_or_else(|| {
            let file = self.inner.files.info(FileTarget::Id(&package.file));
            let is_present = file.is_some();
            ImageStatus {
                node: None,
                state: match is_present {
                    true => ImageState::Present,
                    false => ImageState::Missing,
                },
                size: package.size,
                received_bytes: if is_present { package.size } else { 0 },
                error: None,
            }
        });
        status.node = self.inner.campaigns.node().map(str::to_owned);
        Some(status)
    }

    /// Copies the file from another node of the cluster if it is not here.
    pub(super) fn fetch_image(&self, file: &str, namespace: &str) -> Result<(), DefinitionError> {
        let files = &self.inner.files;
        let Some(source) = self.inner.image_source.get() else {
            return Ok(());
        };
        if files.description(file).is_some() {
            return Ok(());
        }
        let fetched = source.fetch(file, namespace);
        fetched.map_err(|detail| DefinitionError::new("file", detail))
    }
}
