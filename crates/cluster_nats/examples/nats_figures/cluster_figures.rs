//! Frames and messages between two nodes, each connected to its own server.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use cluster::{
    ChannelLimits, ClusterNode, DownReason, LinkSendError, Member, MembershipConfig, NodeLinks,
    NodeLoad, NodeName, PeerNodeId, PeerNodeObserver,
};

use crate::Options;
use crate::nats_cluster::{NatsCluster, new_histogram, percentiles};

/// Bytes of a message of 64 bytes in a batch, with its topic.
const MESSAGE_BYTES: u64 = 100;

fn node(name: &str) -> NodeName {
    NodeName::new(name).expect("the name is valid")
}

fn report(
    what: &str,
    bytes_each: u64,
    count: u64,
    seconds: f64,
    cpu: crate::nats_cluster::CpuTime,
) {
    let megabytes = (count * bytes_each) as f64 / 1e6;
    let messages = (count * (bytes_each / MESSAGE_BYTES).max(1)) as f64;
    println!(
        "{what} of {bytes_each} B: {:.0}/s, {:.0} MB/s, {:.0} k messages/s, {:.0} k messages per CPU second, {cpu}",
        count as f64 / seconds,
        megabytes / seconds,
        messages / seconds / 1e3,
        messages / cpu.seconds() / 1e3,
    );
}

/// Waits until frames from `a` arrive at `b`.
async fn open_link(nodes: &NatsCluster, frames: &mut tokio::sync::mpsc::Receiver<Bytes>) {
    loop {
        let _ = nodes.fabrics[0]
            .links()
            .send(&node("b"), Bytes::from_static(b"open"));
        let received = tokio::time::timeout(Duration::from_millis(50), frames.recv()).await;
        if received.is_ok() {
            break;
        }
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    while frames.try_recv().is_ok() {}
}

/// As many frames as pass, without acknowledgements.
pub(crate) async fn links(options: &Options) {
    let nodes = NatsCluster::start(options).await;
    let mut frames = nodes.fabrics[1].links().receive();
    open_link(&nodes, &mut frames).await;
    for bytes in [100, 1600, 6400, 25_600, 65_536, 262_144] {
        let frame = Bytes::from(vec![b'x'; bytes]);
        let links = nodes.fabrics[0].links();
        let is_ended = Arc::new(AtomicBool::new(false));
        let sender = tokio::spawn({
            let is_ended = Arc::clone(&is_ended);
            async move {
                let mut sent = 0u64;
                while !is_ended.load(Ordering::Relaxed) {
                    match links.send(&node("b"), frame.clone()) {
                        Ok(()) => sent += 1,
                        Err(LinkSendError::Full) => {
                            tokio::time::sleep(Duration::from_micros(500)).await
                        }
                        Err(error) => panic!("{error}"),
                    }
                    if sent.is_multiple_of(64) {
                        tokio::task::yield_now().await;
                    }
                }
                sent
            }
        });
        let (began, cpu) = (Instant::now(), nodes.cpu());
        let mut received = 0;
        while began.elapsed() < options.duration() {
            if frames.recv().await.is_some() {
                received += 1;
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        let cpu = nodes.cpu().since(cpu);
        is_ended.store(true, Ordering::Relaxed);
        let _ = sender.await;
        report("frames", bytes as u64, received, seconds, cpu);
        let quiet = Duration::from_millis(500);
        while tokio::time::timeout(quiet, frames.recv()).await.is_ok() {}
    }
    println!(
        "dropped on receipt: {}",
        nodes.fabrics[1].status().dropped_incoming_frames
    );
}

#[derive(Default)]
struct Counter {
    peer: Mutex<Option<PeerNodeId>>,
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl PeerNodeObserver for Counter {
    fn peer_up(&self, peer: PeerNodeId, _: &NodeName, _: u32) {
        *self.peer.lock().expect("no holder panics") = Some(peer);
    }

    fn peer_down(&self, _: PeerNodeId, _: DownReason) {
        *self.peer.lock().expect("no holder panics") = None;
    }

    fn message(&self, _: PeerNodeId, message: Bytes) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes
            .fetch_add(message.len() as u64, Ordering::Relaxed);
    }

    fn members_known(&self) {}

    fn is_full(&self) -> bool {
        false
    }

    fn load(&self) -> NodeLoad {
        NodeLoad::default()
    }
}

/// As many messages as pass through the reliable channel of two nodes.
pub(crate) async fn channel(options: &Options) {
    let nodes = NatsCluster::start(options).await;
    let mut running = Vec::new();
    for (fabric, name) in nodes.fabrics.iter().zip(["a", "b"]) {
        let local = Member::new(node(name), 1, "figures", 1..=1);
        let config = MembershipConfig {
            lease_ms: 5000,
            channel: ChannelLimits::default(),
        };
        let counter = Arc::new(Counter::default());
        let mut random = u64::from(name.as_bytes()[0]) << 32;
        let next = move || {
            random += 1;
            random
        };
        let cluster = ClusterNode::new(
            local,
            config,
            next,
            fabric.members(),
            fabric.links(),
            counter.clone(),
        );
        let tasks = cluster.start();
        running.push((cluster, counter, tasks));
    }
    let peer = loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let peer = *running[0].1.peer.lock().expect("no holder panics");
        if let Some(peer) = peer {
            break peer;
        }
    };
    for bytes in [1600usize, 6400, 25_600, 65_536, 262_144] {
        let message = Bytes::from(vec![b'x'; bytes]);
        let received = &running[1].1.messages;
        let before = received.load(Ordering::Relaxed);
        let (began, cpu) = (Instant::now(), nodes.cpu());
        while began.elapsed() < options.duration() {
            while running[0].0.queued_bytes(peer) < 4 << 20 {
                running[0].0.send(peer, message.clone());
            }
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        let count = received.load(Ordering::Relaxed) - before;
        let seconds = began.elapsed().as_secs_f64();
        report(
            "messages",
            bytes as u64,
            count,
            seconds,
            nodes.cpu().since(cpu),
        );
        while running[0].0.queued_bytes(peer) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    for info in running[0].0.members() {
        println!(
            "repeated frames: {}, round trip {:?} ms",
            info.repeated_frames, info.round_trip_ms
        );
    }
}

/// Time of a frame from one node to the other, at a fixed rate.
pub(crate) async fn latency(options: &Options) {
    let nodes = NatsCluster::start(options).await;
    let mut frames = nodes.fabrics[1].links().receive();
    open_link(&nodes, &mut frames).await;
    let per_second = options.number("rate", 1000);
    let bytes = options.number("bytes", 6400) as usize;
    let began = Instant::now();
    let duration = options.duration();
    let links = nodes.fabrics[0].links();
    let sender = tokio::spawn(async move {
        let mut interval = tokio::time::interval(Duration::from_micros(1_000_000 / per_second));
        while began.elapsed() < duration {
            interval.tick().await;
            let mut frame = BytesMut::zeroed(bytes - 8);
            frame.put_u64(began.elapsed().as_micros() as u64);
            let _ = links.send(&node("b"), frame.freeze());
        }
    });
    let mut histogram = new_histogram();
    let quiet = Duration::from_secs(1);
    while let Ok(Some(frame)) = tokio::time::timeout(quiet, frames.recv()).await {
        let at = frame.len() - 8;
        let sent = u64::from_be_bytes(frame[at..].try_into().expect("eight bytes"));
        histogram.saturating_record(began.elapsed().as_micros() as u64 - sent);
    }
    let _ = sender.await;
    println!(
        "{} frames of {bytes} B at {per_second}/s: {}",
        histogram.len(),
        percentiles(&histogram)
    );
}
