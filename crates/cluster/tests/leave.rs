//! A node that leaves: its last messages arrive before the others learn of it.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cluster::{
    BoxFuture, ChannelLimits, ClusterError, ClusterNode, DownReason, LinkSendError, Member,
    MemberChange, MemberEntries, MembershipConfig, NodeLinks, NodeLoad, NodeName, PeerNodeId,
    PeerNodeObserver,
};
use tokio::sync::mpsc;

/// What two nodes share.
#[derive(Default)]
struct Fabric {
    /// The frames to each node.
    frames: Mutex<Vec<(NodeName, mpsc::UnboundedSender<Bytes>)>>,
    /// Frames get lost.
    is_interrupted: AtomicBool,
    watches: Mutex<Vec<mpsc::Sender<MemberChange>>>,
}

struct FabricEnd {
    fabric: Arc<Fabric>,
    node: NodeName,
}

impl NodeLinks for FabricEnd {
    fn max_frame_bytes(&self) -> usize {
        64 << 10
    }

    fn send(&self, to: &NodeName, frame: Bytes) -> Result<(), LinkSendError> {
        if !self.fabric.is_interrupted.load(SeqCst) {
            let frames = self.fabric.frames.lock().unwrap();
            if let Some((_, sender)) = frames.iter().find(|(node, _)| node == to) {
                let _ = sender.send(frame);
            }
        }
        Ok(())
    }

    fn receive(&self) -> mpsc::Receiver<Bytes> {
        let (sender, mut frames) = mpsc::unbounded_channel();
        let (bounded, receiver) = mpsc::channel(1000);
        let node = self.node.clone();
        self.fabric.frames.lock().unwrap().push((node, sender));
        tokio::spawn(async move {
            while let Some(frame) = frames.recv().await {
                let _ = bounded.send(frame).await;
            }
        });
        receiver
    }
}

impl MemberEntries for FabricEnd {
    fn renew<'a>(&'a self, member: &'a Member) -> BoxFuture<'a, Result<(), ClusterError>> {
        self.report(&MemberChange::Renewed(member.clone()));
        Box::pin(async { Ok(()) })
    }

    fn remove<'a>(&'a self, node: &'a NodeName) -> BoxFuture<'a, Result<(), ClusterError>> {
        self.report(&MemberChange::Left(node.clone()));
        Box::pin(async { Ok(()) })
    }

    fn watch(&self) -> mpsc::Receiver<MemberChange> {
        let (sender, receiver) = mpsc::channel(1000);
        self.fabric.watches.lock().unwrap().push(sender);
        receiver
    }
}

impl FabricEnd {
    fn report(&self, change: &MemberChange) {
        for watch in &*self.fabric.watches.lock().unwrap() {
            let _ = watch.try_send(change.clone());
        }
    }
}

#[derive(Default)]
struct Observer {
    peer: Mutex<Option<PeerNodeId>>,
    is_draining: AtomicBool,
    /// Messages, and the ends of peers.
    seen: Mutex<Vec<String>>,
}

impl PeerNodeObserver for Observer {
    fn peer_up(&self, peer: PeerNodeId, _: &NodeName, _: u32) {
        *self.peer.lock().unwrap() = Some(peer);
    }

    fn peer_down(&self, _: PeerNodeId, reason: DownReason) {
        let mut seen = self.seen.lock().unwrap();
        seen.push(reason.as_str().to_owned());
    }

    fn message(&self, _: PeerNodeId, message: Bytes) {
        let mut seen = self.seen.lock().unwrap();
        seen.push(String::from_utf8_lossy(&message).into_owned());
    }

    fn members_known(&self) {}

    fn is_full(&self) -> bool {
        false
    }

    fn load(&self) -> NodeLoad {
        NodeLoad {
            is_draining: self.is_draining.load(SeqCst),
            ..NodeLoad::default()
        }
    }
}

fn start(fabric: &Arc<Fabric>, name: &str) -> (Arc<ClusterNode>, Arc<Observer>) {
    let node = NodeName::new(name).expect("valid");
    let member = Member::new(node.clone(), 1, "1", 1..=1);
    let config = MembershipConfig {
        lease_ms: 5000,
        channel: ChannelLimits::default(),
    };
    let end = Arc::new(FabricEnd {
        fabric: fabric.clone(),
        node,
    });
    let observer = Arc::new(Observer::default());
    let mut last = name.len() as u64 + u64::from(name.as_bytes()[0]) * 1000;
    let random = move || {
        last += 1;
        last
    };
    let node = ClusterNode::new(member, config, random, end.clone(), end, observer.clone());
    drop(node.start());
    (node, observer)
}

async fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !is_true() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn the_last_messages_of_a_node_arrive_before_it_leaves() {
    let fabric = Arc::new(Fabric::default());
    let (first, first_observer) = start(&fabric, "a");
    let (_second, second_observer) = start(&fabric, "b");
    let is_up = |observer: &Observer| observer.peer.lock().unwrap().is_some();
    eventually("the nodes meet", || {
        is_up(&first_observer) && is_up(&second_observer)
    })
    .await;
    // The message is lost at first, and sent again.
    fabric.is_interrupted.store(true, SeqCst);
    let peer = first_observer.peer.lock().unwrap().expect("is up");
    first.send(peer, Bytes::from_static(b"will"));
    let leaving = tokio::spawn({
        let first = first.clone();
        async move { first.leave().await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    fabric.is_interrupted.store(false, SeqCst);
    leaving.await.expect("does not panic");
    let seen = || second_observer.seen.lock().unwrap().clone();
    eventually("the node has left", || seen().len() == 2).await;
    assert_eq!(seen(), ["will", "left"]);
}

/// A standby does not wait for its return then.
#[tokio::test]
async fn a_node_that_leaves_after_a_drain_is_reported_as_drained() {
    let fabric = Arc::new(Fabric::default());
    let (first, first_observer) = start(&fabric, "a");
    let (second, second_observer) = start(&fabric, "b");
    eventually("the nodes meet", || {
        second_observer.peer.lock().unwrap().is_some()
    })
    .await;
    first_observer.is_draining.store(true, SeqCst);
    eventually("the drain is known", || {
        second.members().iter().any(|info| info.member.is_draining)
    })
    .await;
    first.leave().await;
    let seen = || second_observer.seen.lock().unwrap().clone();
    eventually("the node has left", || !seen().is_empty()).await;
    assert_eq!(seen(), ["drained"]);
}
