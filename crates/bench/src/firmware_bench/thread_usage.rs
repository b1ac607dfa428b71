//! Processor time of the threads of a process.

use std::collections::HashMap;
use std::fs;

/// Processor time of each thread in clock ticks, with its name.
#[derive(Debug, Default)]
pub(super) struct ThreadUsage(HashMap<u32, (String, u64)>);

impl ThreadUsage {
    /// Empty on systems without `/proc`.
    pub(super) fn read(pid: u32) -> Self {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        let tasks = tasks.into_iter().flatten().filter_map(|task| {
            let task = task.ok()?;
            let id = task.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(task.path().join("stat")).ok()?;
            Some((id, parse_stat(&stat)?))
        });
        Self(tasks.collect())
    }
}

/// Name, and user and system time.
fn parse_stat(line: &str) -> Option<(String, u64)> {
    let (start, rest) = line.rsplit_once(") ")?;
    let (_, name) = start.split_once('(')?;
    // The field after the name is the third one; the times are the fourteenth and fifteenth.
    let mut fields = rest.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((name.to_owned(), user + system))
}

/// The thread that has used most time, and its share of the time; `None`: unknown.
pub(super) fn busiest_thread(
    before: &ThreadUsage,
    after: &ThreadUsage,
    seconds: f64,
) -> Option<(String, f64)> {
    let used = after.0.iter().map(|(id, (name, ticks))| {
        let earlier = before.0.get(id).map_or(0, |(_, ticks)| *ticks);
        (ticks.saturating_sub(earlier), name)
    });
    let (ticks, name) = used.max()?;
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    Some((name.clone(), ticks as f64 / per_second / seconds.max(1e-9)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_with_most_additional_time_is_found() {
        let line = "42 (a ) b) S 1 42 42 0 -1 4194304 100 0 0 0 250 150 0 0 20 0 1 0 555 1 512 1";
        assert_eq!(parse_stat(line), Some(("a ) b".to_owned(), 400)));
        assert_eq!(parse_stat("42 (cut"), None);
        let usage = |times: &[(u32, u64)]| {
            let threads = times
                .iter()
                .map(|(id, ticks)| (*id, (format!("t{id}"), *ticks)));
            ThreadUsage(threads.collect())
        };
        let before = usage(&[(1, 1000), (2, 10)]);
        let after = usage(&[(1, 1010), (2, 60), (3, 40)]);
        let (name, share) = busiest_thread(&before, &after, 1.0).expect("there are threads");
        assert_eq!(name, "t2");
        assert!(share > 0.0);
        assert_eq!(
            busiest_thread(&ThreadUsage::default(), &ThreadUsage::default(), 1.0),
            None
        );
    }
}
