//! Load generators and their reports: `tidegate bench`.
//!
//! All benchmarks except `rules`, `devices`, `pipeline` and `alerts` use the network interfaces of a broker only, so any broker can be measured.

mod alarm_evaluator;
mod alerts_bench;
mod alternation;
mod args;
mod broker_access;
mod devices_bench;
mod files_bench;
mod firmware_bench;
mod flow_window;
mod forwarder;
mod link_bench;
mod load_shape;
mod measured_cases;
mod memory_slope;
mod metrics;

mod observer;
mod own_node;
mod packets;
mod pipeline_bench;
mod published_reports;
mod relay_bench;
mod report;
mod round_outcome;
mod rule_api;
mod rules_bench;
mod scenario;
mod telemetry_bench;
mod worker;

use std::process::ExitCode;

pub use published_reports::commands as commands_of_published_reports;

use load_client::{
    client_error, endpoint, host, node_api, packet_scanner, payload_stamp, sequence_checker, timer,
    transport, units,
};

/// Arguments of `tidegate bench`.
#[derive(clap::Args, Clone, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    protocol: BenchTarget,
}

/// What to put under load.
#[derive(clap::Subcommand, Clone, Debug)]
enum BenchTarget {
    /// Measure any MQTT broker under load
    Mqtt {
        #[command(subcommand)]
        scenario: scenario::Scenario,
    },
    /// Measure the rule engine in this process: evaluations, very many rules, memory
    Rules(rules_bench::RulesArgs),
    /// Measure a device registry in this process: import, start, look-ups, memory
    Devices(devices_bench::DevicesArgs),
    /// Measure the telemetry pipeline in this process, from device messages to stored rows
    Pipeline(pipeline_bench::PipelineArgs),
    /// Run the telemetry pipeline beyond the thresholds of alerts in this process, and show the alerts
    Alerts(alerts_bench::AlertsArgs),
    /// Send reports of devices over MQTT, and count the rows that the node stores
    Telemetry(telemetry_bench::TelemetryArgs),
    /// Measure relay endpoints, or another WebSocket relay; each message is numbered and checked
    Relay {
        #[command(subcommand)]
        scenario: relay_bench::RelayScenario,
    },
    /// Measure links between two peers over TCP, compared with plain TCP
    Link {
        #[command(subcommand)]
        scenario: link_bench::LinkScenario,
    },
    /// Measure uploads over MQTT, HTTP, tus and links, compared with plain TCP
    Files(files_bench::FilesArgs),
    /// Measure downloads of a firmware image by many devices at once over MQTT, and other clients meanwhile
    Firmware(firmware_bench::FirmwareArgs),
    /// Repeat the measurements of published reports, and write a page with both figures
    Report(published_reports::ReportArgs),
    /// Short for `mqtt offline`
    Offline(scenario::OfflineScenario),
}

/// Runs a benchmark and prints its result.
///
/// The exit code is 1 if an `--assert` does not hold or a connection failed; an error means that there is no result.
pub fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    match args.protocol {
        BenchTarget::Mqtt { scenario } => scenario.run(),
        BenchTarget::Rules(arguments) => rules_bench::run(&arguments),
        BenchTarget::Devices(arguments) => devices_bench::run(&arguments),
        BenchTarget::Pipeline(arguments) => pipeline_bench::run(&arguments),
        BenchTarget::Alerts(arguments) => alerts_bench::run(&arguments),
        BenchTarget::Telemetry(arguments) => telemetry_bench::run(&arguments),
        BenchTarget::Relay { scenario } => scenario.run(),
        BenchTarget::Link { scenario } => scenario.run(),
        BenchTarget::Files(arguments) => files_bench::run(&arguments),
        BenchTarget::Firmware(arguments) => firmware_bench::run(&arguments),
        BenchTarget::Report(arguments) => published_reports::run(&arguments),
        BenchTarget::Offline(scenario) => scenario::Scenario::Offline(scenario).run(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn error(line: &str) -> String {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        match Program::try_parse_from(words) {
            Ok(program) => match run(program.bench) {
                Ok(_) => panic!("`{line}` was taken"),
                Err(error) => format!("{error:#}"),
            },
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn options_are_consistent() {
        use clap::CommandFactory;
        Program::command().debug_assert();
    }

    #[test]
    fn says_what_is_wrong_with_options() {
        assert!(error("mqtt p2p --duration 5").contains("no unit"));
        assert!(error("mqtt p2p --window 0").contains("1..=65535"));
        assert!(error("mqtt p2p --window 5 --rate 5").contains("cannot be used with"));
        assert!(error("mqtt p2p --qos 3").contains("0..=2"));
        assert!(error("mqtt p2p --payload 10").contains("24 bytes"));
        assert!(error("mqtt p2p --assert p98<5ms").contains("did you mean"));
        assert!(
            error("mqtt p2p --broker mqtts://127.0.0.1 --cafile /none/ca").contains("/none/ca")
        );
        assert!(error("mqtt p2p --wildcards 20%").contains("--filters"));
        assert!(error("mqtt p2p --filters 5 --pairs 10").contains("--filters 5"));
        assert!(error("mqtt p2p --pairs 1 --threads 2").contains("--threads 2"));
        assert!(error("mqtt p2p --broker-pid 4000000000").contains("4000000000"));
        assert!(error("mqtt filters --versus 127.0.0.1:1").contains("--versus"));
        assert!(error("offline --clients 10 --publishers 3").contains("--publishers 3"));
        assert!(error("mqtt offline --qos 0").contains("1..=2"));
        assert!(error("offline --data-dir /none/such").contains("/none/such"));
        assert!(error("offline --versus-data-dir /").contains("--versus"));
        assert!(error("mqtt rules --payload-template {}").contains("${stamp}"));
        assert!(error("mqtt rules --half-load --rate 5").contains("cannot be used with"));
        assert!(error("mqtt rules --api ftp://x:1").contains("--api ftp://x:1"));
        assert!(error("mqtt --rules middling").contains("simple, complex"));
        assert!(error("relay pairs --broker wss://a/ws").contains("ws://127.0.0.1:8083/ws"));
        assert!(error("relay pairs --payload 20 --broker ws://127.0.0.1:1").contains("51 bytes"));
        assert!(error("relay pairs --window 5 --rate 5").contains("cannot be used with"));
        assert!(error("relay pairs --api http://127.0.0.1:1").contains("--broker"));
        assert!(error("relay connections --connections 10 --endpoints 3").contains("divided"));
        assert!(error("relay checks --broker ws://127.0.0.1:1").contains("--api"));
        assert!(error("mqtt connect --connections 0").contains("1 to 1,000,000"));
        assert!(error("link throughput --connections 0").contains("1..=10000"));
        assert!(error("files --size 20GB").contains("10GB"));
        assert!(error("firmware --devices 0").contains("1..=20000"));
        assert!(error("files --method ftp").contains("mqtt, http, tus, link, curl"));
        assert!(error("files --versus scp").contains("rsync, tusd, nats"));
        assert!(error("link throughput --size 20GB").contains("10GB"));
        assert!(error("link network --assert ratio_trougput>=1").contains("did you mean"));
    }
}
