//! Frames between nodes over core NATS, on a connection of their own.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::connection::State;
use async_nats::{Client, Subject};
use bytes::Bytes;
use cluster::{LinkSendError, NodeLinks, NodeName};
use futures_util::StreamExt as _;
use tokio::sync::{mpsc, watch};
use tracing::{error, warn};

use crate::client::{self, ClientEvents, ClientPurpose};
use crate::connection::{Connection, Readiness};
use crate::settings::{NatsSettings, NatsSettingsError};
use crate::status::{NatsState, NatsStatus};

/// Frames that the library buffers before it writes them; more wait in the queue, which is limited by bytes.
const COMMAND_CAPACITY: usize = 16;
/// Frames in each queue, in addition to the limits in bytes.
const QUEUE_FRAMES: usize = 64 << 10;
/// Frames that the library buffers before the queue of received frames, which never waits.
const SUBSCRIPTION_CAPACITY: usize = 8 << 10;
/// Larger frames would make queues and other connections of the server wait.
const MAX_FRAME_BYTES: usize = 1 << 20;

/// Frames to subjects `{prefix}.link.{node}`.
#[derive(Debug)]
pub struct NatsLinks {
    client: Client,
    events: Arc<ClientEvents>,
    subject_prefix: String,
    node: NodeName,
    counters: Arc<LinkCounters>,
    outgoing: mpsc::Sender<OutgoingFrame>,
    /// Until the first call of [`NodeLinks::receive`].
    incoming: Mutex<Option<mpsc::Receiver<Bytes>>>,
    send_queue_bytes: usize,
    /// Of the other connection, which examines the servers.
    readiness: watch::Receiver<Readiness>,
}

#[derive(Debug, Default)]
struct LinkCounters {
    waiting_bytes: AtomicUsize,
    dropped_outgoing: AtomicU64,
    dropped_incoming: AtomicU64,
    is_dropping: AtomicBool,
}

#[derive(Debug)]
struct OutgoingFrame {
    subject: Subject,
    frame: Bytes,
}

impl NatsLinks {
    pub(crate) async fn start(
        settings: &NatsSettings,
        node: &NodeName,
        connection: &Connection,
    ) -> Result<Self, NatsSettingsError> {
        let events = Arc::new(ClientEvents::default());
        let purpose = ClientPurpose {
            name: format!("tidegate links of {node}"),
            command_capacity: COMMAND_CAPACITY,
            subscription_capacity: SUBSCRIPTION_CAPACITY,
        };
        let client = client::start(settings, purpose, &events).await?;
        let subject_prefix = format!("{}.link.", settings.prefix);
        let counters = Arc::new(LinkCounters::default());
        let (outgoing, frames) = mpsc::channel(QUEUE_FRAMES);
        tokio::spawn(send_frames(client.clone(), frames, Arc::clone(&counters)));
        let (to_node, incoming) = mpsc::channel(QUEUE_FRAMES);
        tokio::spawn(receive_frames(
            client.clone(),
            Subject::from(format!("{subject_prefix}{node}")),
            to_node,
            settings.receive_queue_bytes,
            Arc::clone(&counters),
        ));
        Ok(Self {
            client,
            events,
            subject_prefix,
            node: node.clone(),
            counters,
            outgoing,
            incoming: Mutex::new(Some(incoming)),
            send_queue_bytes: settings.send_queue_bytes,
            readiness: connection.readiness(),
        })
    }

    /// Ends attempts to connect.
    pub(crate) fn close(&self) {
        self.events.close();
    }

    pub(crate) fn add_to_status(&self, status: &mut NatsStatus) {
        let counters = &self.counters;
        status.are_links_connected = self.is_connected();
        let connects = &self.client.statistics().connects;
        status.link_reconnects = connects.load(Ordering::Relaxed).saturating_sub(1);
        status.dropped_outgoing_frames = counters.dropped_outgoing.load(Ordering::Relaxed);
        status.dropped_incoming_frames = counters.dropped_incoming.load(Ordering::Relaxed);
    }

    fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }
}

impl NodeLinks for NatsLinks {
    fn max_frame_bytes(&self) -> usize {
        self.client.max_payload().min(MAX_FRAME_BYTES)
    }

    fn send(&self, to: &NodeName, frame: Bytes) -> Result<(), LinkSendError> {
        if !self.is_connected() || self.readiness.borrow().state == NatsState::Refused {
            return Err(LinkSendError::Disconnected);
        }
        let bytes = frame.len();
        if bytes > self.max_frame_bytes() {
            return Err(LinkSendError::TooLarge);
        }
        let waiting = &self.counters.waiting_bytes;
        if waiting.fetch_add(bytes, Ordering::Relaxed) + bytes > self.send_queue_bytes.max(bytes) {
            waiting.fetch_sub(bytes, Ordering::Relaxed);
            return Err(LinkSendError::Full);
        }
        let subject = Subject::from(format!("{}{to}", self.subject_prefix));
        let sent = self.outgoing.try_send(OutgoingFrame { subject, frame });
        sent.map_err(|_| {
            waiting.fetch_sub(bytes, Ordering::Relaxed);
            LinkSendError::Full
        })
    }

    fn receive(&self) -> mpsc::Receiver<Bytes> {
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        incoming.take().unwrap_or_else(|| {
            error!(node = %self.node, "the receiver of the frames of a link is taken twice; the second one receives nothing; this is a bug");
            mpsc::channel(1).1
        })
    }
}

async fn send_frames(
    client: Client,
    mut frames: mpsc::Receiver<OutgoingFrame>,
    counters: Arc<LinkCounters>,
) {
    while let Some(OutgoingFrame { subject, frame }) = frames.recv().await {
        let bytes = frame.len();
        // After an interruption frames are sent again anyway, so that old ones would only delay new ones.
        let is_sent = client.connection_state() == State::Connected
            && client.publish(subject, frame).await.is_ok();
        if !is_sent {
            counters.dropped_outgoing.fetch_add(1, Ordering::Relaxed);
        }
        counters.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A received frame, which counts against the limit until its last reference is dropped.
struct IncomingFrame {
    payload: Bytes,
    bytes_in_use: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for IncomingFrame {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

impl Drop for IncomingFrame {
    fn drop(&mut self) {
        self.bytes_in_use
            .fetch_sub(self.payload.len(), Ordering::Relaxed);
    }
}

/// Passes frames on without ever waiting: the library drops frames of subscriptions that are not read, and may not tell.
async fn receive_frames(
    client: Client,
    subject: Subject,
    to_node: mpsc::Sender<Bytes>,
    limit: usize,
    counters: Arc<LinkCounters>,
) {
    let bytes_in_use = Arc::new(AtomicUsize::new(0));
    let Ok(mut subscriber) = client.subscribe(subject).await else {
        return;
    };
    loop {
        let message = tokio::select! {
            message = subscriber.next() => message,
            () = to_node.closed() => return,
        };
        let Some(message) = message else { return };
        let bytes = message.payload.len();
        let in_use = bytes_in_use.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let frame = Bytes::from_owner(IncomingFrame {
            payload: message.payload,
            bytes_in_use: Arc::clone(&bytes_in_use),
        });
        let is_passed = in_use <= limit.max(bytes) && to_node.try_send(frame).is_ok();
        if is_passed {
            counters.is_dropping.store(false, Ordering::Relaxed);
            continue;
        }
        counters.dropped_incoming.fetch_add(1, Ordering::Relaxed);
        if !counters.is_dropping.swap(true, Ordering::Relaxed) {
            warn!(
                in_use_bytes = in_use,
                limit_bytes = limit,
                "the node reads frames of other nodes too slowly; some are dropped, and sent again by those nodes"
            );
        }
    }
}
