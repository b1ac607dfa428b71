//! The servers of the tests, databases and brokers: those of the machine, or Debian's packages unpacked under `target/tools`. Unpacked
//! and not installed, because an installed server is also started; the tests start their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::TaskError;
use crate::apt::Apt;
use crate::install_once::install_once;
use crate::process::{capture, find_program};

/// Lies beside the `usr` of an unpacked server and names the folders of its libraries, one in each line: the test kit
/// starts the server with them, however it found it.
const LIBRARIES: &str = ".libraries";

pub(crate) struct ServerPackage {
    pub(crate) title: &'static str,
    /// Tells the tests where the program is.
    pub(crate) variable: &'static str,
    package: &'static str,
    /// Below `target/tools`; the test kit looks there as well when `cargo test` is run by hand.
    folder: &'static str,
    program: &'static str,
    /// Where the program lies in its package.
    location: ProgramLocation,
    /// With this it says something and ends well, if anything makes it do so.
    probe: Option<&'static str>,
    /// Whether a program on the path serves as well; otherwise the tests need the version of Debian.
    can_be_on_path: bool,
}

enum ProgramLocation {
    Bin,
    Sbin,
    /// `usr/lib/postgresql/VERSION/bin`.
    Versions,
}

pub(crate) const ALL: [ServerPackage; 6] = [
    ServerPackage {
        title: "MariaDB server",
        variable: "TIDEGATE_TEST_MARIADBD",
        package: "mariadb-server-core",
        folder: "mariadb",
        program: "mariadbd",
        location: ProgramLocation::Sbin,
        probe: Some("--version"),
        can_be_on_path: true,
    },
    ServerPackage {
        title: "PostgreSQL server",
        variable: "TIDEGATE_TEST_POSTGRES",
        package: "postgresql",
        folder: "postgres",
        program: "postgres",
        location: ProgramLocation::Versions,
        probe: Some("--version"),
        can_be_on_path: true,
    },
    ServerPackage {
        title: "Redis server",
        variable: "TIDEGATE_TEST_REDIS",
        package: "redis-server",
        folder: "redis",
        program: "redis-server",
        location: ProgramLocation::Bin,
        probe: Some("--version"),
        can_be_on_path: true,
    },
    ServerPackage {
        title: "NATS server",
        variable: "TIDEGATE_TEST_NATS",
        package: "nats-server",
        folder: "nats",
        program: "nats-server",
        location: ProgramLocation::Sbin,
        probe: Some("--version"),
        // One of the tests is about a version that is too old for clusters.
        can_be_on_path: false,
    },
    ServerPackage {
        title: "mosquitto broker",
        variable: "TIDEGATE_TEST_MOSQUITTO",
        package: "mosquitto",
        folder: "mosquitto",
        program: "mosquitto",
        location: ProgramLocation::Sbin,
        probe: None,
        can_be_on_path: true,
    },
    ServerPackage {
        title: "Prometheus",
        variable: "TIDEGATE_TEST_PROMETHEUS",
        package: "prometheus",
        folder: "prometheus",
        program: "prometheus",
        location: ProgramLocation::Bin,
        probe: Some("--version"),
        can_be_on_path: true,
    },
];

impl ServerPackage {
    /// The server's program, which can be started.
    pub(crate) fn install(&self, tools: &Path, apt: &mut Apt) -> Result<PathBuf, TaskError> {
        if let Some(path) = std::env::var_os(self.variable) {
            return Ok(PathBuf::from(path));
        }
        let on_path = || self.find_on_path().filter(|_| self.can_be_on_path);
        if let Some(program) = self.find_below(Path::new("/")).or_else(on_path) {
            return Ok(program);
        }
        let dir = tools.join(self.folder);
        install_once(&dir, self.package, |dir| {
            apt.unpack(self.package, dir)?;
            let program = self
                .find_below(dir)
                .ok_or_else(|| format!("the package {} has no {}", self.package, self.program))?;
            // A library may be missing: say so here and once, rather than in each test.
            let Some(probe) = self.probe else {
                return Ok(());
            };
            let mut command = Command::new(program);
            let folders = libraries(dir).into_iter().map(|folder| dir.join(folder));
            let path = std::env::join_paths(folders).map_err(|error| error.to_string())?;
            capture(command.arg(probe).env("LD_LIBRARY_PATH", path)).map(drop)
        })?;
        let list = dir.join(LIBRARIES);
        fs::write(&list, libraries(&dir).join("\n"))
            .map_err(|error| format!("{}: {error}", list.display()))?;
        self.find_below(&dir)
            .ok_or_else(|| format!("{} is gone; delete that folder", self.program))
    }

    fn find_below(&self, root: &Path) -> Option<PathBuf> {
        let folder = match self.location {
            ProgramLocation::Bin => root.join("usr/bin"),
            ProgramLocation::Sbin => root.join("usr/sbin"),
            ProgramLocation::Versions => {
                let versions = fs::read_dir(root.join("usr/lib/postgresql")).ok()?;
                let newest = versions
                    .filter_map(|entry| Some(entry.ok()?.path()))
                    .max()?;
                newest.join("bin")
            }
        };
        Some(folder.join(self.program)).filter(|program| program.is_file())
    }

    /// A link is followed if it only leads elsewhere: PostgreSQL's program needs its neighbours, but Redis's is one
    /// program under several names.
    fn find_on_path(&self) -> Option<PathBuf> {
        let found = find_program(self.program)?;
        let real = found.canonicalize().ok()?;
        let is_same = real.file_name().is_some_and(|name| name == self.program);
        Some(if is_same { real } else { found })
    }
}

/// The folders of libraries in what was unpacked to `root`, below it.
fn libraries(root: &Path) -> Vec<String> {
    let mut folders = Vec::new();
    for below in ["usr/lib", "lib"] {
        for entry in fs::read_dir(root.join(below))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with("-linux-gnu") {
                folders.push(format!("{below}/{name}"));
            }
        }
    }
    folders
}
