//! Finding the program `nats-server` and its version.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::error::ManagedNatsError;
use crate::version::{MIN_SERVER_VERSION, ServerVersion};

const PROGRAM_NAME: &str = "nats-server";
const VERSION_LIMIT: Duration = Duration::from_secs(30);

/// The program and its version, which is new enough.
pub(super) async fn find(
    configured: Option<&Path>,
) -> Result<(PathBuf, ServerVersion), ManagedNatsError> {
    let program = match configured {
        Some(path) => path.to_owned(),
        None => search()?,
    };
    let version = version(&program).await?;
    if version < MIN_SERVER_VERSION {
        return Err(ManagedNatsError::TooOld { program, version });
    }
    Ok((program, version))
}

fn search() -> Result<PathBuf, ManagedNatsError> {
    let beside = env::current_exe()
        .ok()
        .and_then(|program| Some(program.parent()?.join(PROGRAM_NAME)));
    let in_path = env::var_os("PATH").into_iter().flat_map(|path| {
        let folders: Vec<PathBuf> = env::split_paths(&path).collect();
        folders
    });
    let candidates = beside
        .iter()
        .cloned()
        .chain(in_path.map(|folder| folder.join(PROGRAM_NAME)));
    let mut files = candidates.filter(|candidate| candidate.is_file());
    files.next().ok_or_else(|| ManagedNatsError::NotFound {
        searched: match beside {
            Some(beside) => format!("as {}", beside.display()),
            None => "beside this program".to_owned(),
        },
    })
}

async fn version(program: &Path) -> Result<ServerVersion, ManagedNatsError> {
    let unusable = |detail: String| ManagedNatsError::Unusable {
        program: program.to_owned(),
        detail,
    };
    let mut command = Command::new(program);
    command
        .arg("--version")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(VERSION_LIMIT, command.output())
        .await
        .map_err(|_| unusable(format!("`--version` did not end within {VERSION_LIMIT:?}")))?
        .map_err(|error| unusable(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let parsed = text
        .trim()
        .strip_prefix("nats-server:")
        .and_then(ServerVersion::parse);
    parsed.ok_or_else(|| {
        let line = text.trim().lines().next().unwrap_or_default();
        let shown: String = line.chars().take(100).collect();
        unusable(format!(
            "`--version` printed {shown:?}, expected \"nats-server: v{MIN_SERVER_VERSION}\" or later"
        ))
    })
}
