//! A real server for a test, a database or a broker: its own process, port and data; to be stopped, killed and started again.

mod instance;
mod kafka;
mod mariadb;
mod mosquitto;
mod nats;
mod opensearch;
mod postgres;
mod prometheus;
mod redis;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::certificates::TlsIdentity;
use crate::processes;
use instance::ServerInstance;
pub use instance::free_port;
pub use instance::{DATABASE, PASSWORD, Rows, USER};
pub use nats::NatsClient;

/// Generous: a machine may be building at the same time.
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerKind {
    MariaDb,
    Postgres,
    Redis,
    /// As in Debian.
    Nats,
    /// A version that clusters require.
    ClusterNats,
    Mosquitto,
    /// Asks itself every second, and knows what tests put into its rules.
    Prometheus,
    /// Takes a quarter of a minute to start, and needs Java.
    OpenSearch,
    /// As OpenSearch; with TLS, [`USER`] logs in with SASL: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
    Kafka,
}

impl ServerKind {
    /// Names the server's program; set by `cargo xtask test`.
    pub const fn env_variable(self) -> &'static str {
        match self {
            Self::MariaDb => "TIDEGATE_TEST_MARIADBD",
            Self::Postgres => "TIDEGATE_TEST_POSTGRES",
            Self::Redis => "TIDEGATE_TEST_REDIS",
            Self::Nats => "TIDEGATE_TEST_NATS",
            Self::ClusterNats => "TIDEGATE_TEST_NATS_SERVER",
            Self::Mosquitto => "TIDEGATE_TEST_MOSQUITTO",
            Self::Prometheus => "TIDEGATE_TEST_PROMETHEUS",
            Self::OpenSearch => "TIDEGATE_TEST_OPENSEARCH",
            Self::Kafka => "TIDEGATE_TEST_KAFKA",
        }
    }

    /// The program, or says that the test is skipped because it is not here.
    pub fn program_or_skip(self) -> Option<PathBuf> {
        let program = self.program();
        if program.is_none() {
            let variable = self.env_variable();
            crate::report_skipped(&format!("{variable} is not set; run `cargo xtask test`"));
        }
        program
    }

    /// The program: by the variable, where `cargo xtask test` unpacked it before, or as installed.
    fn program(self) -> Option<PathBuf> {
        if let Some(path) = std::env::var_os(self.env_variable()) {
            return Some(PathBuf::from(path));
        }
        // Test programs lie in target/PROFILE/deps.
        let test = std::env::current_exe().ok()?;
        let tools = test.ancestors().nth(3)?.join("tools");
        let unpacked = match self {
            Self::MariaDb => tools.join("mariadb"),
            Self::Postgres => tools.join("postgres"),
            Self::Redis => tools.join("redis"),
            Self::Nats => tools.join("nats"),
            Self::ClusterNats => tools.join("nats-server"),
            Self::Mosquitto => tools.join("mosquitto"),
            Self::Prometheus => tools.join("prometheus"),
            Self::OpenSearch => tools.join("opensearch"),
            Self::Kafka => tools.join("kafka"),
        };
        self.program_below(&unpacked)
            .or_else(|| self.program_below(Path::new("/")))
    }

    fn program_below(self, root: &Path) -> Option<PathBuf> {
        let program = match self {
            Self::MariaDb => root.join("usr/sbin/mariadbd"),
            Self::Redis => root.join("usr/bin/redis-server"),
            Self::Nats => root.join("usr/sbin/nats-server"),
            Self::ClusterNats => root.join("bin/nats-server"),
            Self::Mosquitto => root.join("usr/sbin/mosquitto"),
            Self::Prometheus => root.join("usr/bin/prometheus"),
            // A folder of jars rather than a program.
            Self::OpenSearch | Self::Kafka => {
                let jars = root.join("jars");
                return jars.is_dir().then_some(jars);
            }
            Self::Postgres => {
                let versions = fs::read_dir(root.join("usr/lib/postgresql")).ok()?;
                let newest = versions
                    .filter_map(|entry| Some(entry.ok()?.path()))
                    .max()?;
                newest.join("bin/postgres")
            }
        };
        program.is_file().then_some(program)
    }

    /// Ends it at once without leaving anything of it on the machine.
    const fn kill_signal(self) -> i32 {
        match self {
            // Killed, it would leave its children a moment longer and a shared memory segment for ever.
            Self::Postgres => libc::SIGQUIT,
            _ => libc::SIGKILL,
        }
    }

    /// Ends it in order, everything written.
    const fn stop_signal(self) -> i32 {
        match self {
            // Does not wait for its clients, which SIGTERM would.
            Self::Postgres => libc::SIGINT,
            _ => libc::SIGTERM,
        }
    }
}

/// A server that runs, or ran. Dropping it ends it and removes its data.
pub struct TestServer {
    kind: ServerKind,
    instance: ServerInstance,
    arguments: Vec<String>,
    child: Mutex<Option<Child>>,
}

impl TestServer {
    /// Starts a server, or says that the test is skipped because the program is not here.
    pub fn start_or_skip(kind: ServerKind) -> Option<TestServer> {
        Self::start_with_or_skip(kind, &[])
    }

    /// As [`TestServer::start_or_skip`], with TLS: [`USER`] comes in by [`TestServer::tls_address`] only, and without a
    /// certificate of its own.
    pub fn start_with_tls_or_skip(kind: ServerKind, identity: &TlsIdentity) -> Option<TestServer> {
        Self::start_tls_or_skip(kind, &[], Some(identity))
    }

    /// As [`TestServer::start_or_skip`], with further arguments on its command line.
    pub fn start_with_or_skip(kind: ServerKind, arguments: &[&str]) -> Option<TestServer> {
        Self::start_tls_or_skip(kind, arguments, None)
    }

    fn start_tls_or_skip(
        kind: ServerKind,
        arguments: &[&str],
        identity: Option<&TlsIdentity>,
    ) -> Option<TestServer> {
        let program = kind.program_or_skip()?;
        let port = free_port();
        let mut arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let tls_port = identity.map(|identity| match kind {
            ServerKind::MariaDb => mariadb::add_tls(&mut arguments, identity, port),
            ServerKind::Postgres => postgres::add_tls(&mut arguments, identity, port),
            ServerKind::Redis => redis::add_tls(&mut arguments, identity, free_port()),
            ServerKind::Kafka => free_port(),
            ServerKind::Nats
            | ServerKind::ClusterNats
            | ServerKind::Mosquitto
            | ServerKind::Prometheus
            | ServerKind::OpenSearch => {
                panic!("{kind:?} is started without TLS only")
            }
        });
        let server = TestServer {
            kind,
            instance: ServerInstance {
                program,
                dir: processes::temporary_directory(),
                port,
                tls_port,
            },
            arguments,
            child: Mutex::new(None),
        };
        match kind {
            ServerKind::MariaDb => mariadb::prepare(&server.instance),
            ServerKind::Postgres => postgres::prepare(&server.instance),
            ServerKind::Mosquitto => mosquitto::prepare(&server.instance),
            ServerKind::Prometheus => prometheus::prepare(&server.instance),
            ServerKind::OpenSearch => opensearch::prepare(&server.instance),
            ServerKind::Kafka => kafka::prepare(&server.instance, identity),
            ServerKind::Redis | ServerKind::Nats | ServerKind::ClusterNats => {}
        }
        server.start();
        match kind {
            ServerKind::MariaDb => mariadb::create_user(&server.instance),
            ServerKind::Postgres => postgres::create_user(&server.instance),
            _ => {}
        }
        Some(server)
    }

    pub fn kind(&self) -> ServerKind {
        self.kind
    }

    pub fn port(&self) -> u16 {
        self.instance.port
    }

    pub fn address(&self) -> SocketAddr {
        self.instance.address()
    }

    /// Where it speaks TLS.
    pub fn tls_address(&self) -> SocketAddr {
        let port = self.instance.tls_port.expect("it was started with TLS");
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    }

    /// How clients name it, with [`USER`] and [`PASSWORD`].
    pub fn url(&self) -> String {
        self.url_through(self.address())
    }

    /// As [`TestServer::url`], by way of another address such as that of a [`crate::Proxy`].
    pub fn url_through(&self, address: SocketAddr) -> String {
        let (scheme, path) = match self.kind {
            ServerKind::MariaDb => ("mysql", DATABASE),
            ServerKind::Postgres => ("postgres", DATABASE),
            ServerKind::Redis => ("redis", "0"),
            ServerKind::Nats | ServerKind::ClusterNats => ("nats", ""),
            ServerKind::Mosquitto => ("mqtt", ""),
            ServerKind::Prometheus | ServerKind::OpenSearch => ("http", ""),
            ServerKind::Kafka => ("kafka", ""),
        };
        format!("{scheme}://{USER}:{PASSWORD}@{address}/{path}")
    }

    /// Starts it (again), on the same port and data, and waits until it answers.
    pub fn start(&self) {
        let mut slot = self.child();
        assert!(slot.is_none(), "it runs already");
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.instance.log_path())
            .expect("its log can be written");
        let mut command = match self.kind {
            ServerKind::MariaDb => mariadb::command(&self.instance),
            ServerKind::Postgres => postgres::command(&self.instance),
            ServerKind::Redis => redis::command(&self.instance),
            ServerKind::Nats | ServerKind::ClusterNats => nats::command(&self.instance),
            ServerKind::Mosquitto => mosquitto::command(&self.instance),
            ServerKind::Prometheus => prometheus::command(&self.instance),
            ServerKind::OpenSearch => opensearch::command(&self.instance),
            ServerKind::Kafka => kafka::command(&self.instance),
        };
        command.args(&self.arguments).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a file can be shared"));
        command.stderr(log);
        let child = processes::spawn(command);
        processes::register(processes::SupervisedChild {
            pid: child.id(),
            log: self.instance.log_path(),
            signal: self.kind.kill_signal(),
        });
        let child = slot.insert(child);
        let deadline = Instant::now() + START_LIMIT;
        while let Err(why) = self.check_ready() {
            let ended = child.try_wait().expect("a child can be asked");
            if ended.is_some() || Instant::now() > deadline {
                panic!(
                    "{:?} does not answer ({why}); it wrote:\n{}",
                    self.kind,
                    self.log()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it in order and waits for that; its clients lose their connections.
    pub fn stop(&self) {
        self.terminate(self.kind.stop_signal());
    }

    /// Ends it in the middle of whatever it does (SIGKILL) and waits for that.
    pub fn kill(&self) {
        self.terminate(libc::SIGKILL);
    }

    /// Stops it in its tracks (SIGSTOP): connections stay, nothing answers. [`TestServer::resume`] undoes it.
    pub fn freeze(&self) {
        assert!(
            processes::signal(self.pid(), libc::SIGSTOP),
            "it does not run"
        );
    }

    pub fn resume(&self) {
        assert!(
            processes::signal(self.pid(), libc::SIGCONT),
            "it does not run"
        );
    }

    pub fn pid(&self) -> u32 {
        self.child().as_ref().expect("it does not run").id()
    }

    /// What it wrote to its log so far.
    pub fn log(&self) -> String {
        let log = fs::read(self.instance.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Runs statements, separated by semicolons, as the server's administrator in [`DATABASE`]. Returns the rows of
    /// the last that gave any. For databases with SQL.
    pub fn sql(&self, statements: &str) -> Rows {
        match self.try_sql(statements) {
            Ok(rows) => rows,
            Err(why) => panic!("{statements}: {why}"),
        }
    }

    pub fn try_sql(&self, statements: &str) -> Result<Rows, String> {
        match self.kind {
            ServerKind::MariaDb => {
                mariadb::run(self.instance.connect()?, Some(DATABASE), statements)
            }
            ServerKind::Postgres => postgres::run(self.instance.connect()?, DATABASE, statements),
            ServerKind::Redis => Err("Redis has no SQL: see `redis`".into()),
            ServerKind::Nats
            | ServerKind::ClusterNats
            | ServerKind::Mosquitto
            | ServerKind::Kafka => Err("a broker has no SQL".into()),
            ServerKind::Prometheus | ServerKind::OpenSearch => {
                Err("it has no SQL: see `http`".into())
            }
        }
    }

    /// Runs one command of Redis as its administrator. Arrays are flattened; `None` is nil.
    pub fn redis(&self, words: &[&str]) -> Vec<Option<String>> {
        match self.try_redis(words) {
            Ok(values) => values,
            Err(why) => panic!("{words:?}: {why}"),
        }
    }

    pub fn try_redis(&self, words: &[&str]) -> Result<Vec<Option<String>>, String> {
        assert_eq!(self.kind, ServerKind::Redis);
        redis::run(self.instance.connect()?, words)
    }

    /// Asks OpenSearch or Prometheus; gives the body of the answer.
    pub fn http(&self, method: &str, path: &str, body: &str) -> String {
        assert!(matches!(
            self.kind,
            ServerKind::OpenSearch | ServerKind::Prometheus
        ));
        let answer = self
            .instance
            .connect()
            .and_then(|stream| opensearch::request(stream, method, path, body));
        answer.unwrap_or_else(|why| panic!("{method} {path}: {why}"))
    }

    /// Makes a topic of Kafka with settings of its own.
    pub fn create_topic(&self, name: &str, partitions: u32, settings: &[(&str, &str)]) {
        assert_eq!(self.kind, ServerKind::Kafka);
        let made = self
            .instance
            .connect()
            .and_then(|stream| kafka::create_topic(stream, name, partitions, settings));
        made.unwrap_or_else(|why| panic!("{why}"));
    }

    /// A client of NATS, to look into it.
    pub fn nats(&self) -> NatsClient {
        assert!(matches!(
            self.kind,
            ServerKind::Nats | ServerKind::ClusterNats
        ));
        let client = self.instance.connect().and_then(NatsClient::connect);
        client.unwrap_or_else(|why| panic!("{why}"))
    }

    fn check_ready(&self) -> Result<(), String> {
        let stream = self.instance.connect()?;
        match self.kind {
            ServerKind::MariaDb => mariadb::run(stream, None, "SELECT 1").map(drop),
            ServerKind::Postgres => postgres::run(stream, "postgres", "SELECT 1").map(drop),
            ServerKind::Redis => redis::run(stream, &["PING"]).map(drop),
            ServerKind::Nats | ServerKind::ClusterNats => NatsClient::connect(stream).map(drop),
            ServerKind::Mosquitto => Ok(()),
            ServerKind::Prometheus => opensearch::request(stream, "GET", "/-/ready", "").map(drop),
            ServerKind::OpenSearch => {
                opensearch::request(stream, "GET", "/_cluster/health", "").map(drop)
            }
            ServerKind::Kafka => kafka::check_ready(stream),
        }
    }

    fn terminate(&self, signal: i32) {
        let mut slot = self.child();
        let mut child = slot.take().expect("it does not run");
        processes::signal(child.id(), signal);
        let deadline = Instant::now() + STOP_LIMIT;
        while child.try_wait().expect("a child can be asked").is_none() {
            if Instant::now() > deadline {
                let _ = child.kill();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        processes::unregister(child.id());
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if self.child().is_some() {
            self.terminate(self.kind.kill_signal());
        }
        let _ = fs::remove_dir_all(&self.instance.dir);
    }
}
