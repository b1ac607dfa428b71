//! Measures what a cluster needs of NATS, with three servers and two nodes on this machine. See `docs/internals/cluster.md`.
//!
//! `nats_figures PROGRAM FIGURE [NAME=VALUE]...`, with the figures `links`, `channel`, `latency`, `stream` and `objects`.

mod cluster_figures;
mod nats_cluster;
mod objects_figure;
mod stream_figure;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Values of the command line, with defaults.
struct Options {
    program: PathBuf,
    values: HashMap<String, String>,
}

impl Options {
    fn number(&self, name: &str, default: u64) -> u64 {
        let value = self.values.get(name);
        value.map_or(default, |text| {
            text.parse()
                .unwrap_or_else(|_| panic!("{name}={text}: expected a number"))
        })
    }

    fn duration(&self) -> Duration {
        Duration::from_secs(self.number("seconds", 5))
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(program), Some(figure)) = (arguments.next(), arguments.next()) else {
        eprintln!(
            "usage: nats_figures PROGRAM links|channel|latency|stream|objects [NAME=VALUE]..."
        );
        return ExitCode::FAILURE;
    };
    let pairs = arguments.filter_map(|argument| {
        let (name, value) = argument.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    });
    let options = Options {
        program: program.into(),
        values: pairs.collect(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be created");
    runtime.block_on(async {
        match figure.as_str() {
            "links" => cluster_figures::links(&options).await,
            "channel" => cluster_figures::channel(&options).await,
            "latency" => cluster_figures::latency(&options).await,
            "stream" => stream_figure::run(&options).await,
            "objects" => objects_figure::run(&options).await,
            other => {
                eprintln!("{other} is no figure");
                return ExitCode::FAILURE;
            }
        }
        ExitCode::SUCCESS
    })
}
