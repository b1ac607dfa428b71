//! A publisher and a subscriber that exchange small messages at a constant rate, each on a thread of its own.
//!
//! Both wait in the kernel. Timers of tokio are up to two milliseconds late, and a thread that also serves devices
//! learns late that a message has arrived. The time of a message counts from when it was due until the subscriber has
//! decoded it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use hdrhistogram::Histogram;
use load_client::latency::latency_histogram;
use mqtt::Packet;
use tokio::runtime::Runtime;

use super::client::BenchClient;
use crate::host::pin_to_core;

const TOPIC: &str = "bench/other";
const MESSAGE_BYTES: usize = 100;
/// How long the last messages may take.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// How the clients run.
#[derive(Debug, Clone)]
pub(super) struct OtherClientsPlan {
    /// Of the node's MQTT listener.
    pub(super) address: String,
    /// Time between two messages.
    pub(super) interval: Duration,
    /// The core of both threads; `None`: those of the thread that starts them.
    pub(super) core: Option<usize>,
}

/// Clients that run until they are stopped.
pub(super) struct OtherClients {
    is_stopping: Arc<AtomicBool>,
    publisher: JoinHandle<anyhow::Result<()>>,
    histogram: mpsc::Receiver<anyhow::Result<Histogram<u64>>>,
}

impl OtherClients {
    /// Returns when the subscriber is connected.
    pub(super) fn start(plan: &OtherClientsPlan) -> anyhow::Result<Self> {
        let origin = Instant::now();
        let (subscribed, is_subscribed) = mpsc::channel();
        let (result, histogram) = mpsc::channel();
        let subscriber_plan = plan.clone();
        let receive = move || {
            let received = subscribe(&subscriber_plan).and_then(|(runtime, subscriber)| {
                subscribed.send(()).context("the benchmark has ended")?;
                runtime.block_on(receive_all(subscriber, origin))
            });
            // The benchmark may have failed in the meantime.
            let _ = result.send(received);
        };
        Builder::new()
            .name("other-subscriber".to_owned())
            .spawn(receive)?;
        if is_subscribed.recv().is_err() {
            histogram.recv().context("the subscriber panicked")??;
        }
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (plan, stopping) = (plan.clone(), is_stopping.clone());
        let publish = move || publish_all(&plan, origin, &stopping);
        let thread = Builder::new().name("other-publisher".to_owned());
        Ok(Self {
            is_stopping,
            publisher: thread.spawn(publish)?,
            histogram,
        })
    }

    /// The latencies of all messages in nanoseconds.
    pub(super) fn stop(self) -> anyhow::Result<Histogram<u64>> {
        self.is_stopping.store(true, Relaxed);
        let published = self.publisher.join();
        published.ok().context("the publisher panicked")??;
        match self.histogram.recv_timeout(DRAIN_TIMEOUT) {
            Ok(histogram) => histogram,
            Err(RecvTimeoutError::Timeout) => bail!("messages of the other clients were lost"),
            Err(RecvTimeoutError::Disconnected) => bail!("the subscriber panicked"),
        }
    }
}

/// A message of the publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OtherMessage {
    /// When it was due, in nanoseconds since the origin.
    due_ns: u64,
    number: u64,
    is_last: bool,
}

impl OtherMessage {
    fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..8].copy_from_slice(&self.due_ns.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16] = u8::from(self.is_last);
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (due_ns, rest) = bytes.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        Some(Self {
            due_ns: u64::from_le_bytes(*due_ns),
            number: u64::from_le_bytes(*number),
            is_last: *rest.first()? != 0,
        })
    }
}

fn connect(plan: &OtherClientsPlan, client_id: &str) -> anyhow::Result<(Runtime, BenchClient)> {
    if let Some(core) = plan.core {
        pin_to_core(core)?;
    }
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build()?;
    let client = runtime.block_on(BenchClient::connect(&plan.address, client_id, None))?;
    Ok((runtime, client))
}

fn subscribe(plan: &OtherClientsPlan) -> anyhow::Result<(Runtime, BenchClient)> {
    let (runtime, mut subscriber) = connect(plan, "bench-subscriber")?;
    runtime.block_on(subscriber.subscribe(TOPIC))?;
    Ok((runtime, subscriber))
}

/// Publishes until it is stopped, and then one more message, which ends the subscriber.
fn publish_all(
    plan: &OtherClientsPlan,
    origin: Instant,
    is_stopping: &AtomicBool,
) -> anyhow::Result<()> {
    let (runtime, mut publisher) = connect(plan, "bench-publisher")?;
    let mut due = Instant::now();
    for number in 0.. {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let message = OtherMessage {
            due_ns: due.duration_since(origin).as_nanos() as u64,
            number,
            is_last: is_stopping.load(Relaxed),
        };
        runtime.block_on(publisher.publish(TOPIC, &message.to_bytes()))?;
        if message.is_last {
            break;
        }
        due += plan.interval;
    }
    Ok(())
}

async fn receive_all(
    mut subscriber: BenchClient,
    origin: Instant,
) -> anyhow::Result<Histogram<u64>> {
    let mut histogram = latency_histogram();
    loop {
        let message = subscriber.receive(|packet| match packet {
            Packet::Publish(publish) => OtherMessage::parse(publish.payload),
            _ => None,
        });
        let message = message.await?;
        ensure!(
            message.number == histogram.len(),
            "messages of the other clients were lost: number {} follows {} messages",
            message.number,
            histogram.len()
        );
        let now_ns = origin.elapsed().as_nanos() as u64;
        histogram.saturating_record(now_ns.saturating_sub(message.due_ns));
        if message.is_last {
            return Ok(histogram);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let message = OtherMessage {
            due_ns: u64::MAX - 5,
            number: 7,
            is_last: true,
        };
        assert_eq!(OtherMessage::parse(&message.to_bytes()), Some(message));
        assert_eq!(OtherMessage::parse(&[1; 16]), None);
    }
}
