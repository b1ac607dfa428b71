//! Prometheus: a server that asks itself, and has a few series of its own by recording rules.

use std::fs;
use std::process::Command;

use super::instance::ServerInstance;

/// `kit_temperature` of the rooms `kitchen` (21.5) and `hall` (18), and `kit_nan`.
const RULES: &str = r#"
groups:
  - name: kit
    interval: 1s
    rules:
      - record: kit_temperature
        expr: vector(21.5)
        labels: {room: kitchen, sensor: t1}
      - record: kit_temperature
        expr: vector(18)
        labels: {room: hall, sensor: t1}
      - record: kit_nan
        expr: vector(0) / 0
        labels: {room: hall}
"#;

pub(super) fn prepare(server: &ServerInstance) {
    let settings = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
         rule_files: [rules.yml]\n\
         scrape_configs: [{{job_name: self, static_configs: [{{targets: ['127.0.0.1:{}']}}]}}]\n",
        server.port
    );
    fs::write(server.dir.join("settings.yml"), settings).expect("a file can be written");
    fs::write(server.dir.join("rules.yml"), RULES).expect("a file can be written");
}

pub(super) fn command(server: &ServerInstance) -> Command {
    let mut command = server.command_for(&server.program);
    let option = |name: &str, value: &str| format!("--{name}={value}");
    command.arg(option(
        "config.file",
        &server.dir.join("settings.yml").display().to_string(),
    ));
    command.arg(option(
        "storage.tsdb.path",
        &server.data_dir().display().to_string(),
    ));
    command.arg(option("web.listen-address", &server.address().to_string()));
    command
}
