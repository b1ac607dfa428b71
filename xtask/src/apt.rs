//! Debian packages: installed when we are root, or unpacked into a folder where they disturb nothing.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::TaskError;
use crate::process::{capture, find_program, is_root};

/// apt-get, its package lists fetched at most once.
#[derive(Default)]
pub(crate) struct Apt {
    updated: bool,
}

impl Apt {
    /// Makes sure that `program` is on `PATH`, from the Debian package `package` if need be.
    pub(crate) fn ensure_program(&mut self, program: &str, package: &str) -> Result<(), TaskError> {
        if find_program(program).is_some() {
            return Ok(());
        }
        self.install(package)?;
        match find_program(program) {
            Some(_) => Ok(()),
            None => Err(format!(
                "the package {package} is installed but has no `{program}`"
            )),
        }
    }

    pub(crate) fn install(&mut self, package: &str) -> Result<(), TaskError> {
        self.check_apt(package)?;
        if !is_root() {
            return Err(format!("not root; run `sudo apt-get install {package}`"));
        }
        self.update()?;
        println!("    apt-get install {package}");
        let mut command = Command::new("apt-get");
        command.args([
            "install",
            "--yes",
            "--quiet",
            "--no-install-recommends",
            package,
        ]);
        capture(command.env("DEBIAN_FRONTEND", "noninteractive")).map(drop)
    }

    fn update(&mut self) -> Result<(), TaskError> {
        if !self.updated && is_root() {
            println!("    apt-get update");
            capture(Command::new("apt-get").args(["update", "--quiet"]))?;
            self.updated = true;
        }
        Ok(())
    }

    /// Unpacks one package into `dir`, without what it depends on.
    pub(crate) fn unpack_alone(&mut self, package: &str, dir: &Path) -> Result<(), TaskError> {
        self.check_apt(package)?;
        self.update()?;
        let mut download = Command::new("apt-get");
        download.args(["download", "--quiet", package]);
        capture(download.current_dir(dir)).map_err(|why| install_hint(package, &why))?;
        unpack_all(dir, dir)
    }

    /// Unpacks a package and those of its dependencies that this machine lacks into `dir`. Nothing is installed, so
    /// no service is started either, and nobody needs to be root.
    pub(crate) fn unpack(&mut self, package: &str, dir: &Path) -> Result<(), TaskError> {
        self.check_apt(package)?;
        self.update()?;
        println!("    unpacking {package} below {}", dir.display());
        let packages = dir.join("packages");
        fs::create_dir_all(packages.join("partial")).map_err(|error| error.to_string())?;
        let mut download = Command::new("apt-get");
        download.args(["install", "--download-only", "--yes", "--quiet"]);
        download.args(["--no-install-recommends", "-o", "Debug::NoLocking=1", "-o"]);
        download.arg(format!("Dir::Cache::archives={}", packages.display()));
        capture(download.arg(package)).map_err(|why| install_hint(package, &why))?;
        unpack_all(&packages, dir)?;
        fs::remove_dir_all(packages).map_err(|error| error.to_string())
    }

    fn check_apt(&self, package: &str) -> Result<(), TaskError> {
        match find_program("apt-get") {
            Some(_) => Ok(()),
            None => Err(format!(
                "there is no apt-get here; install what Debian calls {package}"
            )),
        }
    }
}

fn install_hint(package: &str, why: &str) -> TaskError {
    format!("run `sudo apt-get update`, or install {package} yourself\n{why}")
}

/// Unpacks every package in `from` below `into` and deletes it.
fn unpack_all(from: &Path, into: &Path) -> Result<(), TaskError> {
    let entries = fs::read_dir(from).map_err(|error| error.to_string())?;
    let packages: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .collect();
    if packages.is_empty() {
        return Err("apt-get left no .deb file".into());
    }
    for package in packages {
        let mut unpack = Command::new("dpkg-deb");
        capture(unpack.arg("--extract").arg(&package).arg(into))?;
        fs::remove_file(package).map_err(|error| error.to_string())?;
    }
    Ok(())
}
