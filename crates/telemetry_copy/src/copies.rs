//! The copies of a node: that of its own telemetry at its standby, and those of other nodes here.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use series::{DeviceNo, PolicyAssignment, Series};

use crate::copied_series::CopiedSeries;
use crate::copy_directory::{CopyDirectory, CopyPlace};
use crate::keeper::{CopyConfig, CopyKeeper};
use crate::lock::lock;
use crate::message::{
    CopyAnswer, CopyRequest, OwnCopy, ReceivedRequest, decode_request, encode_answer,
    encode_request,
};
use crate::ports::{CopiedDevices, CopyPeers};
use crate::sender::CopySender;
use crate::sender_parts::CopySenderParts;
use crate::status::{OwnCopyStatus, TelemetryCopyStatus};

/// Time between two announcements.
const ANNOUNCEMENT_INTERVAL: Duration = Duration::from_secs(5);
/// The same while there are no copies.
const LONG_ANNOUNCEMENT_INTERVAL: Duration = Duration::from_secs(60);
/// Time between two checks of the copies at this node, and of what is to be announced.
const TICK: Duration = Duration::from_millis(200);

/// What copies consist of.
pub struct TelemetryCopiesParts {
    pub node: String,
    pub series: CopiedSeries,
    pub devices: Arc<dyn CopiedDevices>,
    pub peers: Arc<dyn CopyPeers>,
    /// For the copies at this node, and the record of the own one.
    pub directory: PathBuf,
    pub config: CopyConfig,
    /// Random numbers that differ from all others.
    pub random: fn() -> u64,
}

/// Copies telemetry to the standby of this node, and keeps copies of that of others. A clone refers to the same ones.
#[derive(Clone)]
pub struct TelemetryCopies {
    shared: Arc<CopiesShared>,
}

struct CopiesShared {
    node: String,
    peers: Arc<dyn CopyPeers>,
    devices: Arc<dyn CopiedDevices>,
    keeper: CopyKeeper,
    directory: Mutex<CopyDirectory>,
    own: Mutex<(OwnCopyStatus, Option<OwnCopy>)>,
    is_stopping: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A copy at this node that is read.
pub struct ReadableCopy {
    pub series: Series,
    copy: Arc<crate::kept_copy::KeptCopy>,
    devices: Arc<dyn CopiedDevices>,
}

impl ReadableCopy {
    /// Whether the copy has all telemetry that the node has stored of these devices, except what was on its way when it failed.
    ///
    /// # Errors
    /// If the devices cannot be read.
    pub fn covers(&self, devices: &[String]) -> Result<bool, String> {
        if !self.copy.place().is_complete {
            return Ok(false);
        }
        for device in devices {
            match self.devices.by_id(device)? {
                Some((_, product)) if self.copy.covers(&product) => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }
}

impl TelemetryCopies {
    /// Opens the copies, and begins to send and to announce.
    ///
    /// # Errors
    /// If files cannot be read or written, or a thread cannot be started.
    pub fn start(parts: TelemetryCopiesParts) -> io::Result<Self> {
        let now = Instant::now();
        let kept = parts.directory.join("kept");
        let keeper = CopyKeeper::open(kept, parts.config, parts.devices.clone(), now)?;
        let sender = CopySender::open(CopySenderParts {
            node: parts.node.clone(),
            series: parts.series,
            devices: parts.devices.clone(),
            peers: parts.peers.clone(),
            directory: parts.directory.join("own"),
            random: parts.random,
            now: Instant::now,
        })?;
        let this = Self {
            shared: Arc::new(CopiesShared {
                node: parts.node,
                peers: parts.peers,
                devices: parts.devices,
                keeper,
                directory: Mutex::default(),
                own: Mutex::new((sender.status(), None)),
                is_stopping: AtomicBool::new(false),
                threads: Mutex::default(),
            }),
        };
        let (sending, announcing) = (this.shared.clone(), this.shared.clone());
        let threads = [
            thread::Builder::new()
                .name("telemetry-copy".to_owned())
                .spawn(move || sending.send(sender))?,
            thread::Builder::new()
                .name("telemetry-copies".to_owned())
                .spawn(move || announcing.announce())?,
        ];
        lock(&this.shared.threads).extend(threads);
        Ok(this)
    }

    /// Answers a request of another node. Waits for the disk.
    ///
    /// # Errors
    /// If the request cannot be read or executed.
    pub fn answer(&self, request: &[u8]) -> Result<Vec<u8>, String> {
        let now = Instant::now();
        let keeper = &self.shared.keeper;
        if self.shared.is_stopping.load(Ordering::Acquire) {
            return Err("it is stopping".to_owned());
        }
        let answer = match decode_request(request)? {
            ReceivedRequest::Batch(head, entries) => keeper.store(&head, entries, now)?,
            ReceivedRequest::Json(CopyRequest::Begin { source, copy, run }) => {
                keeper.begin(&source, (copy, run), now)?
            }
            ReceivedRequest::Json(CopyRequest::Announce { from, own, kept }) => {
                if let Some(own) = own {
                    keeper.follow_announcement(&from, &own);
                }
                lock(&self.shared.directory).set(from, kept);
                CopyAnswer::Done
            }
        };
        Ok(encode_answer(&answer))
    }

    /// Where copies are, one place for each.
    #[must_use]
    pub fn places(&self) -> Vec<CopyPlace> {
        let shared = &self.shared;
        let own = (shared.node.as_str(), shared.keeper.places());
        let reachable = shared.peers.reachable();
        lock(&shared.directory).places(own, &reachable)
    }

    /// The copy with this key, if it is here.
    #[must_use]
    pub fn readable(&self, key: &str) -> Option<ReadableCopy> {
        let copy = self.shared.keeper.copy(key)?;
        Some(ReadableCopy {
            series: copy.series.clone(),
            copy,
            devices: self.shared.devices.clone(),
        })
    }

    /// The time series of copies whose node cannot be reached or has begun with other ones, so that it does not copy deletions.
    #[must_use]
    pub fn unattended(&self) -> Vec<Series> {
        let reachable = self.shared.peers.reachable();
        let copies = self.shared.keeper.copies().into_iter();
        copies
            .filter(|copy| copy.is_orphan() || !reachable.contains(&copy.source().node))
            .map(|copy| copy.series.clone())
            .collect()
    }

    #[must_use]
    pub fn status(&self) -> TelemetryCopyStatus {
        TelemetryCopyStatus {
            own: lock(&self.shared.own).0.clone(),
            kept: self.shared.keeper.status(),
        }
    }

    /// Applies changed retention policies to the copies at this node.
    pub fn set_policies(&self, assignment: &PolicyAssignment) {
        self.shared.keeper.set_policies(assignment);
    }

    /// Deletes the telemetry of a device that was removed, in the copies at this node.
    pub fn delete_device(&self, device: DeviceNo) {
        self.shared.keeper.delete_device(device);
    }

    /// Ends the threads, and closes the copies. The requests of this node must still be answered.
    pub fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        let threads = std::mem::take(&mut *lock(&self.shared.threads));
        for thread in &threads {
            thread.thread().unpark();
        }
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread for copies of telemetry panicked; this is a bug");
            }
        }
        self.shared.keeper.close(Instant::now());
    }
}

impl CopiesShared {
    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    fn send(&self, mut sender: CopySender) {
        while !self.is_stopping() {
            let pause = sender.step();
            *lock(&self.own) = (sender.status(), sender.own_copy());
            if !pause.is_zero() {
                thread::park_timeout(pause);
            }
        }
    }

    fn announce(&self) {
        let mut announced: Option<(Vec<u8>, Vec<String>, Instant)> = None;
        while !self.is_stopping() {
            thread::park_timeout(TICK);
            let now = Instant::now();
            let reachable = self.peers.reachable();
            self.keeper.tick(&reachable, now);
            let own = lock(&self.own).1.clone();
            let kept = self.keeper.places();
            // Times change all the time.
            let mut shape = kept.clone();
            shape.iter_mut().for_each(|copy| copy.sent_ms = 0);
            let shape = encode_request(&CopyRequest::Announce {
                from: self.node.clone(),
                own: own.clone(),
                kept: shape,
            });
            let has_copies = !kept.is_empty() || own.as_ref().is_some_and(|own| own.copy.is_some());
            let interval = match has_copies {
                true => ANNOUNCEMENT_INTERVAL,
                false => LONG_ANNOUNCEMENT_INTERVAL,
            };
            let is_due = announced.as_ref().is_none_or(|(before, nodes, at)| {
                *before != shape
                    || *nodes != reachable
                    || now.saturating_duration_since(*at) >= interval
            });
            if !is_due {
                continue;
            }
            let request = encode_request(&CopyRequest::Announce {
                from: self.node.clone(),
                own,
                kept,
            });
            for node in &reachable {
                self.peers.notify(node, &request);
            }
            announced = Some((shape, reachable, now));
        }
    }
}
