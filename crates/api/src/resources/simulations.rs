//! Ready-made simulations of device fleets, which the node runs against itself.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::jobs::accepted;
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get, post};
use crate::jobs::{JobView, NewJob};
use crate::local_caller::LocalCaller;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::simulation_backend::{
    ReadyMadeSimulation, SimulationAction, SimulationBackend, SimulationTask,
};
use crate::simulation_runs::{SimulationRun, SimulationRunView};

const ABOUT: &str = "The simulation's name.";
const NONE: &str = "There is no such simulation.";

/// A simulation with its last run.
#[derive(Debug, Serialize, JsonSchema)]
struct Simulation {
    #[serde(flatten)]
    simulation: ReadyMadeSimulation,
    /// The last run since the node started; `null`: there is none.
    run: Option<SimulationRunView>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct SimulationStartInput {
    /// Maximum number of devices, at least 1; default: `simulations.max_devices`.
    devices: Option<u32>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/simulations", "listSimulations", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("simulations")
            .summary("List ready-made simulations")
            .description("Each one includes its last run in this node. `tidegate simulate NAME` runs a simulation outside the node and at full size.")
            .unpaged::<Simulation>(),
        get("/api/v1/simulations/{name}", "getSimulation", read)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("simulations")
            .summary("Read a simulation and its run")
            .path_parameter("name", ABOUT)
            .response::<Simulation>(200, "The simulation with its last run.")
            .problem_response(404, NONE),
        post("/api/v1/simulations/{name}/start", "startSimulation", start)
            .role(Role::Operator, EndpointScope::Node)
            .tag("simulations")
            .summary("Start a simulation")
            .description(
                "Starts a job that creates products and devices, connects the devices to the listeners of this node, and removes everything at \
                 its end. Fleets with more devices than the limit shrink. The job's `done` is the number of sent messages.",
            )
            .path_parameter("name", ABOUT)
            .optional_request_body::<SimulationStartInput>()
            .response::<JobView>(202, "The job has begun.")
            .with_location()
            .problem_response(404, NONE)
            .problem_response(409, "It is running, too many are, or this node cannot run it."),
        post("/api/v1/simulations/{name}/stop", "stopSimulation", stop)
            .role(Role::Operator, EndpointScope::Node)
            .tag("simulations")
            .summary("Stop a simulation")
            .description("Its devices disconnect and are removed with their products. A run that has ended is not changed.")
            .path_parameter("name", ABOUT)
            .response::<Simulation>(200, "The simulation with its last run.")
            .problem_response(404, NONE),
        post("/api/v1/simulations/{name}/clean", "cleanSimulation", clean)
            .role(Role::Operator, EndpointScope::Node)
            .tag("simulations")
            .summary("Remove the objects that an interrupted simulation left behind")
            .description(
                "Starts a job that removes products, devices and other objects which an interrupted run of the simulation or `tidegate demo` has left. \
                 Objects that no simulation created are kept.",
            )
            .path_parameter("name", ABOUT)
            .response::<JobView>(202, "The job has begun.")
            .with_location()
            .problem_response(404, NONE)
            .problem_response(409, "It is running, or too many are."),
    ]
}

fn backend(call: &ApiCall) -> Result<&dyn SimulationBackend, ProblemDetails> {
    let backend = call.app.program.simulation_backend();
    backend.ok_or_else(|| ProblemDetails::unavailable("This node runs no simulations."))
}

fn with_run(call: &ApiCall, simulation: ReadyMadeSimulation) -> Simulation {
    let run = call.app.simulations.get(&simulation.name);
    Simulation {
        run: run.map(|run| run.view()),
        simulation,
    }
}

fn find(call: &ApiCall) -> Result<Simulation, ProblemDetails> {
    let name = call.path("name");
    let mut simulations = backend(call)?.simulations().into_iter();
    let found = simulations.find(|simulation| simulation.name == name);
    let found = found.ok_or_else(|| {
        ProblemDetails::not_found(format!(
            "There is no simulation {name:?}; see GET /api/v1/simulations."
        ))
    })?;
    Ok(with_run(call, found))
}

async fn list(call: ApiCall) -> ApiResult {
    let simulations = backend(&call)?.simulations().into_iter();
    call::unpaged_list(
        simulations
            .map(|simulation| with_run(&call, simulation))
            .collect(),
    )
}

async fn read(call: ApiCall) -> ApiResult {
    call::json_response(find(&call)?)
}

async fn start(mut call: ApiCall) -> ApiResult {
    let input: SimulationStartInput = call.body_json_or_default().await?;
    let found = find(&call)?;
    if input.devices == Some(0) {
        let detail = "devices: expected at least 1, found 0.";
        return Err(ProblemDetails::invalid_field("devices", detail));
    }
    if let Some(reason) = found.simulation.unavailable {
        return Err(ProblemDetails::conflict(reason));
    }
    begin(&call, SimulationAction::Run, input.devices).await
}

async fn clean(call: ApiCall) -> ApiResult {
    find(&call)?;
    begin(&call, SimulationAction::Clean, None).await
}

async fn stop(call: ApiCall) -> ApiResult {
    let found = find(&call)?;
    let name = found.simulation.name.clone();
    if let Some(run) = call.app.simulations.get(&name) {
        let job = run.job.view().id;
        call.app.jobs.cancel(&job, &call.namespaces());
        audit::record_action(&call, "simulation.stop", Some(&name), None).await;
    }
    call::json_response(with_run(&call, found.simulation))
}

/// Starts a run on a thread of its own.
async fn begin(call: &ApiCall, action: SimulationAction, max_devices: Option<u32>) -> ApiResult {
    let max_running = backend(call)?.max_running();
    let name = call.path("name").to_owned();
    let identity = call.identity.name.clone();
    let new_run = || {
        let job = call.app.jobs.start(NewJob {
            kind: match action {
                SimulationAction::Run => "simulation",
                SimulationAction::Clean => "simulation_removal",
            },
            subject: name.clone(),
            namespace: None,
            created_by: identity.clone(),
        });
        let job = job.map_err(|error| ProblemDetails::conflict(format!("{error}.")))?;
        let stopping = call.app.stopping.clone();
        Ok(SimulationRun::new(job, action, identity.clone(), stopping))
    };
    let run = call.app.simulations.start(&name, max_running, new_run)?;
    let view = run.job.view();
    let (event, after) = match action {
        SimulationAction::Run => ("simulation.start", Some(json!({"devices": max_devices}))),
        SimulationAction::Clean => ("simulation.clean", None),
    };
    audit::record_action(call, event, Some(&name), after).await;
    let task = SimulationTask {
        node: Arc::new(LocalCaller::new(&call.app, &format!("simulation {name}"))),
        name,
        action,
        max_devices,
    };
    let (program, running) = (call.app.program.clone(), run.clone());
    let thread = std::thread::Builder::new().name("simulation".to_owned());
    // Not a thread of the runtime, which the requests of the simulation need.
    let spawned = thread.spawn(move || {
        let work = || match program.simulation_backend() {
            Some(backend) => backend.run(&task, &*running),
            None => Err("this node runs no simulations".to_owned()),
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        running.end(
            outcome.unwrap_or_else(|_| Err("the simulation panicked; this is a bug".to_owned())),
        );
    });
    if let Err(error) = spawned {
        run.end(Err(format!("cannot start a thread: {error}")));
    }
    Ok(accepted(&view))
}
