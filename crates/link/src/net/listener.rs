//! The accepting end: finds the link that a carrier belongs to.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::future::{Future, pending};
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::config::LinkConfig;
use crate::core::LinkCore;
use crate::error_code::{ErrorCode, ProtocolError};
use crate::net::carrier::Carrier;
use crate::net::carrier_task::{CarrierError, LinkEnd, SharedLink, lock, now, run_carrier};
use crate::net::journal_directory::{JournalDirectory, RestoredLink};
use crate::net::link::Link;
use crate::wire::control::{GOAWAY_FLAG_CARRIER, GoAway};
use crate::wire::handshake::{Hello, LinkId};
use crate::wire::header::FrameType;
use crate::wire::reader::FrameReader;
use crate::wire::writer::FrameWriter;

/// Links that the application has not taken.
const MAX_NEW_LINKS: usize = 64;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a carrier may take to send the reason of its end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether a peer may use a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkDecision {
    /// The peer is this principal. A link belongs to the principal that opened it.
    Accept {
        principal: String,
    },
    Reject {
        code: ErrorCode,
        text: String,
    },
}

/// A link that a peer has opened.
#[derive(Debug, Clone)]
pub struct AcceptedLink {
    pub link: Link,
    /// From [`LinkDecision::Accept`].
    pub principal: String,
}

/// A carrier whose peer has sent HELLO and waits for the answer.
pub struct PendingLink<C> {
    carrier: C,
    reader: FrameReader,
    hello: Hello,
}

impl<C> PendingLink<C> {
    pub fn hello(&self) -> &Hello {
        &self.hello
    }
}

/// A carrier whose peer may use the link.
pub struct AdmittedCarrier<'a, C> {
    listener: &'a LinkListener,
    carrier: C,
    reader: FrameReader,
    hello: Hello,
    link: Link,
    is_known: bool,
}

#[derive(Debug)]
struct KnownLink {
    shared: Arc<SharedLink>,
    principal: String,
    /// When the last carrier ended; `None`: there is one.
    idle_since: Option<Instant>,
}

/// Accepts links.
#[derive(Debug)]
pub struct LinkListener {
    config: LinkConfig,
    journals: Option<JournalDirectory>,
    max_links: usize,
    /// How long a link without a carrier is kept.
    expiry: Duration,
    links: Mutex<HashMap<LinkId, KnownLink>>,
    new_links: mpsc::Sender<AcceptedLink>,
}

impl LinkListener {
    /// Returns the listener and the links that peers open. The record that excludes duplicates is kept for `expiry` after
    /// a carrier has ended.
    pub fn new(
        config: LinkConfig,
        max_links: usize,
        expiry: Duration,
    ) -> (Arc<Self>, mpsc::Receiver<AcceptedLink>) {
        let (new_links, receiver) = mpsc::channel(MAX_NEW_LINKS);
        let listener = Self {
            config,
            journals: None,
            max_links,
            expiry,
            links: Mutex::default(),
            new_links,
        };
        (Arc::new(listener), receiver)
    }

    /// As [`new`](Self::new), for links that survive the end of the process. Each has a journal in a directory of its
    /// own in `dir`, which contains what was sent and is not acknowledged, and what was received and is not
    /// [processed](Link::acknowledge). The links of former processes are the first that the receiver returns. A journal
    /// is removed when its link is shut down or has expired, and all its messages are processed.
    ///
    /// # Errors
    /// If a journal is damaged or in use, or a file operation fails.
    pub fn with_journals(
        config: LinkConfig,
        max_links: usize,
        expiry: Duration,
        dir: PathBuf,
    ) -> io::Result<(Arc<Self>, mpsc::Receiver<AcceptedLink>)> {
        let journals = JournalDirectory::open(dir, config.clone())?;
        let restored = journals.restore()?;
        let (new_links, receiver) = mpsc::channel(MAX_NEW_LINKS + restored.len());
        let mut links = HashMap::new();
        for RestoredLink {
            id,
            principal,
            shared,
        } in restored
        {
            let link = Link {
                shared: shared.clone(),
            };
            let accepted = AcceptedLink {
                link,
                principal: principal.clone(),
            };
            // There is room for all of them.
            let _ = new_links.try_send(accepted);
            let known = KnownLink {
                shared,
                principal,
                idle_since: Some(now()),
            };
            links.insert(id, known);
        }
        let listener = Self {
            config,
            journals: Some(journals),
            max_links,
            expiry,
            links: Mutex::new(links),
            new_links,
        };
        Ok((Arc::new(listener), receiver))
    }

    /// Runs a carrier until it ends. `decide` judges the credentials of the peer.
    ///
    /// # Errors
    /// Why the carrier ended, unless the link was shut down.
    pub async fn serve(
        &self,
        carrier: impl Carrier,
        decide: impl FnOnce(&Hello) -> LinkDecision,
    ) -> Result<(), CarrierError> {
        let pending_link = self.receive_hello(carrier).await?;
        let decision = decide(pending_link.hello());
        let principal = match &decision {
            LinkDecision::Accept { principal } => principal.clone(),
            LinkDecision::Reject { .. } => String::new(),
        };
        let mut admitted = self.admit(pending_link, decision).await?;
        if !admitted.is_known {
            let link = AcceptedLink {
                link: admitted.link.clone(),
                principal,
            };
            if self.new_links.send(link).await.is_err() {
                let text = "nobody accepts links here".to_owned();
                let code = ErrorCode::SHUTTING_DOWN;
                reject(&mut admitted.carrier, code, &text).await;
                lock(&self.links).remove(&admitted.hello.link_id);
                return Err(CarrierError::Rejected { code, text });
            }
        }
        admitted.run_until(pending()).await
    }

    /// Waits for the HELLO of a peer, for callers whose decision takes time.
    ///
    /// # Errors
    /// If the peer sends something else, or nothing in time.
    pub async fn receive_hello<C: Carrier>(
        &self,
        mut carrier: C,
    ) -> Result<PendingLink<C>, CarrierError> {
        let mut reader = FrameReader::new();
        let handshake = read_hello(&mut carrier, &mut reader);
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(hello)) => Ok(PendingLink {
                carrier,
                reader,
                hello,
            }),
            Ok(Err(CarrierError::Protocol(error))) => {
                reject(&mut carrier, error.code, error.detail).await;
                Err(error.into())
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ProtocolError {
                code: ErrorCode::TIMEOUT,
                detail: "HELLO did not arrive in time",
            }
            .into()),
        }
    }

    /// Finds the link of a carrier, or rejects the carrier. The links of carriers that are admitted in this way are not
    /// among those of the receiver that [`new`](Self::new) returns.
    ///
    /// # Errors
    /// If the carrier is rejected; the peer has been told the reason.
    pub async fn admit<C: Carrier>(
        &self,
        pending_link: PendingLink<C>,
        decision: LinkDecision,
    ) -> Result<AdmittedCarrier<'_, C>, CarrierError> {
        let PendingLink {
            mut carrier,
            reader,
            hello,
        } = pending_link;
        let result = match decision {
            LinkDecision::Accept { principal } => self.find(&hello, &principal),
            LinkDecision::Reject { code, text } => Err((code, text)),
        };
        match result {
            Ok((shared, is_known)) => Ok(AdmittedCarrier {
                listener: self,
                carrier,
                reader,
                hello,
                link: Link { shared },
                is_known,
            }),
            Err((code, text)) => {
                reject(&mut carrier, code, &text).await;
                Err(CarrierError::Rejected { code, text })
            }
        }
    }

    /// Ends links that have had no carrier for their expiry. New carriers do the same.
    pub fn remove_expired(&self) {
        self.expire(&mut lock(&self.links));
    }

    /// Removes a link, unless a newer one has its id.
    fn forget(&self, id: LinkId, shared: &Arc<SharedLink>) {
        if let Entry::Occupied(known) = lock(&self.links).entry(id)
            && Arc::ptr_eq(&known.get().shared, shared)
        {
            known.remove();
        }
    }

    /// The link that HELLO names, or a new one.
    fn find(
        &self,
        hello: &Hello,
        principal: &str,
    ) -> Result<(Arc<SharedLink>, bool), (ErrorCode, String)> {
        let mut links = lock(&self.links);
        self.expire(&mut links);
        if let Some(known) = links.get_mut(&hello.link_id) {
            if known.principal != principal {
                let text = "the link belongs to another principal".to_owned();
                return Err((ErrorCode::NOT_PERMITTED, text));
            }
            known.idle_since = None;
            return Ok((known.shared.clone(), true));
        }
        if links.len() >= self.max_links {
            let text = format!("{} links are open, which is the limit", self.max_links);
            return Err((ErrorCode::LIMIT_EXCEEDED, text));
        }
        let shared = match &self.journals {
            None => SharedLink::new(LinkCore::new(hello.link_id, self.config.clone()), None),
            Some(journals) => journals.create(hello.link_id, principal).map_err(|error| {
                let text = format!("the journal of the link cannot be created: {error}");
                (ErrorCode::STORAGE_FAILED, text)
            })?,
        };
        let known = KnownLink {
            shared: shared.clone(),
            principal: principal.to_owned(),
            idle_since: None,
        };
        links.insert(hello.link_id, known);
        Ok((shared, false))
    }

    fn expire(&self, links: &mut HashMap<LinkId, KnownLink>) {
        let now = now();
        links.retain(|_, known| {
            // The application has abandoned it.
            if known.shared.ended().is_some() {
                return false;
            }
            let is_expired = known
                .idle_since
                .is_some_and(|since| now.saturating_duration_since(since) >= self.expiry)
                && !known.shared.has_unprocessed_messages();
            if is_expired {
                known.shared.discard_journal();
                known.shared.end(LinkEnd::Expired);
            }
            !is_expired
        });
    }
}

impl<C: Carrier> AdmittedCarrier<'_, C> {
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Whether the link existed before.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Ends the link, which nobody serves any more, and closes the carrier. A further carrier with the same link id begins a
    /// new link.
    pub fn end_link(self) {
        self.link.abandon();
        self.listener.forget(self.hello.link_id, &self.link.shared);
    }

    /// Runs the carrier until it ends, or until `end` says that it has to: with the reason that the peer is told, if
    /// there is one.
    ///
    /// # Errors
    /// Why the carrier ended, unless the link was shut down.
    pub async fn run_until(
        self,
        end: impl Future<Output = Option<ProtocolError>>,
    ) -> Result<(), CarrierError> {
        let Self {
            listener,
            carrier,
            reader,
            hello,
            link,
            is_known,
        } = self;
        let shared = &link.shared;
        let begin = |core: &mut LinkCore| core.accept(&hello, is_known, now());
        let Some(number) = shared.begin_carrier(begin) else {
            listener.forget(hello.link_id, shared);
            return Err(CarrierError::EndOfStream);
        };
        let result = {
            let mut running = pin!(run_carrier(shared, number, carrier, reader));
            tokio::select! {
                result = &mut running => result,
                reason = end => match reason {
                    None => Err(CarrierError::EndOfStream),
                    Some(error) => {
                        if shared.is_current(number) {
                            shared.lock().report_violation(error);
                            shared.outgoing.notify_one();
                        }
                        // The peer closes the carrier when it has read the reason.
                        let _ = tokio::time::timeout(CLOSE_TIMEOUT, running).await;
                        Err(error.into())
                    }
                },
            }
        };
        shared.end_carrier(number);
        let mut links = lock(&listener.links);
        if shared.lock().is_closed() {
            shared.discard_journal();
            shared.end(LinkEnd::ShutDown);
            links.remove(&hello.link_id);
        } else if shared.is_current(number)
            && let Some(known) = links.get_mut(&hello.link_id)
        {
            known.idle_since = Some(now());
        }
        drop(links);
        shared.changed.notify_waiters();
        result
    }
}

async fn read_hello(
    carrier: &mut impl Carrier,
    reader: &mut FrameReader,
) -> Result<Hello, CarrierError> {
    loop {
        if let Some(frame) = reader.next_frame()? {
            if frame.frame_type != FrameType::Hello {
                return Err(ProtocolError::violation("the first frame is not HELLO").into());
            }
            return Ok(Hello::decode(&frame.payload)?);
        }
        if carrier.read_buf(&mut reader.buffer()).await? == 0 {
            return Err(CarrierError::EndOfStream);
        }
    }
}

/// Tells the peer why it is rejected, as far as it reads that.
async fn reject(carrier: &mut impl Carrier, code: ErrorCode, text: &str) {
    let mut payload = Vec::new();
    let text = text.to_owned();
    GoAway { code, text }.encode(&mut payload);
    let mut writer = FrameWriter::default();
    writer.push(
        FrameType::GoAway,
        GOAWAY_FLAG_CARRIER,
        0,
        &payload,
        Bytes::new(),
    );
    let mut slices = VecDeque::new();
    writer.take(&mut slices);
    let closing = async {
        for slice in slices {
            carrier.write_all(&slice).await?;
        }
        carrier.shutdown().await
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), closing).await;
}
