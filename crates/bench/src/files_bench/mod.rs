//! `tidegate bench files`: one file at a time to a node of its own, by each method in.
//!
//! A file counts when the node has stored it, verified its SHA-256 digest, and shows it with this size and digest. The
//! same content is sent over plain TCP in the same run.

mod comparison_programs;
mod file_content;
mod uploads;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use self::comparison_programs::ComparisonProgram;
pub(crate) use self::file_content::{FileContent, hex};
use self::uploads::send_over_plain_tcp;
pub(crate) use self::uploads::{NodeAddresses, UploadMethod};
use crate::measured_cases::{CaseOutputArgs, MeasuredCase, MeasuredCases};
use crate::metrics::MetricValues;
use crate::node_api::NodeApi;
use crate::own_node::{OwnNode, OwnNodeOptions};
use crate::units;

const CONFIGURATION: &str = r#"
[[listener]]
name = "mqtt"
bind = "127.0.0.1:0"

[[listener]]
name = "link"
bind = "127.0.0.1:0"
"#;

/// Arguments of `tidegate bench files`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct FilesArgs {
    /// Size of each file
    #[arg(long, value_name = "BYTES", default_value = "1GB", value_parser = units::parse_size)]
    size: usize,
    /// Upload method, repeatable [default: all but curl]
    #[arg(long, value_enum)]
    method: Vec<UploadMethod>,
    /// Another program that receives the same files, repeatable; it must be installed
    #[arg(long, value_enum, value_name = "PROGRAM")]
    versus: Vec<ComparisonProgram>,
    /// Time to send files by each method, one after the other; at least one is sent
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_duration)]
    duration: Duration,
    /// Program of the node [default: this one]
    #[arg(long, value_name = "FILE")]
    program: Option<std::path::PathBuf>,
    /// Directory for the node's data, which is removed [default: that of temporary files]
    #[arg(long, value_name = "DIR")]
    directory: Option<std::path::PathBuf>,
    #[command(flatten)]
    output: CaseOutputArgs,
}

/// Files of one method, or of plain TCP.
#[derive(Default)]
struct SentFiles {
    files: u64,
    bytes: u64,
    seconds: f64,
}

impl SentFiles {
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9)
    }
}

pub(crate) fn run(arguments: &FilesArgs) -> anyhow::Result<ExitCode> {
    let mut content = FileContent::new(arguments.size as u64);
    let directory = arguments.directory.clone();
    let directory = directory.unwrap_or_else(std::env::temp_dir);
    let digest = content.sha256();
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("cannot find this program")?,
    };
    let options = OwnNodeOptions {
        benchmark: "files",
        parent: Some(&directory),
        arguments: &[],
        configuration: CONFIGURATION,
        is_pinned: false,
    };
    let node = OwnNode::start(&program, &options)?;
    let token = std::fs::read_to_string(node.token_file()).context("cannot read api.token")?;
    let addresses = NodeAddresses {
        mqtt: node.address("mqtt")?,
        http: node.address("http")?,
        link: node.address("link")?,
        token: token.trim().to_owned(),
    };
    let api = NodeApi::new(&addresses.http, Some(&node.token_file()))?;
    let methods = match &arguments.method[..] {
        [] => UploadMethod::OWN.to_vec(),
        methods => methods.to_vec(),
    };
    if methods.contains(&UploadMethod::Curl) || arguments.versus.contains(&ComparisonProgram::Rsync)
    {
        let name = format!("tidegate-bench-source-{}", std::process::id());
        content.write_source(directory.join(name))?;
    }
    let mut outcome = MeasuredCases::new(&arguments.output);
    outcome.print(&format!(
        "{:<12} {:>6} {:>14} {:>9} {:>10} {:>10} {:>6}",
        "method", "files", "bytes", "seconds", "MB/s", "TCP MB/s", "ratio"
    ));
    let mut number = 0;
    for method in methods {
        arguments.measure(method.name(), &content, &mut outcome, || {
            number += 1;
            let name = format!("bench-{number}");
            let start = Instant::now();
            let result = method.send(&addresses, &name, &content, &digest);
            result.with_context(|| format!("{}: file {number}", method.name()))?;
            let elapsed = start.elapsed();
            verify(&api, &name, content.size, &hex(&digest))?;
            Ok(elapsed)
        })?;
    }
    for program in &arguments.versus {
        let server = program.start(&directory)?;
        arguments.measure(program.name(), &content, &mut outcome, || {
            number += 1;
            server.measure(&format!("bench-{number}"), &content, &digest)
        })?;
    }
    outcome.finish("files")
}

impl FilesArgs {
    /// Sends files for the time of a method; `send` returns how long one takes.
    fn measure(
        &self,
        name: &str,
        content: &FileContent,
        outcome: &mut MeasuredCases<'_>,
        mut send: impl FnMut() -> anyhow::Result<Duration>,
    ) -> anyhow::Result<()> {
        let (mut sent, mut tcp) = (SentFiles::default(), SentFiles::default());
        while sent.files == 0 || sent.seconds < self.duration.as_secs_f64() {
            tcp.bytes += content.size;
            tcp.seconds += send_over_plain_tcp(content)?.as_secs_f64();
            sent.seconds += send()?.as_secs_f64();
            sent.files += 1;
            sent.bytes += content.size;
        }
        let mut measures = MetricValues::default();
        for (name, value) in [
            ("payload_rate", sent.rate()),
            ("received", sent.files as f64),
            ("seconds", sent.seconds),
            ("tcp_rate", tcp.rate()),
            ("ratio_throughput", sent.rate() / tcp.rate()),
        ] {
            measures.set(name, value);
        }
        let line = format!(
            "{name:<12} {:>6} {:>14} {:>9.1} {:>10.0} {:>10.0} {:>6.2}",
            sent.files,
            sent.bytes,
            sent.seconds,
            sent.rate() / 1e6,
            tcp.rate() / 1e6,
            sent.rate() / tcp.rate()
        );
        let name = name.to_owned();
        outcome.add(MeasuredCase { name, measures }, &line);
        Ok(())
    }
}

/// Checks that the node shows the file as complete and unchanged, and deletes it.
fn verify(api: &NodeApi, name: &str, size: u64, sha256: &str) -> anyhow::Result<()> {
    let listed = api.request_json("GET", "/api/v1/files", None)?;
    let mut files = listed["data"].as_array().into_iter().flatten();
    let file = files.find(|file| file["name"] == name && file["state"] == "complete");
    let file = file.with_context(|| format!("the node does not show the file {name}"))?;
    ensure!(
        file["size"] == size && file["checksum"] == sha256,
        "the node has stored other content: {file}"
    );
    let id = file["id"].as_str().context("a file has no id")?;
    api.request_json("DELETE", &format!("/api/v1/files/{id}"), None)?;
    Ok(())
}
