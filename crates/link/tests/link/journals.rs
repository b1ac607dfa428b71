//! Links with journals on tokio: what a restart continues, and when a journal is removed.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, io};

use bytes::Bytes;
use content::RangeSet;
use link::config::LinkConfig;
use link::durable::FileJournal;
use link::error_code::ErrorCode;
use link::net::{
    AcceptedLink, ConnectOptions, Link, LinkDecision, LinkListener, MemoryNetwork,
    connect_with_journal,
};
use link::priority::Priority;
use link::wire::handshake::LinkId;
use tokio::sync::mpsc;

use crate::support::{content, open_locked};

const EXPIRY: Duration = Duration::from_secs(60);

fn listen(dir: &Path) -> (Arc<LinkListener>, mpsc::Receiver<AcceptedLink>) {
    let config = LinkConfig::default();
    open_locked(|| LinkListener::with_journals(config.clone(), 10, EXPIRY, dir.to_owned()))
}

/// The listener of a process that may be restarted; `None`: it does not run.
type CurrentListener = Arc<Mutex<Option<Arc<LinkListener>>>>;

fn open(dir: &Path, network: &MemoryNetwork, listener: &Arc<LinkListener>) -> Link {
    let current = Arc::new(Mutex::new(Some(listener.clone())));
    open_to_current(dir, network, &current)
}

fn open_to_current(dir: &Path, network: &MemoryNetwork, current: &CurrentListener) -> Link {
    fs::create_dir_all(dir).expect("the directory can be created");
    let journal = open_locked(|| FileJournal::open(dir, LinkId([8; 16])));
    let (network, current) = (network.clone(), current.clone());
    connect_with_journal(journal, ConnectOptions::default(), move || {
        let listener = current.lock().expect("no test panics").clone();
        let opened = network.open();
        async move {
            let listener = listener.ok_or(io::ErrorKind::ConnectionRefused)?;
            let (near, far) = opened?;
            tokio::spawn(async move {
                let principal = "peer".to_owned();
                let _ = listener
                    .serve(far, |_| LinkDecision::Accept { principal })
                    .await;
            });
            Ok(near)
        }
    })
}

async fn next(link: &Link) -> (link::message::MessageId, Bytes) {
    let message = link.receive().await.expect("the link works");
    (message.id, message.payload.into_bytes())
}

/// Waits until nobody uses the journals of a process that has ended.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

#[tokio::test(start_paused = true)]
async fn both_ends_continue_after_a_restart() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (near, far) = (dir.path().join("near"), dir.path().join("far"));
    let sizes = [0, 10, 20_000, 200_000, 3_000_000];
    {
        let network = MemoryNetwork::default();
        let (listener, mut links) = listen(&far);
        let client = open(&near, &network, &listener);
        for (index, size) in sizes.into_iter().enumerate() {
            let payload = content(size, index as u64);
            client
                .send(Priority::Normal, payload)
                .await
                .expect("the link works");
        }
        let server = links.recv().await.expect("the link is accepted").link;
        let first = next(&server).await;
        assert!(first.1.is_empty());
        // It is received, not processed.
        next(&server).await;
        server.acknowledge(first.0);
        let answer = Bytes::from_static(b"answer");
        server
            .send(Priority::High, answer)
            .await
            .expect("the link works");
        client.abandon();
        server.abandon();
    }
    settle().await;
    let network = MemoryNetwork::default();
    let (listener, mut links) = listen(&far);
    let accepted = links.recv().await.expect("the link is restored");
    assert_eq!(accepted.principal, "peer");
    let server = accepted.link;
    let client = open(&near, &network, &listener);
    assert_eq!(client.last_sent(Priority::Normal), sizes.len() as u64);
    let mut received = Vec::new();
    for _ in 1..4 {
        let (id, payload) = next(&server).await;
        received.push(payload);
        server.acknowledge(id);
    }
    received.sort_by_key(Bytes::len);
    let expected: Vec<Bytes> = (1..4)
        .map(|index| content(sizes[index], index as u64))
        .collect();
    assert!(received == expected);
    let stream = server.receive_stream().await.expect("the link works");
    let all = stream.read_to_end(4_000_000).await.expect("the link works");
    assert!(all == content(sizes[4], 4));
    let (id, answer) = next(&client).await;
    assert_eq!(answer, &b"answer"[..]);
    client.acknowledge(id);
    client.flush().await.expect("the link works");
    // Both have processed everything: the end of the link removes the journals.
    assert_eq!(fs::read_dir(&far).expect("it exists").count(), 1);
    client.shut_down(ErrorCode::NONE, "").await;
    settle().await;
    assert_eq!(fs::read_dir(&far).expect("it exists").count(), 0);
    assert!(!near.join("journal").exists());
}

#[tokio::test(start_paused = true)]
async fn a_partly_read_huge_message_survives_a_restart_of_the_receiver() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (near, far) = (dir.path().join("near"), dir.path().join("far"));
    let network = MemoryNetwork::default();
    let (listener, mut links) = listen(&far);
    let current: CurrentListener = Arc::new(Mutex::new(Some(listener)));
    let client = open_to_current(&near, &network, &current);
    let payload = content(3_000_000, 1);
    let sent = client.send(Priority::Normal, payload.clone()).await;
    sent.expect("the link works");
    {
        let server = links.recv().await.expect("the link is accepted").link;
        let mut stream = server.receive_stream().await.expect("the link works");
        stream.accept(&RangeSet::new());
        let read = stream.read().await.expect("the link works");
        let chunk = read.expect("there is content");
        stream.acknowledge(chunk.range());
        // The acknowledgement arrives.
        settle().await;
        *current.lock().expect("no test panics") = None;
        server.abandon();
    }
    drop(links);
    settle().await;
    let (listener, mut links) = listen(&far);
    *current.lock().expect("no test panics") = Some(listener);
    let server = links.recv().await.expect("the link is restored").link;
    let stream = server.receive_stream().await.expect("the link works");
    let all = stream.read_to_end(4_000_000).await.expect("it is complete");
    assert!(all == payload);
    client.flush().await.expect("the message was not given up");
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_link_that_has_ended_are_received_after_a_restart() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (near, far) = (dir.path().join("near"), dir.path().join("far"));
    let network = MemoryNetwork::default();
    {
        let (listener, mut links) = listen(&far);
        let client = open(&near, &network, &listener);
        let text = Bytes::from_static(b"text");
        client
            .send(Priority::Normal, text)
            .await
            .expect("the link works");
        let server = links.recv().await.expect("the link is accepted").link;
        next(&server).await;
        client.shut_down(ErrorCode::NONE, "").await;
        server.ended().await;
    }
    settle().await;
    assert!(!near.join("journal").exists());
    let (listener, mut links) = listen(&far);
    let server = links.recv().await.expect("the link is restored").link;
    let (id, payload) = next(&server).await;
    assert_eq!(payload, &b"text"[..]);
    assert!(server.receive().await.is_err());
    assert!(server.send(Priority::Normal, Bytes::new()).await.is_err());
    server.acknowledge(id);
    assert_eq!(fs::read_dir(&far).expect("it exists").count(), 0);
    // The peer begins a link of its own.
    let client = open(&near, &network, &listener);
    client.connected().await.expect("the link works");
}

#[tokio::test(start_paused = true)]
async fn a_link_belongs_to_its_principal_after_a_restart_and_expires_when_it_is_processed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (near, far) = (dir.path().join("near"), dir.path().join("far"));
    {
        let network = MemoryNetwork::default();
        let (listener, mut links) = listen(&far);
        let client = open(&near, &network, &listener);
        let text = Bytes::from_static(b"text");
        client
            .send(Priority::Normal, text)
            .await
            .expect("the link works");
        let server = links.recv().await.expect("the link is accepted").link;
        next(&server).await;
        client.abandon();
        server.abandon();
    }
    settle().await;
    let (listener, mut links) = listen(&far);
    let server = links.recv().await.expect("the link is restored").link;
    // Another principal names the id of the link.
    let (carrier, other) = tokio::io::duplex(1 << 20);
    let attempt = link::net::connect(LinkId([8; 16]), ConnectOptions::default(), {
        let carrier = Mutex::new(Some(carrier));
        move || {
            let carrier = carrier.lock().ok().and_then(|mut carrier| carrier.take());
            async move { carrier.ok_or(io::ErrorKind::NotFound.into()) }
        }
    });
    let principal = "other".to_owned();
    let rejected = listener
        .serve(other, |_| LinkDecision::Accept { principal })
        .await;
    assert!(rejected.is_err());
    assert!(attempt.connected().await.is_err());
    // The message is kept until it is processed, then the link expires.
    tokio::time::sleep(2 * EXPIRY).await;
    listener.remove_expired();
    assert_eq!(server.end(), None);
    let (id, payload) = next(&server).await;
    assert_eq!(payload, &b"text"[..]);
    server.acknowledge(id);
    listener.remove_expired();
    assert!(server.end().is_some());
    assert_eq!(fs::read_dir(&far).expect("it exists").count(), 0);
}
