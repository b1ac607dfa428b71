//! Verifies a backup, and restores it to an empty data directory.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;

use anyhow::{Context as _, bail};
use store::{ImportMode, Store, StoreConfig};

use super::container::{BackupFileError, BackupFileReader};
use super::{
    BackupHead, BackupProgress, FILES_PREFIX, HEAD_ENTRY, OBJECTS_ENTRY, TELEMETRY_PREFIX,
    state_of_entry,
};

const BUFFER_BYTES: usize = 1 << 20;
const MAX_HEAD_BYTES: u64 = 64 << 10;

/// Reads a whole backup and checks it.
///
/// # Errors
/// If it is not a complete, undamaged backup that this program can restore.
pub(crate) fn verify(path: &Path, progress: &mut BackupProgress<'_>) -> anyhow::Result<BackupHead> {
    let (mut has_objects, mut head, mut done) = (false, None, 0);
    read_entries(path, &mut |name, content| {
        match name {
            HEAD_ENTRY => head = Some(read_head(content)?),
            OBJECTS_ENTRY => has_objects = true,
            _ if state_of_entry(name).is_some() => {}
            _ => {
                content_file(Path::new(""), Path::new(""), name)?;
            }
        }
        let mut piece = vec![0; BUFFER_BYTES];
        loop {
            let read = content.read(&mut piece)?;
            done += read as u64;
            if read == 0 {
                return Ok(());
            }
            if !progress(done) {
                bail!("cancelled");
            }
        }
    })?;
    match head {
        Some(head) if has_objects => Ok(head),
        _ => bail!("{} lacks its description or its objects", path.display()),
    }
}

/// Restores a verified backup to directories that do not exist yet.
///
/// # Errors
/// If one of them exists, or data cannot be read or written.
pub(crate) fn restore(
    path: &Path,
    store: &Path,
    telemetry: &Path,
    files: &Path,
    progress: &mut BackupProgress<'_>,
) -> anyhow::Result<()> {
    let unfinished_store = store.with_extension("restoring");
    let unfinished_telemetry = telemetry.with_extension("restoring");
    let unfinished_files = files.with_extension("restoring");
    // Left by an interrupted restore.
    for directory in [&unfinished_store, &unfinished_telemetry, &unfinished_files] {
        if directory.exists() {
            let removed = fs::remove_dir_all(directory);
            removed.with_context(|| format!("cannot remove {}", directory.display()))?;
        }
        let created = disk::create_private_dir(directory);
        created.with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let mut done = 0;
    read_entries(path, &mut |name, content| {
        match name {
            HEAD_ENTRY => drop(read_head(content)?),
            OBJECTS_ENTRY => {
                let (opened, _) = Store::open(&unfinished_store, StoreConfig::default())?;
                let imported = opened.objects().import_from(content, ImportMode::Replace);
                imported.context("cannot import the objects")?;
                opened.close();
            }
            _ if let Some(state) = state_of_entry(name) => {
                let (opened, _) = Store::open(&unfinished_store, StoreConfig::default())?;
                let imported = opened.objects().import_state(state, content);
                imported.with_context(|| format!("cannot import {name}"))?;
                opened.close();
            }
            _ => {
                let target = content_file(&unfinished_telemetry, &unfinished_files, name)?;
                let cannot = || format!("cannot write {}", target.display());
                let directory = target.parent().unwrap_or(&unfinished_telemetry);
                disk::create_private_dir(directory).with_context(cannot)?;
                let mut file = File::create(&target).with_context(cannot)?;
                done += io::copy(content, &mut file).with_context(cannot)?;
                file.sync_all().with_context(cannot)?;
                progress(done);
            }
        }
        Ok(())
    })?;
    series::finish_snapshot_directory(&unfinished_telemetry)
        .context("the telemetry in the backup cannot be used")?;
    // The store last: without it, a node reports that the telemetry belongs to another one, and the restore can be repeated.
    for (from, to) in [
        (&unfinished_files, files),
        (&unfinished_telemetry, telemetry),
        (&unfinished_store, store),
    ] {
        if to.is_dir() {
            // Empty, or `rename` fails.
            fs::remove_dir(to).with_context(|| format!("{} is not empty", to.display()))?;
        }
        fs::rename(from, to).with_context(|| format!("cannot rename {}", from.display()))?;
        disk::sync_dir(to.parent().unwrap_or(Path::new(".")))
            .with_context(|| format!("cannot force {} to disk", to.display()))?;
    }
    Ok(())
}

type EntryVisitor<'a> = dyn FnMut(&str, &mut dyn Read) -> anyhow::Result<()> + 'a;

/// Passes each entry to the visitor, and then checks the rest of it.
fn read_entries(path: &Path, visit: &mut EntryVisitor<'_>) -> anyhow::Result<()> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let in_file = |error: anyhow::Error| error.context(format!("backup {}", path.display()));
    let mut file = BackupFileReader::new(BufReader::with_capacity(BUFFER_BYTES, file))
        .map_err(|error| in_file(error.into()))?;
    loop {
        let entry = file.next_entry().map_err(|error| in_file(error.into()))?;
        let Some(mut entry) = entry else {
            return Ok(());
        };
        let name = entry.name.clone();
        visit(&name, &mut entry).map_err(in_file)?;
        entry.skip().map_err(|error| in_file(error.into()))?;
    }
}

fn read_head(content: &mut dyn Read) -> anyhow::Result<BackupHead> {
    let mut text = Vec::new();
    content.take(MAX_HEAD_BYTES).read_to_end(&mut text)?;
    serde_json::from_slice(&text).context("its description cannot be read")
}

/// Where a file of the telemetry, or of devices and people, belongs.
fn content_file(telemetry: &Path, files: &Path, name: &str) -> anyhow::Result<std::path::PathBuf> {
    let of_telemetry = name.strip_prefix(TELEMETRY_PREFIX);
    let of_files = name.strip_prefix(FILES_PREFIX);
    of_telemetry
        .and_then(|path| series::snapshot_path(telemetry, path))
        .or_else(|| of_files.and_then(|path| transfer::saved_file_path(files, path)))
        .ok_or_else(|| {
            BackupFileError::Damaged {
                entry: name.chars().take(64).collect(),
                detail: "a backup has no such entry",
            }
            .into()
        })
}
