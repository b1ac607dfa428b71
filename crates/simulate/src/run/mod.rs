//! A run: threads with devices, and a coordinator that goes through the phases.

mod command_sender;
mod coordinator;
mod device_connection;
mod fetched_image;
mod live_latency;
mod memory_connection;
mod metrics_endpoint;
mod phase_counts;
mod process_memory;
mod run_control;
mod run_display;
mod run_log;
mod run_result;
mod run_series;
mod run_shared;
mod run_snapshot;
mod storage_probe;
mod storage_sampler;
mod target_access;
mod verification;
mod worker;

use std::thread::ScopedJoinHandle;
use std::time::Duration;

use load_client::host::{allow_open_files, now_ns};
use load_client::node_api::NodeApi;

use crate::firmware_setup::CampaignRunner;
use crate::plan::SimulationPlan;
use command_sender::CommandSender;
use coordinator::Coordinator;
#[cfg(test)]
pub(crate) use live_latency::CLASSES;
pub(crate) use live_latency::{CLASS_BOUNDS_NS, LatencyCounts, quantile_bound_ns};
use load_client::interrupt::Interrupt;
pub(crate) use metrics_endpoint::MetricsEndpoint;
pub(crate) use phase_counts::PhaseCounts;
use process_memory::ProcessMemory;
pub(crate) use run_display::{DisplayKind, ObserverDisplay, RunDisplay};
pub(crate) use run_log::LogLine;
pub(crate) use run_result::{PhaseResult, RunResult, VerifiedMessages};
pub(crate) use run_series::{SeriesPoint, add_series};
pub(crate) use run_shared::RunProgress;
use run_shared::RunShared;
pub use run_snapshot::{PhaseSnapshot, PhaseSnapshotStage, RunSnapshot};
use storage_probe::StorageProbe;
pub(crate) use target_access::TargetAccess;
use verification::Verifier;
use worker::Worker;

/// Time for the last messages of devices whose connections are translated.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(3);

/// What a run uses besides the broker.
#[derive(Debug, Default)]
pub(crate) struct RunEnvironment {
    /// The node that passes commands to devices, if some are sent.
    pub(crate) command_node: Option<NodeApi>,
    /// The node that stores telemetry, if the time to storage is measured.
    pub(crate) storage_node: Option<NodeApi>,
    pub(crate) metrics: Option<MetricsEndpoint>,
    /// Set if a phase begins a campaign.
    pub(crate) campaigns: Option<CampaignRunner>,
}

/// Runs all phases, or until a signal to end.
pub(crate) fn run(
    plan: &SimulationPlan,
    access: &TargetAccess,
    environment: &RunEnvironment,
    interrupt: &Interrupt,
    display: RunDisplay<'_>,
) -> anyhow::Result<RunResult> {
    if !access.is_in_memory() {
        allow_open_files(plan.sockets())?;
    }
    let memory = access
        .is_in_memory()
        .then(ProcessMemory::begin)
        .transpose()?;
    let node = environment.storage_node.as_ref();
    let shared = RunShared::new(access.threads, node.is_some(), display.new_log());
    let verifier = match &plan.verification {
        Some(verification) => Some(Verifier::connect(plan, verification, access, &shared)?),
        None => None,
    };
    let probe = node
        .zip(shared.storage_sampler())
        .map(|(node, sampler)| StorageProbe::new(node, &shared, sampler));
    let shared = &shared;
    let commands: Vec<CommandSender<'_>> = match &environment.command_node {
        Some(node) => (0..plan.commands.len())
            .map(|number| CommandSender::new(node, plan, shared, number))
            .collect(),
        None => Vec::new(),
    };
    let command_threads = commands.iter().zip(&plan.commands);
    std::thread::scope(|scope| {
        let verifier = verifier.map(|verifier| scope.spawn(move || verifier.run()));
        let probe = probe.map(|probe| scope.spawn(move || probe.run()));
        let command_threads: Vec<_> = command_threads
            .flat_map(|(sender, command)| (0..command.concurrency).map(move |_| sender))
            .map(|sender| scope.spawn(move || anyhow::Ok(sender.run())))
            .collect();
        if let Some(metrics) = &environment.metrics {
            scope.spawn(|| metrics.run(plan, shared));
        }
        // A script belongs to the thread that has loaded it.
        let running: Vec<_> = (0..access.threads)
            .map(|thread| scope.spawn(move || Worker::new(plan, access, shared, thread)?.run()))
            .collect();
        let is_broken = || {
            let has_ended = |is_ended: Option<bool>| is_ended.unwrap_or(false);
            running.iter().any(ScopedJoinHandle::is_finished)
                || has_ended(verifier.as_ref().map(ScopedJoinHandle::is_finished))
                || has_ended(probe.as_ref().map(ScopedJoinHandle::is_finished))
        };
        let campaigns = environment.campaigns.as_ref();
        let coordinator = Coordinator::new(plan, shared, interrupt, (display, campaigns, memory));
        let followed = coordinator.follow_phases(&is_broken);
        if !commands.is_empty() {
            // Devices answer what is under way, and send nothing else.
            shared.control().pause();
            commands.iter().for_each(CommandSender::stop);
        }
        let commanded: Vec<_> = command_threads.into_iter().map(join).collect();
        shared.stop();
        let mut sums: Vec<PhaseCounts> =
            plan.phases.iter().map(|_| PhaseCounts::default()).collect();
        let mut sent: Vec<(u32, u32)> = Vec::new();
        let worker_results: Vec<_> = running.into_iter().map(join).collect();
        access.translators.wait_until_idle(LEAVE_TIMEOUT);
        for worker in worker_results.iter().flatten() {
            add_all(&mut sums, &worker.counts);
            sent.extend(&worker.verified);
        }
        let messages = sent.iter().map(|(_, count)| u64::from(*count)).sum();
        shared.end_verification(messages, now_ns());
        let verified = verifier.map(join).transpose();
        let probed = probe.map(join).transpose();
        worker_results
            .into_iter()
            .collect::<anyhow::Result<Vec<_>>>()?;
        for counts in commanded {
            add_all(&mut sums, &counts?);
        }
        let mut verified_messages = None;
        if let Some(deliveries) = verified? {
            add_all(&mut sums, &deliveries.by_phase);
            verified_messages = Some(VerifiedMessages {
                sent: messages,
                lost: deliveries.lost(sent.into_iter()),
            });
        }
        if let Some(counts) = probed? {
            add_all(&mut sums, &counts);
        }
        let mut result = followed?;
        result.verified = verified_messages;
        for (phase, counts) in result.phases.iter_mut().zip(sums) {
            phase.counts.add(&counts);
        }
        Ok(result)
    })
}

fn join<T>(thread: ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    thread
        .join()
        .map_err(|_| anyhow::anyhow!("a thread of the simulation panicked"))?
}

/// Adds what a thread has counted in each phase.
fn add_all(sums: &mut [PhaseCounts], counts: &[PhaseCounts]) {
    for (sum, counts) in sums.iter_mut().zip(counts) {
        sum.add(counts);
    }
}
