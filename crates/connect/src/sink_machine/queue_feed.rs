//! The machine's source of rows: the memory queue, or files that a spool task fills from it.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::disk_queue::DiskQueue;
use super::memory_queue::MemoryQueue;
use super::sink_files::SinkFiles;
use crate::batch::SinkBatch;
use crate::row::SinkRow;
use crate::settings::{DiskQueueSettings as DiskSettings, DiskQueueSync};

/// Rows that the spool writes at once.
const SPOOL_ROWS: usize = 20_000;
const SPOOL_BYTES: usize = 4 << 20;
/// Pause after a failed disk write.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct QueueFeed {
    memory: Arc<MemoryQueue>,
    /// Epoch of rows that were only in memory.
    epoch: u64,
    next: Arc<AtomicU64>,
    disk: Option<DiskFeed>,
}

struct DiskFeed {
    shared: Arc<SharedDiskQueue>,
    epoch: u64,
    /// `None` if the files are only drained because the sink no longer has a disk queue.
    spool: Option<JoinHandle<()>>,
    stop: watch::Sender<bool>,
    /// Numbers of the rows given out.
    given_out: BTreeSet<u64>,
    files: SinkFiles,
}

struct SharedDiskQueue {
    disk: Mutex<DiskQueue>,
    unread: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    /// Rows on their way from memory to a file.
    spooling: AtomicUsize,
    /// Notified when rows were written.
    readable: Notify,
    /// Notified when files were removed.
    space: Notify,
}

/// Read access to the size of a disk queue.
#[derive(Clone)]
pub(crate) struct DiskQueueView(Arc<SharedDiskQueue>);

impl DiskQueueView {
    /// Number of unacknowledged rows, and size of the files in bytes.
    pub(crate) fn usage(&self) -> (u64, u64) {
        (self.0.rows.load(Relaxed), self.0.bytes.load(Relaxed))
    }

    /// Rows on their way from memory to a file; read this after the memory queue.
    pub(crate) fn spooling(&self) -> u64 {
        self.0.spooling.load(SeqCst) as u64
    }
}

impl SharedDiskQueue {
    /// Runs a blocking disk operation on a thread that may block.
    async fn with_disk<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut DiskQueue) -> T + Send + 'static,
    ) -> io::Result<T> {
        let shared = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut disk = shared.lock();
            let result = work(&mut disk);
            shared.unread.store(disk.unread(), Relaxed);
            shared.rows.store(disk.rows(), Relaxed);
            shared.bytes.store(disk.bytes(), Relaxed);
            result
        });
        done.await.map_err(io::Error::other)
    }

    /// Whether rows have to stay in memory. If publishers are paused when the queue is full, the rows already accepted
    /// are still written to files, up to twice the limit. No acknowledged row is then in memory alone.
    fn is_full_for(&self, memory: &MemoryQueue) -> bool {
        let disk = self.lock();
        let is_full = disk.is_full();
        if is_full {
            memory.set_files_full(true);
        }
        let has_no_room = is_full && (!memory.is_blocking_policy() || disk.is_over_double_limit());
        if has_no_room {
            memory.set_spooled(false);
        }
        has_no_room
    }

    fn lock(&self) -> MutexGuard<'_, DiskQueue> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueFeed {
    /// `files` has the disk queue, also a former one.
    pub(crate) async fn open(
        memory: Arc<MemoryQueue>,
        (epoch, next): (u64, Arc<AtomicU64>),
        files: Option<&SinkFiles>,
        settings: Option<&DiskSettings>,
    ) -> io::Result<Self> {
        let disk = match (files, settings) {
            (Some(files), Some(settings)) => {
                Some(DiskFeed::open(memory.clone(), files, settings, true).await?)
            }
            (Some(files), None) if files.queue_directory().exists() => {
                let settings = DiskSettings {
                    sync: DiskQueueSync::Never,
                    ..DiskSettings::default()
                };
                Some(DiskFeed::open(memory.clone(), files, &settings, false).await?)
            }
            (None, Some(_)) => {
                return Err(io::Error::other(
                    "queue.disk: the node has no data directory",
                ));
            }
            (_, None) => None,
        };
        Ok(Self {
            memory,
            epoch,
            next,
            disk,
        })
    }

    pub(crate) fn disk_view(&self) -> Option<DiskQueueView> {
        let disk = self.disk.as_ref()?;
        Some(DiskQueueView(disk.shared.clone()))
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.disk.as_ref().map_or(self.epoch, |disk| disk.epoch)
    }

    /// Rows available now.
    pub(crate) fn waiting(&self) -> usize {
        match self.disk.as_ref().filter(|disk| !disk.is_drained()) {
            Some(disk) => disk.shared.unread.load(Relaxed) as usize,
            None => self.memory.rows(),
        }
    }

    /// Resolves when this number of rows or bytes is available (from files, as soon as any are).
    pub(crate) async fn ready(&self, rows: usize, bytes: usize) {
        let Some(disk) = self.disk.as_ref().filter(|disk| !disk.is_drained()) else {
            return self.memory.ready(rows, bytes).await;
        };
        loop {
            let readable = disk.shared.readable.notified();
            if disk.shared.unread.load(Relaxed) > 0 {
                return;
            }
            readable.await;
        }
    }

    /// Takes rows with their numbers, until a number of rows or bytes is reached. The future must not be dropped before completion.
    pub(crate) async fn take(
        &mut self,
        max_rows: usize,
        max_bytes: usize,
        mut each: impl FnMut(u64, SinkRow<'_>),
    ) -> io::Result<usize> {
        self.drop_drained_disk_queue().await?;
        let Some(disk) = &mut self.disk else {
            let next = &self.next;
            let taken = self.memory.take(max_rows, max_bytes, |row| {
                each(next.fetch_add(1, Relaxed), row);
            });
            return Ok(taken);
        };
        let mut read = SinkBatch::new(disk.epoch);
        let reading = disk.shared.with_disk(move |files| {
            let result = files.read(max_rows, max_bytes, |number, row| read.push(number, row));
            (read, result)
        });
        let (read, result) = reading.await?;
        for at in 0..read.len() {
            let number = read.id(at).number;
            disk.given_out.insert(number);
            each(number, read.row(at));
        }
        result.map(|()| read.len())
    }

    async fn drop_drained_disk_queue(&mut self) -> io::Result<()> {
        if let Some(disk) = self.disk.take_if(|disk| disk.is_drained()) {
            let removing = tokio::task::spawn_blocking(move || disk.files.remove_queue());
            removing.await.map_err(io::Error::other)??;
        }
        Ok(())
    }

    /// Acknowledges the rows of this batch, which are then never given out again.
    pub(crate) async fn acknowledge(&mut self, batch: &SinkBatch) -> io::Result<()> {
        let Some(disk) = self
            .disk
            .as_mut()
            .filter(|disk| disk.epoch == batch.epoch())
        else {
            return Ok(());
        };
        for at in 0..batch.len() {
            disk.given_out.remove(&batch.id(at).number);
        }
        let first_out = disk.given_out.first().copied();
        let acknowledge = move |files: &mut DiskQueue| {
            let result = files.acknowledge(first_out.unwrap_or(files.next_to_read()));
            (result, files.is_full())
        };
        let (result, are_full) = disk.shared.with_disk(acknowledge).await?;
        if !are_full {
            self.memory.set_files_full(false);
        }
        disk.shared.space.notify_one();
        result
    }

    /// Whether all remaining rows are in files.
    pub(crate) fn is_fully_on_disk(&self) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.spool.is_some())
    }

    /// Whether these rows will be given out again from files.
    pub(crate) fn is_on_disk(&self, batch: &SinkBatch) -> bool {
        self.disk
            .as_ref()
            .is_some_and(|disk| disk.epoch == batch.epoch())
    }

    /// Ends the spool after it has written everything in memory, if it can be written.
    pub(crate) async fn close(self) {
        let Some(disk) = self.disk else { return };
        let _ = disk.stop.send(true);
        if let Some(spool) = disk.spool {
            let _ = spool.await;
        }
        let synced = disk.shared.with_disk(DiskQueue::sync).await;
        if let Ok(Err(error)) | Err(error) = synced {
            tracing::error!(%error, "sink disk queue write failed");
        }
    }
}

impl DiskFeed {
    /// Whether the files were to be drained only, and are empty.
    fn is_drained(&self) -> bool {
        self.spool.is_none() && self.given_out.is_empty() && self.shared.unread.load(Relaxed) == 0
    }

    async fn open(
        memory: Arc<MemoryQueue>,
        files: &SinkFiles,
        settings: &DiskSettings,
        is_spooling: bool,
    ) -> io::Result<Self> {
        let (opened, settings) = (files.clone(), settings.clone());
        let opening = tokio::task::spawn_blocking(move || {
            let disk = DiskQueue::open(&opened.queue_directory(), &settings)?;
            opened.record_queue()?;
            io::Result::Ok(disk)
        });
        let disk = opening.await.map_err(io::Error::other)??;
        let epoch = disk.epoch();
        let shared = Arc::new(SharedDiskQueue {
            unread: disk.unread().into(),
            rows: disk.rows().into(),
            bytes: disk.bytes().into(),
            spooling: AtomicUsize::new(0),
            disk: Mutex::new(disk),
            readable: Notify::new(),
            space: Notify::new(),
        });
        let (stop, stopped) = watch::channel(false);
        let spool =
            is_spooling.then(|| tokio::spawn(run_spool(memory.clone(), shared.clone(), stopped)));
        Ok(Self {
            shared,
            epoch,
            spool,
            stop,
            given_out: BTreeSet::new(),
            files: files.clone(),
        })
    }
}

/// Moves rows from memory to files until it is stopped and nothing is left or nothing can be written.
async fn run_spool(
    memory: Arc<MemoryQueue>,
    shared: Arc<SharedDiskQueue>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        tokio::select! {
            () = memory.ready(1, 1) => {}
            _ = stop.wait_for(|stop| *stop) => {
                if memory.rows() == 0 {
                    return;
                }
            }
        }
        while shared.is_full_for(&memory) {
            tokio::select! {
                () = shared.space.notified() => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
        memory.set_spooled(true);
        let mut rows = SinkBatch::default();
        // Counted before they are taken, so that they are always counted in at least one place.
        shared.spooling.store(memory.rows().max(1), SeqCst);
        memory.take(SPOOL_ROWS, SPOOL_BYTES, |row| rows.push(0, row));
        shared.spooling.store(rows.len(), SeqCst);
        let marks = memory.taken_counts();
        while !rows.is_empty() {
            let writing = shared.with_disk(move |files| {
                let (count, result) = files.append(rows.rows());
                (rows.select_rows(count..rows.len()), result)
            });
            let Ok((left, result)) = writing.await else {
                return;
            };
            shared.readable.notify_one();
            rows = left;
            shared.spooling.store(rows.len(), SeqCst);
            if let Err(error) = result {
                // A failing disk must not delay acknowledgements to clients.
                memory.set_spooled(false);
                tracing::error!(%error, rows = rows.len(), "sink disk queue write failed; retrying");
                tokio::select! {
                    () = tokio::time::sleep(RETRY_PAUSE) => {}
                    _ = stop.wait_for(|stop| *stop) => return,
                }
            }
        }
        memory.record_written(&marks);
    }
}
