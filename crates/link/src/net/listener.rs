//! The accepting end: finds the link that a carrier belongs to.

use std::collections::{HashMap, VecDeque};
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
use crate::net::link::Link;
use crate::wire::control::{GOAWAY_FLAG_CARRIER, GoAway};
use crate::wire::handshake::{Hello, LinkId};
use crate::wire::header::FrameType;
use crate::wire::reader::FrameReader;
use crate::wire::writer::FrameWriter;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether a peer may use a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The peer is this principal. A link belongs to the principal that opened it.
    Accept {
        principal: String,
    },
    Refuse {
        code: ErrorCode,
        text: String,
    },
}

/// A link that a peer has opened.
#[derive(Debug, Clone)]
pub struct AcceptedLink {
    pub link: Link,
    /// From [`Decision::Accept`].
    pub principal: String,
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
        let (new_links, receiver) = mpsc::channel(64);
        let listener = Self {
            config,
            max_links,
            expiry,
            links: Mutex::default(),
            new_links,
        };
        (Arc::new(listener), receiver)
    }

    /// Runs a carrier until it ends. `decide` judges the credentials of the peer.
    ///
    /// # Errors
    /// Why the carrier ended, unless the link was shut down.
    pub async fn serve(
        &self,
        mut carrier: impl Carrier,
        decide: impl FnOnce(&Hello) -> Decision,
    ) -> Result<(), CarrierError> {
        let mut reader = FrameReader::new();
        let handshake = read_hello(&mut carrier, &mut reader);
        let hello = match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(hello)) => hello,
            Ok(Err(CarrierError::Protocol(error))) => {
                reject(&mut carrier, error.code, error.detail).await;
                return Err(error.into());
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                let error = ProtocolError {
                    code: ErrorCode::TIMEOUT,
                    detail: "HELLO did not arrive in time",
                };
                return Err(error.into());
            }
        };
        let result = match decide(&hello) {
            Decision::Accept { principal } => self
                .find(&hello, &principal)
                .map(|(shared, is_known)| (shared, is_known, principal)),
            Decision::Refuse { code, text } => Err((code, text)),
        };
        let (shared, is_known, principal) = match result {
            Ok(found) => found,
            Err((code, text)) => {
                reject(&mut carrier, code, &text).await;
                return Err(CarrierError::Rejected { code, text });
            }
        };
        if !is_known {
            let link = AcceptedLink {
                link: Link {
                    shared: shared.clone(),
                },
                principal,
            };
            if self.new_links.send(link).await.is_err() {
                let text = "nobody accepts links here".to_owned();
                reject(&mut carrier, ErrorCode::SHUTTING_DOWN, &text).await;
                lock(&self.links).remove(&hello.link_id);
                let code = ErrorCode::SHUTTING_DOWN;
                return Err(CarrierError::Rejected { code, text });
            }
        }
        let number = shared.begin_carrier(|core| core.accept(&hello, is_known, now()));
        let result = run_carrier(&shared, number, carrier, reader).await;
        shared.end_carrier(number);
        if shared.lock().is_closed() {
            shared.end(LinkEnd::ShutDown);
            lock(&self.links).remove(&hello.link_id);
        } else if shared.is_current(number)
            && let Some(known) = lock(&self.links).get_mut(&hello.link_id)
        {
            known.idle_since = Some(now());
        }
        shared.changed.notify_waiters();
        result
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
        let shared = SharedLink::new(LinkCore::new(hello.link_id, self.config.clone()));
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
            let is_expired = known
                .idle_since
                .is_some_and(|since| now.saturating_duration_since(since) >= self.expiry);
            if is_expired {
                known.shared.end(LinkEnd::Expired);
            }
            !is_expired
        });
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

/// Tells the peer why it is refused, as far as it reads that.
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
    let farewell = async {
        for slice in slices {
            carrier.write_all(&slice).await?;
        }
        carrier.shutdown().await
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), farewell).await;
}
