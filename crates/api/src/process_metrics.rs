//! Metrics of the process, named as by Prometheus client libraries and read from `/proc`; none
//! where there is no `/proc`.

use std::fs;

use hooks::{MetricFamily, MetricKind};

/// Linux counts processor time for user space in hundredths of a second on all current
/// architectures.
const TICKS_PER_SECOND: f64 = 100.0;

/// All metrics that could be read. Blocks briefly on the file system.
pub(crate) fn families() -> Vec<MetricFamily> {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
    let rows = [
        (
            "process_cpu_seconds_total",
            "Processor time used, in user space and in the kernel, in seconds.",
            MetricKind::Counter,
            cpu_seconds(&stat),
        ),
        (
            "process_start_time_seconds",
            "When the process started, in seconds since the Unix epoch.",
            MetricKind::Gauge,
            start_seconds(&stat, &boot),
        ),
        (
            "process_resident_memory_bytes",
            "Resident memory of the process in bytes.",
            MetricKind::Gauge,
            status_bytes(&status, "VmRSS:"),
        ),
        (
            "process_virtual_memory_bytes",
            "Virtual memory of the process in bytes.",
            MetricKind::Gauge,
            status_bytes(&status, "VmSize:"),
        ),
        (
            "process_open_fds",
            "Open file descriptors.",
            MetricKind::Gauge,
            open_fds(),
        ),
        (
            "process_max_fds",
            "Maximum number of open file descriptors.",
            MetricKind::Gauge,
            max_fds(&limits),
        ),
    ];
    rows.into_iter()
        .filter_map(|(name, help, kind, value)| {
            Some(MetricFamily::single(name, help, kind, value?))
        })
        .collect()
}

/// Field `number` of `/proc/PID/stat`, counted as in proc(5). The second field, the program's name,
/// may contain blanks and parentheses, so counting starts after its last parenthesis.
fn stat_field(stat: &str, number: usize) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(number - 3)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((stat_field(stat, 14)? + stat_field(stat, 15)?) / TICKS_PER_SECOND)
}

fn start_seconds(stat: &str, boot: &str) -> Option<f64> {
    let boot = boot.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(boot.trim().parse::<f64>().ok()? + stat_field(stat, 22)? / TICKS_PER_SECOND)
}

fn status_bytes(status: &str, field: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0)
}

fn open_fds() -> Option<f64> {
    const FDS: &str = "/proc/self/fd";
    // Since Linux 6.2 the size of the directory is the number of descriptors; earlier kernels
    // report 0.
    match fs::metadata(FDS).ok()?.len() {
        0 => Some(fs::read_dir(FDS).ok()?.count() as f64),
        count => Some(count as f64),
    }
}

fn max_fds(limits: &str) -> Option<f64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_ascii_whitespace().next()? {
        "unlimited" => Some(f64::INFINITY),
        soft => soft.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use hooks::MetricValue;

    use super::*;

    const STAT: &str =
        "7 (tide) gate)) S 1 7 7 0 -1 4194560 3 0 0 0 150 50 0 0 20 0 4 0 1234 1000 20 0";

    #[test]
    fn files_of_proc_are_understood() {
        assert_eq!(cpu_seconds(STAT), Some(2.0));
        assert_eq!(start_seconds(STAT, "cpu 1 2\nbtime 1000\n"), Some(1012.34));
        assert_eq!(
            status_bytes("VmPeak:\t 9 kB\nVmRSS:\t  12 kB\n", "VmRSS:"),
            Some(12288.0)
        );
        assert_eq!(
            max_fds("Max open files   1024   4096   files\n"),
            Some(1024.0)
        );
        assert_eq!(cpu_seconds(""), None);
        assert_eq!(cpu_seconds("7 (a) S"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_can_be_read() {
        let families = families();
        assert_eq!(families.len(), 6);
        for family in families {
            let [sample] = family.samples.as_slice() else {
                panic!("{}", family.name)
            };
            assert!(
                matches!(sample.value, MetricValue::Number(value) if value >= 0.0),
                "{}",
                family.name
            );
        }
    }
}
