//! `tidegate demo`: fills a running node with a small live fleet, and removes it again.

mod objects;
mod values;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use wall_clock::now_ms;

use self::objects::{CreationOutcome, DemoDevice, demo_devices, demo_objects};
use self::values::DeviceKind;
use super::error::CtlError;
use super::http::ApiClient;
use super::output::print_text;
use super::target::TargetArgs;
use crate::client::{DeviceMessage, DeviceTotals, SimulatedDevice};

/// How often a device reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// How often the site as a whole publishes on topics of its own.
const SITE_INTERVAL: Duration = Duration::from_secs(2);
const STATUS_INTERVAL: Duration = Duration::from_secs(30);
/// What new devices report about the time before: a day, and the last hour in more detail.
const HISTORY_MINUTES: [(std::ops::Range<u32>, usize); 2] = [(60..1440, 10), (1..60, 1)];
/// Rows in one message of the history.
const HISTORY_ROWS: usize = 48;
/// Messages that wait for a device's connection; more are dropped.
const MAX_WAITING: usize = 16;
const TELEMETRY: &str = "v1/devices/me/telemetry";

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
        let cafile = target.cafile.clone();
        let host = target.host.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let mut client = ApiClient::new(target);
            client.log_in().await?;
            if self.remove {
                return remove_all(&client).await;
            }
            let mqtt = match self.mqtt {
                Some(url) => url,
                None => mqtt_url(&client, &host).await?,
            };
            let limit = self
                .duration_s
                .map(|seconds| Duration::from_secs(seconds.into()));
            // Before anything is created.
            SimulatedDevice::check_url(&mqtt, cafile.as_deref())?;
            run(client, &self.target, (&mqtt, cafile), limit).await
        })
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

async fn remove_all(client: &ApiClient) -> anyhow::Result<()> {
    let mut devices = 0_u32;
    for device in demo_devices() {
        devices += u32::from(device.remove(client).await?);
    }
    let mut removed = 0_u32;
    for object in demo_objects().iter().rev() {
        removed += u32::from(object.remove(client).await?);
    }
    print_text(&format!(
        "deleted {devices} devices and {removed} other objects\n"
    ))
}

async fn run(
    mut client: ApiClient,
    target: &TargetArgs,
    (mqtt, cafile): (&str, Option<PathBuf>),
    limit: Option<Duration>,
) -> anyhow::Result<()> {
    let mut is_ended = std::pin::pin!(end_requested()?);
    let mut new_objects = 0_u32;
    let objects = demo_objects();
    for object in &objects {
        new_objects += u32::from(object.create(&client).await? == CreationOutcome::New);
    }
    print_text(&format!(
        "created {new_objects} of {} products, groups, dashboards, rules and relay endpoints; the others existed\n",
        objects.len()
    ))?;
    let totals = Arc::new(DeviceTotals::default());
    let mut connections = JoinSet::new();
    let mut fleet = Vec::new();
    for device in demo_devices() {
        let (created, token) = tokio::select! {
            created = device.create(&client) => created?,
            () = &mut is_ended => return Ok(()),
        };
        let simulated =
            SimulatedDevice::new(mqtt, cafile.as_deref(), (&device.id, token), totals.clone())?;
        let (sender, messages) = mpsc::channel(MAX_WAITING);
        connections.spawn(simulated.run(messages));
        if created == CreationOutcome::New {
            // The channel holds all of it.
            for message in history(&device, now_ms()) {
                sender.send(message).await?;
            }
        }
        fleet.push((device, sender));
    }
    print_text(&format!(
        "{} devices report to {mqtt} every {} s; see {}\nCtrl-C stops them, and `tidegate demo --remove` deletes everything\n",
        fleet.len(),
        REPORT_INTERVAL.as_secs(),
        client.url_of("/"),
    ))?;
    let report = async {
        tokio::try_join!(
            report_values(&fleet),
            report_site(&mut client, target),
            print_status(&totals)
        )
        .map(drop)
    };
    let timer = async {
        match limit {
            Some(limit) => sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = report => ended?,
        () = is_ended => {}
        () = timer => {}
    }
    drop(fleet);
    while connections.join_next().await.is_some() {}
    print_text(&format!(
        "stopped after {} messages; the fleet stays until `tidegate demo --remove`\n",
        totals.sent.load(Relaxed)
    ))
}

/// Ends with Ctrl-C or SIGTERM.
fn end_requested() -> anyhow::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// The messages with which a new device reports the last day.
fn history(device: &DemoDevice, now_ms: u64) -> Vec<DeviceMessage> {
    let minutes_ago = HISTORY_MINUTES
        .into_iter()
        .flat_map(|(minutes, step)| minutes.step_by(step).rev());
    let rows: Vec<Value> = minutes_ago
        .map(|minutes| {
            let at_ms = now_ms - u64::from(minutes) * 60_000;
            json!({"ts": at_ms, "values": device.kind.values(device.number, at_ms)})
        })
        .collect();
    rows.chunks(HISTORY_ROWS)
        .map(|rows| DeviceMessage {
            topic: TELEMETRY,
            payload: json!(rows).to_string().into_bytes(),
        })
        .collect()
}

/// Lets one device after the other report, evenly over the interval.
async fn report_values(fleet: &[(DemoDevice, mpsc::Sender<DeviceMessage>)]) -> anyhow::Result<()> {
    let count = u32::try_from(fleet.len()).unwrap_or(u32::MAX).max(1);
    let mut ticks = interval(REPORT_INTERVAL / count);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for (device, messages) in fleet.iter().cycle() {
        ticks.tick().await;
        let values = Value::Object(device.kind.values(device.number, now_ms()));
        let message = DeviceMessage {
            topic: TELEMETRY,
            payload: values.to_string().into_bytes(),
        };
        // A device without a connection reports later again.
        let _ = messages.try_send(message);
    }
    Ok(())
}

/// Publishes what does not belong to a device, over HTTP.
async fn report_site(client: &mut ApiClient, target: &TargetArgs) -> anyhow::Result<()> {
    let mut ticks = interval(SITE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let now_ms = now_ms();
        let meters = demo_devices();
        let meters = meters
            .iter()
            .filter(|device| device.kind == DeviceKind::Meter);
        let load: f64 = meters
            .filter_map(|meter| meter.kind.values(meter.number, now_ms)["power"].as_f64())
            .sum();
        let room = DeviceKind::Room.values(0, now_ms);
        let energy = json!({"load": (load * 10.0).round() / 10.0, "unit": "kW"});
        let weather = json!({"temperature": room["temperature"], "humidity": room["humidity"]});
        for (topic, payload) in [("demo/site/energy", energy), ("demo/site/weather", weather)] {
            let message = json!({"topic": topic, "payload": payload.to_string(), "retain": false});
            match client.post("/api/v1/publish", &message).await {
                Ok(_) | Err(CtlError::Unreachable { .. }) => {}
                // The node was started again, and its tokens are others.
                Err(CtlError::Rejected { status: 401, .. }) => {
                    if let Some(target) = target.resolve_after_restart() {
                        *client = ApiClient::new(target);
                    }
                    // Fails while the node starts.
                    let _ = client.log_in().await;
                }
                Err(CtlError::Rejected { status: 503, .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

async fn print_status(totals: &DeviceTotals) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        sleep(STATUS_INTERVAL).await;
        print_text(&format!(
            "{} s: {} devices are connected, {} messages sent, {} commands answered\n",
            start.elapsed().as_secs(),
            totals.connected.load(Relaxed),
            totals.sent.load(Relaxed),
            totals.commands.load(Relaxed),
        ))?;
    }
}
