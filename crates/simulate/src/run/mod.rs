//! A run: threads with devices, and a coordinator that goes through the phases.

mod device_connection;
mod fetched_image;
mod metrics_endpoint;
mod phase_counts;
mod run_series;
mod run_shared;
mod storage_probe;
mod storage_sampler;
mod target_access;
mod verification;
mod worker;

use std::io::{IsTerminal as _, Write as _};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use load_client::host::{allow_open_files, now_ns};
use load_client::node_api::NodeApi;
use load_client::units::Unit;
use serde::{Deserialize, Serialize};

use crate::firmware_setup::{CampaignCounts, CampaignRunner};
use crate::phase_plan::{PhaseEnd, PhasePlan};
use crate::plan::SimulationPlan;
use load_client::interrupt::Interrupt;
pub(crate) use metrics_endpoint::MetricsEndpoint;
pub(crate) use phase_counts::PhaseCounts;
use run_series::RunSeries;
pub(crate) use run_series::{SeriesPoint, add_series};
pub(crate) use run_shared::RunProgress;
use run_shared::RunShared;
use storage_probe::StorageProbe;
pub(crate) use target_access::TargetAccess;
use verification::Verifier;
use worker::Worker;

/// How often the coordinator looks at the phase.
const TICK: Duration = Duration::from_millis(20);
const STATUS_TICKS: u64 = 50;
/// Time for the last messages of devices whose connections are translated.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(3);

/// One phase that has begun.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PhaseResult {
    /// Number in the plan.
    pub(crate) phase: usize,
    pub(crate) seconds: f64,
    /// Devices connected at its end.
    pub(crate) connected: u64,
    pub(crate) counts: PhaseCounts,
    /// The campaign that began with it.
    #[serde(default)]
    pub(crate) campaign: Option<CampaignCounts>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RunResult {
    pub(crate) phases: Vec<PhaseResult>,
    pub(crate) series: Vec<SeriesPoint>,
    pub(crate) is_interrupted: bool,
    /// Verified messages of the whole run; `None`: the simulation verifies none.
    pub(crate) verified: Option<VerifiedMessages>,
}

/// What became of the messages that subscribers verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VerifiedMessages {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
}

/// What a run uses besides the broker.
#[derive(Debug, Default)]
pub(crate) struct RunEnvironment {
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
    is_quiet: bool,
) -> anyhow::Result<RunResult> {
    allow_open_files(plan.sockets())?;
    let node = environment.storage_node.as_ref();
    let shared = RunShared::new(access.threads, node.is_some());
    let verifier = match &plan.verification {
        Some(verification) => Some(Verifier::connect(plan, verification, access, &shared)?),
        None => None,
    };
    let probe = node
        .zip(shared.storage_sampler())
        .map(|(node, sampler)| StorageProbe::new(node, &shared, sampler));
    let workers: Vec<Worker<'_>> = (0..access.threads)
        .map(|thread| Worker::new(plan, access, &shared, thread))
        .collect::<Result<_, _>>()?;
    std::thread::scope(|scope| {
        let verifier = verifier.map(|verifier| scope.spawn(move || verifier.run()));
        let probe = probe.map(|probe| scope.spawn(move || probe.run()));
        if let Some(metrics) = &environment.metrics {
            scope.spawn(|| metrics.run(plan, &shared));
        }
        let running: Vec<_> = workers
            .into_iter()
            .map(|worker| scope.spawn(move || worker.run()))
            .collect();
        let is_broken = || {
            let has_ended = |is_ended: Option<bool>| is_ended.unwrap_or(false);
            running.iter().any(ScopedJoinHandle::is_finished)
                || has_ended(verifier.as_ref().map(ScopedJoinHandle::is_finished))
                || has_ended(probe.as_ref().map(ScopedJoinHandle::is_finished))
        };
        let mut coordinator = Coordinator::new(plan, &shared, interrupt, is_quiet);
        coordinator.campaigns = environment.campaigns.as_ref();
        let followed = coordinator.follow_phases(&is_broken);
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
            phase.counts = counts;
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

struct Coordinator<'a> {
    plan: &'a SimulationPlan,
    shared: &'a RunShared,
    interrupt: &'a Interrupt,
    shows_status: bool,
    before: RunProgress,
    campaigns: Option<&'a CampaignRunner>,
}

/// The campaign of the current phase.
struct PhaseCampaign {
    number: u64,
    counts: CampaignCounts,
}

impl<'a> Coordinator<'a> {
    fn new(
        plan: &'a SimulationPlan,
        shared: &'a RunShared,
        interrupt: &'a Interrupt,
        is_quiet: bool,
    ) -> Self {
        Self {
            plan,
            shared,
            interrupt,
            shows_status: !is_quiet && std::io::stderr().is_terminal(),
            before: RunProgress::default(),
            campaigns: None,
        }
    }

    /// Starts one phase after the other; `is_broken` tells that a worker has ended.
    fn follow_phases(mut self, is_broken: &impl Fn() -> bool) -> anyhow::Result<RunResult> {
        let mut result = RunResult {
            phases: Vec::new(),
            series: Vec::new(),
            is_interrupted: false,
            verified: None,
        };
        let run_started_ns = now_ns();
        let mut series = RunSeries::new();
        for (number, phase) in self.plan.phases.iter().enumerate() {
            let started_ns = now_ns();
            self.shared.start_phase(number, started_ns);
            let mut campaign = match (&phase.campaign, self.campaigns) {
                (Some(package), Some(campaigns)) => Some(PhaseCampaign {
                    number: campaigns.begin(package)?,
                    counts: CampaignCounts::default(),
                }),
                _ => None,
            };
            let mut tick = 0;
            while !self.is_over(number, phase, started_ns, campaign.as_ref()) && !is_broken() {
                series.record(
                    (now_ns() - run_started_ns) as f64 / 1e9,
                    self.shared.progress(),
                );
                std::thread::sleep(TICK);
                result.is_interrupted = self.interrupt.is_requested();
                if result.is_interrupted {
                    break;
                }
                tick += 1;
                if tick % STATUS_TICKS == 0 {
                    self.show_status(phase, started_ns);
                    self.update_campaign(campaign.as_mut())?;
                }
            }
            self.update_campaign(campaign.as_mut())?;
            result.phases.push(PhaseResult {
                phase: number,
                seconds: (now_ns() - started_ns) as f64 / 1e9,
                connected: self.shared.progress().connected,
                counts: PhaseCounts::default(),
                campaign: campaign.map(|campaign| campaign.counts),
            });
            if result.is_interrupted || is_broken() {
                break;
            }
        }
        result.series = series.into_points();
        if self.shows_status {
            eprint!("\r\x1b[K");
        }
        Ok(result)
    }

    fn update_campaign(&self, campaign: Option<&mut PhaseCampaign>) -> anyhow::Result<()> {
        if let (Some(campaign), Some(campaigns)) = (campaign, self.campaigns) {
            campaign.counts = campaigns.counts(campaign.number)?;
        }
        Ok(())
    }

    fn is_over(
        &self,
        number: usize,
        phase: &PhasePlan,
        started_ns: u64,
        campaign: Option<&PhaseCampaign>,
    ) -> bool {
        match phase.end {
            PhaseEnd::Campaign { limit_ns } => {
                campaign.is_none_or(|campaign| campaign.counts.is_ended)
                    || now_ns() - started_ns >= limit_ns
            }
            PhaseEnd::After { ns } => now_ns() - started_ns >= ns,
            PhaseEnd::Connected => self.shared.is_settled(number),
            PhaseEnd::Interrupt => false,
        }
    }

    /// Writes a line over the last one.
    fn show_status(&mut self, phase: &PhasePlan, started_ns: u64) {
        let progress = self.shared.progress();
        let period_s = TICK.as_secs_f64() * STATUS_TICKS as f64;
        let rate = progress.sent.saturating_sub(self.before.sent) as f64 / period_s;
        self.before = progress;
        if self.shows_status {
            let count = |count: u64| Unit::Count.format(count as f64);
            eprint!(
                "\r\x1b[K{}: {} s, {} connected, {} messages/s, {} sent, {} acknowledged, {} failures",
                phase.name,
                (now_ns() - started_ns) / 1_000_000_000,
                count(progress.connected),
                Unit::PerSecond.format(rate),
                count(progress.sent),
                count(progress.acknowledged),
                count(progress.failures),
            );
            // The line is informative only.
            let _ = std::io::stderr().flush();
        }
    }
}
