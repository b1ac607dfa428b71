//! The content of files: pieces that differ from each other, and their digest.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use bytes::Bytes;
use content::{ContentDigest, ContentHasher, DigestAlgorithm};
use data_encoding::HEXLOWER;

/// Bytes of one piece.
pub(crate) const PIECE_BYTES: u64 = 256 * 1024;

/// Content of a size that is never in memory whole.
#[derive(Debug)]
pub(crate) struct FileContent {
    pub(crate) size: u64,
    template: Vec<u8>,
    /// A file with the content, for other programs.
    source: Option<PathBuf>,
}

impl FileContent {
    pub(crate) fn new(size: u64) -> Self {
        let mixed = (0..PIECE_BYTES as u32).map(|n| n.wrapping_mul(2_654_435_761) >> 13);
        Self {
            size,
            template: mixed.map(|number| number as u8).collect(),
            source: None,
        }
    }

    /// Writes the content to a file, which is removed with it.
    pub(crate) fn write_source(&mut self, path: PathBuf) -> anyhow::Result<()> {
        let file = File::create(&path);
        let file = file.with_context(|| format!("cannot create {}", path.display()))?;
        self.source = Some(path);
        let mut file = BufWriter::with_capacity(1 << 20, file);
        for (_, piece) in self.pieces() {
            file.write_all(&piece)?;
        }
        file.flush()?;
        Ok(())
    }

    /// The file that [`write_source`](Self::write_source) has written.
    pub(crate) fn source(&self) -> anyhow::Result<&Path> {
        self.source.as_deref().context("the source is not written")
    }

    /// The pieces with their offsets. Each begins with its offset, so that no two are the same.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u64, Bytes)> + '_ {
        (0..self.size.div_ceil(PIECE_BYTES)).map(|index| {
            let offset = index * PIECE_BYTES;
            let len = PIECE_BYTES.min(self.size - offset) as usize;
            let mut piece = self.template[..len].to_vec();
            let stamp = offset.to_le_bytes();
            let stamp_len = stamp.len().min(len);
            piece[..stamp_len].copy_from_slice(&stamp[..stamp_len]);
            (offset, Bytes::from(piece))
        })
    }

    pub(crate) fn sha256(&self) -> ContentDigest {
        let mut hasher = ContentHasher::new(DigestAlgorithm::Sha256);
        for (_, piece) in self.pieces() {
            hasher.update(&piece);
        }
        hasher.finish()
    }
}

impl Drop for FileContent {
    fn drop(&mut self) {
        if let Some(source) = &self.source {
            let _ = std::fs::remove_file(source);
        }
    }
}

/// A digest in hexadecimal digits.
pub(crate) fn hex(digest: &ContentDigest) -> String {
    HEXLOWER.encode(&digest.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_size_and_differ() {
        for size in [0, 1, 7, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES + 1] {
            let content = FileContent::new(size);
            let pieces: Vec<_> = content.pieces().collect();
            let mut end = 0;
            for (offset, piece) in &pieces {
                assert_eq!(*offset, end);
                end += piece.len() as u64;
            }
            assert_eq!(end, size);
            assert!(pieces.windows(2).all(|pair| pair[0].1 != pair[1].1));
        }
    }
}
