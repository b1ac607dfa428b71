//! The digest of the beginning of a file that grows.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::digest::{ContentDigest, ContentHasher, DigestAlgorithm};

/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;

/// Digests content while it is written in order, and reads from the file what it has not seen.
pub struct PrefixDigest {
    algorithm: DigestAlgorithm,
    hasher: ContentHasher,
    /// Number of bytes digested.
    at: u64,
}

impl fmt::Debug for PrefixDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefixDigest({}, {})", self.algorithm.name(), self.at)
    }
}

impl PrefixDigest {
    pub fn new(algorithm: DigestAlgorithm) -> Self {
        Self {
            algorithm,
            hasher: ContentHasher::new(algorithm),
            at: 0,
        }
    }

    /// Begins anew, because content has changed.
    pub fn reset(&mut self) {
        *self = Self::new(self.algorithm);
    }

    pub fn algorithm(&self) -> DigestAlgorithm {
        self.algorithm
    }

    /// Number of bytes digested.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Digests bytes that were written at `offset`, as far as they continue what was digested.
    pub fn append(&mut self, offset: u64, bytes: &[u8]) {
        let known = self.at.checked_sub(offset);
        let next = known.and_then(|known| bytes.get(usize::try_from(known).ok()?..));
        if let Some(next) = next {
            self.hasher.update(next);
            self.at += next.len() as u64;
        }
    }

    /// Digests up to `budget` bytes of the file, and not beyond `size`.
    pub fn advance(&mut self, file: &File, size: u64, budget: u64) -> io::Result<()> {
        let end = size.min(self.at.saturating_add(budget));
        let mut buffer = vec![0; READ_BYTES.min((end - self.at.min(end)) as usize)];
        while self.at < end {
            let wanted = buffer.len().min((end - self.at) as usize);
            file.read_exact_at(&mut buffer[..wanted], self.at)?;
            self.hasher.update(&buffer[..wanted]);
            self.at += wanted as u64;
        }
        Ok(())
    }

    /// The digest of the bytes so far.
    pub fn finish(&self) -> ContentDigest {
        self.hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_digest_follows_the_bytes_and_reads_what_it_did_not_see() {
        let bytes: Vec<u8> = (0..600_000_u32).map(|n| (n % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        for algorithm in [DigestAlgorithm::Sha256, DigestAlgorithm::Blake3] {
            let mut digest = PrefixDigest::new(algorithm);
            digest.append(0, &bytes[..10]);
            digest.append(20, &bytes[20..30]);
            assert_eq!(digest.at(), 10, "a gap");
            digest.append(5, &bytes[5..15]);
            assert_eq!(digest.at(), 15, "an overlap");
            digest.append(0, &bytes[..10]);
            assert_eq!(digest.at(), 15, "a repetition");
            let size = bytes.len() as u64;
            digest.advance(&file, size, 100).unwrap();
            assert_eq!(digest.at(), 115);
            digest.advance(&file, size, u64::MAX).unwrap();
            let expected = ContentHasher::digest(algorithm, &bytes);
            assert_eq!(digest.finish(), expected);
            digest.advance(&file, 5, 10).unwrap();
            assert_eq!(digest.at(), size, "nothing beyond the size");
        }
    }
}
