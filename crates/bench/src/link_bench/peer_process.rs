//! The peers of a throughput measurement: child processes, so that memory and processor time of each are its own.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use link::priority::Priority;
use tokio::net::TcpStream;

use super::peers::{
    NumberedMessages, ReceiverTotals, accept_links, connect_link, end, loopback_socket,
    receive_messages, runtime, send_messages,
};
use super::plain_tcp;
use crate::host::{allowed_cores, pin_to_core, process_cpu_ns};
use link_carriers::configure_tcp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PeerRole {
    Receive,
    Send,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LinkSubject {
    PlainTcp,
    /// Plain TCP with the options of sockets that links use.
    TunedTcp,
    Link,
}

impl LinkSubject {
    fn argument(self) -> &'static str {
        match self {
            Self::PlainTcp => "plain-tcp",
            Self::TunedTcp => "tuned-tcp",
            Self::Link => "link",
        }
    }
}

/// Messages of one size over some connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkLoad {
    pub(super) size: usize,
    pub(super) connections: usize,
    pub(super) threads: usize,
    pub(super) duration: Duration,
}

/// Arguments of a child process.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct PeerArgs {
    role: PeerRole,
    subject: LinkSubject,
    #[arg(long)]
    size: usize,
    #[arg(long)]
    connections: usize,
    #[arg(long)]
    threads: usize,
    #[arg(long)]
    duration_ms: u64,
    /// Where the receiver listens, one address for each thread.
    #[arg(long)]
    address: Vec<SocketAddr>,
}

/// What a peer has used.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct PeerUsage {
    pub(super) cpu_s: f64,
    /// Highest resident memory, less that before the first connection.
    pub(super) memory_bytes: u64,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct PeerReport {
    received: ReceiverTotals,
    usage: PeerUsage,
}

/// The result of one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerMeasurement {
    pub(super) received: ReceiverTotals,
    pub(super) sender: PeerUsage,
    pub(super) receiver: PeerUsage,
}

impl PeerMeasurement {
    /// Adds the result of another round.
    pub(super) fn add_round(&mut self, other: &Self) {
        let seconds = self.received.seconds + other.received.seconds;
        self.received.add(other.received);
        self.received.seconds = seconds;
        for (usage, other) in [
            (&mut self.sender, other.sender),
            (&mut self.receiver, other.receiver),
        ] {
            usage.cpu_s += other.cpu_s;
            usage.memory_bytes = usage.memory_bytes.max(other.memory_bytes);
        }
    }
}

/// Runs both peers in processes of their own.
pub(super) fn measure(load: &LinkLoad, subject: LinkSubject) -> anyhow::Result<PeerMeasurement> {
    let mut receiver = PeerProcess::start(load, subject, "receive", &[])?;
    let addresses: Vec<SocketAddr> = receiver.read_line()?;
    let mut sender = PeerProcess::start(load, subject, "send", &addresses)?;
    let sent: PeerReport = sender.read_line()?;
    let received: PeerReport = receiver.read_line()?;
    Ok(PeerMeasurement {
        received: received.received,
        sender: sent.usage,
        receiver: received.usage,
    })
}

/// A child process. Dropping it ends it.
struct PeerProcess {
    child: Child,
    /// The child ends when this is closed, so that it does not outlive this process.
    _stdin: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl PeerProcess {
    fn start(
        load: &LinkLoad,
        subject: LinkSubject,
        role: &str,
        addresses: &[SocketAddr],
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        // The words that name this command, as this process was started.
        let own: Vec<String> = std::env::args().collect();
        let end = own.iter().position(|word| word == "link");
        let end = end.context("the command `link` is not among the arguments")?;
        let mut command = Command::new(program);
        command
            .args(&own[1..=end])
            .args(["peer", role, subject.argument()])
            .args(["--size", &load.size.to_string()])
            .args(["--connections", &load.connections.to_string()])
            .args(["--threads", &load.threads.to_string()])
            .args(["--duration-ms", &load.duration.as_millis().to_string()]);
        for address in addresses {
            command.args(["--address", &address.to_string()]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start a peer")?;
        let stdin = child.stdin.take();
        let output = child.stdout.take().context("a peer has no output")?;
        Ok(Self {
            child,
            _stdin: stdin,
            output: BufReader::new(output),
        })
    }

    fn read_line<T: serde::de::DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(!line.is_empty(), "a peer failed");
        serde_json::from_str(&line).context("a peer printed something else than its report")
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // It has probably ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a child process.
pub(super) fn run(arguments: &PeerArgs) -> anyhow::Result<()> {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    crate::host::allow_open_files(arguments.connections as u64)?;
    let report = match arguments.role {
        PeerRole::Receive => run_receiver(arguments)?,
        PeerRole::Send => run_sender(arguments)?,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// The cores of the receiving and the sending thread of a pair. Sender and receiver do not move between cores, which
/// would measure the scheduler; with two pairs on two cores, each core has one of both.
fn cores(pair: usize) -> Option<(usize, usize)> {
    let cores = allowed_cores();
    let count = cores.len();
    if count == 0 {
        return None;
    }
    let first = 2 * pair + 2 * pair / count;
    Some((cores[first % count], cores[(first + 1) % count]))
}

fn connections_of(arguments: &PeerArgs, thread: usize) -> usize {
    let (connections, threads) = (arguments.connections, arguments.threads);
    connections / threads + usize::from(thread < connections % threads)
}

fn run_receiver(arguments: &PeerArgs) -> anyhow::Result<PeerReport> {
    let (address_sender, addresses) = mpsc::channel();
    let meter = UsageMeter::start();
    let mut threads = Vec::new();
    for thread in 0..arguments.threads {
        let (size, subject) = (arguments.size, arguments.subject);
        let connections = connections_of(arguments, thread);
        let address_sender = address_sender.clone();
        threads.push(std::thread::spawn(
            move || -> anyhow::Result<ReceiverTotals> {
                if let Some((core, _)) = cores(thread) {
                    pin_to_core(core)?;
                }
                let receiving = receive(thread, address_sender, size, connections, subject);
                runtime()?.block_on(receiving)
            },
        ));
    }
    drop(address_sender);
    let mut found: Vec<(usize, SocketAddr)> = addresses.iter().collect();
    ensure!(
        found.len() == arguments.threads,
        "a receiver cannot listen at the loopback interface"
    );
    found.sort_unstable();
    let found: Vec<SocketAddr> = found.into_iter().map(|(_, address)| address).collect();
    println!("{}", serde_json::to_string(&found)?);
    let mut received = ReceiverTotals::default();
    for thread in threads {
        received.add(thread.join().map_err(|_| anyhow!("a receiver failed"))??);
    }
    Ok(PeerReport {
        received,
        usage: meter.finish(),
    })
}

fn run_sender(arguments: &PeerArgs) -> anyhow::Result<PeerReport> {
    let barrier = Arc::new(Barrier::new(arguments.threads + 1));
    let duration = Duration::from_millis(arguments.duration_ms);
    let mut threads = Vec::new();
    for (thread, address) in arguments.address.iter().copied().enumerate() {
        let (size, subject) = (arguments.size, arguments.subject);
        let connections = connections_of(arguments, thread);
        let barrier = barrier.clone();
        threads.push(std::thread::spawn(move || -> anyhow::Result<()> {
            if let Some((_, core)) = cores(thread) {
                pin_to_core(core)?;
            }
            let messages = NumberedMessages::new(size);
            barrier.wait();
            runtime()?.block_on(send(address, &messages, connections, duration, subject))
        }));
    }
    barrier.wait();
    let meter = UsageMeter::start();
    for thread in threads {
        thread.join().map_err(|_| anyhow!("a sender failed"))??;
    }
    Ok(PeerReport {
        received: ReceiverTotals::default(),
        usage: meter.finish(),
    })
}

async fn receive(
    thread: usize,
    address: mpsc::Sender<(usize, SocketAddr)>,
    size: usize,
    connections: usize,
    subject: LinkSubject,
) -> anyhow::Result<ReceiverTotals> {
    let (socket, local) = loopback_socket().await?;
    address
        .send((thread, local))
        .context("the process is ending")?;
    drop(address);
    let mut tasks = Vec::new();
    match subject {
        LinkSubject::PlainTcp | LinkSubject::TunedTcp => {
            for _ in 0..connections {
                let (stream, _) = socket.accept().await?;
                tasks.push(tokio::spawn(plain_tcp::receive(stream, size)));
            }
        }
        LinkSubject::Link => {
            let mut links = accept_links(socket);
            for _ in 0..connections {
                let accepted = links.recv().await.context("no link was accepted")?;
                tasks.push(tokio::spawn(receive_messages(accepted.link, size)));
            }
        }
    }
    let mut total = ReceiverTotals::default();
    for task in tasks {
        total.add(task.await?);
    }
    Ok(total)
}

async fn send(
    address: SocketAddr,
    messages: &NumberedMessages,
    connections: usize,
    duration: Duration,
    subject: LinkSubject,
) -> anyhow::Result<()> {
    let mut tasks = Vec::new();
    for _ in 0..connections {
        let mut messages = messages.clone();
        tasks.push(tokio::spawn(async move {
            match subject {
                LinkSubject::PlainTcp | LinkSubject::TunedTcp => {
                    let stream = TcpStream::connect(address).await?;
                    match subject {
                        LinkSubject::TunedTcp => configure_tcp(&stream)?,
                        _ => stream.set_nodelay(true)?,
                    }
                    plain_tcp::send(stream, &mut messages, duration).await?;
                }
                LinkSubject::Link => {
                    let link = connect_link(address);
                    link.connected().await?;
                    let until = Instant::now() + duration;
                    send_messages(&link, &mut messages, Priority::Normal, until).await?;
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

/// Measures what this process uses from now on.
struct UsageMeter {
    cpu_ns: u64,
    resident_bytes: u64,
}

impl UsageMeter {
    fn start() -> Self {
        // The highest resident memory counts from now on, where the kernel supports it.
        let _ = fs::write("/proc/self/clear_refs", "5");
        Self {
            cpu_ns: process_cpu_ns(),
            resident_bytes: memory_line("VmRSS:"),
        }
    }

    fn finish(&self) -> PeerUsage {
        PeerUsage {
            cpu_s: (process_cpu_ns() - self.cpu_ns) as f64 / 1e9,
            memory_bytes: memory_line("VmHWM:").saturating_sub(self.resident_bytes),
        }
    }
}

/// A line of `/proc/self/status`, in bytes; 0 where there is none.
fn memory_line(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kibibytes = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_this_process_is_found() {
        let peak = memory_line("VmHWM:");
        assert!(peak > 0 && memory_line("VmRSS:") <= memory_line("VmHWM:"));
        assert_eq!(memory_line("VmNothing:"), 0);
    }
}
