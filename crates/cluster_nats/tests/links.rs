//! Links with a real NATS server.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use cluster::{LinkSendError, NodeLinks, NodeName};
use cluster_nats::NatsFabric;
use support::{connect, next, node, server_or_skip, settings, settings_for, wait_for_status};
use testkit::{Proxy, ProxyMode};

const FRAME_BYTES: usize = 64 << 10;

fn frame(number: u64) -> Bytes {
    let mut bytes = BytesMut::zeroed(FRAME_BYTES - 8);
    bytes.put_u64(number);
    bytes.freeze()
}

fn number(frame: &Bytes) -> u64 {
    u64::from_be_bytes(frame[frame.len() - 8..].try_into().unwrap())
}

async fn wait_until_linked(fabric: &NatsFabric) {
    wait_for_status(fabric, "linked", |status| status.are_links_connected).await;
}

/// Sends a frame as soon as there is space for it.
async fn send(links: &dyn NodeLinks, to: &NodeName, frame: Bytes) {
    loop {
        match links.send(to, frame.clone()) {
            Ok(()) => return,
            Err(LinkSendError::Full) => tokio::time::sleep(Duration::from_micros(200)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_arrive_in_order() {
    let Some(server) = server_or_skip() else {
        return;
    };
    const FRAMES: u64 = 8000;
    let (a, b) = (
        connect(settings(&server), "a").await,
        connect(settings(&server), "b").await,
    );
    let mut frames = b.links().receive();
    wait_until_linked(&a).await;
    wait_until_linked(&b).await;
    // The subscription exists once a frame to oneself has arrived.
    b.links().send(&node("b"), frame(0)).unwrap();
    assert_eq!(number(&next(&mut frames).await), 0);

    let began = Instant::now();
    let links = a.links();
    let sender = tokio::spawn(async move {
        for sequence in 1..=FRAMES {
            send(links.as_ref(), &node("b"), frame(sequence)).await;
        }
    });
    for sequence in 1..=FRAMES {
        let received = next(&mut frames).await;
        assert_eq!(number(&received), sequence);
        assert_eq!(received.len(), FRAME_BYTES);
    }
    sender.await.unwrap();
    let seconds = began.elapsed().as_secs_f64();
    let megabytes = (FRAMES as usize * FRAME_BYTES) as f64 / 1e6;
    println!(
        "{FRAMES} frames of 64 KiB in {seconds:.2} s: {:.0} MB/s",
        megabytes / seconds
    );
    assert_eq!(a.status().dropped_outgoing_frames, 0);
    assert_eq!(b.status().dropped_incoming_frames, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_are_not_read_are_dropped_and_counted() {
    let Some(server) = server_or_skip() else {
        return;
    };
    const FRAMES: u64 = 200;
    const KEPT: u64 = 16;
    let mut small = settings(&server);
    small.receive_queue_bytes = KEPT as usize * FRAME_BYTES;
    let (a, b) = (
        connect(settings(&server), "a").await,
        connect(small, "b").await,
    );
    let mut frames = b.links().receive();
    wait_until_linked(&a).await;
    wait_until_linked(&b).await;
    b.links().send(&node("b"), frame(0)).unwrap();
    drop(next(&mut frames).await);
    for sequence in 1..=FRAMES {
        send(a.links().as_ref(), &node("b"), frame(sequence)).await;
    }
    wait_for_status(&b, "all frames", |status| {
        status.dropped_incoming_frames == FRAMES - KEPT
    })
    .await;
    for sequence in 1..=KEPT {
        assert_eq!(number(&next(&mut frames).await), sequence);
    }
    // There is space again.
    send(a.links().as_ref(), &node("b"), frame(1000)).await;
    assert_eq!(number(&next(&mut frames).await), 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_and_large_frames_are_refused() {
    let Some(server) = server_or_skip() else {
        return;
    };
    const QUEUE_FRAMES: usize = 64;
    let proxy = Proxy::start(server.address());
    let mut small = settings_for(&format!("nats://{}", proxy.address()));
    small.send_queue_bytes = QUEUE_FRAMES * FRAME_BYTES;
    let a = connect(small, "a").await;
    wait_until_linked(&a).await;
    let links = a.links();
    let large = Bytes::from(vec![0; links.max_frame_bytes() + 1]);
    assert_eq!(
        links.send(&node("b"), large.clone()),
        Err(LinkSendError::TooLarge)
    );
    links.send(&node("b"), large.slice(1..)).unwrap();
    // The server reads nothing for a while.
    proxy.set_mode(ProxyMode::Delay(Duration::from_secs(3600)));
    let began = Instant::now();
    let mut accepted = 0;
    let refused = loop {
        match links.send(&node("b"), frame(0)) {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
        assert!(began.elapsed() < support::LIMIT);
        tokio::task::yield_now().await;
    };
    assert_eq!(refused, LinkSendError::Full);
    assert!(accepted >= QUEUE_FRAMES - 16, "{accepted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_continue_after_a_restart_of_the_server() {
    let Some(server) = server_or_skip() else {
        return;
    };
    let (a, b) = (
        connect(settings(&server), "a").await,
        connect(settings(&server), "b").await,
    );
    let mut frames = b.links().receive();
    wait_until_linked(&a).await;
    server.kill();
    wait_for_status(&a, "interrupted", |status| !status.are_links_connected).await;
    wait_for_status(&b, "interrupted", |status| !status.are_links_connected).await;
    assert_eq!(
        a.links().send(&node("b"), frame(1)),
        Err(LinkSendError::Disconnected)
    );
    server.start();
    wait_until_linked(&a).await;
    wait_until_linked(&b).await;
    let received = loop {
        // Frames before the other node has subscribed are lost.
        send(a.links().as_ref(), &node("b"), frame(2)).await;
        let received = tokio::time::timeout(Duration::from_millis(100), frames.recv()).await;
        if let Ok(received) = received {
            break received.unwrap();
        }
    };
    assert_eq!(number(&received), 2);
    let status = wait_for_status(&a, "ready", |status| status.round_trip.is_some()).await;
    assert_eq!((status.reconnects, status.link_reconnects), (1, 1));
    assert!(status.server_version.unwrap().starts_with("2."));
}
