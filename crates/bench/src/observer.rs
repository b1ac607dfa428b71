//! Looks at a run from outside while it goes on: the broker's processor time and memory, throughput over time, and
//! the line that shows the progress.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use crate::host::{ProcessMeter, ProcessUsage, disk_bytes, machine_cpu_s};
use crate::units::Unit;

/// Time between two updates of the progress line.
const PROGRESS_INTERVAL_NS: u64 = 1_000_000_000;
/// Most points of a series; beyond it, two neighbours become one.
const MAX_POINTS: usize = 2_000;

/// One stretch of the measured interval.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct SeriesPoint {
    /// End of the stretch, in seconds since the interval began.
    pub(crate) at_s: f64,
    /// Messages received (connections accepted) per second in this stretch.
    pub(crate) per_second: f64,
    /// Use of one core by the broker in this stretch, if its process is known.
    pub(crate) broker_cpu: Option<f64>,
    /// The broker's resident memory at its end.
    pub(crate) rss_bytes: Option<u64>,
}

/// What the broker's process used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct BrokerUsage {
    /// Within the measured interval.
    pub(crate) cpu_s: f64,
    /// Resident memory before the first connection, with all connections, at the end, and the most seen.
    pub(crate) rss_start: u64,
    pub(crate) rss_connected: u64,
    pub(crate) rss_end: u64,
    pub(crate) rss_peak: u64,
    /// `offline`: processor time while messages were stored, and resident memory with all of them.
    pub(crate) store_cpu_s: f64,
    pub(crate) rss_stored: u64,
}

/// Bytes that the broker's data occupy on disk (blocks, not lengths): before, with everything stored, and at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DiskUsage {
    pub(crate) start: u64,
    pub(crate) stored: u64,
    pub(crate) end: u64,
}

/// All that was seen of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observations {
    /// Of the broker, if its process is known.
    pub(crate) broker: Option<BrokerUsage>,
    /// Processor time of all programs on the machine within the interval, where that can be read.
    pub(crate) machine_cpu_s: Option<f64>,
    pub(crate) series: Vec<SeriesPoint>,
    /// Of the folder to look at, if there is one.
    pub(crate) disk: Option<DiskUsage>,
}

/// State of the progress line on a terminal.
#[derive(Debug)]
struct ProgressLine {
    is_shown: bool,
    title: String,
    width: usize,
    next_ns: u64,
}

impl ProgressLine {
    fn update(&mut self, now_ns: u64, text: impl FnOnce() -> String) {
        if !self.is_shown || now_ns < self.next_ns {
            return;
        }
        self.next_ns = now_ns + PROGRESS_INTERVAL_NS;
        self.write(&text());
    }

    fn write(&mut self, text: &str) {
        let text = format!("{}: {text}", self.title);
        let width = text.chars().count();
        let blank = " ".repeat(self.width.saturating_sub(width));
        self.width = width;
        // Nobody is helped by a run that ends because its progress could not be shown.
        let _ = write!(std::io::stderr(), "\r{text}{blank}");
        let _ = std::io::stderr().flush();
    }

    fn erase(&mut self) {
        if self.is_shown && self.width > 0 {
            let _ = write!(std::io::stderr(), "\r{}\r", " ".repeat(self.width));
            let _ = std::io::stderr().flush();
            self.width = 0;
        }
    }
}

/// The look at one run.
#[derive(Debug)]
pub(crate) struct RunObserver {
    meters: Vec<ProcessMeter>,
    line: ProgressLine,
    connections: usize,
    duration_s: f64,
    broker: BrokerUsage,
    begin: Option<ObserverSample>,
    last: Option<ObserverSample>,
    is_over: bool,
    series: Vec<SeriesPoint>,
    stride_ns: u64,
    /// The machine's processor time at the beginning, then what it used within the interval.
    machine_begin_s: Option<f64>,
    machine_s: Option<f64>,
    data_dir: Option<PathBuf>,
    disk: DiskUsage,
}

#[derive(Clone, Copy, Debug, Default)]
struct ObserverSample {
    at_ns: u64,
    count: u64,
    cpu_s: f64,
}

impl RunObserver {
    /// Starts to observe; `pids` are the broker's processes, if known. `title` starts the progress line.
    pub(crate) fn new(
        pids: &[u32],
        title: String,
        is_quiet: bool,
        connections: usize,
        duration_s: f64,
    ) -> anyhow::Result<Self> {
        let mut observer = Self {
            meters: pids
                .iter()
                .map(|pid| ProcessMeter::new(*pid))
                .collect::<anyhow::Result<_>>()?,
            line: ProgressLine {
                is_shown: !is_quiet && std::io::stderr().is_terminal(),
                title,
                width: 0,
                next_ns: 0,
            },
            connections,
            duration_s,
            broker: BrokerUsage::default(),
            begin: None,
            last: None,
            is_over: false,
            series: Vec::new(),
            stride_ns: 0,
            machine_begin_s: None,
            machine_s: None,
            data_dir: None,
            disk: DiskUsage::default(),
        };
        observer.broker.rss_start = observer.read_usage()?.resident_bytes;
        Ok(observer)
    }

    /// Looks at the disk use of this folder, too.
    pub(crate) fn watch_disk(mut self, data_dir: &Path) -> anyhow::Result<Self> {
        self.disk.start = disk_bytes(data_dir)?;
        self.data_dir = Some(data_dir.to_owned());
        Ok(self)
    }

    fn disk_bytes(&self) -> anyhow::Result<u64> {
        self.data_dir.as_deref().map_or(Ok(0), disk_bytes)
    }

    fn read_usage(&mut self) -> anyhow::Result<ProcessUsage> {
        let mut usage = ProcessUsage::default();
        for meter in &mut self.meters {
            let of_process = meter.read()?;
            usage.cpu_s += of_process.cpu_s;
            usage.resident_bytes += of_process.resident_bytes;
        }
        self.broker.rss_peak = self.broker.rss_peak.max(usage.resident_bytes);
        Ok(usage)
    }

    /// Clients are connecting; `connected` of them are ready.
    pub(crate) fn note_connecting(&mut self, now_ns: u64, connected: u64) -> anyhow::Result<()> {
        let all = self.connections;
        self.line
            .update(now_ns, || format!("connected {connected} of {all}"));
        let is_due = |last: ObserverSample| now_ns >= last.at_ns + 100_000_000;
        if self.begin.is_some() && self.last.is_some_and(is_due) {
            self.sample(now_ns, connected)?;
        }
        Ok(())
    }

    /// All clients are ready.
    pub(crate) fn note_connected(&mut self) -> anyhow::Result<()> {
        self.broker.rss_connected = self.read_usage()?.resident_bytes;
        Ok(())
    }

    /// The measured interval begins; `count` messages were received before.
    pub(crate) fn begin_interval(&mut self, now_ns: u64, count: u64) -> anyhow::Result<()> {
        let cpu_s = self.read_usage()?.cpu_s;
        let sample = ObserverSample {
            at_ns: now_ns,
            count,
            cpu_s,
        };
        self.machine_begin_s = machine_cpu_s();
        self.begin = Some(sample);
        self.last = Some(sample);
        Ok(())
    }

    /// The run goes on; `count` messages have been received.
    pub(crate) fn note_received(&mut self, now_ns: u64, count: u64) -> anyhow::Result<()> {
        let Some(begin) = self.begin else {
            self.line.update(now_ns, || "warming up".to_owned());
            return Ok(());
        };
        self.sample(now_ns, count)?;
        let seconds = (now_ns - begin.at_ns) as f64 / 1e9;
        let (all, latest) = (self.duration_s, self.series.last().copied());
        self.line.update(now_ns, || {
            let mut text = format!("{seconds:.1} of {all} s");
            if let Some(point) = latest {
                text += &format!(", {}/s", Unit::PerSecond.format(point.per_second));
                if let Some(cpu) = point.broker_cpu {
                    text += &format!(", broker {:.0} % of a core", cpu * 100.0);
                }
                if let Some(rss) = point.rss_bytes {
                    text += &format!(", {}", Unit::Bytes.format(rss as f64));
                }
            }
            text
        });
        Ok(())
    }

    /// The measured interval is interrupted: what the broker does until [`RunObserver::resume_interval`] is not part of it.
    pub(crate) fn pause_interval(&mut self, now_ns: u64, count: u64) -> anyhow::Result<()> {
        self.sample(now_ns, count)?;
        let usage = self.read_usage()?;
        if let Some(begin) = self.begin {
            self.broker.store_cpu_s = usage.cpu_s - begin.cpu_s;
        }
        let machine = machine_cpu_s().zip(self.machine_begin_s);
        self.machine_s = machine.map(|(end, begin)| end - begin);
        self.last = self.last.map(|last| ObserverSample {
            at_ns: now_ns,
            ..last
        });
        Ok(())
    }

    /// What the broker holds with everything stored.
    pub(crate) fn note_stored(&mut self) -> anyhow::Result<()> {
        self.broker.rss_stored = self.read_usage()?.resident_bytes;
        self.disk.stored = self.disk_bytes()?;
        Ok(())
    }

    /// The measured interval goes on.
    pub(crate) fn resume_interval(&mut self, now_ns: u64) -> anyhow::Result<()> {
        let cpu_s = self.read_usage()?.cpu_s;
        let machine_s = machine_cpu_s();
        let (Some(begin), Some(last)) = (&mut self.begin, &mut self.last) else {
            return Ok(());
        };
        // As if the pause had not been.
        begin.at_ns += now_ns - last.at_ns;
        begin.cpu_s = cpu_s - self.broker.store_cpu_s;
        last.at_ns = now_ns;
        last.cpu_s = cpu_s;
        self.machine_begin_s = machine_s.zip(self.machine_s).map(|(now, used)| now - used);
        Ok(())
    }

    /// The run goes on; `count` messages are done.
    pub(crate) fn note_progress(
        &mut self,
        now_ns: u64,
        count: u64,
        what: &str,
    ) -> anyhow::Result<()> {
        self.sample(now_ns, count)?;
        let latest = self.series.last().copied();
        self.line.update(now_ns, || {
            let rate = latest.map_or(0.0, |point| point.per_second);
            format!("{count} {what}, {}/s", Unit::PerSecond.format(rate))
        });
        Ok(())
    }

    fn sample(&mut self, now_ns: u64, count: u64) -> anyhow::Result<()> {
        let usage = self.read_usage()?;
        let (Some(begin), Some(last), false) = (self.begin, self.last, self.is_over) else {
            return Ok(());
        };
        let elapsed_ns = now_ns.saturating_sub(last.at_ns);
        if elapsed_ns == 0 || elapsed_ns < self.stride_ns {
            return Ok(());
        }
        let seconds = elapsed_ns as f64 / 1e9;
        let is_metered = !self.meters.is_empty();
        self.series.push(SeriesPoint {
            at_s: (now_ns - begin.at_ns) as f64 / 1e9,
            per_second: count.saturating_sub(last.count) as f64 / seconds,
            broker_cpu: is_metered.then_some((usage.cpu_s - last.cpu_s) / seconds),
            rss_bytes: is_metered.then_some(usage.resident_bytes),
        });
        if self.series.len() >= MAX_POINTS {
            self.halve_points(elapsed_ns);
        }
        self.last = Some(ObserverSample {
            at_ns: now_ns,
            count,
            cpu_s: usage.cpu_s,
        });
        Ok(())
    }

    /// Joins neighbouring points, and takes half as many from now on.
    fn halve_points(&mut self, elapsed_ns: u64) {
        let joined = self.series.chunks(2).map(|pair| match pair {
            [a, b] => SeriesPoint {
                per_second: (a.per_second + b.per_second) / 2.0,
                broker_cpu: a.broker_cpu.zip(b.broker_cpu).map(|(a, b)| (a + b) / 2.0),
                ..*b
            },
            rest => rest[0],
        });
        self.series = joined.collect();
        self.stride_ns = elapsed_ns * 2;
    }

    /// The measured interval ends.
    pub(crate) fn end_interval(&mut self, now_ns: u64, count: u64) -> anyhow::Result<()> {
        // A stub of a stretch at the end would be mostly noise.
        if self.series.is_empty() {
            self.sample(now_ns, count)?;
        }
        let usage = self.read_usage()?;
        if let Some(begin) = self.begin {
            self.broker.cpu_s = usage.cpu_s - begin.cpu_s;
        }
        let machine = machine_cpu_s().zip(self.machine_begin_s);
        self.machine_s = machine.map(|(end, begin)| end - begin);
        if self.broker.rss_connected == 0 {
            self.broker.rss_connected = usage.resident_bytes;
        }
        self.is_over = true;
        Ok(())
    }

    /// Waiting for messages in flight.
    pub(crate) fn draining(&mut self, now_ns: u64) {
        self.line
            .update(now_ns, || "waiting for the last messages".to_owned());
    }

    /// Connections are being held.
    pub(crate) fn note_holding(&mut self, now_ns: u64, until_ns: u64) -> anyhow::Result<()> {
        self.read_usage()?;
        let left = until_ns.saturating_sub(now_ns) as f64 / 1e9;
        let all = self.connections;
        self.line.update(now_ns, || {
            format!("holding {all} connections, {left:.0} s to go")
        });
        Ok(())
    }

    /// Nothing more will happen; connections still stand.
    pub(crate) fn finish(&mut self) -> anyhow::Result<()> {
        self.broker.rss_end = self.read_usage()?.resident_bytes;
        self.disk.end = self.disk_bytes()?;
        Ok(())
    }

    /// What was seen.
    pub(crate) fn into_observations(mut self) -> Observations {
        self.line.erase();
        Observations {
            broker: (!self.meters.is_empty()).then_some(self.broker),
            machine_cpu_s: self.machine_s,
            series: std::mem::take(&mut self.series),
            disk: self.data_dir.is_some().then_some(self.disk),
        }
    }
}

impl Drop for RunObserver {
    fn drop(&mut self) {
        self.line.erase();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observer(pids: &[u32]) -> RunObserver {
        RunObserver::new(pids, "test".to_owned(), true, 10, 5.0).expect("this process can be read")
    }

    #[test]
    fn a_series_of_rates() {
        let mut observer = observer(&[std::process::id()]);
        observer.note_received(500, 10).expect("observed");
        observer
            .begin_interval(1_000_000_000, 100)
            .expect("observed");
        observer
            .note_received(2_000_000_000, 300)
            .expect("observed");
        observer
            .note_received(2_500_000_000, 400)
            .expect("observed");
        observer.end_interval(2_600_000_000, 410).expect("observed");
        observer
            .note_received(2_700_000_000, 500)
            .expect("observed");
        observer.finish().expect("observed");
        let Observations { broker, series, .. } = observer.into_observations();
        let rates: Vec<(f64, f64)> = series.iter().map(|p| (p.at_s, p.per_second)).collect();
        assert_eq!(rates, [(1.0, 200.0), (1.5, 200.0)]);
        let broker = broker.expect("the process is known");
        assert!(broker.rss_peak >= broker.rss_start && broker.rss_start > 0);
    }

    #[test]
    fn long_runs_are_thinned_out() {
        let mut observer = observer(&[]);
        observer.begin_interval(0, 0).expect("observed");
        for tick in 1..=20_000u64 {
            observer
                .note_received(tick * 100_000_000, tick * 10)
                .expect("observed");
        }
        let Observations { broker, series, .. } = observer.into_observations();
        assert_eq!(broker, None);
        assert!((MAX_POINTS / 4..MAX_POINTS).contains(&series.len()));
        assert!(series.iter().all(|p| (p.per_second - 100.0).abs() < 1e-6));
    }
}
