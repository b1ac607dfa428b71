//! Requests from one node to another, and their answers, over the messages between nodes.
//!
//! A message begins with one byte for its kind. Kinds from [`FIRST_REQUEST_KIND`] on belong to requests; those that this
//! version does not know are ignored, so that a later version can add some. All numbers are little-endian:
//!
//! | kind | content |
//! |---|---|
//! | 64 | a request: its number (8 bytes), its subject (1 byte), its body |
//! | 65 | an answer: the number of the request (8 bytes), its status (1 byte), its body |
//!
//! Numbers are not used again while a node runs. A request fails when its peer becomes unreachable, and after
//! [`RequestLimits::timeout`]. It may have been executed nevertheless, so that only requests that can be repeated are sent.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use crate::fabric::BoxFuture;
use crate::member::NodeName;
use crate::membership::PeerNodeId;

/// Messages between nodes with this kind or a larger one are for [`NodeRequests`].
pub const FIRST_REQUEST_KIND: u8 = 64;

const REQUEST: u8 = 64;
const ANSWER: u8 = 65;
/// Kind, number, and subject or status.
const HEAD_BYTES: usize = 10;

const SUCCEEDED: u8 = 0;
const UNSUPPORTED: u8 = 1;
const BUSY: u8 = 2;
const FAILED: u8 = 3;
const TOO_LARGE: u8 = 4;

/// Bounds of requests between nodes.
#[derive(Debug, Clone, Copy)]
pub struct RequestLimits {
    /// Time for an answer.
    pub timeout: Duration,
    pub max_request_bytes: usize,
    pub max_answer_bytes: usize,
    /// Requests of this node that wait for their answers; also requests of others that this node answers at a time.
    pub max_under_way: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(3),
            max_request_bytes: 1 << 20,
            max_answer_bytes: 8 << 20,
            // 16 requests to each of 64 other nodes.
            max_under_way: 1024,
        }
    }
}

/// Why a request was not answered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    #[error("the node cannot be reached")]
    Unreachable,
    #[error("the node did not answer in time")]
    Timeout,
    #[error("too many requests between nodes are under way")]
    Busy,
    #[error("the request or its answer is too large")]
    TooLarge,
    /// The node has a version without such requests.
    #[error("the node does not know such requests; update it")]
    Unsupported,
    #[error("the node could not answer: {0}")]
    Failed(String),
}

/// Answers the requests of other nodes.
pub trait RequestHandler: Send + Sync + 'static {
    /// `None`: this node does not know the subject.
    fn answer(&self, subject: u8, body: Bytes)
    -> Option<BoxFuture<'static, Result<Bytes, String>>>;

    /// Time for an answer to requests of a subject; `None`: [`RequestLimits::timeout`].
    fn timeout(&self, _subject: u8) -> Option<Duration> {
        None
    }
}

/// Sends a message to a node, without waiting.
pub type SendMessage = Box<dyn Fn(PeerNodeId, Bytes) + Send + Sync>;

/// The requests of this node to others, and those of others to it.
///
/// The owner reports reachable nodes and received messages to [`peer_up`](Self::peer_up),
/// [`peer_down`](Self::peer_down) and [`receive`](Self::receive), in order; these never block and send nothing themselves.
pub struct NodeRequests {
    limits: RequestLimits,
    state: Mutex<RequestState>,
    answering: Arc<Semaphore>,
    attachment: OnceLock<Attachment>,
    handler: OnceLock<Arc<dyn RequestHandler>>,
}

struct Attachment {
    send: SendMessage,
    runtime: Handle,
}

#[derive(Default)]
struct RequestState {
    peers: BTreeMap<NodeName, PeerNodeId>,
    last_number: u64,
    pending: HashMap<u64, PendingRequest>,
}

type RequestAnswer = Result<Bytes, RequestError>;
type AnswerReceiver = oneshot::Receiver<RequestAnswer>;

struct PendingRequest {
    peer: PeerNodeId,
    answer: oneshot::Sender<RequestAnswer>,
}

impl NodeRequests {
    pub fn new(limits: RequestLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            state: Mutex::default(),
            answering: Arc::new(Semaphore::new(limits.max_under_way)),
            attachment: OnceLock::new(),
            handler: OnceLock::new(),
        })
    }

    /// Connects this with the messages between nodes; requests of others are answered on `runtime`. To be called once.
    pub fn attach(&self, send: SendMessage, runtime: Handle) {
        let _ = self.attachment.set(Attachment { send, runtime });
    }

    /// Answers requests of other nodes from now on. To be called once.
    pub fn set_handler(&self, handler: Arc<dyn RequestHandler>) {
        let _ = self.handler.set(handler);
    }

    /// Names of the other nodes that can be reached, sorted.
    pub fn reachable(&self) -> Vec<NodeName> {
        self.state().peers.keys().cloned().collect()
    }

    /// Whether any other node can be reached.
    pub fn has_reachable_nodes(&self) -> bool {
        !self.state().peers.is_empty()
    }

    pub fn peer_up(&self, peer: PeerNodeId, node: &NodeName) {
        self.state().peers.insert(node.clone(), peer);
    }

    /// The requests to this node that are under way fail.
    pub fn peer_down(&self, peer: PeerNodeId) {
        let mut state = self.state();
        state.peers.retain(|_, known| *known != peer);
        let of_peer = state.pending.extract_if(|_, pending| pending.peer == peer);
        for (_, pending) in of_peer.collect::<Vec<_>>() {
            // The caller may have stopped waiting.
            let _ = pending.answer.send(Err(RequestError::Unreachable));
        }
    }

    /// Sends a request at once; the future waits for its answer. The time for it begins now.
    pub fn request(
        self: &Arc<Self>,
        node: &NodeName,
        subject: u8,
        body: &[u8],
    ) -> impl Future<Output = Result<Bytes, RequestError>> + Send + use<> {
        self.request_within(self.limits.timeout, node, subject, body)
    }

    /// Like [`request`](Self::request), with another time for the answer.
    pub fn request_within(
        self: &Arc<Self>,
        timeout: Duration,
        node: &NodeName,
        subject: u8,
        body: &[u8],
    ) -> impl Future<Output = Result<Bytes, RequestError>> + Send + use<> {
        let begun = self.begin(node, subject, body);
        let deadline = Instant::now() + timeout;
        async move {
            let (waiting, answered) = begun?;
            let answer = tokio::time::timeout_at(deadline, answered).await;
            drop(waiting);
            match answer {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(RequestError::Unreachable),
                Err(_) => Err(RequestError::Timeout),
            }
        }
    }

    fn begin(
        self: &Arc<Self>,
        node: &NodeName,
        subject: u8,
        body: &[u8],
    ) -> Result<(WaitingRequest, AnswerReceiver), RequestError> {
        let attachment = self.attachment.get().ok_or(RequestError::Unreachable)?;
        if body.len() > self.limits.max_request_bytes {
            return Err(RequestError::TooLarge);
        }
        let (answer, answered) = oneshot::channel();
        let (peer, number) = {
            let mut state = self.state();
            let peer = *state.peers.get(node).ok_or(RequestError::Unreachable)?;
            if state.pending.len() >= self.limits.max_under_way {
                return Err(RequestError::Busy);
            }
            state.last_number += 1;
            let number = state.last_number;
            state
                .pending
                .insert(number, PendingRequest { peer, answer });
            (peer, number)
        };
        let waiting = WaitingRequest {
            requests: self.clone(),
            number,
        };
        (attachment.send)(peer, encode(REQUEST, number, subject, body));
        Ok((waiting, answered))
    }

    /// A message whose kind is at least [`FIRST_REQUEST_KIND`].
    pub fn receive(self: &Arc<Self>, peer: PeerNodeId, message: &Bytes) {
        let kind = message.first().copied().unwrap_or_default();
        if kind != REQUEST && kind != ANSWER {
            tracing::debug!(kind, "a message of a later version of a node is ignored");
            return;
        }
        if message.len() < HEAD_BYTES {
            tracing::warn!("a request or an answer of another node ends early; it is ignored");
            return;
        }
        let (number, code) = (number_of(message), message[HEAD_BYTES - 1]);
        let body = message.slice(HEAD_BYTES..);
        match kind {
            REQUEST => self.answer(peer, number, code, body),
            _ => self.complete(peer, number, code, body),
        }
    }

    fn complete(&self, peer: PeerNodeId, number: u64, status: u8, body: Bytes) {
        let mut state = self.state();
        let is_expected = state
            .pending
            .get(&number)
            .is_some_and(|pending| pending.peer == peer);
        let pending = is_expected.then(|| state.pending.remove(&number)).flatten();
        drop(state);
        // Otherwise it has come too late.
        if let Some(pending) = pending {
            // The caller may have stopped waiting.
            let _ = pending.answer.send(match status {
                SUCCEEDED if body.len() > self.limits.max_answer_bytes => {
                    Err(RequestError::TooLarge)
                }
                SUCCEEDED => Ok(body),
                UNSUPPORTED => Err(RequestError::Unsupported),
                BUSY => Err(RequestError::Busy),
                TOO_LARGE => Err(RequestError::TooLarge),
                _ => Err(RequestError::Failed(
                    String::from_utf8_lossy(&body).into_owned(),
                )),
            });
        }
    }

    fn answer(self: &Arc<Self>, peer: PeerNodeId, number: u64, subject: u8, body: Bytes) {
        let Some(attachment) = self.attachment.get() else {
            return;
        };
        // Bounds the tasks; who asks for more is answered in a task that does not wait.
        let permit = self.answering.clone().try_acquire_owned();
        let this = self.clone();
        attachment.runtime.spawn(async move {
            let (status, answer) = match &permit {
                Ok(_) => this.execute(subject, body).await,
                Err(_) => (BUSY, Bytes::new()),
            };
            if let Some(attachment) = this.attachment.get() {
                (attachment.send)(peer, encode(ANSWER, number, status, &answer));
            }
        });
    }

    async fn execute(&self, subject: u8, body: Bytes) -> (u8, Bytes) {
        if body.len() > self.limits.max_request_bytes {
            return (TOO_LARGE, Bytes::new());
        }
        let Some(handler) = self.handler.get() else {
            return (FAILED, Bytes::from_static(b"it is starting"));
        };
        let Some(answer) = handler.answer(subject, body) else {
            return (UNSUPPORTED, Bytes::new());
        };
        // Whoever has asked no longer waits then.
        let timeout = handler.timeout(subject).unwrap_or(self.limits.timeout);
        match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(answer)) if answer.len() > self.limits.max_answer_bytes => {
                (TOO_LARGE, Bytes::new())
            }
            Ok(Ok(answer)) => (SUCCEEDED, answer),
            Ok(Err(reason)) => (FAILED, Bytes::from(reason.into_bytes())),
            Err(_) => (FAILED, Bytes::from_static(b"it took too long")),
        }
    }

    fn state(&self) -> MutexGuard<'_, RequestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets a request when nobody waits for its answer any more.
struct WaitingRequest {
    requests: Arc<NodeRequests>,
    number: u64,
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.requests.state().pending.remove(&self.number);
    }
}

fn encode(kind: u8, number: u64, code: u8, body: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(HEAD_BYTES + body.len());
    message.put_u8(kind);
    message.put_u64_le(number);
    message.put_u8(code);
    message.put_slice(body);
    message.freeze()
}

fn number_of(message: &[u8]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&message[1..HEAD_BYTES - 1]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ECHO: u8 = 1;
    const NEVER: u8 = 2;
    const LARGE: u8 = 3;
    const REFUSED: u8 = 4;

    struct Handler;

    impl RequestHandler for Handler {
        fn answer(
            &self,
            subject: u8,
            body: Bytes,
        ) -> Option<BoxFuture<'static, Result<Bytes, String>>> {
            match subject {
                ECHO => Some(Box::pin(async { Ok(body) })),
                NEVER => Some(Box::pin(std::future::pending())),
                LARGE => Some(Box::pin(async { Ok(Bytes::from(vec![0; 101])) })),
                REFUSED => Some(Box::pin(async { Err("no".to_owned()) })),
                _ => None,
            }
        }
    }

    fn peer() -> PeerNodeId {
        PeerNodeId::new(3, 1)
    }

    fn name() -> NodeName {
        NodeName::new("other").unwrap()
    }

    const LIMITS: RequestLimits = RequestLimits {
        timeout: Duration::from_millis(200),
        max_request_bytes: 50,
        max_answer_bytes: 100,
        max_under_way: 4,
    };

    /// A node and its peer. `passes` decides which messages arrive.
    fn pair(
        limits: RequestLimits,
        passes: impl Fn(&Bytes) -> bool + Send + Sync + 'static,
    ) -> (Arc<NodeRequests>, Arc<NodeRequests>) {
        let passes = Arc::new(passes);
        let (node, other) = (NodeRequests::new(limits), NodeRequests::new(LIMITS));
        for (from, to) in [(&node, &other), (&other, &node)] {
            let (to, passes) = (Arc::downgrade(to), passes.clone());
            let send = move |peer: PeerNodeId, message: Bytes| {
                if let Some(to) = to.upgrade()
                    && passes(&message)
                {
                    to.receive(peer, &message);
                }
            };
            from.attach(Box::new(send), Handle::current());
            from.set_handler(Arc::new(Handler));
            from.peer_up(peer(), &name());
        }
        (node, other)
    }

    #[tokio::test]
    async fn a_request_is_answered() {
        let (node, _other) = pair(LIMITS, |_| true);
        assert_eq!(node.reachable(), [name()]);
        let (first, second) = (
            node.request(&name(), ECHO, b"a"),
            node.request(&name(), ECHO, b"b"),
        );
        assert_eq!(second.await.unwrap(), "b");
        assert_eq!(first.await.unwrap(), "a");
        let refused = node.request(&name(), REFUSED, b"").await;
        assert_eq!(refused, Err(RequestError::Failed("no".to_owned())));
        let unknown = node.request(&name(), 99, b"").await;
        assert_eq!(unknown, Err(RequestError::Unsupported));
        assert!(node.state().pending.is_empty());
    }

    #[tokio::test]
    async fn sizes_are_limited() {
        let (node, other) = pair(
            RequestLimits {
                max_request_bytes: 60,
                ..LIMITS
            },
            |_| true,
        );
        let too_large = Err(RequestError::TooLarge);
        assert_eq!(node.request(&name(), ECHO, &[0; 61]).await, too_large);
        // Too large for the other node only.
        assert_eq!(node.request(&name(), ECHO, &[0; 60]).await, too_large);
        assert_eq!(node.request(&name(), LARGE, b"").await, too_large);
        assert!(other.request(&name(), ECHO, &[0; 50]).await.is_ok());
    }

    #[tokio::test]
    async fn a_request_without_an_answer_ends() {
        let (node, _other) = pair(LIMITS, |message| message[0] != ANSWER);
        assert_eq!(
            node.request(&name(), ECHO, b"").await,
            Err(RequestError::Timeout)
        );
        let waiting = node.request(&name(), ECHO, b"");
        node.peer_down(peer());
        assert_eq!(waiting.await, Err(RequestError::Unreachable));
        let later = node.request(&name(), ECHO, b"").await;
        assert_eq!(later, Err(RequestError::Unreachable));
        assert!(node.state().pending.is_empty());
    }

    #[tokio::test]
    async fn requests_under_way_are_limited() {
        let generous = RequestLimits {
            max_under_way: 10,
            ..LIMITS
        };
        let (node, _other) = pair(generous, |_| true);
        let mut waiting: Vec<_> = (0..10)
            .map(|_| Box::pin(node.request(&name(), NEVER, b"")))
            .collect();
        let refused_here = node.request(&name(), ECHO, b"").await;
        assert_eq!(refused_here, Err(RequestError::Busy));
        // The other node answers four at a time.
        assert_eq!(waiting.pop().unwrap().await, Err(RequestError::Busy));
        // Requests that nobody waits for count no longer.
        drop(waiting);
        assert!(node.state().pending.is_empty());
    }

    #[tokio::test]
    async fn unknown_and_damaged_messages_are_ignored() {
        let (node, _other) = pair(LIMITS, |_| true);
        let waiting = node.request(&name(), NEVER, b"");
        for message in [
            Bytes::from_static(&[ANSWER, 1]),
            encode(200, 1, SUCCEEDED, b""),
            encode(ANSWER, 7, SUCCEEDED, b""),
        ] {
            node.receive(peer(), &message);
        }
        // An answer of a node that was not asked.
        let third = PeerNodeId::new(4, 1);
        node.receive(third, &encode(ANSWER, 1, SUCCEEDED, b""));
        node.receive(peer(), &encode(ANSWER, 1, SUCCEEDED, b"x"));
        assert_eq!(waiting.await.unwrap(), "x");
    }
}
