//! The program, the data directory, the ports and the permitted clients of a server.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Whom the program under test logs in as: this user, with this password, may do everything in this database.
pub const USER: &str = "tidegate";
pub const PASSWORD: &str = "kit-password";
pub const DATABASE: &str = "tidegate";

const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// What a statement gave back, as text; `None` is NULL.
pub type Rows = Vec<Vec<Option<String>>>;

/// One server, whether it runs or not.
pub(super) struct ServerInstance {
    pub(super) program: PathBuf,
    pub(super) dir: PathBuf,
    pub(super) port: u16,
    /// Where it speaks TLS, if it does.
    pub(super) tls_port: Option<u16>,
}

impl ServerInstance {
    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    pub(super) fn connect(&self) -> Result<TcpStream, String> {
        let stream =
            TcpStream::connect_timeout(&self.address(), ANSWER_LIMIT).map_err(error_text)?;
        stream
            .set_read_timeout(Some(ANSWER_LIMIT))
            .map_err(error_text)?;
        stream
            .set_write_timeout(Some(ANSWER_LIMIT))
            .map_err(error_text)?;
        Ok(stream)
    }

    pub(super) fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub(super) fn log_path(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// A command for one of the server's programs, which may have been unpacked outside the system's folders.
    pub(super) fn command_for(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let Some(libraries) = library_path(&self.program) {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command
    }
}

/// Where the libraries of a server lie that was unpacked rather than installed: `cargo xtask test` wrote it down.
fn library_path(program: &Path) -> Option<OsString> {
    let (root, list) = program.ancestors().find_map(|root| {
        let list = fs::read_to_string(root.join(".libraries")).ok()?;
        Some((root, list))
    })?;
    let folders = list.lines().map(|folder| root.join(folder));
    Some(std::env::join_paths(folders).expect("no folder has a colon in its name"))
}

/// A port nobody uses, and below those the kernel gives to outgoing connections: nobody takes it while the server is
/// down for a moment.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test programs run side by side, and a server binds its port only after this; so each program has its own range.
    let first = 20_000 + (std::process::id() * 1009 % 10_000) as u16;
    for _ in 0..10_000 {
        let port = 20_000 + (first - 20_000 + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between 20000 and 30000");
}

pub(super) fn error_text(error: std::io::Error) -> String {
    error.to_string()
}
