//! The arguments of the benchmark, and the names of what it registers.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use crate::endpoint::Endpoint;
use crate::units;

/// Product of all devices.
pub(super) const PRODUCT: &str = "bench-telemetry";

/// Whose topics and payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DeviceProtocol {
    Thingsboard,
    Jetlinks,
    /// Both protocols, alternately
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PipelineMode {
    Sync,
    Actor,
}

/// Arguments of `tidegate bench telemetry`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TelemetryArgs {
    /// The node's MQTT listener
    #[arg(long, value_name = "URL", default_value = "mqtt://127.0.0.1:1883")]
    pub(super) broker: Endpoint,
    /// The node's HTTP API, to create the devices and to count rows
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(super) api: String,
    /// File with a token for --api, such as `api.token` in the node's data directory
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// The node's process, for its CPU time and memory
    #[arg(long, value_name = "PID")]
    pub(super) broker_pid: Option<u32>,
    /// Devices that report
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(super) devices: u32,
    /// Topics and payloads of devices
    #[arg(long, value_enum, default_value = "both")]
    pub(super) protocol: DeviceProtocol,
    /// How the node processes reports
    #[arg(long, value_enum, default_value = "actor")]
    pub(super) mode: PipelineMode,
    /// Values of a report: numbers that change slowly
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(super) keys: usize,
    /// Quality of service
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(super) qos: u8,
    /// Maximum number of unacknowledged reports of a device
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) window: u16,
    /// Reports per second of all devices together [default: as many as possible]
    #[arg(long, value_name = "RATE", value_parser = units::parse_rate)]
    pub(super) rate: Option<f64>,
    /// How long reports are sent
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_duration)]
    pub(super) duration: Duration,
    /// Threads of the generator
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) threads: usize,
    /// Sink of the node to which a rule passes each report: also count what it writes, and how much waits for it
    #[arg(long, value_name = "NAME")]
    pub(super) sink: Option<String>,
    /// Do not count the stored rows by a query at the end
    #[arg(long)]
    pub(super) no_count: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn device_name(number: u32) -> String {
    format!("bench-{number:07}")
}
