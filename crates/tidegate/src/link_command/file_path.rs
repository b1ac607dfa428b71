//! The names of files that peers may choose.

use std::path::{Component, Path, PathBuf};

/// Longest name of a file with its directories.
const MAX_NAME_BYTES: usize = 4096;
/// Endings of the files that a transfer needs until it is complete.
const RESERVED_ENDINGS: [&str; 2] = [".part", ".state"];

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
