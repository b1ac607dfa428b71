//! `tidegate bench link network`: a proxy with delay and outages between both peers.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use link::config::LinkConfig;
use link::core::NewStream;
use link::net::{Link, MemoryNetwork, NetworkConditions};
use link::priority::Priority;
use link::wire::control::TransferId;
use tokio::net::{TcpListener, TcpStream};

use super::peers::{accept_links, connect_link, end, loopback_socket, runtime};
use crate::units;

/// Content that is written at a time.
const PIECE_BYTES: usize = 256 * 1024;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct LinkNetworkScenario {
    /// Round-trip time of the proxy
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = units::parse_duration)]
    round_trip: Duration,
    /// Length of an outage; repeatable [default: 5s and 10s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    outage: Vec<Duration>,
    /// Time to send before an outage and after it, and while the reader stands still
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_duration)]
    duration: Duration,
}

/// What a receiver of one stream reports.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    at: Instant,
    end: u64,
}

impl LinkNetworkScenario {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        runtime()?.block_on(async {
            self.long_round_trip().await?;
            let outages = match &self.outage[..] {
                [] => vec![Duration::from_secs(5), Duration::from_secs(10)],
                outages => outages.to_vec(),
            };
            for outage in outages {
                self.outage(outage).await?;
            }
            self.stalled_reader().await
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn conditions(&self) -> NetworkConditions {
        NetworkConditions {
            delay: self.round_trip / 2,
            ..NetworkConditions::default()
        }
    }

    /// The rate of one stream, beside what its window permits.
    async fn long_round_trip(&self) -> anyhow::Result<()> {
        let pair = Pair::open(self.conditions()).await?;
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
        println!(
            "round trip {:?}: {:.1} MB/s, {:.2} of the {:.1} MB/s that the window permits",
            self.round_trip,
            rate / 1e6,
            rate / permitted,
            permitted / 1e6
        );
        pair.end().await;
        Ok(())
    }

    /// The time from the return of the network to the first new content, and what was sent again.
    async fn outage(&self, outage: Duration) -> anyhow::Result<()> {
        let pair = Pair::open(self.conditions()).await?;
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
            Instant::now()
        };
        let (sent, arrivals, restored) = tokio::join!(sending, pair.receive(), interruption);
        let (sent, arrivals) = (sent?, arrivals?);
        let recovered = arrivals
            .iter()
            .find(|arrival| arrival.at >= restored)
            .context("nothing arrived after the outage")?;
        let transmitted = pair.client.statistics().transmitted_bytes;
        println!(
            "outage of {outage:?}: new content {:.0} ms after the return of the network, {:.1} MB of {:.1} MB sent again, nothing lost or repeated",
            recovered.at.duration_since(restored).as_secs_f64() * 1e3,
            transmitted.saturating_sub(sent) as f64 / 1e6,
            sent as f64 / 1e6,
        );
        pair.end().await;
        Ok(())
    }

    /// Messages while the reader of a stream stands still.
    async fn stalled_reader(&self) -> anyhow::Result<()> {
        let pair = Pair::open(self.conditions()).await?;
        let stream = pair.client.send_stream(new_stream()).await?;
        // More than the window: the stream stands still, too.
        let piece = Bytes::from(vec![0x5a; PIECE_BYTES]);
        let mut highest = Duration::ZERO;
        let messages = async {
            let until = Instant::now() + self.duration;
            let mut count = 0_u32;
            while Instant::now() < until {
                let start = Instant::now();
                let small = Bytes::from_static(b"small");
                pair.client.send(Priority::Normal, small).await?;
                pair.server.receive().await?;
                highest = highest.max(start.elapsed());
                count += 1;
            }
            anyhow::Ok(count)
        };
        let bulk = async {
            let mut offset = 0;
            loop {
                if let Err(error) = stream.write(offset, piece.clone()).await {
                    return error;
                }
                offset += PIECE_BYTES as u64;
            }
        };
        let count: anyhow::Result<u32> = tokio::select! {
            count = messages => count,
            error = bulk => Err(error.into()),
        };
        println!(
            "stalled reader: {} messages beside it, the slowest took {:.0} ms",
            count?,
            highest.as_secs_f64() * 1e3
        );
        Ok(())
    }
}

/// Both ends of a link, and the network between them.
struct Pair {
    client: Link,
    server: Link,
    network: MemoryNetwork,
}

impl Pair {
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

    /// Sends one stream until this time; returns its size.
    async fn send_until(&self, until: Instant) -> anyhow::Result<u64> {
        let stream = self.client.send_stream(new_stream()).await?;
        let piece = Bytes::from(vec![0x5a; PIECE_BYTES]);
        let mut offset = 0;
        while Instant::now() < until {
            stream.write(offset, piece.clone()).await?;
            offset += PIECE_BYTES as u64;
        }
        stream.finish(offset, None).await?;
        Ok(offset)
    }

    /// Receives one stream, whose content must come without a gap and once.
    async fn receive(&self) -> anyhow::Result<Vec<Arrival>> {
        let mut stream = self.server.receive_stream().await?;
        stream.accept(&Default::default());
        let mut arrivals = Vec::new();
        let mut end = 0;
        while let Ok(chunk) = stream.read().await? {
            anyhow::ensure!(
                chunk.offset == end,
                "content at {} came after {end}",
                chunk.offset
            );
            end = chunk.range().end;
            stream.acknowledge(chunk.range());
            arrivals.push(Arrival {
                at: Instant::now(),
                end,
            });
        }
        stream.complete();
        Ok(arrivals)
    }

    async fn end(&self) {
        end(&self.client).await;
    }
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
