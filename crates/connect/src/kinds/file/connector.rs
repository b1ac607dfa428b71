//! The directory of a connector.

use std::path::PathBuf;

use super::directory::is_link;

pub(super) struct FileConnector {
    /// `files` in the node's data directory.
    pub(super) root: PathBuf,
    pub(super) path: PathBuf,
}

impl FileConnector {
    /// Rejects symbolic links below `sinks/files`, which would redirect writes; `sinks/files` itself may be one.
    pub(super) fn check_links(&self) -> std::io::Result<()> {
        let mut path = self.path.as_path();
        while path != self.root {
            if is_link(path) {
                let what = format!(
                    "{} is a symbolic link; only `files` itself may be one",
                    path.display()
                );
                return Err(std::io::Error::other(what));
            }
            let Some(parent) = path.parent() else { break };
            path = parent;
        }
        Ok(())
    }
}
