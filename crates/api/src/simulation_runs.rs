//! Runs of simulations: the last one of each ready-made simulation, with its progress.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::watch;
use wall_clock::now_ms;

use crate::jobs::{JobHandle, JobState};
use crate::problem_details::ProblemDetails;
use crate::simulation_backend::{
    SimulationAction, SimulationCondition, SimulationObserver, SimulationProgress,
};

/// The last run of a simulation in this node.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct SimulationRunView {
    /// Its job.
    job: String,
    action: SimulationAction,
    pub(crate) state: JobState,
    /// Whether it was stopped; it may still remove its devices.
    is_stop_requested: bool,
    started_by: String,
    started_at_ms: u64,
    ended_at_ms: Option<u64>,
    progress: SimulationProgress,
    /// Conditions of its phases, when it has ended.
    conditions: Vec<SimulationCondition>,
    /// Why it failed.
    error: Option<String>,
}

/// A run, for the thread that it has.
pub(crate) struct SimulationRun {
    pub(crate) job: JobHandle,
    view: Mutex<SimulationRunView>,
    stopping: watch::Receiver<bool>,
}

#[derive(Default)]
pub(crate) struct SimulationRuns {
    /// By the name of the simulation.
    runs: Mutex<BTreeMap<String, Arc<SimulationRun>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimulationRuns {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<SimulationRun>> {
        lock(&self.runs).get(name).cloned()
    }

    /// Adds a run; `start` creates its job.
    pub(crate) fn start(
        &self,
        name: &str,
        max_running: u32,
        start: impl FnOnce() -> Result<SimulationRun, ProblemDetails>,
    ) -> Result<Arc<SimulationRun>, ProblemDetails> {
        let mut runs = lock(&self.runs);
        if runs.get(name).is_some_and(|run| run.is_running()) {
            let detail = "This simulation is running; stop it first.";
            return Err(ProblemDetails::conflict(detail));
        }
        let running = runs.values().filter(|run| run.is_running()).count();
        if running as u64 >= u64::from(max_running) {
            return Err(ProblemDetails::conflict(format!(
                "{running} simulations are running, which is the limit `simulations.max_running`; stop one first."
            )));
        }
        let run = Arc::new(start()?);
        runs.insert(name.to_owned(), run.clone());
        Ok(run)
    }
}

impl SimulationRun {
    pub(crate) fn new(
        job: JobHandle,
        action: SimulationAction,
        started_by: String,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let view = SimulationRunView {
            job: job.view().id,
            action,
            state: JobState::Running,
            is_stop_requested: false,
            started_by,
            started_at_ms: now_ms(),
            ended_at_ms: None,
            progress: SimulationProgress::default(),
            conditions: Vec::new(),
            error: None,
        };
        Self {
            job,
            view: Mutex::new(view),
            stopping,
        }
    }

    pub(crate) fn view(&self) -> SimulationRunView {
        SimulationRunView {
            is_stop_requested: self.job.is_cancelled(),
            ..lock(&self.view).clone()
        }
    }

    fn is_running(&self) -> bool {
        lock(&self.view).state == JobState::Running
    }

    /// Ends the run and its job.
    pub(crate) fn end(&self, outcome: Result<Vec<SimulationCondition>, String>) {
        let mut view = lock(&self.view);
        view.ended_at_ms = Some(now_ms());
        match outcome {
            Ok(conditions) => {
                view.conditions = conditions;
                self.job.end(Ok(()));
            }
            Err(error) => {
                view.error = Some(error.clone());
                self.job.end(Err(error));
            }
        }
        view.state = self.job.view().state;
    }
}

impl SimulationObserver for SimulationRun {
    fn is_cancelled(&self) -> bool {
        self.job.is_cancelled() || *self.stopping.borrow()
    }

    fn report(&self, progress: SimulationProgress) {
        self.job.set_done(progress.sent);
        lock(&self.view).progress = progress;
    }
}
