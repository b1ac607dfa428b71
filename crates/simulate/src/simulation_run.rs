//! A run with everything around it: what the node needs is created before it, and removed after it.

use std::path::Path;

use anyhow::Context as _;
use load_client::interrupt::Interrupt;
use load_client::node_api::NodeApi;

use crate::definition::SimulationDefinition;
use crate::firmware_setup::CampaignRunner;
use crate::plan::SimulationPlan;
use crate::run::{self, MetricsEndpoint, RunDisplay, RunEnvironment, RunResult, TargetAccess};
use crate::setup::{CreatedObjects, FleetSetup, SetupProgress};
use crate::setup_mode::SetupMode;
use crate::target_api::node_api;

/// A simulation that is ready to run.
pub(crate) struct SimulationRun<'a> {
    pub(crate) definition: &'a SimulationDefinition,
    pub(crate) plan: &'a SimulationPlan,
    pub(crate) access: &'a TargetAccess,
    /// `None`: the run needs no node.
    pub(crate) node: Option<NodeApi>,
    pub(crate) mode: SetupMode,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) progress: &'a (dyn Fn(SetupProgress) + Sync),
}

impl SimulationRun<'_> {
    /// The API of the node of the file, if a run uses it.
    pub(crate) fn node_of_file(
        (definition, plan): (&SimulationDefinition, &SimulationPlan),
        folder: &Path,
    ) -> anyhow::Result<Option<NodeApi>> {
        let is_used = FleetSetup::is_needed(definition)
            || measures_storage(plan)
            || !plan.commands.is_empty()
            || plan.phases.iter().any(|phase| phase.campaign.is_some());
        is_used
            .then(|| node_api(&definition.target, folder))
            .transpose()
    }

    /// `None`: the simulation creates nothing.
    pub(crate) fn setup(&self) -> Option<FleetSetup<'_>> {
        let node = self.node.clone()?;
        FleetSetup::is_needed(self.definition).then(|| {
            FleetSetup::new(
                (self.plan, self.definition),
                node,
                self.interrupt,
                self.mode,
                self.progress,
            )
        })
    }

    /// Creates what is needed, goes through the phases, and removes it.
    pub(crate) fn run<'d>(
        &self,
        metrics: Option<MetricsEndpoint>,
        open_display: impl FnOnce(&CreatedObjects) -> anyhow::Result<RunDisplay<'d>>,
        before_removal: impl FnOnce(),
    ) -> anyhow::Result<RunResult> {
        let setup = self.setup();
        let node = self.node.as_ref();
        let campaigns = self
            .plan
            .phases
            .iter()
            .any(|phase| phase.campaign.is_some());
        let environment = RunEnvironment {
            command_node: node.filter(|_| !self.plan.commands.is_empty()).cloned(),
            storage_node: node.filter(|_| measures_storage(self.plan)).cloned(),
            metrics,
            campaigns: node
                .filter(|_| campaigns)
                .map(|node| CampaignRunner::new(node.clone(), self.definition)),
        };
        let mut created = CreatedObjects::default();
        let is_created = setup
            .as_ref()
            .map_or(Ok(()), |setup| setup.create(&mut created));
        let result = is_created.and_then(|()| {
            let display = open_display(&created)?;
            run::run(
                self.plan,
                self.access,
                &environment,
                self.interrupt,
                display,
            )
        });
        before_removal();
        // Also after a failure and an interrupt.
        let is_removed = match &setup {
            Some(setup) if !self.mode.keeps => setup.remove(&created),
            _ => Ok(()),
        };
        let result = result?;
        is_removed
            .context("cannot remove what the simulation has created; repeat it with --clean")?;
        Ok(result)
    }
}

fn measures_storage(plan: &SimulationPlan) -> bool {
    let verification = plan.verification.as_ref();
    verification.is_some_and(|verification| verification.storage)
}
