//! `tidegate demo`: runs the ready-made simulation `demo`, whose fleet stays on the node until it is removed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use simulate::{
    EmbeddedOptions, EmbeddedProgress, EmbeddedSimulation, ForeignObjectError, Interrupt, NodeApi,
    RunSnapshot,
};

use super::error::CtlError;
use super::http::ApiClient;
use super::node_transport::CtlNodeTransport;
use super::output::print_text;
use super::target::TargetArgs;

/// The ready-made simulation.
const SIMULATION: &str = "demo";
const STATUS_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Args)]
#[command(
    after_help = "The objects have ids that begin with demo-. They stay when the command ends; --remove deletes them."
)]
pub(crate) struct DemoArgs {
    /// Delete everything that the command has created, and nothing else
    #[arg(long)]
    remove: bool,
    /// Address of the node's MQTT listener, such as mqtt://node.example:1883 [default: queried from the node]
    #[arg(long, value_name = "URL")]
    mqtt: Option<String>,
    /// End when the devices have reported for this many seconds [default: with Ctrl-C]
    #[arg(long = "for", value_name = "SECONDS")]
    duration_s: Option<u32>,
    #[command(flatten)]
    target: TargetArgs,
}

impl DemoArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let target = self.target.resolve()?;
        let (cafile, host) = (target.cafile.clone(), target.host.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let mut client = ApiClient::new(target);
        runtime.block_on(client.log_in())?;
        let broker = match (&self.mqtt, self.remove) {
            (Some(url), _) => Some(url.clone()),
            (None, true) => None,
            (None, false) => Some(runtime.block_on(mqtt_url(&client, &host))?),
        };
        let console = client.url_of("/");
        let mut sets = Vec::new();
        if let Some(broker) = &broker {
            sets.push(format!("target.broker={}", json!(broker)));
        }
        if let Some(cafile) = &cafile {
            let path = std::path::absolute(cafile)?;
            sets.push(format!("target.ca_file={}", json!(path)));
        }
        let options = EmbeddedOptions {
            node: NodeApi::with_transport(Arc::new(CtlNodeTransport::new(client, runtime))),
            sets,
            max_devices: None,
            creates_products: false,
            keeps: true,
        };
        if let Some(broker) = broker.as_ref().filter(|broker| !broker.contains("://")) {
            let detail =
                format!("the address of MQTT {broker:?}: expected a URL such as mqtt://{broker}");
            return Err(CtlError::Usage(detail).into());
        }
        // Before anything is created.
        let simulation = EmbeddedSimulation::load(SIMULATION, options).map_err(|error| {
            let broker = broker.as_deref().unwrap_or_default();
            CtlError::Usage(format!("the address of MQTT {broker:?}: {error:#}"))
        })?;
        match self.remove {
            true => remove_all(&simulation),
            false => {
                let limit = self.duration_s.map(|s| Duration::from_secs(s.into()));
                report(&simulation, &console, limit)
            }
        }
    }
}

/// The address of a running listener for MQTT over TCP, without TLS if there is one.
async fn mqtt_url(client: &ApiClient, host: &str) -> Result<String, CtlError> {
    let listeners = client.get("/api/v1/listeners").await?;
    let listeners = listeners["data"].as_array().cloned().unwrap_or_default();
    let of = |protocol: &str| {
        listeners.iter().find_map(|listener| {
            let matches = listener["protocol"] == protocol && listener["running"] == true;
            let address = listener["address"].as_str().filter(|_| matches)?;
            let (_, port) = address.rsplit_once(':')?;
            Some(format!("{protocol}://{host}:{port}"))
        })
    };
    of("mqtt").or_else(|| of("mqtts")).ok_or_else(|| {
        CtlError::Usage(
            "the node has no listener for MQTT over TCP; start one, or give its address with --mqtt".into(),
        )
    })
}

fn remove_all(simulation: &EmbeddedSimulation) -> anyhow::Result<()> {
    let removed = simulation.clean(&Interrupt::default(), &|_| {})?;
    for title in &removed.kept {
        eprintln!("{title} is kept: this command did not create it");
    }
    print_text(&format!(
        "deleted {} devices and {} other objects\n",
        removed.devices, removed.others
    ))
}

/// What the command has seen of the run.
#[derive(Default)]
struct DemoStatus {
    started: Option<Instant>,
    last_status: Option<Instant>,
    latest: RunSnapshot,
}

/// Lets the devices report until Ctrl-C, or for some time.
fn report(
    simulation: &EmbeddedSimulation,
    console: &str,
    limit: Option<Duration>,
) -> anyhow::Result<()> {
    let interrupt = Interrupt::watch()?;
    let status = Mutex::new(DemoStatus::default());
    let lock = || status.lock().unwrap_or_else(PoisonError::into_inner);
    let observe = |progress| match progress {
        EmbeddedProgress::Created { new_objects } if !interrupt.is_requested() => {
            let text = describe(simulation, new_objects, console);
            if print_text(&text).is_err() {
                interrupt.request();
            }
        }
        EmbeddedProgress::Running(snapshot) => {
            let mut status = lock();
            let now = Instant::now();
            let started = *status.started.get_or_insert(now);
            let elapsed = now - started;
            if limit.is_some_and(|limit| elapsed >= limit) {
                interrupt.request();
            }
            let since = status.last_status.unwrap_or(started);
            status.latest = snapshot;
            if now - since >= STATUS_INTERVAL {
                status.last_status = Some(now);
                if print_text(&status_line(elapsed, &status.latest)).is_err() {
                    interrupt.request();
                }
            }
        }
        _ => {}
    };
    let result = simulation.run(&interrupt, &observe);
    result.map_err(|error| match error.is::<ForeignObjectError>() {
        true => CtlError::Usage(format!("{error:#}")).into(),
        false => error,
    })?;
    let sent = lock().latest.sent;
    print_text(&format!(
        "stopped after {sent} messages; the fleet stays until `tidegate demo --remove`\n"
    ))
}

fn describe(simulation: &EmbeddedSimulation, new_objects: usize, console: &str) -> String {
    format!(
        "created {new_objects} of {} products, groups, dashboards, rules and relay endpoints; the others existed\n\
         {} devices report to {} every 5 s; see {console}\n\
         Ctrl-C stops them, and `tidegate demo --remove` deletes everything\n",
        simulation.objects(),
        simulation.devices(),
        simulation.broker(),
    )
}

fn status_line(elapsed: Duration, latest: &RunSnapshot) -> String {
    format!(
        "{} s: {} devices are connected, {} messages sent, {} commands answered\n",
        elapsed.as_secs(),
        latest.connected,
        latest.sent,
        latest.answers
    )
}
