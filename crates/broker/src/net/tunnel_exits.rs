//! The exits of tunnels: connections that clients have made to other nodes of the cluster, and whose session is here. To
//! a shard each is a connection that was accepted here.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::{Bytes, BytesMut};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::inbox::{AcceptedConnection, InboxItem, ShardInbox};
use super::peer_node_transport::{PeerNodeConnection, PeerNodeTransport};
use super::reserved_connection::ReservedConnection;
use super::socket_pair::open_socket_pair;
use crate::core::node::NodeState;
use crate::core::node_messages;
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::tunnel::{TUNNEL_WINDOW, TunnelMessage, TunnelRequest};

/// Bytes that are read from a shard at once.
const READ_BYTES: usize = 64 << 10;

/// The other node, and the number of the tunnel there.
type ExitKey = (PeerNodeConnection, u64);

/// The exits of this node, by the other node and the number there. Its tasks run on the thread of the node router.
pub(super) struct TunnelExits {
    node: Arc<NodeState>,
    inboxes: Arc<[ShardInbox]>,
    transport: Arc<dyn PeerNodeTransport>,
    exits: HashMap<ExitKey, TunnelExit, RandomState>,
    next_shard: usize,
    /// Exits whose shard has ended the connection.
    ended: mpsc::UnboundedReceiver<ExitKey>,
    ended_sender: mpsc::UnboundedSender<ExitKey>,
}

struct TunnelExit {
    /// `None`: the client has ended the connection.
    input: Option<mpsc::UnboundedSender<Bytes>>,
    unconfirmed_input: Rc<Cell<usize>>,
    output_credit: Rc<Semaphore>,
    task: JoinHandle<()>,
}

impl Drop for TunnelExit {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TunnelExits {
    pub(super) fn new(
        node: Arc<NodeState>,
        inboxes: Arc<[ShardInbox]>,
        transport: Arc<dyn PeerNodeTransport>,
    ) -> Self {
        let (ended_sender, ended) = mpsc::unbounded_channel();
        Self {
            node,
            inboxes,
            transport,
            exits: HashMap::default(),
            next_shard: 0,
            ended,
            ended_sender,
        }
    }

    /// Handles a message of the entry of a tunnel. It must be called within a `LocalSet`.
    pub(super) fn handle(&mut self, peer: PeerNodeConnection, tunnel: u64, message: TunnelMessage) {
        let at = (peer, tunnel);
        match message {
            TunnelMessage::Open(request) => match self.open(at, &request) {
                Ok(exit) => {
                    self.exits.insert(at, exit);
                }
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "cannot continue a connection that another node passed to this node; the client has to connect again"
                    );
                    self.sender(at).send(&TunnelMessage::ExitClosed);
                }
            },
            TunnelMessage::Input(bytes) => {
                let Some(exit) = self.exits.get(&at) else {
                    return;
                };
                let before = exit.unconfirmed_input.get();
                exit.unconfirmed_input.set(before + bytes.len());
                // An entry sends nothing above its window, apart from what was read at once.
                if before > 2 * TUNNEL_WINDOW {
                    tracing::warn!(
                        "another node sends more than the window of a tunnel; tunnel closed"
                    );
                    self.exits.remove(&at);
                    self.sender(at).send(&TunnelMessage::ExitClosed);
                } else if let Some(input) = &exit.input {
                    // The task has ended if the shard has closed the connection.
                    let _ = input.send(bytes);
                }
            }
            TunnelMessage::OutputCredit(bytes) => {
                if let Some(exit) = self.exits.get(&at) {
                    add_credit(&exit.output_credit, bytes as usize);
                }
            }
            TunnelMessage::EntryClosed => {
                if let Some(exit) = self.exits.get_mut(&at) {
                    // The shard reads what has arrived, then the end. Its output is discarded.
                    exit.input = None;
                    add_credit(&exit.output_credit, usize::MAX);
                }
            }
            TunnelMessage::Output(_)
            | TunnelMessage::InputCredit(_)
            | TunnelMessage::ExitClosed => {}
        }
    }

    /// Waits until a shard ends a connection, and forgets its tunnel. It may be cancelled.
    pub(super) async fn remove_next_ended(&mut self) {
        // There is always a sender.
        if let Some(ended) = self.ended.recv().await {
            self.exits.remove(&ended);
        }
    }

    /// Ends all tunnels of a node.
    pub(super) fn remove_peer(&mut self, peer: PeerNodeIx) {
        self.exits.retain(|&(of, _), _| of.index != peer);
    }

    fn sender(&self, at: ExitKey) -> TunnelSender {
        TunnelSender {
            transport: self.transport.clone(),
            at,
        }
    }

    fn open(&mut self, at: ExitKey, request: &TunnelRequest) -> io::Result<TunnelExit> {
        let reserved = self.reserve(&request.listener)?;
        let (own, of_shard) = open_socket_pair()?;
        let (read, write) = own.into_split();
        self.next_shard = (self.next_shard + 1) % self.inboxes.len();
        self.inboxes[self.next_shard].push(InboxItem::Accepted(Box::new(AcceptedConnection {
            reserved,
            stream: of_shard,
            peer: request.peer,
            local: None,
            certificate: request.certificate.clone(),
            address_source: None,
            is_tunnel_exit: true,
        })));
        let (input, waiting) = mpsc::unbounded_channel();
        // CONNECT is no input that the entry counts.
        let _ = input.send(request.connect.clone());
        let unconfirmed_input = Rc::new(Cell::new(request.connect.len()));
        let output_credit = Rc::new(Semaphore::new(TUNNEL_WINDOW));
        let task = tokio::task::spawn_local(run_exit(
            (read, write),
            ExitInput {
                waiting,
                unconfirmed: unconfirmed_input.clone(),
                uncounted: request.connect.len(),
            },
            output_credit.clone(),
            self.sender(at),
            self.ended_sender.clone(),
        ));
        Ok(TunnelExit {
            input: Some(input),
            unconfirmed_input,
            output_credit,
            task,
        })
    }

    /// Reserves a place at the listener with this name. No other one is used: it may accept other clients.
    fn reserve(&self, name: &str) -> io::Result<ReservedConnection> {
        let running = self.node.listeners.iter().enumerate();
        let running = running.filter(|(_, listener)| listener.is_running.load(Relaxed));
        let mut running = running
            .map(|(index, listener)| (index as u16, listener.config()))
            .filter(|(_, config)| !config.link && config.name == name);
        let Some((index, config)) = running.next() else {
            return Err(io::Error::other(format!(
                "no listener with the name {name:?} is open; all nodes of a cluster need listeners with the same names"
            )));
        };
        ReservedConnection::reserve_at(&self.node, index, config.max_connections)
            .ok_or_else(|| io::Error::other("a limit of connections is reached"))
    }
}

/// Adds permits up to the largest number of a semaphore.
fn add_credit(credit: &Semaphore, bytes: usize) {
    let room = Semaphore::MAX_PERMITS - credit.available_permits();
    credit.add_permits(bytes.min(room));
}

/// Sends messages to the entry of a tunnel.
struct TunnelSender {
    transport: Arc<dyn PeerNodeTransport>,
    at: ExitKey,
}

impl TunnelSender {
    fn send(&self, message: &TunnelMessage) {
        let (peer, tunnel) = self.at;
        let message = node_messages::encode_tunnel(tunnel, message);
        self.transport.send(peer, message);
    }
}

struct ExitInput {
    waiting: mpsc::UnboundedReceiver<Bytes>,
    unconfirmed: Rc<Cell<usize>>,
    /// The first bytes, for which the entry needs no credit.
    uncounted: usize,
}

/// Copies in both directions until the shard ends the connection.
async fn run_exit(
    (read, write): (OwnedReadHalf, OwnedWriteHalf),
    input: ExitInput,
    output_credit: Rc<Semaphore>,
    sender: TunnelSender,
    ended: mpsc::UnboundedSender<ExitKey>,
) {
    tokio::select! {
        () = copy_output(read, &output_credit, &sender) => {}
        // Its end is followed by that of the output.
        () = async {
            copy_input(write, input, &sender).await;
            std::future::pending::<()>().await;
        } => {}
    }
    sender.send(&TunnelMessage::ExitClosed);
    // The receiver lives as long as the task.
    let _ = ended.send(sender.at);
}

async fn copy_output(mut read: OwnedReadHalf, credit: &Semaphore, sender: &TunnelSender) {
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    loop {
        // Waits until there is any credit; it is not closed.
        let Ok(first) = credit.acquire().await else {
            return;
        };
        first.forget();
        let more = credit.available_permits().min(READ_BYTES - 1);
        let limit = 1 + more;
        buffer.reserve(limit);
        let mut limited = (&mut read).take(limit as u64);
        let received = match limited.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(received) => received,
        };
        // One is taken already.
        credit.forget_permits(received - 1);
        sender.send(&TunnelMessage::Output(buffer.split().freeze()));
    }
}

async fn copy_input(mut write: OwnedWriteHalf, mut input: ExitInput, sender: &TunnelSender) {
    while let Some(bytes) = input.waiting.recv().await {
        if write.write_all(&bytes).await.is_err() {
            return;
        }
        input
            .unconfirmed
            .set(input.unconfirmed.get().saturating_sub(bytes.len()));
        if std::mem::take(&mut input.uncounted) == 0 {
            sender.send(&TunnelMessage::InputCredit(bytes.len() as u32));
        }
    }
    // The shard reads the end of the stream.
    let _ = write.shutdown().await;
}
