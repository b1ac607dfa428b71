//! Messages per second and bytes per second of a link, beside plain TCP in the same run:
//! `cargo run --release -p tidegate-link --example throughput`. Sender and receiver have a thread each; pin them with
//! `taskset -c 2,3`. Checksums are verified, as always.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use link::config::LinkConfig;
use link::net::{ConnectOptions, Decision, Link, LinkListener, connect};
use link::priority::Priority;
use link::wire::handshake::LinkId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const DURATION: Duration = Duration::from_secs(4);

/// Received messages and bytes, and the time from the first to the last.
#[derive(Debug, Clone, Copy, Default)]
struct Measurement {
    messages: u64,
    bytes: u64,
    seconds: f64,
}

fn main() {
    println!("size x connections | link MB/s | link messages/s | TCP MB/s | ratio");
    for (size, connections) in [
        (512, 5),
        (50_000, 3),
        (1_000_000, 2),
        (5_000_000, 1),
        (50_000_000, 1),
        (1_000_000_000, 1),
    ] {
        let tcp = measure(size, connections, true);
        let link = measure(size, connections, false);
        let (link_rate, tcp_rate) = (
            link.bytes as f64 / link.seconds,
            tcp.bytes as f64 / tcp.seconds,
        );
        println!(
            "{size} x {connections} | {:.0} | {:.0} | {:.0} | {:.2}",
            link_rate / 1e6,
            link.messages as f64 / link.seconds,
            tcp_rate / 1e6,
            link_rate / tcp_rate
        );
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder
        .enable_all()
        .build()
        .expect("a runtime can be built")
}

fn measure(size: usize, connections: usize, is_tcp: bool) -> Measurement {
    let (address_sender, address) = mpsc::channel();
    let receiver = std::thread::spawn(move || {
        runtime().block_on(async move {
            let socket = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let local = socket.local_addr().expect("it is bound");
            address_sender.send(local).expect("the sender waits for it");
            if is_tcp {
                receive_tcp(socket, connections).await
            } else {
                receive_links(socket, connections).await
            }
        })
    });
    let address = address.recv().expect("the receiver sends it");
    runtime().block_on(async move {
        let payload = Bytes::from(vec![0x5a; size]);
        let mut senders = Vec::new();
        for number in 0..connections {
            let payload = payload.clone();
            senders.push(tokio::spawn(async move {
                if is_tcp {
                    send_tcp(TcpStream::connect(address).await?, &payload).await
                } else {
                    let id = LinkId([number as u8 + 1; 16]);
                    let link = connect(id, ConnectOptions::default(), move || {
                        TcpStream::connect(address)
                    });
                    send_link(link, payload).await;
                    Ok(())
                }
            }));
        }
        for sender in senders {
            let result: std::io::Result<()> = sender.await.expect("it does not panic");
            result.expect("sending works");
        }
    });
    receiver.join().expect("it does not panic")
}

async fn send_tcp(mut socket: TcpStream, payload: &Bytes) -> std::io::Result<()> {
    let start = Instant::now();
    // Small messages are written together, as a link does.
    let repeated = payload.repeat((64 * 1024 / payload.len()).max(1));
    while start.elapsed() < DURATION {
        for piece in repeated.chunks(256 * 1024) {
            socket.write_all(piece).await?;
        }
    }
    socket.shutdown().await
}

async fn receive_tcp(socket: TcpListener, connections: usize) -> Measurement {
    let mut tasks = Vec::new();
    for _ in 0..connections {
        let (mut carrier, _) = socket.accept().await.expect("the sender connects");
        tasks.push(tokio::spawn(async move {
            let mut buffer = vec![0; 256 * 1024];
            let (start, mut bytes) = (Instant::now(), 0);
            while let Ok(len @ 1..) = carrier.read(&mut buffer).await {
                bytes += len as u64;
            }
            (start, bytes)
        }));
    }
    sum(tasks, 1).await
}

async fn send_link(link: Link, payload: Bytes) {
    let start = Instant::now();
    while start.elapsed() < DURATION {
        let burst = (64 * 1024 / payload.len()).max(1);
        for _ in 0..burst {
            let sent = link.send(Priority::Normal, payload.clone()).await;
            sent.expect("the link works");
        }
        tokio::task::yield_now().await;
    }
    link.flush().await.expect("the link works");
    link.shut_down(link::error_code::ErrorCode::NONE, "").await;
}

async fn receive_links(socket: TcpListener, connections: usize) -> Measurement {
    let (listener, mut links) =
        LinkListener::new(LinkConfig::default(), 100, Duration::from_secs(60));
    let mut tasks = Vec::new();
    for _ in 0..connections {
        let (carrier, _) = socket.accept().await.expect("the sender connects");
        let listener = listener.clone();
        tokio::spawn(async move {
            let decide = |_: &_| Decision::Accept {
                principal: String::new(),
            };
            listener.serve(carrier, decide).await
        });
        let link = links.recv().await.expect("the link is accepted").link;
        tasks.push(tokio::spawn(async move { receive_link(link).await }));
    }
    let mut total = Measurement::default();
    for task in tasks {
        let one = task.await.expect("it does not panic");
        total.messages += one.messages;
        total.bytes += one.bytes;
        total.seconds = total.seconds.max(one.seconds);
    }
    total
}

async fn receive_link(link: Link) -> Measurement {
    let start = Instant::now();
    let mut measurement = Measurement::default();
    let mut messages = Vec::new();
    loop {
        tokio::select! {
            received = link.receive_all(&mut messages) => {
                if received.is_err() {
                    break;
                }
                for message in messages.drain(..) {
                    measurement.messages += 1;
                    measurement.bytes += message.payload.len() as u64;
                }
            }
            stream = link.receive_stream() => {
                let Ok(mut stream) = stream else { break };
                stream.accept(&Default::default());
                while let Ok(Ok(chunk)) = stream.read().await {
                    measurement.bytes += chunk.bytes.len() as u64;
                    stream.acknowledge(chunk.range());
                }
                measurement.messages += 1;
                stream.complete();
            }
        }
        measurement.seconds = start.elapsed().as_secs_f64();
    }
    measurement
}

async fn sum(tasks: Vec<tokio::task::JoinHandle<(Instant, u64)>>, messages: u64) -> Measurement {
    let mut total = Measurement::default();
    for task in tasks {
        let (start, bytes) = task.await.expect("it does not panic");
        total.bytes += bytes;
        total.messages += messages;
        total.seconds = total.seconds.max(start.elapsed().as_secs_f64());
    }
    total
}
