//! Free disk space: what a test run needs, and how much it used at most. A node whose disk is nearly full accepts no new
//! sessions, so tests would fail for a reason that is hard to recognise.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::TaskError;
use crate::process::capture;

const MIB: u64 = 1 << 20;
/// An estimate of the temporary files of a run, with a margin.
const TEMPORARY_BYTES: u64 = 3 << 30;
/// An estimate for clippy, all tests and the program.
const BUILD_BYTES: u64 = 12 << 30;
/// For what changed since the last build.
const REBUILD_BYTES: u64 = 3 << 30;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Space of the file system of a path.
#[derive(Debug, PartialEq, Eq)]
struct FreeSpace {
    mount_point: String,
    free_bytes: u64,
}

/// Checks that the file systems of the build and of temporary files have space for a test run.
pub(crate) fn check() -> Result<(), TaskError> {
    let target = crate::target_dir();
    let build_bytes = match target.join("debug/deps").exists() {
        true => REBUILD_BYTES,
        false => BUILD_BYTES,
    };
    // `target` may not exist yet.
    let build = (crate::root(), build_bytes, "CARGO_TARGET_DIR");
    let temporary = (std::env::temp_dir(), TEMPORARY_BYTES, "TMPDIR");
    let (build_space, temporary_space) = (measure(&build.0)?, measure(&temporary.0)?);
    if build_space.mount_point == temporary_space.mount_point {
        return compare(
            &build_space,
            build.1 + temporary.1,
            "TMPDIR and CARGO_TARGET_DIR",
        );
    }
    compare(&build_space, build.1, build.2)?;
    compare(&temporary_space, temporary.1, temporary.2)
}

fn compare(space: &FreeSpace, needed_bytes: u64, variables: &str) -> Result<(), TaskError> {
    if space.free_bytes >= needed_bytes {
        return Ok(());
    }
    Err(format!(
        "the tests need about {} MiB of disk space in {}, {} MiB are free; delete files there, or choose another disk with \
         {variables}",
        needed_bytes / MIB,
        space.mount_point,
        space.free_bytes / MIB
    ))
}

/// Runs `work` and prints how much the free space of the temporary directory decreased at most.
pub(crate) fn print_peak<T>(work: impl FnOnce() -> T) -> T {
    let directory = std::env::temp_dir();
    let Ok(before) = measure(&directory) else {
        return work();
    };
    let (least, is_done) = (AtomicU64::new(before.free_bytes), AtomicBool::new(false));
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                if let Ok(now) = measure(&directory) {
                    least.fetch_min(now.free_bytes, Ordering::Relaxed);
                }
                std::thread::sleep(SAMPLE_INTERVAL);
            }
        });
        let result = work();
        is_done.store(true, Ordering::Relaxed);
        result
    });
    let used = before.free_bytes - least.into_inner();
    println!(
        "    disk space in {} used at most: {} MiB",
        before.mount_point,
        used / MIB
    );
    result
}

fn measure(path: &Path) -> Result<FreeSpace, TaskError> {
    let listed = capture(Command::new("df").arg("-Pk").arg(path))?;
    parse(&listed).ok_or_else(|| format!("`df -Pk {}` wrote:\n{listed}", path.display()))
}

/// Reads what POSIX defines for `df -P -k`: a header, then device, size, used and free space in KiB, percentage, mount
/// point.
fn parse(listed: &str) -> Option<FreeSpace> {
    let mut fields = listed.lines().nth(1)?.split_whitespace();
    let free_kib: u64 = fields.nth(3)?.parse().ok()?;
    let mount_point = fields.skip(1).collect::<Vec<_>>().join(" ");
    Some(FreeSpace {
        mount_point,
        free_bytes: free_kib * 1024,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_read() {
        let listed = "Filesystem     1024-blocks     Used Available Capacity Mounted on\n\
                      /dev/vda         263174212 19922944  76546048      21% /mnt/a disk\n";
        let space = parse(listed).unwrap();
        assert_eq!(
            space,
            FreeSpace {
                mount_point: "/mnt/a disk".to_owned(),
                free_bytes: 76_546_048 * 1024
            }
        );
        assert_eq!(parse("df: no such file\n"), None);
        assert!(measure(&std::env::temp_dir()).unwrap().free_bytes > 0);
    }

    #[test]
    fn too_little_space_is_reported_with_the_amount_needed() {
        let space = FreeSpace {
            mount_point: "/tmp".to_owned(),
            free_bytes: 5 * MIB,
        };
        assert_eq!(compare(&space, 5 * MIB, "TMPDIR"), Ok(()));
        assert_eq!(
            compare(&space, 6 * MIB, "TMPDIR").unwrap_err(),
            "the tests need about 6 MiB of disk space in /tmp, 5 MiB are free; delete files there, or choose another disk with TMPDIR"
        );
    }
}
