//! The machine and the program of a measurement.

use std::fs;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::host::{allowed_cores, machine_cpu_s};

/// How long other programs are observed before a row.
const OBSERVATION: Duration = Duration::from_millis(500);
/// Use of cores by other programs, from which on the page warns.
const BUSY_CORES: f64 = 0.2;

/// What a figure was measured on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MachineDescription {
    pub(super) processor: String,
    /// Cores that the program may use.
    pub(super) cores: usize,
    pub(super) memory_gib: u64,
    pub(super) kernel: String,
    pub(super) version: String,
    /// Whether the program was built with optimisation.
    pub(super) is_release: bool,
}

impl MachineDescription {
    pub(super) fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let line = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| line.split_once(':'));
            value.map_or_else(
                || "unknown".to_owned(),
                |(_, value)| value.trim().to_owned(),
            )
        };
        let memory = line(&text("/proc/meminfo"), "MemTotal");
        let kib = memory.split(' ').next().and_then(|kib| kib.parse().ok());
        Self {
            processor: line(&text("/proc/cpuinfo"), "model name"),
            cores: allowed_cores().len(),
            memory_gib: kib.map_or(0, |kib: u64| (kib + (1 << 19)) >> 20),
            kernel: format!("Linux {}", text("/proc/sys/kernel/osrelease").trim()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            is_release: !cfg!(debug_assertions),
        }
    }

    /// In one line.
    pub(super) fn summary(&self) -> String {
        format!(
            "{} cores of {}, {} GiB, {}; Tidegate {}, {} build",
            self.cores,
            self.processor,
            self.memory_gib,
            self.kernel,
            self.version,
            if self.is_release { "release" } else { "debug" },
        )
    }
}

/// Cores that programs use now, which is not much on an idle machine.
pub(super) fn used_cores() -> Option<f64> {
    let before = machine_cpu_s()?;
    std::thread::sleep(OBSERVATION);
    Some((machine_cpu_s()? - before) / OBSERVATION.as_secs_f64())
}

/// Whether so many used cores make figures doubtful.
pub(super) fn is_busy(used_cores: Option<f64>) -> bool {
    used_cores.is_some_and(|cores| cores > BUSY_CORES)
}

/// Memory in GiB that programs can still use.
pub(super) fn available_memory_gib() -> Option<f64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find(|line| line.starts_with("MemAvailable:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / f64::from(1 << 20))
}
