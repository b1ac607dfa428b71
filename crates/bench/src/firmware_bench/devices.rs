//! Devices that download one image, all at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use content::{ContentDigest, ContentHasher};
use mqtt::Packet;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::client::BenchClient;

/// The highest value of `nice`.
const LOWEST_PRIORITY: i32 = 19;
/// Devices that connect at a time.
const CONNECTING: usize = 100;
/// After this time without an answer a device repeats its request, as the protocol requires of it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests for one chunk.
const MAX_ATTEMPTS: u32 = 6;

/// What devices download.
#[derive(Debug, Clone)]
pub(super) struct DownloadPlan {
    /// Of the node's MQTT listener.
    pub(super) address: String,
    pub(super) devices: u32,
    pub(super) chunk: u64,
    pub(super) size: u64,
    pub(super) digest: ContentDigest,
}

impl DownloadPlan {
    /// The access token of a device, which is also its id.
    pub(super) fn token(&self, number: u32) -> String {
        format!("bench-{number}")
    }
}

/// What all devices have done.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Downloads {
    /// Devices that have verified the image.
    pub(super) complete: u64,
    /// Devices that have got another content.
    pub(super) faults: u64,
    pub(super) repeated: u64,
}

/// Connects all devices, calls `connected`, and then lets all of them download the image. When each has it, calls
/// `downloaded` before the thread of the devices ends. Returns the time that the downloads took, too.
///
/// It runs on a thread with the lowest priority, so that it does not delay threads that measure on the same core.
pub(super) fn download_all(
    plan: &DownloadPlan,
    connected: impl FnOnce() -> anyhow::Result<()> + Send,
    downloaded: impl FnOnce() + Send,
) -> anyhow::Result<(Downloads, Duration)> {
    std::thread::scope(|scope| {
        let run = || {
            // Only the kernel's scheduling would differ without it.
            let _ = rustix::process::nice(LOWEST_PRIORITY);
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().build()?;
            let result = runtime.block_on(run_devices(plan, connected));
            downloaded();
            result
        };
        let thread = std::thread::Builder::new().name("devices".to_owned());
        let thread = thread.spawn_scoped(scope, run)?;
        thread.join().ok().context("a device panicked")?
    })
}

async fn run_devices(
    plan: &DownloadPlan,
    connected: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<(Downloads, Duration)> {
    let plan = Arc::new(plan.clone());
    let connecting = Arc::new(Semaphore::new(CONNECTING));
    let mut tasks = JoinSet::new();
    for number in 0..plan.devices {
        let (plan, connecting) = (plan.clone(), connecting.clone());
        tasks.spawn(async move {
            let _permit = connecting.acquire_owned().await?;
            let token = plan.token(number);
            let mut client = BenchClient::connect(&plan.address, &token, Some(&token)).await?;
            client.subscribe("v2/fw/response/+/chunk/+").await?;
            anyhow::Ok(client)
        });
    }
    let mut clients = Vec::new();
    while let Some(client) = tasks.join_next().await {
        clients.push(client.context("a device panicked")??);
    }
    connected()?;
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for mut client in clients {
        let plan = plan.clone();
        tasks.spawn(async move { download(&plan, &mut client).await });
    }
    let mut downloads = Downloads::default();
    while let Some(result) = tasks.join_next().await {
        // After one error the others wait in vain.
        let (digest, repeated) = result.context("a device panicked")??;
        downloads.repeated += repeated;
        match digest == plan.digest {
            true => downloads.complete += 1,
            false => downloads.faults += 1,
        }
    }
    Ok((downloads, begin.elapsed()))
}

/// Downloads the image; returns its digest and the number of repeated requests.
async fn download(
    plan: &DownloadPlan,
    client: &mut BenchClient,
) -> anyhow::Result<(ContentDigest, u64)> {
    let mut hasher = ContentHasher::new(plan.digest.algorithm);
    let chunk = plan.chunk.to_string();
    let mut repeated = 0;
    for index in 0..plan.size.div_ceil(plan.chunk) {
        let request = format!("v2/fw/request/1/chunk/{index}");
        let response = format!("v2/fw/response/1/chunk/{index}");
        let mut attempt = 1;
        loop {
            client.publish(&request, chunk.as_bytes()).await?;
            let hasher = &mut hasher;
            let answer = client.receive(|packet| match packet {
                Packet::Publish(publish) if publish.topic == response => {
                    hasher.update(publish.payload);
                    Some(())
                }
                _ => None,
            });
            match timeout(ANSWER_TIMEOUT, answer).await {
                Ok(answer) => break answer?,
                Err(_) if attempt < MAX_ATTEMPTS => {
                    attempt += 1;
                    repeated += 1;
                }
                Err(_) => anyhow::bail!("the node does not answer the request for chunk {index}"),
            }
        }
    }
    Ok((hasher.finish(), repeated))
}
