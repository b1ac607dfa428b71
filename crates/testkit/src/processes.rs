//! Child processes and directories that are removed when the test process ends, however it ends.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, mpsc};
use std::time::{Duration, Instant};

/// Starts a child that is killed when this process ends, even if this process is killed.
///
/// The kernel sends the parent-death signal when the *thread* that forked ends, and a test's thread ends with the test.
/// So one thread that lives as long as the process starts all children.
pub fn spawn(mut command: Command) -> Child {
    type Job = (Command, mpsc::Sender<std::io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in jobs {
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let parent = std::process::id();
    // SAFETY: prctl, getppid and _exit are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() as u32 != parent {
                libc::_exit(1);
            }
            Ok(())
        });
    }
    let program = command.get_program().to_owned();
    let (answer, child) = mpsc::channel();
    spawner
        .send((command, answer))
        .expect("the spawner never ends");
    child
        .recv()
        .expect("the spawner answers")
        .unwrap_or_else(|error| panic!("{} cannot be started: {error}", program.display()))
}

/// A child to be ended when this process exits, which objects shared by several tests never see.
#[derive(Debug, Clone)]
pub struct SupervisedChild {
    pub pid: u32,
    /// If it was killed by itself or a panic stands in here, this file is shown at the end.
    pub log: PathBuf,
    /// The signal that ends it at once and cleanly enough; SIGKILL follows if it does not help.
    pub signal: i32,
}

static SUPERVISED_CHILDREN: Mutex<Vec<SupervisedChild>> = Mutex::new(Vec::new());

fn supervised_children() -> MutexGuard<'static, Vec<SupervisedChild>> {
    SUPERVISED_CHILDREN
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Ends this child when the process exits.
pub fn register(ward: SupervisedChild) {
    process_directory();
    supervised_children().push(ward);
}

/// The child has ended and was waited for.
pub fn unregister(pid: u32) {
    supervised_children().retain(|ward| ward.pid != pid);
}

/// Sends a signal to a child of ours that was not waited for.
pub fn signal(pid: u32, signal: i32) -> bool {
    // SAFETY: kill has no memory effects.
    unsafe { libc::kill(pid as i32, signal) == 0 }
}

/// An empty directory that is removed when the test process ends.
pub fn temporary_directory() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let path = process_directory().join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
    fs::create_dir_all(&path).expect("a folder can be made in the temporary directory");
    path
}

static PROCESS_DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// One directory per test process, removed when it exits, after the children that use it have been ended.
fn process_directory() -> &'static Path {
    PROCESS_DIRECTORY.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("tidegate-test-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder can be made in the temporary directory");
        // SAFETY: `clean_up` is an extern "C" function that does not unwind and only touches initialised statics.
        unsafe { libc::atexit(clean_up) };
        path
    })
}

extern "C" fn clean_up() {
    let wards: Vec<SupervisedChild> = SUPERVISED_CHILDREN
        .try_lock()
        .map(|wards| wards.clone())
        .unwrap_or_default();
    for ward in &wards {
        let log = fs::read(&ward.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        if has_ended(ward.pid) || log.contains("panicked") {
            eprintln!(
                "the process {} has not come through the tests; it wrote:\n{log}",
                ward.pid
            );
        }
        signal(ward.pid, ward.signal);
    }
    let deadline = Instant::now() + Duration::from_secs(2);
    for ward in &wards {
        while !has_ended(ward.pid) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        signal(ward.pid, libc::SIGKILL);
    }
    if let Some(path) = PROCESS_DIRECTORY.get() {
        let _ = fs::remove_dir_all(path);
    }
}

/// Whether a child that was not waited for has ended.
fn has_ended(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.is_empty() || status.contains("State:\tZ")
}
