//! Content that arrives in pieces, for everything that receives files: which ranges of it are known, and digests that are
//! computed while it arrives.

mod digest;
mod prefix_digest;
mod range_set;

pub use digest::{ContentDigest, ContentHasher, DigestAlgorithm};
pub use prefix_digest::PrefixDigest;
pub use range_set::RangeSet;
