//! The web console's files, built from `console/` by the build script and embedded into the program, compressed.
//!
//! Without Node, or with `TIDEGATE_CONSOLE=skip`, there are no files, and [`missing_reason`] says why.

/// One file of the console.
#[derive(Debug, Clone, Copy)]
pub struct Asset {
    /// Path below the root of the site, without a leading slash: `assets/index-BcX2.js`.
    pub path: &'static str,
    pub content_type: &'static str,
    /// Quoted, as in the `ETag` header.
    pub etag: &'static str,
    /// Whether the name changes with the content, so that browsers may keep the file for ever.
    pub is_immutable: bool,
    pub brotli: &'static [u8],
    pub gzip: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// The page of the console, uncompressed. The text `__CSP_NONCE__` in it stands for the nonce of the response. `None`: the
/// console was not built.
pub fn index() -> Option<&'static str> {
    INDEX
}

/// Why the console is missing; empty if it is there.
pub fn missing_reason() -> &'static str {
    MISSING_REASON
}

/// The file with this path; see [`Asset::path`].
pub fn find(path: &str) -> Option<&'static Asset> {
    let at = ASSETS.binary_search_by(|asset| asset.path.cmp(path)).ok()?;
    ASSETS.get(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the console may add to the program.
    const MAX_EMBEDDED_BYTES: usize = 2 * 1024 * 1024;

    #[test]
    fn the_embedded_files_stay_small() {
        let sizes = ASSETS
            .iter()
            .map(|asset| asset.brotli.len() + asset.gzip.len());
        let embedded = sizes.sum::<usize>() + INDEX.unwrap_or_default().len();
        assert!(embedded <= MAX_EMBEDDED_BYTES, "{embedded} bytes");
    }
}
