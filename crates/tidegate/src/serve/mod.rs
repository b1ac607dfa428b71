//! `tidegate serve`: a node from start to graceful stop.

mod added_listeners;
mod alarm_metrics;
mod alarms;
mod allocator;
mod attribute_polls;
mod ban_enforcement;
mod blocking_stage;
mod chain_publisher;
mod client_subscription;
mod cluster_alarms;
mod cluster_commands;
mod cluster_drain;
mod cluster_firmware;
mod cluster_objects;
mod cluster_observer;
mod cluster_pulls;
mod cluster_rebalance;
mod cluster_requests;
mod cluster_standby;
mod cluster_telemetry_copy;
mod damage;
pub(crate) mod data_dir;
mod device_events;
mod device_http;
mod device_port;
mod device_sinks;
mod disconnect_turns;
mod embedded_console;
mod fallback_actions;
mod file_exports;
mod firmware_reports;
mod fleet_service;
mod http_task;
mod in_process;
mod ingest_metrics;
mod namespace_enforcement;
mod node;
mod node_cluster;
mod node_commands;
mod node_connectors;
mod node_devices;
mod node_files;
mod node_firmware;
mod node_ingest;
mod node_rebalance;
mod node_sampler;
mod node_services;
mod node_simulations;
mod notification_transport;
mod notifications;
mod object_references;
mod object_service;
mod open_file_limit;
mod pipeline_outputs;
mod program_service;
mod pull_metrics;
mod rebalance_plan;
mod registration_audit;
mod relay_devices;
mod relay_endpoints;
mod relay_events;
mod relay_requests;
mod replicated_records;
mod settings_service;
mod signals;
mod sink_metrics;
mod sink_port;
mod start_error;
mod startup_message;
mod store_health;
mod telemetry;
mod telemetry_intervals;
mod telemetry_quota;
mod telemetry_rows;
#[cfg(feature = "parquet")]
mod telemetry_table;
mod telemetry_values;

use std::io::{self, IsTerminal as _, Write as _};

use anyhow::Context as _;
use api::FirstOperator;

use crate::config::{self, Config, ConfigSources};
use crate::logging::{self, LogFormat};
use data_dir::DataDir;
pub(crate) use device_port::NoopDevicePort;
pub(crate) use in_process::InProcessNodes;
use node::Node;
pub(crate) use signals::{SignalListener, SignalRequest};
pub(crate) use startup_message::program_name;

/// File with the password of the first operator, if the first start had no terminal to show it on.
const FIRST_PASSWORD_FILE: &str = "first-password";
/// Threads of the control plane, which runs HTTP and waits for shards. The shards have their own
/// threads.
const CONTROL_THREADS: usize = 2;

/// Runs a node until it receives a stop signal. `sources` are read again when it is told to.
pub(crate) fn run(config: Config, sources: &ConfigSources) -> anyhow::Result<()> {
    let log_levels =
        logging::start(&config.log_level, config.log_format).map_err(anyhow::Error::msg)?;
    allocator::release_memory_at_once();
    let open_files_warning = open_file_limit::raise_limit();
    for warning in config.warnings.iter().chain(&open_files_warning) {
        tracing::warn!("{warning}");
    }
    let data_dir = DataDir::open(&config.data_dir)?;
    control_runtime()?.block_on(async {
        let mut signals = SignalListener::listen().context("cannot listen for signals")?;
        let node = Node::start(&config, &data_dir, log_levels).await?;
        // Before the node is announced: a program that waits for it also finds the password.
        if let Some(first) = node.first_operator() {
            print_first_operator(first, &data_dir)?;
        }
        data_dir.write_node_file(node.listeners())?;
        print_startup_message(&config, &node, &data_dir);
        allocator::keep_memory_for_reuse();
        let signal = loop {
            match signals.next().await {
                SignalRequest::Stop(signal) => break signal,
                SignalRequest::Reload => {
                    node.reload_certificates();
                    // Checks of the configuration block.
                    tokio::task::block_in_place(|| reload_configuration(sources, &node));
                }
            }
        };
        tracing::info!("{signal}: stopping");
        // From here on other programs no longer find the node.
        data_dir.remove_node_file()?;
        tokio::select! {
            () = node.stop() => {}
            () = signals.next_interrupt() => anyhow::bail!("interrupted: stopped without waiting for clients"),
        }
        tracing::info!("stopped");
        Ok(())
    })
}

/// The threads of the control plane.
fn control_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CONTROL_THREADS)
        .thread_name("control")
        .on_thread_park(allocator::release_when_due)
        .enable_all()
        .build()
        .context("cannot start the control plane")
}

/// Reads the configuration again. A node with an invalid one keeps its settings.
fn reload_configuration(sources: &ConfigSources, node: &Node) {
    let config = match config::load(sources) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!("the configuration is invalid; the node keeps its settings: {error}");
            return;
        }
    };
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let result = node.settings().reload(&config);
    tracing::info!(changed = %result.changed.join(", "), "configuration reloaded");
    if !result.overridden.is_empty() {
        tracing::warn!(
            "these settings have changed in the configuration, and a change over the API overrides them: {}",
            result.overridden.join(", ")
        );
    }
    if !result.needs_restart.is_empty() {
        tracing::warn!(
            "these have changed in the configuration, and take effect when the node starts again: {}",
            result.needs_restart.join(", ")
        );
    }
}

/// Shows the password of the first operator on a terminal. Without a terminal the output is
/// probably a log with many readers, so the password goes to a file for the owner.
fn print_first_operator(first: &FirstOperator, data_dir: &DataDir) -> anyhow::Result<()> {
    let FirstOperator { username, password } = first;
    let mut terminal = io::stdout();
    if terminal.is_terminal() {
        let _ = writeln!(
            terminal,
            "First start: the API has the operator `{username}` with the password\n\n    {password}\n\nIt is not shown \
             again. On this machine, `tidegate ctl` needs no password."
        );
        return Ok(());
    }
    let path = data_dir.write_secret(FIRST_PASSWORD_FILE, &format!("{password}\n"))?;
    tracing::info!(
        "first start: the API has the operator `{username}`; its password is in {}: read it, then delete that file",
        path.display()
    );
    Ok(())
}

fn print_startup_message(config: &Config, node: &Node, data_dir: &DataDir) {
    match config.log_format {
        LogFormat::Text => {
            let (listeners, data_dir) = (node.listeners(), data_dir.path());
            let (broker, file) = (&config.broker, config.file.as_deref());
            let program = program_name();
            let text =
                startup_message::startup_message(listeners, broker, data_dir, file, &program);
            // Stdout may be closed.
            let _ = io::stdout().write_all(text.as_bytes());
        }
        LogFormat::Json => {
            for listener in node.listeners() {
                tracing::info!(
                    listener = listener.name,
                    protocol = listener.protocol,
                    address = listener.address,
                    "listening"
                );
            }
            let data_dir = data_dir.path().display();
            tracing::info!(version = env!("CARGO_PKG_VERSION"), %data_dir, "ready");
        }
    }
}
