//! The data directory of the node: a lock for a single node, and `node.json`, which describes the
//! running node to other programs.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Value, json};

/// Contains the token that makes `tidegate ctl` on this machine an admin.
pub(crate) const TOKEN_FILE: &str = "api.token";

/// Directories that other users must not read.
const PRIVATE_DIRS: [&str; 7] = [
    "store",
    "telemetry",
    "mailboxes",
    "sinks",
    "files",
    "quarantine",
    "backups",
];

/// A data directory locked until this value is dropped or the process ends in any way.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    /// Locked file; the system releases the lock with the process.
    _lock: File,
}

/// Another process has locked the data directory.
#[derive(Debug, thiserror::Error)]
#[error(
    "another node{} is using the data directory {}; stop it, or give this one another with --data-dir",
    describe_process(.process),
    path.display()
)]
pub(crate) struct DataDirInUseError {
    pub(crate) path: PathBuf,
    /// Id of the process, if it is known.
    pub(crate) process: Option<String>,
}

/// ` (process 7)`, or nothing.
pub(crate) fn describe_process(process: &Option<String>) -> String {
    let process = process.as_ref();
    process.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

/// An open listener, as written to `node.json`.
pub(super) struct OpenListener {
    pub(super) name: String,
    pub(super) protocol: String,
    /// Address in use, or path of a Unix socket.
    pub(super) address: String,
}

impl DataDir {
    /// Creates the directory if it is missing, and locks it for this process.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let create = DirBuilder::new().recursive(true).mode(0o700).create(path);
        create.with_context(|| {
            format!(
                "cannot create the data directory {}; choose another with --data-dir",
                path.display()
            )
        })?;
        let path = path
            .canonicalize()
            .with_context(|| format!("cannot open the data directory {}", path.display()))?;
        let lock_path = path.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .with_context(|| {
                format!(
                    "cannot write to the data directory {}; choose another with --data-dir",
                    path.display()
                )
            })?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // Reading the holder only improves the message; errors are ignored.
                let _ = lock.read_to_string(&mut holder);
                let process = Some(holder.trim()).filter(|pid| !pid.is_empty());
                let process = process.map(str::to_owned);
                return Err(DataDirInUseError { path, process }.into());
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", lock_path.display()));
            }
        }
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "{}", std::process::id())?;
        restrict_access(&path);
        let data_dir = Self { path, _lock: lock };
        // Left by a node that did not stop cleanly.
        data_dir.remove_node_file()?;
        data_dir.remove(TOKEN_FILE)?;
        Ok(data_dir)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `node.json` with process id, version and addresses in use. The file is replaced
    /// atomically.
    pub(super) fn write_node_file(&self, listeners: &[OpenListener]) -> anyhow::Result<()> {
        let listeners: Vec<Value> = listeners
            .iter()
            .map(|listener| {
                json!({
                    "name": listener.name,
                    "protocol": listener.protocol,
                    "address": listener.address,
                })
            })
            .collect();
        let node = json!({
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "listeners": listeners,
        });
        let unfinished = self.path.join("node.json.new");
        let path = self.node_file();
        fs::write(&unfinished, format!("{node:#}\n"))
            .and_then(|()| fs::rename(&unfinished, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Creates the directory for files of jobs, without those of an earlier process.
    pub(super) fn create_job_directory(&self) -> anyhow::Result<PathBuf> {
        let path = self.path.join("jobs");
        let removed = match fs::remove_dir_all(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        removed
            .and_then(|()| disk::create_private_dir(&path))
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(path)
    }

    /// Generates a token for the API and writes it to a file that only the owner can read.
    pub(super) fn write_token_file(&self) -> anyhow::Result<String> {
        let token = api::new_local_token()?;
        self.write_secret(TOKEN_FILE, &format!("{token}\n"))?;
        Ok(token)
    }

    /// Writes a file that only its owner can read, and returns its path.
    pub(super) fn write_secret(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.path.join(name);
        self.remove(name)?;
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Deletes `node.json` and the token file; called at a clean stop.
    pub(super) fn remove_node_file(&self) -> anyhow::Result<()> {
        self.remove(TOKEN_FILE)?;
        self.remove("node.json")
    }

    fn remove(&self, name: &str) -> anyhow::Result<()> {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    fn node_file(&self) -> PathBuf {
        self.path.join("node.json")
    }
}

/// Restricts directories with messages and credentials to the owner, and warns about other
/// accessible directories.
fn restrict_access(path: &Path) {
    for name in PRIVATE_DIRS {
        let dir = path.join(name);
        let Some(mode) = disk::others_mode(&dir) else {
            continue;
        };
        let made_private = disk::revoke_others_access(&dir);
        let dir = dir.display();
        match made_private {
            Ok(_) => tracing::warn!(
                %dir,
                mode = format!("{mode:o}"),
                "a directory in the data directory was accessible to other users; its mode was changed to 700. Replace \
                 passwords and keys that they may have read"
            ),
            Err(error) => tracing::warn!(
                %dir,
                mode = format!("{mode:o}"),
                %error,
                "other users of this machine can enter a directory of the data directory; run `chmod 700` on it"
            ),
        }
    }
    if let Some(mode) = disk::others_mode(path) {
        tracing::warn!(
            data_dir = %path.display(),
            mode = format!("{mode:o}"),
            "other users of this machine can enter the data directory; files in it are private, and `chmod 700` on it \
             keeps their names private as well"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_node_on_the_same_directory_is_rejected_with_the_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/data");
        let first = DataDir::open(&path).unwrap();
        let message = DataDir::open(&path).unwrap_err().to_string();
        assert_eq!(
            message,
            format!(
                "another node (process {}) is using the data directory {}; stop it, or give this one \
                 another with --data-dir",
                std::process::id(),
                first.path().display()
            )
        );
        drop(first);
        DataDir::open(&path).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = DataDir::open(&file.join("data")).unwrap_err();
        let message = format!("{error:#}");
        assert!(
            message.starts_with("cannot create the data directory "),
            "{message}"
        );
        assert!(
            message.contains("; choose another with --data-dir: "),
            "{message}"
        );
    }

    #[test]
    fn node_json_contains_the_addresses_and_is_removed_after_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(folder.path()).unwrap();
        let listener = OpenListener {
            name: "mqtt".into(),
            protocol: "mqtt".into(),
            address: "127.0.0.1:41234".into(),
        };
        data_dir.write_node_file(&[listener]).unwrap();
        let text = fs::read_to_string(folder.path().join("node.json")).unwrap();
        let node: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(node["pid"], std::process::id());
        assert_eq!(
            node["listeners"],
            json!([{"name": "mqtt", "protocol": "mqtt", "address": "127.0.0.1:41234"}])
        );
        let token = data_dir.write_token_file().unwrap();
        let path = folder.path().join(TOKEN_FILE);
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{token}\n"));
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        // The state left by a killed process.
        drop(data_dir);
        DataDir::open(folder.path()).unwrap();
        assert!(!folder.path().join("node.json").exists());
        assert!(!path.exists());
    }
}
