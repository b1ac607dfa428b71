//! Nodes on this machine that run a NATS server each, and a witness. A node and its server end together, like a machine.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use testkit::{ServerKind, free_port, processes};

use super::objects::put_rule;
use super::support::{get, reachable, status};
use crate::api::own_node;
use crate::support::{Node, temporary_directory};

/// Elections of NATS servers take up to 9 s, and the machine has other work.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something, and prints how long it took.
pub(super) fn within(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    eprintln!("{:5.1} s: {what}", began.elapsed().as_secs_f64());
}

/// What all servers of a cluster have in common.
pub(super) struct ServerSettings {
    program: PathBuf,
    secret_file: PathBuf,
    /// Of all servers that ever belonged to the cluster, by number of their node from 1.
    addresses: Vec<String>,
}

/// A node with its server, or a witness.
pub(super) struct ServerMachine {
    pub(super) name: String,
    data_dir: PathBuf,
    process: MachineProcess,
}

enum MachineProcess {
    /// Its data is lost.
    Lost,
    Node(Node),
    Witness(Option<Child>),
}

impl ServerSettings {
    pub(super) fn new_or_skip(count: usize) -> Option<Self> {
        if !own_node() {
            return None;
        }
        let program = ServerKind::ClusterNats.program_or_skip()?;
        let secret_file = temporary_directory().join("cluster.secret");
        let settings = Self {
            program,
            secret_file,
            addresses: (0..count)
                .map(|_| format!("127.0.0.1:{}", free_port()))
                .collect(),
        };
        settings.write_secret("the first secret of the cluster");
        Some(settings)
    }

    pub(super) fn write_secret(&self, secret: &str) {
        std::fs::write(&self.secret_file, secret).unwrap();
    }

    /// `cluster.peers` of these servers.
    pub(super) fn peers(&self, indexes: &[usize]) -> String {
        let addresses: Vec<_> = indexes
            .iter()
            .map(|index| self.addresses[*index].as_str())
            .collect();
        addresses.join(",")
    }

    fn config(&self, name: &str, index: usize, peers: &str) -> String {
        format!(
            "[node]\nshards = 2\n[cluster]\nnode = \"{name}\"\nmanaged = true\nprogram = {:?}\nlisten = \"{}\"\n\
             peers = \"{peers}\"\nsecret_file = {:?}\n",
            self.program, self.addresses[index], self.secret_file
        )
    }

    /// A node that may not listen yet.
    pub(super) fn spawn(&self, index: usize, peers: &str) -> ServerMachine {
        let name = format!("node-{}", index + 1);
        let data_dir = temporary_directory();
        let config = self.config(&name, index, peers);
        let node = Node::spawn(data_dir.clone(), &[], &config);
        ServerMachine {
            name,
            data_dir,
            process: MachineProcess::Node(node),
        }
    }

    /// Nodes with these numbers from 0, which reach each other.
    pub(super) fn start(&self, indexes: &[usize], peers: &str) -> Vec<ServerMachine> {
        let mut machines: Vec<_> = indexes
            .iter()
            .map(|index| self.spawn(*index, peers))
            .collect();
        for machine in &mut machines {
            machine.wait_until_it_listens();
        }
        machines
    }

    pub(super) fn start_witness(&self, index: usize, peers: &str) -> ServerMachine {
        let mut witness = ServerMachine {
            name: "witness-1".to_owned(),
            data_dir: temporary_directory(),
            process: MachineProcess::Witness(None),
        };
        let arguments = [
            ("--name", witness.name.clone()),
            ("--listen", self.addresses[index].clone()),
            ("--peers", peers.to_owned()),
            ("--secret-file", self.secret_file.display().to_string()),
            ("--nats-server", self.program.display().to_string()),
            ("--data-dir", witness.data_dir.display().to_string()),
        ];
        let arguments: Vec<String> = (arguments.into_iter())
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect();
        std::fs::write(witness.data_dir.join("arguments"), arguments.join("\n")).unwrap();
        witness.start_again();
        witness
    }
}

/// The program with these arguments, without settings of the environment.
fn tidegate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDEGATE_")) {
        command.env_remove(name);
    }
    command
}

impl ServerMachine {
    pub(super) fn node(&self) -> &Node {
        match &self.process {
            MachineProcess::Node(node) => node,
            _ => panic!("{} is no running node", self.name),
        }
    }

    pub(super) fn wait_until_it_listens(&mut self) {
        if let MachineProcess::Node(node) = &mut self.process {
            node.wait_until_it_listens()
                .unwrap_or_else(|why| panic!("{why}"));
        }
    }

    /// What the witness has logged.
    pub(super) fn witness_log(&self) -> String {
        std::fs::read_to_string(self.data_dir.join("witness.log")).unwrap_or_default()
    }

    /// The process and its server end at once.
    pub(super) fn kill(&mut self) {
        match &mut self.process {
            MachineProcess::Lost => {}
            MachineProcess::Node(node) => {
                if node.is_running() {
                    node.signal(libc::SIGKILL);
                    assert!(node.wait(Duration::from_secs(10)).is_some());
                }
            }
            MachineProcess::Witness(child) => {
                if let Some(mut child) = child.take() {
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
        }
        kill_server(&self.data_dir);
    }

    /// The machine burns.
    pub(super) fn destroy(&mut self) {
        self.kill();
        self.process = MachineProcess::Lost;
        let _ = std::fs::remove_dir_all(&self.data_dir);
    }

    /// Stops the node in order.
    pub(super) fn stop(&self) {
        self.node().terminate(Duration::from_secs(60));
    }

    pub(super) fn start_again(&mut self) {
        match &mut self.process {
            MachineProcess::Lost => panic!("{} is lost", self.name),
            MachineProcess::Node(node) => node.start_again(),
            MachineProcess::Witness(child) => {
                let arguments = std::fs::read_to_string(self.data_dir.join("arguments")).unwrap();
                let mut command = tidegate(&["cluster", "witness"]);
                command.args(arguments.lines());
                let log = std::fs::File::options();
                let log =
                    (log.clone().create(true).append(true)).open(self.data_dir.join("witness.log"));
                command.stderr(log.unwrap());
                *child = Some(processes::spawn(command));
            }
        }
    }

    /// SIGTERM ends the witness and its server.
    pub(super) fn stop_witness(&mut self) {
        let MachineProcess::Witness(Some(child)) = &mut self.process else {
            panic!("no witness");
        };
        assert!(processes::signal(child.id(), libc::SIGTERM));
        let status = child.wait().unwrap();
        assert!(status.success(), "{status}\n{}", self.witness_log());
        self.process = MachineProcess::Witness(None);
        assert_eq!(server_pid(&self.data_dir), None, "its server runs");
    }

    /// The node has other servers beside it from its next start on.
    pub(super) fn set_peers(&self, settings: &ServerSettings, index: usize, peers: &str) {
        let config = settings.config(&self.name, index, peers);
        std::fs::write(self.config_file(), config).unwrap();
    }

    fn config_file(&self) -> PathBuf {
        self.data_dir.join("tidegate.toml")
    }

    pub(super) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// `tidegate cluster recover` with these further arguments.
    pub(super) fn recover(&self, arguments: &[&str]) -> Output {
        let (data_dir, config) = (self.data_dir.display(), self.config_file());
        let mut command = tidegate(&["cluster", "recover", "--data-dir", &data_dir.to_string()]);
        command.arg("--config").arg(config).args(arguments);
        command.output().unwrap()
    }
}

impl Drop for ServerMachine {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The process id of a NATS server that runs for a data directory.
fn server_pid(data_dir: &Path) -> Option<i32> {
    let text = std::fs::read_to_string(data_dir.join("nats/nats.pid")).ok()?;
    let pid: i32 = text.trim().parse().ok()?;
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let arguments = String::from_utf8_lossy(&arguments).into_owned();
    let config = data_dir.join("nats/nats.conf").display().to_string();
    arguments.contains(&config).then_some(pid)
}

fn kill_server(data_dir: &Path) {
    if let Some(pid) = server_pid(data_dir) {
        // SAFETY: kill has no memory effects; the process is a server of this test.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

pub(super) fn wait_until_connected(machines: &[&ServerMachine]) {
    for machine in machines {
        within(&format!("{} reaches all others", machine.name), || {
            let status = status(machine.node());
            status["is_complete"] == true && reachable(&status).len() == machines.len()
        });
    }
}

pub(super) fn wait_for_standby(machine: &ServerMachine) -> String {
    within(
        &format!("the standby of {} is current", machine.name),
        || status(machine.node())["standby"]["state"] == "current",
    );
    let name = &status(machine.node())["standby"]["node"];
    name.as_str().expect("a name").to_owned()
}

/// The configuration can be changed at the node.
pub(super) fn wait_until_changes_are_accepted(machine: &ServerMachine, rule: &str) {
    within(&format!("{} accepts changes", machine.name), || {
        let answer = put_rule(machine.node(), rule, "SELECT * FROM \"a\"");
        matches!(answer.status, 200 | 201)
    });
}

pub(super) fn has_rule(machine: &ServerMachine, rule: &str) -> bool {
    get(machine.node(), &format!("/api/v1/rules/{rule}")).status == 200
}

/// Why the node is degraded.
pub(super) fn problem(machine: &ServerMachine) -> Option<String> {
    let answer = get(machine.node(), "/readyz");
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["degraded"].as_str().map(str::to_owned)
}
