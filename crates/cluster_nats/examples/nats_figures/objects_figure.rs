//! Changes of objects: how many are stored, and when the other nodes know them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::{ClusterObjects as _, ExpectedRevision, ObjectChange};

use crate::Options;
use crate::nats_cluster::{NatsCluster, new_histogram, percentiles};

/// `writers` tasks store objects of `bytes` bytes one after the other.
pub(crate) async fn run(options: &Options) {
    let nodes = NatsCluster::start(options).await;
    let writers = options.number("writers", 1);
    let bytes = options.number("bytes", 1000) as usize;
    let mut changes = nodes.fabrics[1].objects().watch();
    while changes.recv().await != Some(ObjectChange::Complete) {}
    let began = Instant::now();
    while let Err(error) = nodes.fabrics[0]
        .objects()
        .put("first", Bytes::new(), ExpectedRevision::Any)
        .await
    {
        assert!(began.elapsed() < Duration::from_secs(60), "{error}");
    }
    let sent: Arc<Mutex<HashMap<Bytes, Instant>>> = Arc::default();
    let watched = Arc::clone(&sent);
    let watcher = tokio::spawn(async move {
        let mut delays = new_histogram();
        while let Some(change) = changes.recv().await {
            let ObjectChange::Put { key, entry } = change else {
                continue;
            };
            if key == "end" {
                break;
            }
            let began = watched
                .lock()
                .expect("no holder panics")
                .remove(&entry.value);
            if let Some(began) = began {
                delays.saturating_record(began.elapsed().as_micros() as u64);
            }
        }
        delays
    });
    let (began, cpu) = (Instant::now(), nodes.cpu());
    let mut tasks = Vec::new();
    for writer in 0..writers {
        let (objects, sent) = (nodes.fabrics[0].objects(), Arc::clone(&sent));
        let duration = options.duration();
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::new();
            let mut revision = None;
            let key = format!("object-{writer}");
            while began.elapsed() < duration {
                let expected =
                    revision.map_or(ExpectedRevision::Absent, ExpectedRevision::Revision);
                // Different each time, so that the watch tells which change it reports.
                let text = format!("{writer} {:>width$}", times.len(), width = bytes);
                let value = Bytes::from(text);
                let put = Instant::now();
                sent.lock()
                    .expect("no holder panics")
                    .insert(value.clone(), put);
                let stored = objects.put(&key, value, expected).await;
                revision = Some(stored.expect("it is stored"));
                times.push(put.elapsed());
            }
            times
        }));
    }
    let mut stored = new_histogram();
    for task in tasks {
        for time in task.await.expect("it does not panic") {
            stored.saturating_record(time.as_micros() as u64);
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let cpu = nodes.cpu().since(cpu);
    let end = nodes.fabrics[0]
        .objects()
        .put("end", Bytes::new(), ExpectedRevision::Any)
        .await;
    end.expect("it is stored");
    let delays = watcher.await.expect("it does not panic");
    println!(
        "{writers} writers, {bytes} B: {:.0} changes/s, stored {}, at the other node {}, {cpu}",
        stored.len() as f64 / seconds,
        percentiles(&stored),
        percentiles(&delays),
    );
}
