//! What the two ends of `tidegate link` tell each other: JSON in messages, and in the metadata of streams.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Longest name of a file with its directories.
const MAX_NAME_BYTES: usize = 4096;
/// Endings of the files that a transfer needs until it is complete.
const RESERVED_ENDINGS: [&str; 2] = [".part", ".state"];

/// The metadata of a stream that transports a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileMetadata {
    /// Path with slashes, relative to the directory of the receiver.
    pub(super) name: String,
    /// Time of the last modification in milliseconds since 1970.
    pub(super) modified_ms: Option<i64>,
    /// The request that the file answers.
    pub(super) request: Option<u64>,
}

/// Asks for files of the peer's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileRequest {
    pub(super) request: u64,
    /// Names of files and directories.
    pub(super) names: Vec<String>,
    /// Whether interrupted transfers continue.
    pub(super) resume: bool,
}

/// The answer to [`FileRequest`]. The files follow as streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileAnswer {
    pub(super) request: u64,
    pub(super) files: Vec<AnnouncedFile>,
    /// Why there is none.
    pub(super) error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AnnouncedFile {
    pub(super) name: String,
    pub(super) size: u64,
}

/// The path of a name from the peer, if it is in `dir` and can be that of a received file.
pub(super) fn path_in(dir: &Path, name: &str) -> Result<PathBuf, String> {
    let expected = |what: &str| Err(format!("name of a file: expected {what}, not {name:?}"));
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return expected("1 to 4096 bytes");
    }
    let is_plain = Path::new(name)
        .components()
        .all(|component| matches!(component, Component::Normal(_)));
    let has_empty_part = name.split('/').any(|part| part.is_empty() || part == ".");
    if !is_plain || has_empty_part || name.contains('\0') {
        return expected("a relative path without `.` and `..`");
    }
    if RESERVED_ENDINGS.iter().any(|ending| name.ends_with(ending)) {
        return expected("another ending than .part and .state, which unfinished files have");
    }
    Ok(dir.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_directory() {
        let dir = Path::new("/srv/files");
        let path = path_in(dir, "a/b c.txt").unwrap();
        assert_eq!(path, Path::new("/srv/files/a/b c.txt"));
        for name in [
            "",
            "/etc/passwd",
            "..",
            "a/../../b",
            "a//b",
            "./a",
            "a/",
            "a\0b",
            "x.part",
            "x.state",
        ] {
            assert!(path_in(dir, name).is_err(), "{name:?}");
        }
    }
}
