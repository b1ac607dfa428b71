//! `cargo xtask bench`: the figures of the README, measured on this machine. The broker is pinned to core 0 and the
//! generator to core 1; where mosquitto, or the package `ws` for Node, is installed, it is measured in turn with the broker,
//! in the same run.

mod benchmarks;
mod broker;

use std::path::Path;
use std::process::Command;

use self::benchmarks::{BENCHMARKS, Benchmark, ComparedServer};
use self::broker::BrokerProcess;
use crate::process::{cargo, command_line, find_program, run as run_command};
use crate::{TaskError, parse_number_option};

const DEFAULT_SECONDS: u64 = 10;
const BROKER_CORE: &str = "0";
const GENERATOR_CORE: &str = "1";

pub(crate) fn run(arguments: &[String]) -> Result<(), TaskError> {
    let mut names = arguments.to_vec();
    let seconds = parse_number_option(&mut names, "--seconds")?.unwrap_or(DEFAULT_SECONDS);
    let chosen = select_benchmarks(&names)?;
    check_requirements()?;
    println!("==> building");
    run_command(cargo().args(["build", "--release", "--package", "tidegate"]))?;
    let dir = crate::target_dir().join("bench");
    let mut rows = Vec::new();
    for figure in chosen {
        println!("==> {}: {}", figure.name, figure.what);
        let cells = measure(figure, seconds, &dir)?;
        rows.push(row(figure, &cells));
        for (metric, value) in figure.metrics.iter().zip(cells) {
            println!("    {}", metric.verdict(value));
        }
    }
    println!("\n| figure | measured | compared | command |\n|---|---|---|---|");
    for row in rows {
        println!("{row}");
    }
    Ok(())
}

fn select_benchmarks(names: &[String]) -> Result<Vec<&'static Benchmark>, TaskError> {
    if names.is_empty() {
        return Ok(BENCHMARKS.iter().collect());
    }
    let find = |name: &String| {
        BENCHMARKS
            .iter()
            .find(|figure| figure.name == name)
            .ok_or_else(|| {
                let known: Vec<&str> = BENCHMARKS.iter().map(|figure| figure.name).collect();
                format!(
                    "there is no figure `{name}`; there are: {}",
                    known.join(", ")
                )
            })
    };
    names.iter().map(find).collect()
}

fn check_requirements() -> Result<(), TaskError> {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        return Err("the broker and the generator need a core each; this machine has one".into());
    }
    match find_program("taskset") {
        Some(_) => Ok(()),
        None => Err("taskset is missing; run `sudo apt-get install util-linux`".into()),
    }
}

/// Measures one figure against a fresh broker; a value for each of its metrics, where there is one.
fn measure(figure: &Benchmark, seconds: u64, dir: &Path) -> Result<Vec<Option<f64>>, TaskError> {
    let json = dir.join(format!("{}.json", figure.name));
    let program = crate::target_dir().join("release/tidegate");
    let mut command = Command::new("taskset");
    // A generator that starts its own node pins it to the first of its cores.
    let cores = match figure.scenario.starts_with("relay ") {
        true => format!("{BROKER_CORE},{GENERATOR_CORE}"),
        false => GENERATOR_CORE.to_owned(),
    };
    command.args(["--cpu-list", &cores]).arg(&program);
    command.arg("bench").args(figure.scenario.split(' '));
    let mut brokers = Vec::new();
    if figure.needs_broker {
        let broker = BrokerProcess::tidegate(&program, dir)?;
        command.args([
            "--broker",
            &broker.address,
            "--broker-pid",
            &broker.pid().to_string(),
        ]);
        brokers.push(broker);
    }
    if let Some(server) = figure.compared_server {
        match start_compared(server, dir)? {
            Some((running, address)) => {
                command.args(["--versus", &format!("{address},{}", running.pid())]);
                brokers.push(running);
            }
            None => println!("    SKIPPED the comparison: {}", server.remedy()),
        }
    }
    if figure.is_timed {
        command.args(["--duration", &format!("{seconds}s")]);
    }
    command.arg("--json").arg(&json);
    println!("    {}", command_line(&command));
    run_command(&mut command)?;
    let text =
        std::fs::read_to_string(&json).map_err(|error| format!("{}: {error}", json.display()))?;
    Ok(figure
        .metrics
        .iter()
        .map(|metric| metric.value_in(&text))
        .collect())
}

/// What is measured in turn, and its address for the generator; `None`: it is not installed.
fn start_compared(
    server: ComparedServer,
    dir: &Path,
) -> Result<Option<(BrokerProcess, String)>, TaskError> {
    match server {
        ComparedServer::Mosquitto if find_program("mosquitto").is_some() => {
            let running = BrokerProcess::mosquitto(dir)?;
            let address = running.address.clone();
            Ok(Some((running, address)))
        }
        ComparedServer::WsPackage => {
            let modules = crate::target_dir().join("tools/node/node_modules");
            if find_program("node").is_none() || !modules.join("ws").exists() {
                return Ok(None);
            }
            let running = BrokerProcess::ws_relay(dir, &modules)?;
            let address = format!("ws://{}", running.address);
            Ok(Some((running, address)))
        }
        ComparedServer::Mosquitto => Ok(None),
    }
}

/// A line of the README's table.
fn row(figure: &Benchmark, values: &[Option<f64>]) -> String {
    let cell = |is_comparison: bool| {
        let values = figure.metrics.iter().zip(values);
        let texts: Vec<String> = values
            .filter(|(metric, _)| metric.is_comparison() == is_comparison)
            .map(|(metric, value)| {
                value.map_or("not measured".into(), |value| metric.format_value(value))
            })
            .collect();
        texts.join(", ")
    };
    format!(
        "| {} | {} | {} | `cargo xtask bench {}` |",
        figure.what,
        cell(false),
        cell(true),
        figure.name
    )
}
