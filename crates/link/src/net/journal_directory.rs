//! The journals of accepted links: a directory for each, with the journal and the name of the principal that opened the link.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::LinkConfig;
use crate::durable::FileJournal;
use crate::net::carrier_task::SharedLink;
use crate::net::link_journal::JournalRemoval;
use crate::wire::handshake::LinkId;

const PRINCIPAL_FILE: &str = "principal";

/// The directory of a [`LinkListener`](crate::net::LinkListener).
#[derive(Debug)]
pub(crate) struct JournalDirectory {
    dir: PathBuf,
    config: LinkConfig,
}

/// A link of a former process.
pub(crate) struct RestoredLink {
    pub(crate) id: LinkId,
    pub(crate) principal: String,
    pub(crate) shared: Arc<SharedLink>,
}

impl JournalDirectory {
    /// Opens the directory, and creates it if it is missing.
    pub(crate) fn open(dir: PathBuf, config: LinkConfig) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        Ok(Self { dir, config })
    }

    /// The links that have journals.
    ///
    /// # Errors
    /// If a journal is damaged or cannot be read; the error names it.
    pub(crate) fn restore(&self) -> io::Result<Vec<RestoredLink>> {
        let mut links = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let dir = entry?.path();
            if !dir.is_dir() {
                continue;
            }
            if !FileJournal::exists(&dir) {
                // Its link was not created, or has ended.
                fs::remove_dir_all(&dir)?;
                continue;
            }
            let failed = |error: io::Error| {
                io::Error::new(error.kind(), format!("{}: {error}", dir.display()))
            };
            let principal = fs::read_to_string(dir.join(PRINCIPAL_FILE)).map_err(failed)?;
            let journal = FileJournal::open_existing(&dir).map_err(failed)?;
            if journal.is_finished() {
                journal.remove_directory().map_err(failed)?;
                continue;
            }
            links.push(RestoredLink {
                id: journal.link_id(),
                principal,
                shared: self.share(journal),
            });
        }
        Ok(links)
    }

    /// Begins the journal of a new link.
    pub(crate) fn create(&self, id: LinkId, principal: &str) -> io::Result<Arc<SharedLink>> {
        let dir = self.dir.join(id.to_string());
        if FileJournal::exists(&dir) {
            let text = "the link was abandoned or its journal failed; it continues after a restart of the process";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        fs::create_dir_all(&dir)?;
        // Without a journal, what else is in the directory means nothing.
        disk::replace_file(&dir, PRINCIPAL_FILE, principal.as_bytes())?;
        let journal = FileJournal::open(&dir, id)?;
        disk::sync_dir(&self.dir)?;
        Ok(self.share(journal))
    }

    fn share(&self, journal: FileJournal) -> Arc<SharedLink> {
        let config = self.config.clone();
        SharedLink::restore(journal, config, JournalRemoval::Directory)
    }
}
