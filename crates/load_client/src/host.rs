//! Values of the operating system: the time, processor use and memory of a process, open-file limits, cores.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock.
#[inline]
pub fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Processor time that the calling thread has used, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

/// Processor time that this process has used, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

#[inline]
fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What a process has used so far, from `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessUsage {
    /// Processor time, user and system, of all threads, in seconds (the kernel counts in steps of 10 ms).
    pub cpu_s: f64,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
}

/// Reads what one process uses, again and again, without allocating.
#[derive(Debug)]
pub struct ProcessMeter {
    pid: u32,
    path: String,
    text: String,
}

impl ProcessMeter {
    /// Fails if the process does not exist or cannot be read.
    pub fn new(pid: u32) -> anyhow::Result<Self> {
        let mut meter = Self {
            pid,
            path: format!("/proc/{pid}/stat"),
            text: String::with_capacity(512),
        };
        meter.read()?;
        Ok(meter)
    }

    /// The process's use up to now.
    pub fn read(&mut self) -> anyhow::Result<ProcessUsage> {
        self.text.clear();
        fs::File::open(&self.path)
            .and_then(|mut file| file.read_to_string(&mut self.text))
            .with_context(|| {
                format!(
                    "cannot read {}: is the broker's process {} running on this machine?",
                    self.path, self.pid
                )
            })?;
        parse_stat(&self.text).with_context(|| format!("cannot understand {}", self.path))
    }
}

fn parse_stat(text: &str) -> anyhow::Result<ProcessUsage> {
    // The second field is the program's name in parentheses and may hold anything, so count from its end.
    let Some((_, rest)) = text.rsplit_once(')') else {
        bail!("no program name in it");
    };
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| -> anyhow::Result<u64> {
        let text = fields
            .get(number - 3)
            .with_context(|| format!("it ends before field {number}"))?;
        text.parse()
            .with_context(|| format!("field {number} is `{text}`"))
    };
    let ticks = field(14)? + field(15)?;
    Ok(ProcessUsage {
        cpu_s: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
        resident_bytes: field(24)? * rustix::param::page_size() as u64,
    })
}

/// Processor time, in seconds, that all programs on the machine have used so far (without interrupts, whose time
/// nobody in particular causes), from `/proc/stat`; `None` where there is no such file.
pub fn machine_cpu_s() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    parse_machine(&text).map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The ticks spent in user, nice and system mode and stolen by other guests of the machine's host.
fn parse_machine(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("cpu "))?;
    let fields: Vec<u64> = line
        .split_ascii_whitespace()
        .skip(1)
        .map_while(|field| field.parse().ok())
        .collect();
    let stolen = fields.get(7).copied().unwrap_or(0);
    Some(fields.get(..3)?.iter().sum::<u64>() + stolen)
}

/// Bytes that a folder with everything below it occupies on disk. Files may come and go meanwhile.
pub fn disk_bytes(dir: &Path) -> anyhow::Result<u64> {
    let mut sum = 0;
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(_) if folder != dir => continue,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot look into {}", dir.display()));
            }
        };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            sum += metadata.blocks() * 512;
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(sum)
}

/// Raises the limit of open files for `sockets`, or returns an error with the limit.
pub fn allow_open_files(sockets: u64) -> anyhow::Result<()> {
    // Standard streams, the poll instance, reports and what a runtime may hold.
    let wanted = sockets + 64;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        bail!(
            "{sockets} connections need {wanted} open files, but this process may have {}; raise the hard limit \
             (`ulimit -Hn`) or ask for fewer connections",
            limit.maximum.unwrap_or(0)
        );
    }
    let raised = Rlimit {
        current: Some(wanted),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised)
        .with_context(|| format!("cannot raise the open-file limit to {wanted}"))
}

/// The cores the calling thread may run on.
pub fn allowed_cores() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&c| set.is_set(c)).collect(),
        Err(_) => Vec::new(),
    }
}

/// Keeps the calling thread on one core.
pub fn pin_to_core(core: usize) -> anyhow::Result<()> {
    if core >= CpuSet::MAX_CPU {
        bail!("core {core} is beyond {}", CpuSet::MAX_CPU - 1);
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on core {core}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_stat_line_with_an_awkward_name() {
        let line =
            "42 (a ) b) S 1 42 42 0 -1 4194304 100 0 0 0 250 150 0 0 20 0 1 0 555 1000000 512 1 1";
        let usage = parse_stat(line).expect("a whole line");
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(usage.cpu_s, 400.0 / ticks);
        assert_eq!(
            usage.resident_bytes,
            512 * rustix::param::page_size() as u64
        );
        assert!(parse_stat("42 (cut").is_err());
        assert!(
            parse_stat("42 (cut) S 1")
                .unwrap_err()
                .to_string()
                .contains("field 14")
        );
    }

    #[test]
    fn reads_the_whole_machine() {
        let text = "cpu  10 2 30 400 5 6 7 8 0 0\ncpu0 1 1 1 1\n";
        assert_eq!(parse_machine(text), Some(50));
        assert_eq!(parse_machine("cpu  1 2"), None);
        assert_eq!(parse_machine(""), None);
    }

    #[test]
    fn disk_use_counts_what_is_below() {
        let dir = std::env::temp_dir().join(format!("tidegate-bench-disk-{}", std::process::id()));
        fs::create_dir_all(dir.join("below")).expect("a folder can be made");
        fs::write(dir.join("below/file"), vec![1; 100_000]).expect("a file can be written");
        let bytes = disk_bytes(&dir);
        fs::remove_dir_all(&dir).expect("it is ours");
        assert!(bytes.expect("it can be read") >= 100_000);
        let error = disk_bytes(&dir).unwrap_err().to_string();
        assert!(error.contains("tidegate-bench-disk"), "{error}");
    }

    #[test]
    fn measures_itself() {
        let mut meter = ProcessMeter::new(std::process::id()).expect("this process runs");
        assert!(meter.read().expect("still runs").resident_bytes > 0);
        let gone = ProcessMeter::new(u32::MAX).unwrap_err();
        assert!(gone.to_string().contains("4294967295"));
    }

    #[test]
    fn time_goes_forward() {
        let before = now_ns();
        assert!(now_ns() >= before && before > 0);
        assert!(thread_cpu_ns() > 0);
    }
}
