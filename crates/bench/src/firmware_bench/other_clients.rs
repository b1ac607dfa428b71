//! A publisher and a subscriber that exchange small messages at a constant rate, on a thread of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use load_client::latency::latency_histogram;
use mqtt::Packet;

use super::client::BenchClient;

const TOPIC: &str = "bench/other";
const MESSAGE_BYTES: usize = 100;
/// How long the last messages may take.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Clients that run until they are stopped.
pub(super) struct OtherClients {
    is_stopping: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Histogram<u64>>>,
}

impl OtherClients {
    pub(super) fn start(address: &str, interval: Duration) -> anyhow::Result<Self> {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (address, stopping) = (address.to_owned(), is_stopping.clone());
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build()?;
        let run = move || runtime.block_on(exchange(address, interval, stopping));
        let thread = std::thread::Builder::new().name("other-clients".to_owned());
        Ok(Self {
            is_stopping,
            thread: thread.spawn(run)?,
        })
    }

    /// The latencies of all messages in nanoseconds.
    pub(super) fn stop(self) -> anyhow::Result<Histogram<u64>> {
        self.is_stopping.store(true, Relaxed);
        self.thread
            .join()
            .ok()
            .context("the other clients panicked")?
    }
}

/// The time of a message counts from when it was due, so that a delay of the publisher is not hidden.
async fn exchange(
    address: String,
    interval: Duration,
    is_stopping: Arc<AtomicBool>,
) -> anyhow::Result<Histogram<u64>> {
    let mut subscriber = BenchClient::connect(&address, "bench-subscriber", None).await?;
    subscriber.subscribe(TOPIC).await?;
    let mut publisher = BenchClient::connect(&address, "bench-publisher", None).await?;
    let origin = Instant::now();
    let publishing = tokio::spawn(async move {
        let mut due = Instant::now();
        let mut count = 0u64;
        while !is_stopping.load(Relaxed) {
            tokio::time::sleep_until(due.into()).await;
            let mut payload = [0; MESSAGE_BYTES];
            let at = due.duration_since(origin).as_nanos() as u64;
            payload[..8].copy_from_slice(&at.to_le_bytes());
            publisher.publish(TOPIC, &payload).await?;
            count += 1;
            due += interval;
        }
        anyhow::Ok((publisher, count))
    });
    let mut histogram = latency_histogram();
    let mut received = 0u64;
    let mut sent = None;
    tokio::pin!(publishing);
    loop {
        tokio::select! {
            result = &mut publishing, if sent.is_none() => sent = Some(result??),
            message = subscriber.receive(|packet| match packet {
                Packet::Publish(publish) => publish.payload.first_chunk().copied(),
                _ => None,
            }) => {
                let at = u64::from_le_bytes(message?);
                let now = origin.elapsed().as_nanos() as u64;
                histogram.saturating_record(now.saturating_sub(at));
                received += 1;
            }
            () = tokio::time::sleep(DRAIN_TIMEOUT), if sent.is_some() => {
                anyhow::bail!("messages of the other clients were lost");
            }
        }
        if sent.as_ref().is_some_and(|(_, count)| received >= *count) {
            return Ok(histogram);
        }
    }
}
