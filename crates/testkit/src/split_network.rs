//! Several machines on one host, each with a network of its own, which can be cut off from the others.

use std::fs::{self, File};
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::report_skipped;

/// Where `ip` keeps namespaces.
const NAMESPACES: &str = "/var/run/netns";
/// Names begin with it and the number of the test process.
const PREFIX: &str = "tidegate-test-";

/// Machines that are connected by a switch. A machine that is cut off gets no packets of the others and no errors, as if
/// its cable was pulled. Each one has its own loopback addresses, which are always reachable from within.
///
/// Made of Linux network namespaces, which need the privileges of root. Dropping it removes them.
pub struct SplitNetwork {
    /// The namespace with the switch.
    switch: String,
    machines: Vec<NetworkMachine>,
}

/// One machine of a [`SplitNetwork`]. Clones are the same machine.
#[derive(Clone)]
pub struct NetworkMachine {
    namespace: String,
    address: String,
    file: Arc<File>,
}

/// The current thread is in the network of a machine until this is dropped: what it connects to is resolved there. Open
/// connections stay where they were made.
pub struct NetworkGuard {
    before: File,
    /// It concerns the thread that has made it.
    of_thread: PhantomData<*const ()>,
}

impl SplitNetwork {
    /// Connects `count` machines, or says that the test is skipped because the system does not permit it.
    pub fn start_or_skip(count: usize) -> Option<SplitNetwork> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{PREFIX}{}-{number}", std::process::id());
        remove_abandoned();
        let mut network = SplitNetwork {
            switch: format!("{prefix}-s"),
            machines: Vec::new(),
        };
        if let Err(why) = network.build(&prefix, count) {
            report_skipped(&format!("network namespaces need root and `ip`: {why}"));
            return None;
        }
        Some(network)
    }

    fn build(&mut self, prefix: &str, count: usize) -> Result<(), String> {
        let switch = self.switch.clone();
        ip(&format!("netns add {switch}"))?;
        ip(&format!("-n {switch} link add switch type bridge"))?;
        ip(&format!("-n {switch} link set switch up"))?;
        for number in 1..=count {
            let namespace = format!("{prefix}-{number}");
            let address = format!("10.99.0.{number}");
            ip(&format!("netns add {namespace}"))?;
            let file = File::open(format!("{NAMESPACES}/{namespace}"))
                .map_err(|error| error.to_string())?;
            self.machines.push(NetworkMachine {
                namespace: namespace.clone(),
                address: address.clone(),
                file: Arc::new(file),
            });
            ip(&format!(
                "-n {switch} link add port{number} type veth peer name eth0 netns {namespace}"
            ))?;
            ip(&format!(
                "-n {switch} link set port{number} master switch up"
            ))?;
            ip(&format!("-n {namespace} link set lo up"))?;
            ip(&format!("-n {namespace} address add {address}/24 dev eth0"))?;
            ip(&format!("-n {namespace} link set eth0 up"))?;
        }
        Ok(())
    }

    /// The machines have indices from 0.
    pub fn machine(&self, index: usize) -> &NetworkMachine {
        &self.machines[index]
    }

    /// Cuts a machine off from the others.
    pub fn cut(&self, index: usize) {
        self.set_port(index, "down");
    }

    /// Ends [`cut`](Self::cut).
    pub fn join(&self, index: usize) {
        self.set_port(index, "up");
    }

    fn set_port(&self, index: usize, state: &str) {
        let (switch, number) = (&self.switch, index + 1);
        ip(&format!("-n {switch} link set port{number} {state}"))
            .unwrap_or_else(|why| panic!("{why}"));
    }
}

impl Drop for SplitNetwork {
    fn drop(&mut self) {
        let machines = self.machines.iter().map(|machine| &machine.namespace);
        for namespace in machines.chain([&self.switch]) {
            // Some are missing if the network could not be built.
            let _ = ip(&format!("netns delete {namespace}"));
        }
    }
}

impl NetworkMachine {
    /// The address under which the other machines reach this one.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Moves the current thread to the network of this machine.
    pub fn enter(&self) -> NetworkGuard {
        let before = File::open("/proc/thread-self/ns/net").expect("namespaces are supported");
        set_namespace(&self.file).expect("the namespace exists");
        NetworkGuard {
            before,
            of_thread: PhantomData,
        }
    }

    /// Lets a program run in the network of this machine.
    pub fn place(&self, command: &mut Command) {
        use std::os::unix::process::CommandExt;
        let file = self.file.clone();
        // SAFETY: setns is a system call without further effects on the child.
        unsafe {
            command.pre_exec(move || set_namespace(&file));
        }
    }
}

impl Drop for NetworkGuard {
    fn drop(&mut self) {
        set_namespace(&self.before).expect("the former namespace exists");
    }
}

/// Removes the namespaces of test processes that were killed.
fn remove_abandoned() {
    let Ok(entries) = fs::read_dir(NAMESPACES) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next());
        let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        if pid == std::process::id() || fs::exists(format!("/proc/{pid}")).unwrap_or(true) {
            continue;
        }
        let _ = ip(&format!("netns delete {name}"));
    }
}

fn set_namespace(namespace: &File) -> std::io::Result<()> {
    // SAFETY: the descriptor is open; only the network of the calling thread changes.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "ip {arguments}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}
