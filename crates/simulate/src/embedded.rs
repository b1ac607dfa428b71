//! Ready-made simulations that another part of the program runs: `tidegate demo`, and a node.

use std::path::Path;

use anyhow::{Context as _, ensure};
use load_client::assertion::AssertionOutcome;
use load_client::interrupt::Interrupt;
use load_client::node_api::NodeApi;

use crate::definition::{FleetTransport, SimulationDefinition, SourceDocument};
use crate::plan::SimulationPlan;
use crate::plan_compiler::{self, CompileOptions};
use crate::ready_made::{READY_MADE, ReadyMadeSimulation};
use crate::report::{ReportSubject, SimulationReport};
use crate::run::{ObserverDisplay, RunDisplay, RunSnapshot, TargetAccess};
use crate::setup::SetupProgress;
use crate::setup_mode::SetupMode;
use crate::simulation_run::SimulationRun;

/// A ready-made simulation as lists show it.
#[derive(Clone, Debug)]
pub struct SimulationInfo {
    pub name: &'static str,
    pub description: String,
    pub devices: u64,
    /// Messages of all devices per second, without responses and changes of load.
    pub messages_per_s: f64,
    pub phases: Vec<String>,
    /// `None`: a phase has no end of its own.
    pub duration_s: Option<f64>,
    pub products: Vec<String>,
    /// Whether devices use the WebSocket of relay endpoints.
    pub uses_relay: bool,
}

/// How another part of the program runs a simulation.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// The node on which products and devices are created.
    pub node: NodeApi,
    /// Arguments of `--set`.
    pub sets: Vec<String>,
    /// Fleets with more devices shrink.
    pub max_devices: Option<u32>,
    /// Whether all products are created, whatever the file says.
    pub creates_products: bool,
    /// Whether everything stays at the end, and what an earlier run has left is used again.
    pub keeps: bool,
}

/// How far an embedded run is.
#[derive(Clone, Debug, PartialEq)]
pub enum EmbeddedProgress {
    /// Devices that are created, of how many.
    Creating {
        done: u64,
        total: u64,
    },
    /// Everything exists; so many products and other objects did not before.
    Created {
        new_objects: usize,
    },
    Running(RunSnapshot),
    /// Devices that are removed, of how many.
    Removing {
        done: u64,
        total: u64,
    },
}

/// A condition of a phase, and whether it holds.
#[derive(Clone, Debug)]
pub struct ConditionResult {
    pub phase: String,
    pub condition: String,
    pub found: String,
    pub holds: bool,
}

/// What [`EmbeddedSimulation::clean`] has removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanResult {
    pub devices: u64,
    pub others: u64,
    /// What has an id of the simulation, but was created by others.
    pub kept: Vec<String>,
}

/// A ready-made simulation that is ready to run.
#[derive(Debug)]
pub struct EmbeddedSimulation {
    name: &'static str,
    definition: SimulationDefinition,
    plan: SimulationPlan,
    access: TargetAccess,
    options: EmbeddedOptions,
}

/// All simulations that are part of the program, at most with so many devices.
///
/// # Errors
/// If a file is wrong, which tests exclude.
pub fn ready_made_simulations(max_devices: Option<u32>) -> anyhow::Result<Vec<SimulationInfo>> {
    let options = CompileOptions {
        max_devices,
        creates_products: true,
        ..CompileOptions::default()
    };
    READY_MADE
        .iter()
        .map(|simulation| describe(simulation, options))
        .collect()
}

fn describe(
    simulation: &ReadyMadeSimulation,
    options: CompileOptions,
) -> anyhow::Result<SimulationInfo> {
    let document = SourceDocument::parse(Path::new(simulation.name), simulation.text)?;
    let (definition, plan) = plan_compiler::compile(&document, Path::new(""), options)?;
    let transports = plan.transports();
    Ok(SimulationInfo {
        name: simulation.name,
        devices: plan.devices(),
        messages_per_s: plan.fleets.iter().map(|fleet| fleet.messages_per_s()).sum(),
        phases: plan.phases.iter().map(|phase| phase.name.clone()).collect(),
        duration_s: plan.duration_ns().map(|ns| ns as f64 / 1e9),
        products: definition.product.keys().cloned().collect(),
        uses_relay: transports.contains(&FleetTransport::Relay),
        description: definition.description,
    })
}

impl EmbeddedSimulation {
    /// The simulation with this name.
    ///
    /// # Errors
    /// If there is none, a field is wrong, or the broker has no address.
    pub fn load(name: &str, options: EmbeddedOptions) -> anyhow::Result<Self> {
        let simulation = crate::ready_made::find(name).context("no such simulation")?;
        let mut document = SourceDocument::parse(Path::new(simulation.name), simulation.text)?;
        for argument in &options.sets {
            document.set(argument)?;
        }
        let folder = Path::new("");
        let compile_options = CompileOptions {
            machine: None,
            max_devices: options.max_devices,
            creates_products: options.creates_products,
        };
        let (definition, plan) = plan_compiler::compile(&document, folder, compile_options)?;
        ensure!(
            !definition.target.is_in_memory(),
            "target.broker: a node in the process of the simulation is for `tidegate simulate`; expected the address of a node"
        );
        let access = TargetAccess::new(&definition.target, folder, &plan)?;
        Ok(Self {
            name: simulation.name,
            definition,
            plan,
            access,
            options,
        })
    }

    #[must_use]
    pub fn devices(&self) -> u64 {
        self.plan.devices()
    }

    /// Configuration objects besides devices.
    #[must_use]
    pub fn objects(&self) -> usize {
        let products = self.definition.product.values();
        products.filter(|product| product.create).count() + self.definition.object.len()
    }

    /// Where devices connect.
    #[must_use]
    pub fn broker(&self) -> &str {
        &self.access.broker
    }

    /// Runs to the end, or until `interrupt` is requested. `observe` is called several times per second.
    ///
    /// # Errors
    /// If something cannot be created or removed, or the run cannot begin. Devices whose connections fail connect again.
    pub fn run(
        &self,
        interrupt: &Interrupt,
        observe: &(dyn Fn(EmbeddedProgress) + Sync),
    ) -> anyhow::Result<Vec<ConditionResult>> {
        let report_setup = |progress| observe(of_setup(progress));
        let observe_run = |snapshot| observe(EmbeddedProgress::Running(snapshot));
        let total = self.plan.devices();
        observe(EmbeddedProgress::Creating { done: 0, total });
        let run = self.prepare(interrupt, &report_setup);
        let result = run.run(
            None,
            |created| {
                let new_objects = created.new_objects;
                observe(EmbeddedProgress::Created { new_objects });
                Ok(RunDisplay::Observer(ObserverDisplay::new(&observe_run)))
            },
            || {
                if !self.options.keeps {
                    observe(EmbeddedProgress::Removing { done: 0, total });
                }
            },
        )?;
        let subject = ReportSubject {
            name: self.name.to_owned(),
            description: String::new(),
            started: String::new(),
        };
        let report = SimulationReport::new(subject, &self.plan, &self.access, &result);
        let conditions = report.sections().flat_map(|section| {
            let of_phase = |outcome: &AssertionOutcome| ConditionResult {
                phase: section.name.clone(),
                condition: outcome.condition.clone(),
                found: outcome.found.clone(),
                holds: outcome.holds,
            };
            section.conditions.iter().map(of_phase)
        });
        Ok(conditions.collect())
    }

    /// Removes what earlier runs have left.
    ///
    /// # Errors
    /// If the node does not answer or refuses.
    pub fn clean(
        &self,
        interrupt: &Interrupt,
        observe: &(dyn Fn(EmbeddedProgress) + Sync),
    ) -> anyhow::Result<CleanResult> {
        let report_setup = |progress| observe(of_setup(progress));
        let run = self.prepare(interrupt, &report_setup);
        let Some(setup) = run.setup() else {
            return Ok(CleanResult::default());
        };
        let removed = setup.clean()?;
        Ok(CleanResult {
            devices: removed.devices,
            others: removed.others,
            kept: removed.kept,
        })
    }

    fn prepare<'a>(
        &'a self,
        interrupt: &'a Interrupt,
        progress: &'a (dyn Fn(SetupProgress) + Sync),
    ) -> SimulationRun<'a> {
        SimulationRun {
            definition: &self.definition,
            plan: &self.plan,
            access: &self.access,
            node: Some(self.options.node.clone()),
            mode: SetupMode {
                shares_products: false,
                keeps: self.options.keeps,
                is_embedded: true,
            },
            interrupt,
            progress,
        }
    }
}

fn of_setup(progress: SetupProgress) -> EmbeddedProgress {
    let (done, total) = (progress.done, progress.total);
    match progress.is_removal {
        true => EmbeddedProgress::Removing { done, total },
        false => EmbeddedProgress::Creating { done, total },
    }
}
