//! A NATS server with JetStream as a child process of the node.

mod config_file;
mod error;
mod former_server;
mod old_process;
mod process_usage;
mod program;
mod server_log;
mod settings;
mod status;
mod supervisor;
mod system_account;

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::{ClusterError, NodeName};
use data_encoding::HEXLOWER;
use ring::rand::{SecureRandom as _, SystemRandom};
use secret::Secret;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::settings::{NatsAuth, NatsSettings};
use config_file::{CLIENT_USER, ClientCredentials, SYSTEM_USER};
pub use error::ManagedNatsError;
pub use former_server::FormerNatsServer;
pub use settings::{ManagedNatsSettings, ManagedNatsTls, NatsSync};
pub use status::{ManagedNatsState, ManagedNatsStatus};
use supervisor::Supervisor;
pub use system_account::NatsServer;
use system_account::SystemAccount;

/// Ports that are chosen for the server: below those that operating systems give to outgoing connections, so that none of
/// these takes the port while the server is started again.
const FIRST_PORT: u16 = 20_000;
const LAST_PORT: u16 = 29_999;

/// A NATS server as a child process. It is started again whenever it ends, and killed when this is dropped.
#[derive(Debug)]
pub struct ManagedNats {
    status: Arc<Mutex<ManagedNatsStatus>>,
    connection: NatsSettings,
    system_password: Secret,
    stop: watch::Sender<bool>,
    /// `None` after the stop.
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

impl ManagedNats {
    /// Writes the configuration and starts the server; does not wait until it accepts connections. To be called in a tokio
    /// runtime.
    ///
    /// # Errors
    /// If a setting cannot be used, the program is missing or too old, or the directory cannot be written.
    pub async fn start(settings: ManagedNatsSettings) -> Result<Self, ManagedNatsError> {
        settings.check()?;
        let (program, version) = program::find(settings.program.as_deref()).await?;
        let client_port = match settings.client_port {
            0 => free_port()?,
            port => port,
        };
        let credentials = ClientCredentials {
            port: client_port,
            password: random_password()?,
            system_password: random_password()?,
        };
        config_file::write(&settings, &credentials).map_err(|error| {
            ManagedNatsError::Directory {
                path: settings.directory.clone(),
                error,
            }
        })?;
        let status = Arc::new(Mutex::new(ManagedNatsStatus {
            since_ms: wall_clock::now_ms(),
            version: version.to_string(),
            client_port,
            ..ManagedNatsStatus::default()
        }));
        let (stop, is_stopped) = watch::channel(false);
        let supervisor = Supervisor {
            program,
            config_path: config_file::config_path(&settings.directory),
            pid_path: config_file::pid_path(&settings.directory),
            memory_limit_bytes: settings.memory_limit_bytes,
            client_port,
            status: Arc::clone(&status),
            stop: is_stopped,
        };
        let connection = NatsSettings {
            auth: NatsAuth::Password {
                user: CLIENT_USER.to_owned(),
                password: credentials.password,
            },
            replicas: Some(if settings.servers() >= 3 { 3 } else { 1 }),
            is_managed: true,
            ..NatsSettings::new(vec![format!("nats://127.0.0.1:{client_port}")])
        };
        Ok(Self {
            status,
            connection,
            system_password: credentials.system_password,
            stop,
            supervisor: Mutex::new(Some(tokio::spawn(supervisor.run()))),
        })
    }

    /// How the node connects to this server.
    pub fn connection(&self) -> NatsSettings {
        self.connection.clone()
    }

    pub fn status(&self) -> ManagedNatsStatus {
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let mut status = status.clone();
        if let Some((resident_bytes, cpu_ms)) = status.pid.and_then(process_usage::read) {
            status.resident_bytes = Some(resident_bytes);
            status.cpu_ms = Some(cpu_ms);
        }
        status
    }

    /// The servers that JetStream counts, by its leader; none if this server forms no cluster.
    ///
    /// # Errors
    /// If fewer than a majority of the servers run.
    pub async fn servers(&self) -> Result<Vec<NatsServer>, ClusterError> {
        self.system_account().await?.servers().await
    }

    /// A connection to this server for repeated questions about all servers. It is restored after interruptions.
    ///
    /// # Errors
    /// If a connection cannot be begun.
    pub async fn monitor(&self) -> Result<NatsServerMonitor, ClusterError> {
        Ok(NatsServerMonitor(self.system_account().await?))
    }

    /// Removes a server that does not come back from those that JetStream counts for a majority. It can join again.
    ///
    /// # Errors
    /// If fewer than a majority of the servers run, or there is no such server.
    pub async fn remove_server(&self, node: &NodeName) -> Result<(), ClusterError> {
        self.system_account().await?.remove_server(node).await
    }

    async fn system_account(&self) -> Result<SystemAccount, ClusterError> {
        let settings = NatsSettings {
            auth: NatsAuth::Password {
                user: SYSTEM_USER.to_owned(),
                password: self.system_password.clone(),
            },
            ..self.connection.clone()
        };
        SystemAccount::connect(&settings).await
    }

    /// Ends the server so that it writes its state, and waits for that for at most 10 s before it is killed.
    pub async fn stop(&self) {
        let _ = self.stop.send(true);
        let supervisor = self.supervisor().take();
        if let Some(supervisor) = supervisor {
            let _ = supervisor.await;
        }
    }

    fn supervisor(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.supervisor
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks a managed server for the servers that JetStream counts.
pub struct NatsServerMonitor(SystemAccount);

impl NatsServerMonitor {
    /// As [`ManagedNats::servers`].
    ///
    /// # Errors
    /// If fewer than a majority of the servers run.
    pub async fn servers(&self) -> Result<Vec<NatsServer>, ClusterError> {
        self.0.servers().await
    }
}

impl Drop for ManagedNats {
    fn drop(&mut self) {
        if let Some(supervisor) = &*self.supervisor() {
            supervisor.abort();
        }
    }
}

fn free_port() -> Result<u16, ManagedNatsError> {
    /// A port is free until its server listens, so that none is chosen twice.
    static CHOSEN: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(LAST_PORT - FIRST_PORT) + 1;
    // Nodes that are started at the same time look at different ports first.
    let offset = std::process::id().wrapping_mul(1009);
    (0..count)
        .map(|_| offset.wrapping_add(CHOSEN.fetch_add(1, Ordering::Relaxed)) % count)
        .map(|number| FIRST_PORT + number as u16)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .ok_or(ManagedNatsError::NoFreePort {
            first: FIRST_PORT,
            last: LAST_PORT,
        })
}

fn random_password() -> Result<Secret, ManagedNatsError> {
    let mut bytes = [0; 24];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| ManagedNatsError::RandomSource)?;
    Ok(Secret::from(HEXLOWER.encode(&bytes).as_str()))
}
