//! `tidegate bench` as a program of its own: `cargo run --release -p tidegate-bench --example tidegate-bench -- mqtt p2p`.

use std::process::ExitCode;

use clap::Parser;

/// Load generator for MQTT brokers.
#[derive(Parser)]
#[command(name = "tidegate-bench", version)]
struct Program {
    #[command(flatten)]
    bench: bench::BenchArgs,
}

fn main() -> ExitCode {
    match bench::run(Program::parse().bench) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
