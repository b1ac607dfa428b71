//! Records in replicated streams: how many are acknowledged, and after what time.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, stream};
use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc};

use crate::Options;
use crate::nats_cluster::{NatsCluster, new_histogram, percentiles};

const MESSAGE_BYTES: u64 = 100;

/// `bytes` is the size of a record, `streams` their number, `window` the records of a stream that wait for their
/// acknowledgement, and `rate` the records per second of all streams, or 0 for as many as pass.
pub(crate) async fn run(options: &Options) {
    let nodes = NatsCluster::start(options).await;
    let streams = options.number("streams", 1);
    let window = options.number("window", 16) as usize;
    let rate = options.number("rate", 0);
    let bytes = options.number("bytes", 65_536) as usize;
    let replicas = options.number("replicas", 3) as usize;
    let client = connect(&nodes).await;
    let context = jetstream::ContextBuilder::new()
        .timeout(Duration::from_secs(30))
        .ack_timeout(Duration::from_secs(30))
        .build(client);
    for number in 0..streams {
        let config = stream::Config {
            name: format!("LOG_{number}"),
            subjects: vec![format!("log.{number}")],
            num_replicas: replicas,
            max_bytes: 2 << 30,
            ..stream::Config::default()
        };
        let began = Instant::now();
        while let Err(error) = context.create_stream(config.clone()).await {
            assert!(began.elapsed() < Duration::from_secs(60), "{error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (times, mut acknowledged) = mpsc::unbounded_channel();
    let (began, cpu) = (Instant::now(), nodes.cpu());
    let mut writers = Vec::new();
    for number in 0..streams {
        let (context, times) = (context.clone(), times.clone());
        let duration = options.duration();
        let record = Bytes::from(vec![b'x'; bytes]);
        let pause = (rate > 0).then(|| Duration::from_secs_f64(streams as f64 / rate as f64));
        writers.push(tokio::spawn(async move {
            let permits = Arc::new(Semaphore::new(window));
            let mut due = Instant::now();
            while began.elapsed() < duration {
                // The time that a record waits for others counts as well.
                let wanted = match pause {
                    Some(pause) => {
                        tokio::time::sleep_until(due.into()).await;
                        let wanted = due;
                        due += pause;
                        wanted
                    }
                    None => Instant::now(),
                };
                let permit = Arc::clone(&permits)
                    .acquire_owned()
                    .await
                    .expect("it is open");
                let subject = format!("log.{number}");
                let sent = context
                    .publish(subject, record.clone())
                    .await
                    .expect("it is sent");
                let times = times.clone();
                tokio::spawn(async move {
                    sent.into_future().await.expect("it is acknowledged");
                    let _ = times.send(Instant::now().saturating_duration_since(wanted));
                    drop(permit);
                });
            }
        }));
    }
    drop(times);
    let mut histogram = new_histogram();
    while let Some(time) = acknowledged.recv().await {
        histogram.saturating_record(time.as_micros() as u64);
    }
    for writer in writers {
        writer.await.expect("it does not panic");
    }
    let seconds = began.elapsed().as_secs_f64();
    let cpu = nodes.cpu().since(cpu);
    let messages = histogram.len() * (bytes as u64 / MESSAGE_BYTES).max(1);
    println!(
        "{streams} streams, R{replicas}, {bytes} B, window {window}: {:.0} records/s, {:.1} MB/s, {:.0} k messages/s, {}, {cpu}",
        histogram.len() as f64 / seconds,
        (histogram.len() * bytes as u64) as f64 / seconds / 1e6,
        messages as f64 / seconds / 1e3,
        percentiles(&histogram),
    );
}

async fn connect(nodes: &NatsCluster) -> async_nats::Client {
    let settings = nodes.servers[0].connection();
    let cluster_nats::NatsAuth::Password { user, password } = settings.auth else {
        panic!("managed servers have passwords");
    };
    async_nats::ConnectOptions::new()
        .user_and_password(user, password.reveal().to_owned())
        .ignore_discovered_servers()
        .connect(&settings.urls[0])
        .await
        .expect("the server runs")
}
