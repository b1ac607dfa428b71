//! `tidegate bench link network`: a proxy with delay, outages and loss between both peers.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use link::config::LinkConfig;
use link::core::NewStream;
use link::net::{Link, MemoryNetwork, NetworkConditions};
use link::priority::Priority;
use link::wire::control::TransferId;
use tokio::net::{TcpListener, TcpStream};

use super::lossy_network;
use super::peers::{accept_links, connect_link, end, loopback_socket, runtime};
use crate::measured_cases::{CaseOutputArgs, MeasuredCase, MeasuredCases};
use crate::metrics::{MetricValues, latency_histogram};
use crate::units;

/// Content that is written at a time.
const PIECE_BYTES: usize = 256 * 1024;
/// Period of the content, a prime number.
const PATTERN_BYTES: usize = 251;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct LinkNetworkScenario {
    /// Round-trip time of the proxy
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = units::parse_duration)]
    round_trip: Duration,
    /// Length of an outage; repeatable [default: 5s and 10s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    outage: Vec<Duration>,
    /// Share of the packets that the proxy loses, over QUIC and without a delay
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = units::parse_fraction)]
    loss: f64,
    /// Time to send before an outage and after it, with loss, and while the reader is stalled
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_duration)]
    duration: Duration,
    /// Measure only these, repeatable [default: all]
    #[arg(long, value_enum)]
    only: Vec<NetworkCondition>,
    #[command(flatten)]
    output: CaseOutputArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum NetworkCondition {
    RoundTrip,
    Outage,
    Stall,
    Loss,
}

/// What a receiver of one stream reports.
#[derive(Debug, Clone, Copy)]
struct StreamArrival {
    at: Instant,
    end: u64,
}

impl LinkNetworkScenario {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let mut outcome = MeasuredCases::new(&self.output);
        let is_wanted = |condition| self.only.is_empty() || self.only.contains(&condition);
        runtime()?.block_on(async {
            if is_wanted(NetworkCondition::RoundTrip) {
                self.long_round_trip(&mut outcome).await?;
            }
            if is_wanted(NetworkCondition::Outage) {
                let outages = match &self.outage[..] {
                    [] => vec![Duration::from_secs(5), Duration::from_secs(10)],
                    outages => outages.to_vec(),
                };
                for outage in outages {
                    self.outage(outage, &mut outcome).await?;
                }
            }
            if is_wanted(NetworkCondition::Stall) {
                self.stalled_reader(&mut outcome).await?;
            }
            if is_wanted(NetworkCondition::Loss) {
                self.loss(&mut outcome).await?;
            }
            anyhow::Ok(())
        })?;
        outcome.finish("link network")
    }

    fn conditions(&self) -> NetworkConditions {
        NetworkConditions {
            delay: self.round_trip / 2,
            ..NetworkConditions::default()
        }
    }

    /// The rate of one stream, beside what its window permits.
    async fn long_round_trip(&self, outcome: &mut MeasuredCases<'_>) -> anyhow::Result<()> {
        let pair = LinkPair::open(self.conditions()).await?;
        let sending = pair.send_until(Instant::now() + self.duration);
        let (sent, arrivals) = tokio::join!(sending, pair.receive());
        let (_, arrivals) = (sent?, arrivals?);
        // The window opens during the first round trips.
        let (Some(first), Some(last)) = (arrivals.get(arrivals.len() / 10), arrivals.last()) else {
            anyhow::bail!("nothing arrived");
        };
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        let rate = (last.end - first.end) as f64 / seconds;
        let window = LinkConfig::default().limits.stream_window_bytes;
        let permitted = window as f64 / self.round_trip.as_secs_f64();
        let line = format!(
            "round trip {:?}: {:.1} MB/s, {:.2} of the {:.1} MB/s that the window permits",
            self.round_trip,
            rate / 1e6,
            rate / permitted,
            permitted / 1e6
        );
        let mut measures = MetricValues::default();
        measures.set("payload_rate", rate);
        measures.set("window_use", rate / permitted);
        let name = format!("round trip {:?}", self.round_trip);
        outcome.add(MeasuredCase { name, measures }, &line);
        pair.end().await;
        Ok(())
    }

    /// The time from the return of the network until the sender continues and until the first new content arrives, and what
    /// was sent again.
    async fn outage(
        &self,
        outage: Duration,
        outcome: &mut MeasuredCases<'_>,
    ) -> anyhow::Result<()> {
        let pair = LinkPair::open(self.conditions()).await?;
        let network = pair.network.clone();
        let conditions = self.conditions();
        let duration = self.duration;
        let sending = pair.send_until(Instant::now() + duration + outage + duration);
        let interruption = async {
            tokio::time::sleep(duration).await;
            network.set_conditions(NetworkConditions {
                is_down: true,
                ..conditions
            });
            network.cut();
            tokio::time::sleep(outage).await;
            network.set_conditions(conditions);
            let restored = Instant::now();
            // The sender has learned what the receiver has.
            pair.client.connected().await?;
            anyhow::Ok((restored, restored.elapsed()))
        };
        let (sent, arrivals, interrupted) = tokio::join!(sending, pair.receive(), interruption);
        let (sent, arrivals, (restored, resumption)) = (sent?, arrivals?, interrupted?);
        let recovered = arrivals
            .iter()
            .find(|arrival| arrival.at >= restored)
            .context("nothing arrived after the outage")?;
        let recovery = recovered.at.duration_since(restored);
        // What was in transit when the carriers broke is lost and counts only if it arrives twice.
        let resent = pair.server.statistics().repeated_bytes;
        let line = format!(
            "outage of {outage:?}: sender continues {:.0} ms after the return of the network, new content after {:.0} ms, {resent} bytes of {:.1} MB received again, nothing lost or repeated",
            resumption.as_secs_f64() * 1e3,
            recovery.as_secs_f64() * 1e3,
            sent as f64 / 1e6,
        );
        let mut measures = MetricValues::default();
        measures.set("resumption", resumption.as_nanos() as f64);
        measures.set("recovery", recovery.as_nanos() as f64);
        measures.set("resent", resent as f64);
        let name = format!("outage of {outage:?}");
        outcome.add(MeasuredCase { name, measures }, &line);
        pair.end().await;
        Ok(())
    }

    /// Messages while the reader of a stream is stalled and all buffers of the stream are full, and how the stream
    /// continues.
    async fn stalled_reader(&self, outcome: &mut MeasuredCases<'_>) -> anyhow::Result<()> {
        let pair = LinkPair::open(self.conditions()).await?;
        let stream = pair.client.send_stream(new_stream()).await?;
        let mut incoming = pair.server.receive_stream().await?;
        incoming.accept(&Default::default());
        let piece = Bytes::from(vec![0x5a; PIECE_BYTES]);
        let mut latency = latency_histogram();
        let messages = async {
            let until = Instant::now() + self.duration;
            while Instant::now() < until {
                let start = Instant::now();
                let small = Bytes::from_static(b"small");
                pair.client.send(Priority::Normal, small).await?;
                pair.server.receive().await?;
                latency.saturating_record(start.elapsed().as_nanos() as u64);
            }
            anyhow::Ok(())
        };
        // More than the window: the stream is stalled, too.
        let bulk = async {
            let mut offset = 0;
            loop {
                if let Err(error) = stream.write(offset, piece.clone()).await {
                    return anyhow::Error::from(error);
                }
                offset += PIECE_BYTES as u64;
            }
        };
        tokio::pin!(bulk);
        tokio::select! {
            sent = messages => sent?,
            error = &mut bulk => return Err(error),
        }
        // What is in the receiver's memory is read at once. The next content shows that the sender continues.
        let window = LinkConfig::default().limits.stream_window_bytes;
        let resumed = Instant::now();
        let reading = async {
            let mut end = 0;
            while end <= window {
                let chunk = incoming.read().await?;
                let chunk = chunk.map_err(|_| anyhow::anyhow!("the stream ended"))?;
                anyhow::ensure!(chunk.offset == end, "content is missing at {end}");
                end = chunk.range().end;
                incoming.acknowledge(chunk.range());
            }
            anyhow::Ok(resumed.elapsed())
        };
        let recovery = tokio::select! {
            recovery = reading => recovery?,
            error = &mut bulk => return Err(error),
        };
        let mut measures = MetricValues::default();
        measures.set_latencies("", &latency);
        measures.set("recovery", recovery.as_nanos() as f64);
        let line = format!(
            "stalled reader: {} messages beside it, the slowest took {:.0} ms; new content {:.0} ms after it has resumed",
            latency.len(),
            latency.max() as f64 / 1e6,
            recovery.as_secs_f64() * 1e3
        );
        let name = "stalled reader".to_owned();
        outcome.add(MeasuredCase { name, measures }, &line);
        Ok(())
    }

    /// One stream over QUIC while packets are lost.
    async fn loss(&self, outcome: &mut MeasuredCases<'_>) -> anyhow::Result<()> {
        let (client, server, counts) = lossy_network::open_pair(self.loss).await?;
        let sending = send_until(&client, Instant::now() + self.duration);
        let (sent, arrivals) = tokio::join!(sending, receive(&server));
        let (sent, arrivals) = (sent?, arrivals?);
        let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else {
            anyhow::bail!("nothing arrived");
        };
        let seconds = last.at.duration_since(first.at).as_secs_f64().max(1e-9);
        let rate = last.end as f64 / seconds;
        let lost = counts.lost.load(Ordering::Relaxed);
        let packets = lost + counts.forwarded.load(Ordering::Relaxed);
        let resent = server.statistics().repeated_bytes;
        anyhow::ensure!(last.end == sent, "{} of {sent} bytes arrived", last.end);
        let line = format!(
            "QUIC, {:.2} % of {packets} packets lost: {:.1} MB/s, nothing lost or repeated",
            lost as f64 / packets.max(1) as f64 * 100.0,
            rate / 1e6,
        );
        let mut measures = MetricValues::default();
        measures.set("payload_rate", rate);
        measures.set("resent", resent as f64);
        let name = "loss over QUIC".to_owned();
        outcome.add(MeasuredCase { name, measures }, &line);
        end(&client).await;
        Ok(())
    }
}

/// Both ends of a link, and the network between them.
struct LinkPair {
    client: Link,
    server: Link,
    network: MemoryNetwork,
}

impl LinkPair {
    async fn open(conditions: NetworkConditions) -> anyhow::Result<Self> {
        let network = MemoryNetwork::default();
        network.set_conditions(conditions);
        let (target_socket, target) = loopback_socket().await?;
        let (proxy_socket, proxy) = loopback_socket().await?;
        tokio::spawn(forward(proxy_socket, target, network.clone()));
        let mut links = accept_links(target_socket);
        let client = connect_link(proxy);
        let server = links.recv().await.context("no link was accepted")?.link;
        client.connected().await?;
        Ok(Self {
            client,
            server,
            network,
        })
    }

    async fn send_until(&self, until: Instant) -> anyhow::Result<u64> {
        send_until(&self.client, until).await
    }

    async fn receive(&self) -> anyhow::Result<Vec<StreamArrival>> {
        receive(&self.server).await
    }

    async fn end(&self) {
        end(&self.client).await;
    }
}

/// The byte at an offset of the content: a prime period, so that no piece or chunk equals another one.
fn pattern(offset: u64) -> usize {
    (offset % PATTERN_BYTES as u64) as usize
}

/// Content from any offset within a period on.
fn pattern_bytes() -> Bytes {
    (0..PATTERN_BYTES + PIECE_BYTES)
        .map(|at| (at % PATTERN_BYTES) as u8)
        .collect()
}

/// Sends one stream until this time; returns its size.
async fn send_until(client: &Link, until: Instant) -> anyhow::Result<u64> {
    let stream = client.send_stream(new_stream()).await?;
    let content = pattern_bytes();
    let mut offset = 0;
    while Instant::now() < until {
        let start = pattern(offset);
        let piece = content.slice(start..start + PIECE_BYTES);
        stream.write(offset, piece).await?;
        offset += PIECE_BYTES as u64;
    }
    stream.finish(offset, None).await?;
    Ok(offset)
}

/// Receives one stream, whose content must come without a gap and once.
async fn receive(server: &Link) -> anyhow::Result<Vec<StreamArrival>> {
    let mut stream = server.receive_stream().await?;
    stream.accept(&Default::default());
    let content = pattern_bytes();
    let mut arrivals = Vec::new();
    let mut end = 0;
    while let Ok(chunk) = stream.read().await? {
        let start = pattern(end);
        anyhow::ensure!(
            chunk.offset == end && chunk.bytes == content[start..start + chunk.bytes.len()],
            "content at {} came after {end}, or is not what was sent",
            chunk.offset
        );
        end = chunk.range().end;
        stream.acknowledge(chunk.range());
        arrivals.push(StreamArrival {
            at: Instant::now(),
            end,
        });
    }
    stream.complete();
    Ok(arrivals)
}

fn new_stream() -> NewStream {
    NewStream {
        priority: Priority::Bulk,
        transfer_id: TransferId([1; 16]),
        size: None,
        digest: None,
        metadata: Vec::new(),
        is_resume: false,
    }
}

/// Connects every connection to `target` through the network.
async fn forward(socket: TcpListener, target: SocketAddr, network: MemoryNetwork) {
    while let Ok((near, _)) = socket.accept().await {
        if network.is_down() {
            continue;
        }
        if let Ok(far) = TcpStream::connect(target).await {
            let _ = near.set_nodelay(true).and_then(|()| far.set_nodelay(true));
            network.join(near, far);
        }
    }
}
