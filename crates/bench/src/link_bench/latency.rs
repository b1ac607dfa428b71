//! `tidegate bench link latency`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::ValueEnum;
use hdrhistogram::Histogram;
use link::net::{Link, LinkError};
use link::priority::Priority;
use link::size_class::{SizeClass, SizeClassTable};

use super::peers::{
    NumberedMessages, ReceiverTotals, accept_links, connect_link, end, loopback_socket,
    receive_messages, runtime, send_messages,
};
use crate::measured_cases::{CaseOutputArgs, MeasuredCase, MeasuredCases};
use crate::metrics::{MetricValues, latency_histogram};
use crate::units;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct LinkLatencyScenario {
    /// Size of the messages of the saturating stream
    #[arg(long, value_name = "BYTES", default_value = "50MB", value_parser = units::parse_bytes)]
    bulk_size: usize,
    /// Size of the small messages
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = units::parse_bytes)]
    message: usize,
    /// Measure only this, repeatable [default: both]
    #[arg(long, value_enum)]
    only: Vec<LatencyCondition>,
    /// Time between two small messages
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = units::parse_duration)]
    interval: Duration,
    /// Time to send
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_duration)]
    duration: Duration,
    #[command(flatten)]
    output: CaseOutputArgs,
}

/// What else is sent meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LatencyCondition {
    Alone,
    BesideStream,
}

/// The time when a message was due is at its begin.
const STAMP_BYTES: usize = 8;

impl LinkLatencyScenario {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        ensure!(
            self.message >= STAMP_BYTES,
            "--message {} is too short; expected at least {STAMP_BYTES} bytes",
            self.message
        );
        ensure!(
            !is_huge(self.message) || self.only == [LatencyCondition::Alone],
            "--message {} is transferred as a stream, which can only be measured with --only alone",
            self.message
        );
        ensure!(!self.interval.is_zero(), "--interval must be more than 0 s");
        let mut outcome = MeasuredCases::new(&self.output);
        for condition in [LatencyCondition::Alone, LatencyCondition::BesideStream] {
            if !self.only.is_empty() && !self.only.contains(&condition) {
                continue;
            }
            let is_saturated = condition == LatencyCondition::BesideStream;
            let (histogram, bulk_bytes, seconds) = self.measure(is_saturated)?;
            let ms = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e6;
            let name = if is_saturated {
                "beside a saturating stream"
            } else {
                "alone"
            };
            let line = format!(
                "{name}: {} small messages, p50 {:.3} ms, p99 {:.3} ms, p99.9 {:.3} ms, highest {:.3} ms, bulk {:.0} MB/s",
                histogram.len(),
                ms(0.5),
                ms(0.99),
                ms(0.999),
                histogram.max() as f64 / 1e6,
                bulk_bytes as f64 / seconds / 1e6,
            );
            let mut measures = MetricValues::default();
            measures.set("received", histogram.len() as f64);
            measures.set_latencies("", &histogram);
            measures.set("payload_rate", bulk_bytes as f64 / seconds);
            let name = name.to_owned();
            outcome.add(MeasuredCase { name, measures }, &line);
        }
        outcome.finish("link latency")
    }

    fn measure(&self, is_saturated: bool) -> anyhow::Result<(Histogram<u64>, u64, f64)> {
        let origin = Instant::now();
        let (address_sender, address) = std::sync::mpsc::channel();
        let bulk_size = self.bulk_size;
        let is_huge = is_huge(self.message);
        let receiver = std::thread::spawn(move || -> anyhow::Result<_> {
            runtime()?.block_on(async move {
                let (socket, local) = loopback_socket().await?;
                address_sender.send(local).context("the sender is gone")?;
                let mut links = accept_links(socket);
                let link = links.recv().await.context("no link was accepted")?.link;
                let small = tokio::spawn(receive_small(link.clone(), is_huge, origin));
                let bulk = is_saturated.then(|| tokio::spawn(receive_messages(link, bulk_size)));
                let small = small.await?;
                let bulk = match bulk {
                    Some(bulk) => bulk.await?,
                    None => ReceiverTotals::default(),
                };
                Ok((small, bulk))
            })
        });
        let address = address.recv().context("the receiver did not start")?;
        let end_time = Instant::now() + self.duration;
        let (interval, small_bytes) = (self.interval, self.message);
        runtime()?.block_on(async move {
            let link = connect_link(address);
            link.connected().await?;
            let bulk = is_saturated.then(|| {
                let link = link.clone();
                let mut messages = NumberedMessages::new(bulk_size);
                tokio::spawn(async move {
                    send_messages(&link, &mut messages, Priority::Bulk, end_time).await
                })
            });
            send_small(&link, (interval, small_bytes), origin, end_time).await?;
            if let Some(bulk) = bulk {
                bulk.await??;
            }
            end(&link).await;
            anyhow::Ok(())
        })?;
        let (histogram, bulk) = receiver
            .join()
            .map_err(|_| anyhow::anyhow!("the receiver failed"))??;
        Ok((histogram, bulk.bytes, bulk.seconds.max(1e-9)))
    }
}

fn is_huge(bytes: usize) -> bool {
    SizeClassTable::default().classify(bytes) == SizeClass::Huge
}

/// The time counts from when a message was due, so that a delay of the sender is not hidden.
async fn send_small(
    link: &Link,
    (interval, bytes): (Duration, usize),
    origin: Instant,
    end: Instant,
) -> anyhow::Result<()> {
    let mut due = Instant::now();
    while due < end {
        // Timers of tokio are up to two milliseconds late, and a thread that sleeps needs a core when it is due: with two
        // cores, both of which a stream saturates, the time would mostly be that of the scheduler of the system.
        while Instant::now() < due {
            tokio::task::yield_now().await;
        }
        let mut payload = vec![0; bytes];
        let at = due.duration_since(origin).as_nanos() as u64;
        payload[..STAMP_BYTES].copy_from_slice(&at.to_le_bytes());
        link.send(Priority::High, Bytes::from(payload)).await?;
        due += interval;
    }
    Ok(())
}

/// Latencies of small messages, or of messages so large that links transfer them as streams.
async fn receive_small(link: Link, is_huge: bool, origin: Instant) -> Histogram<u64> {
    let mut histogram = latency_histogram();
    let stamp = async || match is_huge {
        true => receive_stream_stamp(&link).await,
        false => {
            let message = link.receive().await?;
            Ok(message.payload.into_bytes().first_chunk().copied())
        }
    };
    while let Ok(stamp) = stamp().await {
        if let Some(at) = stamp {
            let now = origin.elapsed().as_nanos() as u64;
            histogram.saturating_record(now.saturating_sub(u64::from_le_bytes(at)));
        }
    }
    histogram
}

/// The begin of one stream, after all of it has arrived.
async fn receive_stream_stamp(link: &Link) -> Result<Option<[u8; STAMP_BYTES]>, LinkError> {
    let mut stream = link.receive_stream().await?;
    stream.accept(&Default::default());
    let mut stamp = None;
    while let Ok(chunk) = stream.read().await? {
        if chunk.offset == 0 {
            stamp = chunk.bytes.first_chunk().copied();
        }
        stream.acknowledge(chunk.range());
    }
    stream.complete();
    Ok(stamp)
}
