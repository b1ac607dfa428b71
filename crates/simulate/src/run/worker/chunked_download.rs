//! The download of an image in chunks, as ThingsBoard's devices do it: one chunk after the other, digested at once.

use serde_json::Value;

use crate::image_digest::ImageDigest;

/// An image that a device is to install, as shared attributes describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AnnouncedImage {
    pub(super) title: String,
    pub(super) version: String,
    pub(super) size: u64,
    pub(super) checksum: String,
    pub(super) algorithm: String,
}

impl AnnouncedImage {
    /// Reads `fw_title` and the others of an object; `None`: it names no image. `Some(Err)`: it is incomplete, and the device
    /// asks for all.
    pub(super) fn read(attributes: &Value, prefix: &str) -> Option<Result<Self, ()>> {
        let field = |name: &str| &attributes[format!("{prefix}_{name}")];
        let text = |name: &str| field(name).as_str().map(str::to_owned);
        if field("title").is_null() && field("version").is_null() {
            return None;
        }
        let image = || {
            Some(Self {
                title: text("title")?,
                version: text("version")?,
                size: field("size").as_u64()?,
                checksum: text("checksum")?,
                algorithm: text("checksum_algorithm")?,
            })
        };
        Some(image().ok_or(()))
    }
}

/// What a chunk means for a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkOutcome {
    /// It is not the one that was asked for.
    Unexpected,
    /// Another one is to be asked for.
    Continues,
    Complete {
        is_intact: bool,
    },
}

#[derive(Debug)]
pub(super) struct ChunkedDownload {
    digest: Option<ImageDigest>,
    checksum: String,
    size: u64,
    received: u64,
    next_chunk: u64,
    chunk_bytes: u64,
}

impl ChunkedDownload {
    /// `None`: devices do not know the algorithm of the checksum.
    pub(super) fn new(image: &AnnouncedImage, chunk_bytes: u32) -> Option<Self> {
        Some(Self {
            digest: Some(ImageDigest::new(&image.algorithm)?),
            checksum: image.checksum.clone(),
            size: image.size,
            received: 0,
            next_chunk: 0,
            chunk_bytes: u64::from(chunk_bytes),
        })
    }

    /// Index of the chunk that is to be asked for.
    pub(super) fn next_chunk(&self) -> u64 {
        self.next_chunk
    }

    pub(super) fn receive(&mut self, index: u64, bytes: &[u8]) -> ChunkOutcome {
        let Some(digest) = self.digest.as_mut().filter(|_| index == self.next_chunk) else {
            return ChunkOutcome::Unexpected;
        };
        digest.update(bytes);
        self.next_chunk += 1;
        self.received += bytes.len() as u64;
        // A shorter chunk is the last one, whatever the size was said to be.
        if self.received < self.size && bytes.len() as u64 >= self.chunk_bytes {
            return ChunkOutcome::Continues;
        }
        let is_complete = self.received == self.size;
        let digest = self.digest.take();
        let is_intact = is_complete && digest.is_some_and(|digest| digest.matches(&self.checksum));
        ChunkOutcome::Complete { is_intact }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn image(checksum: &str, size: u64) -> AnnouncedImage {
        let attributes = json!({
            "fw_title": "pump", "fw_version": "2", "fw_size": size, "fw_checksum": checksum, "fw_checksum_algorithm": "MD5",
        });
        AnnouncedImage::read(&attributes, "fw")
            .expect("an image")
            .expect("complete")
    }

    #[test]
    fn images_are_verified_chunk_by_chunk() {
        // printf abcde | md5sum
        let abcde = image("ab56b4d92b40713acc5af89985d4b786", 5);
        let mut download = ChunkedDownload::new(&abcde, 2).expect("MD5 is known");
        assert_eq!(download.receive(0, b"ab"), ChunkOutcome::Continues);
        // Repeated by the network, or late.
        assert_eq!(download.receive(0, b"ab"), ChunkOutcome::Unexpected);
        assert_eq!(download.next_chunk(), 1);
        assert_eq!(download.receive(1, b"cd"), ChunkOutcome::Continues);
        let intact = ChunkOutcome::Complete { is_intact: true };
        assert_eq!(download.receive(2, b"e"), intact);
        assert_eq!(download.receive(3, b""), ChunkOutcome::Unexpected);
        let damaged = ChunkOutcome::Complete { is_intact: false };
        for (image, last) in [
            (abcde.clone(), &b"x"[..]),
            (abcde.clone(), b""),
            (image("ab56b4d92b40713acc5af89985d4b786", 6), b"e"),
        ] {
            let mut download = ChunkedDownload::new(&image, 2).expect("MD5 is known");
            download.receive(0, b"ab");
            download.receive(1, b"cd");
            assert_eq!(download.receive(2, last), damaged, "{image:?}");
        }
    }

    #[test]
    fn incomplete_attributes_are_asked_for() {
        let read = |attributes| AnnouncedImage::read(&attributes, "sw");
        assert_eq!(read(json!({"interval": 5})), None);
        assert_eq!(read(json!({"deleted": ["sw_title"]})), None);
        assert_eq!(read(json!({"sw_version": "2"})), Some(Err(())));
        let sha1 = AnnouncedImage {
            algorithm: "SHA1".to_owned(),
            ..image("", 0)
        };
        assert!(ChunkedDownload::new(&sha1, 2).is_none());
    }
}
