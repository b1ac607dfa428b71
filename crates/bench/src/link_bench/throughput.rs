//! `tidegate bench link throughput`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use link::priority::Priority;
use tokio::net::TcpStream;

use super::peers::{
    Received, accept_links, connect_link, end, loopback_socket, prepared_bytes, receive_messages,
    runtime, send_messages,
};
use super::plain_tcp;
use crate::host::{ProcessMeter, pin_to_core};
use crate::units;

/// Sizes and connections of a published report, and larger messages.
const LOADS: [(usize, usize); 6] = [
    (512, 5),
    (50_000, 3),
    (1_000_000, 2),
    (5_000_000, 1),
    (50_000_000, 1),
    (1_000_000_000, 1),
];

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct LinkThroughputScenario {
    /// Size of each message [default: 512B over 5 connections, 50kB over 3, 1MB over 2, then 5MB, 50MB and 1GB]
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    size: Option<usize>,
    /// Connections, with --size [default: 1]
    #[arg(long, value_name = "N", requires = "size", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: Option<u32>,
    /// Threads of each peer, among which the connections are divided
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Time to send
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_duration)]
    duration: Duration,
    /// Times to measure plain TCP and the link, in turn
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Demand that the rate of the link is at least this share of that of plain TCP, for messages from 50 kB on
    #[arg(long, value_name = "SHARE", value_parser = units::parse_fraction)]
    min_ratio: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    PlainTcp,
    Link,
}

struct Load {
    size: usize,
    connections: usize,
    threads: usize,
    duration: Duration,
}

impl LinkThroughputScenario {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let threads = self.threads as usize;
        let loads: Vec<(usize, usize)> = match self.size {
            Some(size) => vec![(size, self.connections.unwrap_or(1) as usize)],
            None => LOADS.to_vec(),
        };
        if let [(_, connections)] = loads[..] {
            ensure!(
                threads <= connections,
                "--threads {threads} is more than --connections {connections}"
            );
        }
        println!(
            "{:>12} {:>5} {:>12} {:>14} {:>12} {:>6} {:>10}",
            "size", "conn.", "link MB/s", "messages/s", "TCP MB/s", "ratio", "memory MB"
        );
        let mut is_ok = true;
        for (size, connections) in loads {
            let load = Load {
                size,
                connections,
                threads: threads.min(connections),
                duration: self.duration,
            };
            let (mut tcp, mut link) = (Received::default(), Received::default());
            let (mut tcp_s, mut link_s) = (0.0, 0.0);
            let mut meter = ProcessMeter::new(std::process::id())?;
            let mut memory = 0;
            for _ in 0..self.rounds {
                let one = measure(&load, Subject::PlainTcp)?;
                tcp_s += one.seconds;
                tcp.add(one);
                let before = meter.read()?.resident_bytes;
                let (one, peak) = measure_memory(&load)?;
                let used = before + prepared_bytes(size) * connections as u64;
                memory = memory.max(peak.saturating_sub(used));
                link_s += one.seconds;
                link.add(one);
            }
            let (link_rate, tcp_rate) = (link.bytes as f64 / link_s, tcp.bytes as f64 / tcp_s);
            let ratio = link_rate / tcp_rate;
            println!(
                "{size:>12} {connections:>5} {:>12.0} {:>14.0} {:>12.0} {ratio:>6.2} {:>10.1}",
                link_rate / 1e6,
                link.messages as f64 / link_s,
                tcp_rate / 1e6,
                memory as f64 / 1e6,
            );
            if link.faults > 0 {
                println!("{} messages were lost, repeated or exchanged", link.faults);
                is_ok = false;
            }
            if let Some(least) = self.min_ratio.filter(|_| size >= 50_000)
                && ratio < least
            {
                println!("the ratio is below {least}");
                is_ok = false;
            }
        }
        Ok(if is_ok {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// Measures the link, and the highest memory of the process meanwhile.
fn measure_memory(load: &Load) -> anyhow::Result<(Received, u64)> {
    let (stop, stopped) = mpsc::channel::<()>();
    let mut meter = ProcessMeter::new(std::process::id())?;
    let watcher = std::thread::spawn(move || {
        let mut peak = 0;
        while let Err(mpsc::RecvTimeoutError::Timeout) =
            stopped.recv_timeout(Duration::from_millis(50))
        {
            peak = peak.max(meter.read().map_or(0, |usage| usage.resident_bytes));
        }
        peak
    });
    let received = measure(load, Subject::Link);
    drop(stop);
    let peak = watcher.join().map_err(|_| anyhow!("the watcher failed"))?;
    Ok((received?, peak))
}

fn measure(load: &Load, subject: Subject) -> anyhow::Result<Received> {
    let mut pairs = Vec::new();
    for thread in 0..load.threads {
        let connections =
            load.connections / load.threads + usize::from(thread < load.connections % load.threads);
        let (size, duration) = (load.size, load.duration);
        let (address_sender, address) = mpsc::channel();
        let cores = crate::host::allowed_cores();
        let core = move |index: usize| cores.get(index % cores.len().max(1)).copied();
        let (receiver_core, sender_core) = (core(2 * thread), core(2 * thread + 1));
        let receiver = std::thread::spawn(move || -> anyhow::Result<Received> {
            pin(receiver_core)?;
            runtime()?.block_on(receive(address_sender, size, connections, subject))
        });
        let sender = std::thread::spawn(move || -> anyhow::Result<()> {
            pin(sender_core)?;
            let address = address.recv().context("the receiver did not start")?;
            runtime()?.block_on(send(address, size, connections, duration, subject))
        });
        pairs.push((receiver, sender));
    }
    let mut total = Received::default();
    for (receiver, sender) in pairs {
        sender.join().map_err(|_| anyhow!("a sender failed"))??;
        total.add(
            receiver
                .join()
                .map_err(|_| anyhow!("a receiver failed"))??,
        );
    }
    Ok(total)
}

/// Sender and receiver do not move between cores, which would measure the scheduler.
fn pin(core: Option<usize>) -> anyhow::Result<()> {
    core.map_or(Ok(()), pin_to_core)
}

async fn receive(
    address: mpsc::Sender<SocketAddr>,
    size: usize,
    connections: usize,
    subject: Subject,
) -> anyhow::Result<Received> {
    let (socket, local) = loopback_socket().await?;
    address.send(local).context("the sender is gone")?;
    let mut tasks = Vec::new();
    match subject {
        Subject::PlainTcp => {
            for _ in 0..connections {
                let (stream, _) = socket.accept().await?;
                tasks.push(tokio::spawn(plain_tcp::receive(stream, size)));
            }
        }
        Subject::Link => {
            let mut links = accept_links(socket);
            for _ in 0..connections {
                let accepted = links.recv().await.context("no link was accepted")?;
                tasks.push(tokio::spawn(receive_messages(accepted.link, size)));
            }
        }
    }
    let mut total = Received::default();
    for task in tasks {
        total.add(task.await?);
    }
    Ok(total)
}

async fn send(
    address: SocketAddr,
    size: usize,
    connections: usize,
    duration: Duration,
    subject: Subject,
) -> anyhow::Result<()> {
    let mut tasks = Vec::new();
    for _ in 0..connections {
        tasks.push(tokio::spawn(async move {
            match subject {
                Subject::PlainTcp => {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    plain_tcp::send(stream, size, duration).await?;
                }
                Subject::Link => {
                    let link = connect_link(address);
                    link.connected().await?;
                    let until = Instant::now() + duration;
                    send_messages(&link, size, Priority::Normal, until).await?;
                    end(&link).await;
                }
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}
