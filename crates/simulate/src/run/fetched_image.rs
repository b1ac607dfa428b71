//! The end of a download that a device has left to a translator.

use crate::translation::ImageFailure;

#[derive(Debug)]
pub(super) struct FetchedImage {
    pub(super) device: usize,
    pub(super) purpose: FetchPurpose,
    /// The size of the image.
    pub(super) result: Result<u64, ImageFailure>,
}

/// What was waiting for the download.
#[derive(Clone, Copy, Debug)]
pub(super) enum FetchPurpose {
    Update {
        /// Number of the plan of the update.
        number: usize,
        /// When the update was begun, by which results of earlier ones are recognised.
        begun_ns: u64,
    },
    /// The answer to a request that named a file.
    Answer { number: u64 },
}
