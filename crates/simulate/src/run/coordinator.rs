//! Goes through the phases of a run, follows the keys of the user, and shows how far the run is.

use std::time::Duration;

use load_client::client_error::FailureLog;
use load_client::host::now_ns;
use load_client::interrupt::Interrupt;

use super::phase_counts::PhaseCounts;
use super::process_memory::ProcessMemory;
use super::run_display::{RunDisplay, RunView};
use super::run_result::{PhaseResult, RunResult};
use super::run_series::RunSeries;
use super::run_shared::RunShared;
use crate::firmware_setup::{CampaignCounts, CampaignRunner};
use crate::phase_plan::{PhaseEnd, PhasePlan};
use crate::plan::SimulationPlan;
use crate::screen::ScreenCommand;

/// How often the coordinator looks at the phase.
const TICK: Duration = Duration::from_millis(20);
const CAMPAIGN_INTERVAL_NS: u64 = 1_000_000_000;
/// Reads of a campaign that may fail in a row, before its phase ends.
const MAX_CAMPAIGN_FAILURES: u32 = 30;
/// Changes by the user that the report names.
const MAX_INTERVENTIONS: usize = 100;

/// The time of a phase, which stands still in pauses.
#[derive(Clone, Copy, Debug, Default)]
struct PhaseClock {
    started_ns: u64,
    /// Pauses that have ended.
    paused_ns: u64,
    /// Start of the current pause.
    pause_ns: Option<u64>,
}

impl PhaseClock {
    fn elapsed_ns(&self, now_ns: u64) -> u64 {
        let now_ns = self.pause_ns.unwrap_or(now_ns);
        now_ns.saturating_sub(self.started_ns + self.paused_ns)
    }
}

/// The campaign of the current phase.
struct PhaseCampaign {
    number: u64,
    counts: CampaignCounts,
    next_update_ns: u64,
    /// Reads that have failed since the last answer.
    failures_in_a_row: u32,
}

impl PhaseCampaign {
    /// Takes over how far the campaign is. The phase of a campaign that cannot be read ends.
    fn update(&mut self, counts: anyhow::Result<CampaignCounts>, failures: &mut FailureLog) {
        match counts {
            Ok(counts) => {
                self.counts = counts;
                self.failures_in_a_row = 0;
            }
            Err(error) => {
                failures.record_other("campaign not read", || format!("campaign: {error:#}"));
                self.failures_in_a_row += 1;
                self.counts.is_ended |= self.failures_in_a_row >= MAX_CAMPAIGN_FAILURES;
            }
        }
    }
}

pub(super) struct Coordinator<'a, 'd> {
    plan: &'a SimulationPlan,
    shared: &'a RunShared,
    interrupt: &'a Interrupt,
    display: RunDisplay<'d>,
    campaigns: Option<&'a CampaignRunner>,
    /// Set if the node is in this process, too.
    memory: Option<ProcessMemory>,
    /// The campaign of the phase.
    campaign: Option<PhaseCampaign>,
    /// Requests of the phase to the node that have failed.
    failures: FailureLog,
    clock: PhaseClock,
    is_phase_ended: bool,
    interventions: Vec<String>,
}

impl<'a, 'd> Coordinator<'a, 'd> {
    pub(super) fn new(
        plan: &'a SimulationPlan,
        shared: &'a RunShared,
        interrupt: &'a Interrupt,
        (display, campaigns, memory): (
            RunDisplay<'d>,
            Option<&'a CampaignRunner>,
            Option<ProcessMemory>,
        ),
    ) -> Self {
        Self {
            plan,
            shared,
            interrupt,
            display,
            campaigns,
            memory,
            campaign: None,
            failures: FailureLog::default(),
            clock: PhaseClock::default(),
            is_phase_ended: false,
            interventions: Vec::new(),
        }
    }

    /// Starts one phase after the other; `is_broken` tells that a worker has ended.
    pub(super) fn follow_phases(
        mut self,
        is_broken: &impl Fn() -> bool,
    ) -> anyhow::Result<RunResult> {
        let mut phases = Vec::new();
        let mut is_interrupted = false;
        let run_started_ns = now_ns();
        let mut series = RunSeries::new();
        for (number, phase) in self.plan.phases.iter().enumerate() {
            self.begin_phase(number, phase)?;
            while !self.is_over(number, phase) && !is_broken() {
                let elapsed_ns = now_ns() - run_started_ns;
                series.record(elapsed_ns as f64 / 1e9, self.shared.progress());
                if let Some(command) = self.display.wait(TICK) {
                    self.follow(command, phase);
                }
                is_interrupted = self.interrupt.is_requested();
                if is_interrupted {
                    break;
                }
                self.update_display(number, run_started_ns);
                self.update_campaign(now_ns());
            }
            self.update_campaign(u64::MAX);
            phases.push(PhaseResult {
                phase: number,
                seconds: self.clock.elapsed_ns(now_ns()) as f64 / 1e9,
                connected: self.shared.progress().connected,
                counts: PhaseCounts {
                    failures: std::mem::take(&mut self.failures),
                    ..PhaseCounts::default()
                },
                campaign: self.campaign.take().map(|campaign| campaign.counts),
                memory: self.memory.as_mut().map(ProcessMemory::read).transpose()?,
            });
            if is_interrupted || is_broken() {
                break;
            }
        }
        self.display.close();
        Ok(RunResult {
            phases,
            series: series.into_points(),
            is_interrupted,
            interventions: self.interventions,
            verified: None,
        })
    }

    fn begin_phase(&mut self, number: usize, phase: &PhasePlan) -> anyhow::Result<()> {
        let started_ns = now_ns();
        self.clock = PhaseClock {
            started_ns,
            paused_ns: 0,
            // A pause goes on in the next phase.
            pause_ns: self.clock.pause_ns.map(|_| started_ns),
        };
        self.is_phase_ended = false;
        self.shared.start_phase(number, started_ns);
        if let Some(log) = self.shared.log() {
            log.add(format!("phase {} begins", phase.name));
        }
        if let (Some(package), Some(campaigns)) = (&phase.campaign, self.campaigns) {
            self.campaign = Some(PhaseCampaign {
                number: campaigns.begin(package)?,
                counts: CampaignCounts::default(),
                next_update_ns: started_ns,
                failures_in_a_row: 0,
            });
        }
        Ok(())
    }

    /// Asks the node how far the campaign is, if that is due.
    fn update_campaign(&mut self, now_ns: u64) {
        if let (Some(campaign), Some(campaigns)) = (&mut self.campaign, self.campaigns)
            && now_ns >= campaign.next_update_ns
        {
            campaign.update(campaigns.counts(campaign.number), &mut self.failures);
            campaign.next_update_ns = now_ns.saturating_add(CAMPAIGN_INTERVAL_NS);
        }
    }

    fn is_over(&self, number: usize, phase: &PhasePlan) -> bool {
        if self.is_phase_ended {
            return true;
        }
        match phase.end {
            PhaseEnd::Campaign { limit_ns } => {
                let campaign = self.campaign.as_ref();
                campaign.is_none_or(|campaign| campaign.counts.is_ended)
                    || self.clock.elapsed_ns(now_ns()) >= limit_ns
            }
            PhaseEnd::After { ns } => self.clock.elapsed_ns(now_ns()) >= ns,
            PhaseEnd::Connected => self.clock.pause_ns.is_none() && self.shared.is_settled(number),
            PhaseEnd::Interrupt => false,
        }
    }

    /// Changes the run as the user wants.
    fn follow(&mut self, command: ScreenCommand, phase: &PhasePlan) {
        let control = self.shared.control();
        let at_s = self.clock.elapsed_ns(now_ns()) as f64 / 1e9;
        let name = &phase.name;
        let change = match command {
            ScreenCommand::Stop => {
                self.interrupt.request();
                return;
            }
            ScreenCommand::NextPhase => {
                self.is_phase_ended = true;
                format!("phase {name} ended after {at_s:.1} s")
            }
            ScreenCommand::Pause => match self.clock.pause_ns.take() {
                None => {
                    self.clock.pause_ns = Some(now_ns());
                    control.pause();
                    format!("paused after {at_s:.1} s of phase {name}")
                }
                Some(since_ns) => {
                    let pause_ns = now_ns() - since_ns;
                    self.clock.paused_ns += pause_ns;
                    control.resume(pause_ns);
                    format!("resumed after a pause of {:.1} s", pause_ns as f64 / 1e9)
                }
            },
            ScreenCommand::Faster | ScreenCommand::Slower => {
                let before = control.factor();
                match command {
                    ScreenCommand::Faster => control.accelerate(),
                    _ => control.slow_down(),
                }
                if control.factor() == before {
                    return;
                }
                format!(
                    "rates x{} after {at_s:.1} s of phase {name}",
                    control.factor()
                )
            }
        };
        if let Some(log) = self.shared.log() {
            log.add(change.clone());
        }
        if self.interventions.len() < MAX_INTERVENTIONS {
            self.interventions.push(change);
        }
        self.display.redraw();
    }

    fn update_display(&mut self, phase: usize, run_started_ns: u64) {
        let now_ns = now_ns();
        self.display.update(&RunView {
            plan: self.plan,
            shared: self.shared,
            phase,
            phase_elapsed_ns: self.clock.elapsed_ns(now_ns),
            run_elapsed_ns: now_ns - run_started_ns,
            now_ns,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_campaign_that_is_not_read_goes_on_for_a_while() {
        let mut campaign = PhaseCampaign {
            number: 1,
            counts: CampaignCounts::default(),
            next_update_ns: 0,
            failures_in_a_row: 0,
        };
        let mut failures = FailureLog::default();
        let mut fail = |campaign: &mut PhaseCampaign| {
            campaign.update(Err(anyhow::anyhow!("restarting")), &mut failures);
        };
        for _ in 1..MAX_CAMPAIGN_FAILURES {
            fail(&mut campaign);
        }
        let counts = CampaignCounts {
            succeeded: 7,
            ..CampaignCounts::default()
        };
        campaign.update(Ok(counts), &mut FailureLog::default());
        for _ in 1..MAX_CAMPAIGN_FAILURES {
            fail(&mut campaign);
        }
        assert!(!campaign.counts.is_ended);
        fail(&mut campaign);
        assert!(campaign.counts.is_ended);
        assert_eq!(campaign.counts.succeeded, 7);
        let failed = u64::from(2 * MAX_CAMPAIGN_FAILURES - 1);
        assert_eq!(failures.by_kind["campaign not read"], failed);
    }

    #[test]
    fn the_time_of_a_phase_stands_still_in_pauses() {
        let mut clock = PhaseClock {
            started_ns: 100,
            ..PhaseClock::default()
        };
        assert_eq!(clock.elapsed_ns(150), 50);
        clock.pause_ns = Some(150);
        assert_eq!(clock.elapsed_ns(180), 50);
        clock.pause_ns = None;
        clock.paused_ns = 30;
        assert_eq!(clock.elapsed_ns(200), 70);
    }
}
