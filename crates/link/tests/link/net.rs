//! Links on tokio: carriers, reconnection, limits and rejection. Time is simulated where the carrier is in memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use content::{ContentHasher, DigestAlgorithm};
use link::config::LinkConfig;
use link::core::NewStream;
use link::error_code::ErrorCode;
use link::net::{
    AcceptedLink, ConnectOptions, Link, LinkDecision, LinkError, LinkListener, MemoryNetwork,
    NetworkConditions, connect,
};
use link::priority::Priority;
use link::wire::control::TransferId;
use link::wire::handshake::{Credentials, Hello, LinkId};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;

use crate::support::content;

const ID: LinkId = LinkId([9; 16]);

fn decide(hello: &Hello) -> LinkDecision {
    match &hello.credentials {
        Credentials::Token(token) if token == "right" => LinkDecision::Accept {
            principal: "device".to_owned(),
        },
        _ => LinkDecision::Reject {
            code: ErrorCode::NOT_AUTHENTICATED,
            text: "wrong token".to_owned(),
        },
    }
}

fn options(token: &str) -> ConnectOptions {
    ConnectOptions {
        credentials: Credentials::Token(token.to_owned()),
        ..ConnectOptions::default()
    }
}

fn listener() -> (Arc<LinkListener>, mpsc::Receiver<AcceptedLink>) {
    LinkListener::new(LinkConfig::default(), 10, Duration::from_secs(600))
}

/// A link over a network in memory, and the accepted end of it.
async fn open(network: &MemoryNetwork) -> (Link, Link) {
    let (listener, mut links) = listener();
    let client = {
        let network = network.clone();
        connect(ID, options("right"), move || {
            let opened = network.open();
            let listener = listener.clone();
            async move {
                let (near, far) = opened?;
                tokio::spawn(async move {
                    let _ = listener.serve(far, decide).await;
                });
                Ok(near)
            }
        })
    };
    let server = links.recv().await.expect("the link is accepted").link;
    (client, server)
}

async fn exchange(client: &Link, server: &Link) {
    let sizes = [0, 1, 1000, 20_000, 65_537, 300_007];
    for (index, size) in sizes.into_iter().enumerate() {
        let payload = content(size, index as u64);
        client
            .send(Priority::Normal, payload.clone())
            .await
            .expect("the link works");
        let message = server.receive().await.expect("the link works");
        assert!(message.payload.into_bytes() == payload);
        server
            .send(Priority::High, payload.clone())
            .await
            .expect("the link works");
        assert!(
            client
                .receive()
                .await
                .expect("the link works")
                .payload
                .into_bytes()
                == payload
        );
    }
    client
        .send(Priority::Bulk, content(3_000_001, 1))
        .await
        .expect("the link works");
    let stream = server.receive_stream().await.expect("the link works");
    assert_eq!(stream.info().size, Some(3_000_001));
    let received = stream.read_to_end(4_000_000).await.expect("the link works");
    assert!(received == content(3_000_001, 1));
    client.flush().await.expect("the link works");
}

#[tokio::test]
async fn tcp_and_unix_sockets_are_carriers() {
    let (listener, mut links) = listener();
    let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("link.sock");
    let unix = tokio::net::UnixListener::bind(&path).unwrap();
    tokio::spawn({
        let listener = listener.clone();
        async move {
            let (carrier, _) = tcp.accept().await.unwrap();
            listener.serve(carrier, decide).await
        }
    });
    tokio::spawn(async move {
        let (carrier, _) = unix.accept().await.unwrap();
        listener.serve(carrier, decide).await
    });
    let over_tcp = connect(LinkId([1; 16]), options("right"), move || {
        tokio::net::TcpStream::connect(address)
    });
    exchange(&over_tcp, &links.recv().await.unwrap().link).await;
    let over_unix = connect(LinkId([2; 16]), options("right"), move || {
        tokio::net::UnixStream::connect(path.clone())
    });
    exchange(&over_unix, &links.recv().await.unwrap().link).await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_loses_and_repeats_nothing_and_recovery_is_quick() {
    let network = MemoryNetwork::default();
    let conditions = NetworkConditions {
        delay: Duration::from_millis(100),
        ..NetworkConditions::default()
    };
    network.set_conditions(conditions);
    let (client, server) = open(&network).await;
    let sending = {
        let client = client.clone();
        tokio::spawn(async move {
            for number in 0..2000_u64 {
                let size = 1 + number as usize * 7919 % 30_000;
                let payload = content(size, number);
                client.send(Priority::Normal, payload).await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            client.flush().await.unwrap();
        })
    };
    let mut restored = None;
    for number in 0..2000_u64 {
        if number == 500 {
            network.set_conditions(NetworkConditions {
                is_down: true,
                ..conditions
            });
            network.cut();
            tokio::spawn({
                let network = network.clone();
                async move {
                    tokio::time::sleep(Duration::from_secs(7)).await;
                    network.set_conditions(conditions);
                }
            });
            restored = Some(tokio::time::Instant::now() + Duration::from_secs(7));
        }
        if number % 700 == 699 {
            network.cut();
        }
        let message = server.receive().await.unwrap();
        let size = 1 + number as usize * 7919 % 30_000;
        assert!(
            message.payload.into_bytes() == content(size, number),
            "{number}"
        );
        // What had arrived before the cut is still delivered; the first message after it shows the recovery.
        if let Some(time) = restored.take_if(|time| tokio::time::Instant::now() >= *time) {
            let recovery = time.elapsed();
            // HELLO, WELCOME and the message travel for 100 ms each; the attempts to connect are 50 ms apart.
            assert!(recovery <= Duration::from_millis(360), "{recovery:?}");
        }
    }
    sending.await.unwrap();
    assert!(server.statistics().carriers >= 3);
}

#[tokio::test(start_paused = true)]
async fn streams_continue_after_cuts_and_a_slow_network_does_not_delay_messages() {
    let network = MemoryNetwork::default();
    network.set_conditions(NetworkConditions {
        delay: Duration::from_millis(10),
        bytes_per_second: Some(2_000_000),
        is_down: false,
    });
    let (client, server) = open(&network).await;
    let all = content(8_000_003, 3);
    let mut hasher = ContentHasher::new(DigestAlgorithm::Sha256);
    hasher.update(&all);
    let digest = hasher.finish();
    let sending = {
        let (client, all) = (client.clone(), all.clone());
        tokio::spawn(async move {
            let new = NewStream {
                priority: Priority::Bulk,
                transfer_id: TransferId([4; 16]),
                size: Some(all.len() as u64),
                digest: Some(DigestAlgorithm::Sha256),
                metadata: b"file".to_vec(),
                is_resume: false,
            };
            let stream = client.send_stream(new).await.unwrap();
            for (index, piece) in all.chunks(100_000).enumerate() {
                let bytes = Bytes::copy_from_slice(piece);
                stream.write(index as u64 * 100_000, bytes).await.unwrap();
            }
            stream.finish(all.len() as u64, Some(digest)).await.unwrap();
        })
    };
    let stream = server.receive_stream().await.unwrap();
    assert_eq!(stream.info().metadata, b"file");
    let receiving = tokio::spawn(stream.read_to_end(10_000_000));
    let mut worst = Duration::ZERO;
    for number in 0..30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let start = tokio::time::Instant::now();
        client
            .send(Priority::Normal, content(100, number))
            .await
            .unwrap();
        server.receive().await.unwrap();
        if number > 5 {
            worst = worst.max(start.elapsed());
        }
        if number % 10 == 5 {
            network.cut();
        }
    }
    // The buffers of the carrier itself have 144 KiB at 2 MB/s, that is 74 ms; a chunk has 8 ms.
    assert!(worst < Duration::from_millis(250), "{worst:?}");
    sending.await.unwrap();
    assert!(receiving.await.unwrap().unwrap() == all);
    // Three cuts: what was under way is sent again, and nothing else.
    let sent = client.statistics().transmitted_bytes - 3000;
    assert!(sent < all.len() as u64 + 3 * 400_000, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_with_wrong_credentials_is_told_so() {
    let (listener, _links) = listener();
    let network = MemoryNetwork::default();
    let client = connect(ID, options("wrong"), move || {
        let opened = network.open();
        let listener = listener.clone();
        async move {
            let (near, far) = opened?;
            tokio::spawn(async move { listener.serve(far, decide).await });
            Ok(near)
        }
    });
    let error = client.receive().await.unwrap_err();
    let expected = LinkError::Rejected {
        code: ErrorCode::NOT_AUTHENTICATED,
        text: "wrong token".to_owned(),
    };
    assert_eq!(error, expected);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_delivers_what_was_sent() {
    let network = MemoryNetwork::default();
    let (client, server) = open(&network).await;
    for number in 0..100 {
        client
            .send(Priority::Normal, content(50_000, number))
            .await
            .unwrap();
    }
    let receiving = tokio::spawn(async move {
        let mut count = 0;
        while server.receive().await.is_ok() {
            count += 1;
        }
        count
    });
    client.shut_down(ErrorCode::NONE, "").await;
    assert_eq!(receiving.await.unwrap(), 100);
    let error = client
        .send(Priority::Normal, Bytes::new())
        .await
        .unwrap_err();
    assert_eq!(error, LinkError::ShutDown);
}

#[tokio::test(start_paused = true)]
async fn a_link_that_is_abandoned_while_it_connects_begins_no_carrier() {
    let (carriers, mut opened) = mpsc::channel(1);
    let permission = Arc::new(tokio::sync::Semaphore::new(0));
    let client = connect(ID, options("right"), {
        let permission = permission.clone();
        move || {
            let (carriers, permission) = (carriers.clone(), permission.clone());
            async move {
                let (near, far) = tokio::io::duplex(1 << 20);
                carriers.send(far).await.expect("the test waits for it");
                permission.acquire().await.expect("it is open").forget();
                Ok(near)
            }
        }
    });
    let mut far = opened.recv().await.expect("the link connects");
    client.abandon();
    permission.add_permits(1);
    let mut sent = Vec::new();
    far.read_to_end(&mut sent).await.expect("it is closed");
    assert!(sent.is_empty(), "{sent:?}");
}

#[tokio::test]
async fn a_link_that_is_abandoned_makes_room_for_a_new_one() {
    let network = MemoryNetwork::default();
    let (listener, mut links) = listener();
    let client = connect(ID, options("right"), {
        let network = network.clone();
        move || {
            let (opened, listener) = (network.open(), listener.clone());
            async move {
                let (near, far) = opened?;
                tokio::spawn(async move {
                    let _ = listener.serve(far, decide).await;
                });
                Ok(near)
            }
        }
    });
    links
        .recv()
        .await
        .expect("the link is accepted")
        .link
        .abandon();
    let second = links.recv().await.expect("another one is accepted").link;
    exchange(&client, &second).await;
}

#[tokio::test(start_paused = true)]
async fn a_link_that_nobody_serves_makes_room_for_a_new_one() {
    let network = MemoryNetwork::default();
    let (listener, _) = listener();
    // The first carrier begins a link, which is not served; the second one finds that out.
    let (admissions, mut admitted) = mpsc::unbounded_channel();
    let client = connect(ID, options("right"), {
        let network = network.clone();
        move || {
            let opened = network.open();
            let (listener, admissions) = (listener.clone(), admissions.clone());
            async move {
                let (near, far) = opened?;
                tokio::spawn(async move {
                    let pending = listener.receive_hello(far).await.expect("HELLO arrives");
                    let decision = decide(pending.hello());
                    let carrier = listener.admit(pending, decision).await.expect("permitted");
                    let is_known = carrier.is_known();
                    let _ = admissions.send((is_known, carrier.link().clone()));
                    if is_known {
                        carrier.end_link();
                    } else {
                        let _ = carrier.run_until(std::future::pending()).await;
                    }
                });
                Ok(near)
            }
        }
    });
    let (is_known, first) = admitted.recv().await.expect("the client connects");
    assert!(!is_known);
    client.connected().await.expect("the link works");
    network.cut();
    assert!(admitted.recv().await.expect("the client connects").0);
    assert_eq!(first.ended().await, LinkError::ShutDown);
    let (is_known, second) = admitted.recv().await.expect("the client connects");
    assert!(!is_known);
    client
        .send(Priority::Normal, Bytes::from_static(b"text"))
        .await
        .expect("the link works");
    let message = second.receive().await.expect("the link works");
    assert_eq!(message.payload.into_bytes(), &b"text"[..]);
}

#[tokio::test(start_paused = true)]
async fn dropped_streams_end_at_both_ends() {
    let network = MemoryNetwork::default();
    let (client, server) = open(&network).await;
    let new = NewStream {
        priority: Priority::Normal,
        transfer_id: TransferId([4; 16]),
        size: None,
        digest: None,
        metadata: Vec::new(),
        is_resume: false,
    };
    let sent = client.send_stream(new.clone()).await.unwrap();
    sent.write(0, content(10, 1)).await.unwrap();
    let received = server.receive_stream().await.unwrap();
    drop(sent);
    let error = received.read_to_end(100).await.unwrap_err();
    assert!(
        matches!(
            error,
            LinkError::Stream {
                code: ErrorCode::CANCELLED,
                ..
            }
        ),
        "{error}"
    );
    let sent = client.send_stream(new).await.unwrap();
    drop(server.receive_stream().await.unwrap());
    let error = sent.finish(0, None).await.unwrap_err();
    assert!(
        error.to_string().contains("the receiver stopped"),
        "{error}"
    );
    client.flush().await.unwrap();
}
