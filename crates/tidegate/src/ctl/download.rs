//! Downloads of large files.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};

use crate::transfer_progress::{ProgressDisplay, TransferProgress};

/// Writes a body to a file that only its owner may read, and shows the progress on a terminal. The name appears, or the
/// content of an existing file changes, when the file is complete. Returns its bytes.
pub(super) async fn save(
    mut body: Incoming,
    path: &Path,
    may_replace: bool,
) -> anyhow::Result<u64> {
    if !may_replace && path.exists() {
        bail!("the file exists");
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&unfinished)?;
    let progress = Arc::new(TransferProgress::default());
    progress.add_total(body.size_hint().exact().unwrap_or(0));
    let _display = ProgressDisplay::start(progress.clone(), false);
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            bytes += data.len() as u64;
            progress.add_done(data.len() as u64);
            file.write_all(&data)?;
        }
    }
    file.sync_all()?;
    std::fs::rename(&unfinished, path)?;
    Ok(bytes)
}
