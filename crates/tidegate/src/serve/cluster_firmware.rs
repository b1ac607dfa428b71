//! Images of firmware packages that other nodes of the cluster have, and the keys by which these sign links to them.
//!
//! All nodes have the packages. A node that lacks the image of one asks the others for it, and copies it piece by piece from
//! one that has it. What it has received is kept when the connection or a node fails.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use cluster::{NodeName, NodeRequests};
use firmware::{FirmwareService, ImageSource, MissingImage};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use transfer::{FileDescription, FileService, FileTarget, TransferErrorKind};

/// Bytes of a request for a part of a file. Smaller than what a message can have, so that others wait less for it.
const PIECE_BYTES: u64 = 512 << 10;
/// Time for the answer to a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Images that are copied at the same time, one piece of each.
const MAX_COPIES: usize = 2;
/// How often missing images and new nodes are looked for without being told.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Pauses after a copy that failed; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long the creation of a package waits for its image, which is less than a request of the API may take.
const FETCH_TIME: Duration = Duration::from_secs(8);
const FETCH_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A request to another node.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FirmwareRequest {
    /// Is answered with an optional [`FileDescription`] as JSON.
    Describe { file: String },
    /// Is answered with the bytes.
    Read { file: String, offset: u64, len: u64 },
    /// Is answered with the key by which the node signs links to files.
    LinkKey,
}

/// Why a file was not copied from a node.
enum CopyError {
    /// The node does not have it.
    Absent,
    /// The node or its connection has failed; another one may do better.
    Remote(String),
    /// This node cannot store it.
    Local(String),
}

/// Copies images from other nodes.
pub(super) struct ClusterFirmware {
    service: FirmwareService,
    files: FileService,
    requests: Arc<NodeRequests>,
    /// Subject of the requests.
    subject: u8,
    runtime: Handle,
    wake: Arc<Notify>,
    /// Files that are being copied.
    active: Mutex<BTreeSet<String>>,
}

/// Ends the copy of a file when it is dropped.
struct ActiveCopy<'a> {
    firmware: &'a ClusterFirmware,
    file: String,
}

impl Drop for ActiveCopy<'_> {
    fn drop(&mut self) {
        self.firmware.lock_active().remove(&self.file);
    }
}

impl ClusterFirmware {
    /// Copies missing images from now on, on this runtime.
    pub(super) fn start(
        service: FirmwareService,
        files: FileService,
        requests: Arc<NodeRequests>,
        subject: u8,
        runtime: &Handle,
    ) -> Arc<Self> {
        let wake = Arc::new(Notify::new());
        let this = Arc::new(Self {
            service: service.clone(),
            files,
            requests,
            subject,
            runtime: runtime.clone(),
            wake: wake.clone(),
            active: Mutex::default(),
        });
        service.set_image_wake(Box::new(move || wake.notify_one()));
        service.set_image_source(Box::new(ClusterImages(Arc::downgrade(&this))));
        runtime.spawn(this.clone().copy_missing());
        runtime.spawn(this.clone().learn_link_keys());
        this
    }

    fn lock_active(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: the file is being copied already.
    fn begin(&self, file: &str) -> Option<ActiveCopy<'_>> {
        let is_new = self.lock_active().insert(file.to_owned());
        is_new.then(|| ActiveCopy {
            firmware: self,
            file: file.to_owned(),
        })
    }

    /// Copies images as long as any is missing.
    async fn copy_missing(self: Arc<Self>) {
        let mut copies = JoinSet::new();
        let mut pauses: HashMap<String, (Instant, Duration)> = HashMap::new();
        loop {
            let missing = self.service.missing_images();
            pauses.retain(|file, _| missing.iter().any(|image| image.file == *file));
            for image in missing {
                let is_paused = pauses
                    .get(&image.file)
                    .is_some_and(|(until, _)| *until > Instant::now());
                if copies.len() >= MAX_COPIES || is_paused || self.is_active(&image.file) {
                    continue;
                }
                let this = self.clone();
                copies.spawn(async move {
                    let is_copied = this.copy_image(&image).await;
                    (image.file, is_copied)
                });
                // The task takes the file when it runs.
                tokio::task::yield_now().await;
            }
            tokio::select! {
                Some(ended) = copies.join_next() => match ended {
                    Ok((file, false)) => {
                        let before = pauses.get(&file).map(|(_, pause)| *pause);
                        let pause = before.map_or(FIRST_PAUSE, |pause| (pause * 2).min(LONGEST_PAUSE));
                        pauses.insert(file, (Instant::now() + pause, pause));
                    }
                    Ok((_, true)) => {}
                    Err(error) => tracing::error!(%error, "copying an image panicked; this is a bug"),
                },
                () = self.wake.notified() => {}
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
        }
    }

    fn is_active(&self, file: &str) -> bool {
        self.lock_active().contains(file)
    }

    /// Returns whether the image is here, or somebody else copies it.
    async fn copy_image(self: &Arc<Self>, image: &MissingImage) -> bool {
        let Some(_copy) = self.begin(&image.file) else {
            return true;
        };
        let copied = match self
            .copy(&image.file, &|file| check_image(file, image))
            .await
        {
            Ok(true) => Ok(()),
            Ok(false) => Err("no node that can be reached has it".to_owned()),
            Err(reason) => Err(reason),
        };
        let (service, file) = (self.service.clone(), image.file.clone());
        let is_copied = copied.is_ok();
        let recorded = tokio::task::spawn_blocking(move || match copied {
            Ok(()) => service.image_arrived(&file),
            Err(reason) => service.image_failed(&file, &reason),
        });
        is_copied && recorded.await.is_ok()
    }

    /// Copies a file from the first node that has it and whose description `check` accepts. Returns false if all nodes answer
    /// that they do not have it.
    async fn copy(
        &self,
        file: &str,
        check: &(dyn Fn(&FileDescription) -> Result<(), String> + Send + Sync),
    ) -> Result<bool, String> {
        let mut nodes = self.requests.reachable();
        // Nodes that are missed by many are asked in different orders.
        let first = wall_clock::now_ms() as usize % nodes.len().max(1);
        nodes.rotate_left(first);
        let mut failure = None;
        for node in &nodes {
            match self.copy_from(node, file, check).await {
                Ok(()) => return Ok(true),
                Err(CopyError::Absent) => {}
                Err(CopyError::Remote(reason)) => failure = Some(format!("{node}: {reason}")),
                Err(CopyError::Local(reason)) => return Err(reason),
            }
        }
        match failure {
            Some(failure) => Err(failure),
            None if nodes.is_empty() => Err("no other node can be reached".to_owned()),
            None => Ok(false),
        }
    }

    async fn copy_from(
        &self,
        node: &NodeName,
        file: &str,
        check: &(dyn Fn(&FileDescription) -> Result<(), String> + Send + Sync),
    ) -> Result<(), CopyError> {
        let request = FirmwareRequest::Describe {
            file: file.to_owned(),
        };
        let answer = self.ask(node, &request).await?;
        let description: Option<FileDescription> = serde_json::from_slice(&answer)
            .map_err(|error| CopyError::Remote(error.to_string()))?;
        let description = description.ok_or(CopyError::Absent)?;
        if description.id != file {
            return Err(CopyError::Remote("it describes another file".to_owned()));
        }
        check(&description).map_err(CopyError::Remote)?;
        let (files, begun) = (self.files.clone(), description.clone());
        let mut offset = local(move || {
            files.begin_copy(&begun)?;
            files.received_prefix(&begun.id)
        })
        .await?;
        while offset < description.size {
            self.service.image_progress(file, offset);
            let len = PIECE_BYTES.min(description.size - offset);
            let request = FirmwareRequest::Read {
                file: file.to_owned(),
                offset,
                len,
            };
            let bytes = self.ask(node, &request).await?;
            if bytes.len() as u64 != len {
                return Err(CopyError::Remote("it sends too few bytes".to_owned()));
            }
            let (files, id) = (self.files.clone(), description.id.clone());
            offset = local(move || {
                let written = files.write(FileTarget::Id(&id), offset, &bytes, None)?;
                files.commit(&written)?;
                files.received_prefix(&id)
            })
            .await?;
        }
        let files = self.files.clone();
        local(move || {
            let id = &description.id;
            let target = FileTarget::Id(id);
            let checksum = Some(description.checksum);
            let finished = files.finish(target, Some(description.size), checksum);
            if let Err(error) = &finished
                && error.kind == TransferErrorKind::ChecksumMismatch
            {
                // It begins again.
                files.discard_copy(id)?;
            }
            finished.map(drop)
        })
        .await
    }

    async fn ask(&self, node: &NodeName, request: &FirmwareRequest) -> Result<Bytes, CopyError> {
        let remote = |error: &dyn std::fmt::Display| CopyError::Remote(error.to_string());
        let body = serde_json::to_vec(request).map_err(|error| remote(&error))?;
        let requests = &self.requests;
        let answer = requests.request_within(REQUEST_TIMEOUT, node, self.subject, &body);
        answer.await.map_err(|error| remote(&error))
    }

    /// Asks each node that becomes reachable for the key of its links, so that devices can download from any node.
    async fn learn_link_keys(self: Arc<Self>) {
        let mut known = BTreeSet::new();
        loop {
            let nodes = self.requests.reachable();
            known.retain(|node| nodes.contains(node));
            for node in nodes {
                if known.contains(&node) {
                    continue;
                }
                match self.learn_link_key(&node).await {
                    Ok(()) => _ = known.insert(node),
                    Err(CopyError::Remote(reason) | CopyError::Local(reason)) => {
                        tracing::debug!(node = %node, reason, "the key of links of another node is not known yet");
                    }
                    Err(CopyError::Absent) => {}
                }
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    async fn learn_link_key(&self, node: &NodeName) -> Result<(), CopyError> {
        let answer = self.ask(node, &FirmwareRequest::LinkKey).await?;
        let key = String::from_utf8(answer.to_vec());
        let key = key.map_err(|error| CopyError::Remote(error.to_string()))?;
        let (files, node) = (self.files.clone(), node.to_string());
        local(move || files.set_link_key_of_node(&node, &key)).await
    }

    /// Answers a request of another node.
    pub(super) async fn answer(&self, body: Bytes) -> Result<Bytes, String> {
        let request = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        let files = self.files.clone();
        let answering = tokio::task::spawn_blocking(move || match request {
            FirmwareRequest::Describe { file } => {
                let description = files.description(&file);
                let json = serde_json::to_vec(&description).map_err(|error| error.to_string())?;
                Ok(Bytes::from(json))
            }
            FirmwareRequest::Read { file, offset, len } => read_piece(&files, &file, offset, len),
            FirmwareRequest::LinkKey => Ok(Bytes::copy_from_slice(files.link_key().as_bytes())),
        });
        answering.await.map_err(|error| error.to_string())?
    }

    /// Copies a file of a package that is being created.
    async fn fetch(&self, file: &str, namespace: &str) -> Result<(), String> {
        let check = |description: &FileDescription| match description.owner.namespace == namespace {
            true => Ok(()),
            false => Err("the file is in another namespace".to_owned()),
        };
        let copying = async {
            let copy = loop {
                match self.begin(file) {
                    Some(copy) => break copy,
                    None => tokio::time::sleep(FETCH_CHECK_INTERVAL).await,
                }
            };
            let copied = self.copy(file, &check).await;
            drop(copy);
            copied
        };
        match tokio::time::timeout(FETCH_TIME, copying).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(reason)) => Err(format!(
                "it is not at this node, and cannot be copied from another one now: {reason}"
            )),
            Err(_) => {
                let (files, id) = (self.files.clone(), file.to_owned());
                let info = tokio::task::spawn_blocking(move || files.info(FileTarget::Id(&id)));
                let info = info.await.ok().flatten();
                let (received, size) =
                    info.map_or((0, 0), |info| (info.received_bytes, info.size.unwrap_or(0)));
                Err(format!(
                    "it is being copied from another node, and {received} of {size} bytes have arrived; repeat the request"
                ))
            }
        }
    }
}

/// Whether a file is the image that a package describes.
fn check_image(file: &FileDescription, image: &MissingImage) -> Result<(), String> {
    let has_digest = image.sha256.is_none_or(|digest| digest == file.checksum);
    match file.size == image.size && has_digest {
        true => Ok(()),
        false => Err("its file is not the image of the package".to_owned()),
    }
}

fn read_piece(files: &FileService, id: &str, offset: u64, len: u64) -> Result<Bytes, String> {
    let (info, file) = files.read(id).map_err(|error| error.to_string())?;
    let end = offset.saturating_add(len).min(info.size.unwrap_or(0));
    let len = end.saturating_sub(offset).min(PIECE_BYTES);
    let mut bytes = vec![0; len as usize];
    let read = file.read_exact_at(&mut bytes, offset);
    read.map_err(|error| format!("the file cannot be read: {error}"))?;
    files.count_sent(len);
    Ok(bytes.into())
}

/// Works on files of this node.
async fn local<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, transfer::TransferError> + Send + 'static,
) -> Result<T, CopyError> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|error| CopyError::Local(error.to_string()))?;
    done.map_err(|error| CopyError::Local(error.to_string()))
}

/// The images of other nodes, for packages that are created at this one.
struct ClusterImages(Weak<ClusterFirmware>);

impl ImageSource for ClusterImages {
    fn fetch(&self, file: &str, namespace: &str) -> Result<(), String> {
        let Some(firmware) = self.0.upgrade() else {
            return Ok(());
        };
        let runtime = firmware.runtime.clone();
        runtime.block_on(firmware.fetch(file, namespace))
    }
}
