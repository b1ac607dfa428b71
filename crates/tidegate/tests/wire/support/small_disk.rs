//! A file system that can be full.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{temporary_directory, unique};

/// A file system of 64 MiB, unmounted when dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`: a file system cannot be mounted here.
    pub fn mount() -> Option<SmallDisk> {
        let path = temporary_directory();
        let mut command = Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"])
            .arg(&path);
        let output = command.output();
        let is_mounted = output.is_ok_and(|output| output.status.success());
        is_mounted.then_some(SmallDisk(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Somebody else's file, which takes all the room there is but this.
    pub fn fill_but(&self, left: usize) -> PathBuf {
        let path = self.0.join(unique("filler"));
        let mut file = File::create(&path).unwrap();
        let mut written = 0;
        while let Ok(count) = file.write(&[0; 64 << 10]) {
            written += count;
        }
        let length = written.saturating_sub(left) as u64;
        file.set_len(length).unwrap();
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
