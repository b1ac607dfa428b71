//! The copies of the telemetry of other nodes at this one.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use series::{DeviceNo, PolicyAssignment, SeriesConfig};

use crate::kept_copy::KeptCopy;
use crate::lock::lock;
use crate::message::{BatchHead, CopyAnswer, CopySource, OwnCopy, PlacedCopy};
use crate::ports::CopiedDevices;
use crate::status::KeptCopyStatus;

/// Copies of one node that a standby has: those of former time series of the node stay.
const MAX_COPIES: usize = 256;

/// The settings of the time series of copies. Called for each copy.
pub type CopyConfig = Box<dyn Fn() -> SeriesConfig + Send + Sync>;

pub(crate) struct CopyKeeper {
    directory: PathBuf,
    config: CopyConfig,
    devices: Arc<dyn CopiedDevices>,
    copies: Mutex<BTreeMap<String, Arc<KeptCopy>>>,
}

impl CopyKeeper {
    /// Opens the copies in a directory. Those that cannot be opened are left as they are.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub(crate) fn open(
        directory: PathBuf,
        config: CopyConfig,
        devices: Arc<dyn CopiedDevices>,
        now: Instant,
    ) -> io::Result<Self> {
        disk::create_private_dir(&directory)?;
        let mut copies = BTreeMap::new();
        for entry in std::fs::read_dir(&directory)? {
            let path = entry?.path();
            if !path.is_dir() {
                continue;
            }
            match KeptCopy::open(path.clone(), config(), now) {
                Ok(Some(copy)) => {
                    copies.insert(copy.key.clone(), Arc::new(copy));
                }
                // It was being created or removed.
                Ok(None) => std::fs::remove_dir_all(&path)?,
                Err(error) => {
                    let directory = path.display();
                    tracing::error!(%directory, error, "a copy of the telemetry of another node cannot be opened; it is not used");
                }
            }
        }
        Ok(Self {
            directory,
            config,
            devices,
            copies: Mutex::new(copies),
        })
    }

    pub(crate) fn copies(&self) -> Vec<Arc<KeptCopy>> {
        lock(&self.copies).values().cloned().collect()
    }

    pub(crate) fn copy(&self, key: &str) -> Option<Arc<KeptCopy>> {
        lock(&self.copies).get(key).cloned()
    }

    /// A node begins to send.
    ///
    /// # Errors
    /// If the copy cannot be created.
    pub(crate) fn begin(
        &self,
        source: &CopySource,
        (copy, run): (u64, u64),
        now: Instant,
    ) -> Result<CopyAnswer, String> {
        if !source.is_valid() {
            return Err("the name of the node is invalid".to_owned());
        }
        let key = source.key();
        let mut copies = lock(&self.copies);
        if let Some(present) = copies.get(&key).cloned() {
            if present.copy() == copy {
                return present.begin(run, now);
            }
            copies.remove(&key);
            present.remove()?;
        }
        let former: Vec<_> = copies
            .values()
            .filter(|kept| kept.source().node == source.node && !kept.is_orphan())
            .cloned()
            .collect();
        for former in former {
            if former.is_empty() {
                copies.remove(&former.key);
                former.remove()?;
            } else {
                tracing::warn!(
                    copy = former.key,
                    "a node has begun with new time series; the copy of the former ones stays readable"
                );
                former.set_orphan(now)?;
            }
        }
        if copies.len() >= MAX_COPIES {
            return Err(format!("it has {MAX_COPIES} copies of telemetry already"));
        }
        tracing::info!(
            node = source.node,
            "this node keeps a copy of the telemetry of another one"
        );
        let directory = self.directory.join(&key);
        if directory.exists() {
            // One that could not be opened.
            return Err(format!("its directory {} is damaged", directory.display()));
        }
        let created = KeptCopy::create(directory, (source.clone(), copy), (self.config)(), now);
        let created = Arc::new(created?);
        copies.insert(key, created.clone());
        drop(copies);
        created.begin(run, now)
    }

    /// # Errors
    /// If the batch cannot be read, or this node cannot store it now.
    pub(crate) fn store(
        &self,
        head: &BatchHead,
        entries: &[u8],
        now: Instant,
    ) -> Result<CopyAnswer, String> {
        match self.copy(&head.source.key()) {
            Some(copy) => copy.store(head, entries, &*self.devices, now),
            None => Ok(CopyAnswer::NotBegun),
        }
    }

    /// Removes copies that no longer count, as the node itself says.
    pub(crate) fn follow_announcement(&self, node: &str, own: &OwnCopy) {
        let is_superfluous = |kept: &KeptCopy| {
            let source = kept.source();
            source.node == node
                && source.series == own.series
                && match own.copy {
                    Some(copy) => own.is_complete && copy != kept.copy(),
                    None => true,
                }
        };
        for kept in self.copies() {
            if is_superfluous(&kept) {
                tracing::info!(
                    copy = kept.key,
                    "a copy of telemetry is no longer needed; it is removed"
                );
                lock(&self.copies).remove(&kept.key);
                if let Err(error) = kept.remove() {
                    tracing::warn!(
                        copy = kept.key,
                        error,
                        "a copy of telemetry cannot be removed"
                    );
                }
            }
        }
    }

    pub(crate) fn places(&self) -> Vec<PlacedCopy> {
        self.copies().iter().map(|copy| copy.place()).collect()
    }

    pub(crate) fn status(&self) -> Vec<KeptCopyStatus> {
        self.copies().iter().map(|copy| copy.status()).collect()
    }

    /// To be called every few seconds, with the names of the nodes that can be reached.
    pub(crate) fn tick(&self, reachable: &[String], now: Instant) {
        for copy in self.copies() {
            if let Err(error) = copy.tick(reachable.contains(&copy.source().node), now) {
                tracing::warn!(
                    copy = copy.key,
                    error,
                    "the position of a copy of telemetry cannot be written; tried again"
                );
            }
        }
    }

    pub(crate) fn set_policies(&self, assignment: &PolicyAssignment) {
        for copy in self.copies() {
            copy.set_policies(assignment.clone());
        }
    }

    pub(crate) fn delete_device(&self, device: DeviceNo) {
        for copy in self.copies() {
            copy.delete_device(device);
        }
    }

    pub(crate) fn close(&self, now: Instant) {
        for copy in self.copies() {
            copy.close(now);
        }
    }
}
