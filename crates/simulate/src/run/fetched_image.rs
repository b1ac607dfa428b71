//! The end of a download that a device has left to a translator.

use crate::translation::ImageFailure;

#[derive(Debug)]
pub(super) struct FetchedImage {
    pub(super) device: usize,
    /// Number of the plan of the update.
    pub(super) number: usize,
    /// When the update was begun, by which results of earlier ones are recognised.
    pub(super) begun_ns: u64,
    /// The size of the image.
    pub(super) result: Result<u64, ImageFailure>,
}
