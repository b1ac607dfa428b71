//! Managed NATS servers for tests.

#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Instant;

use cluster_nats::{
    ManagedNats, ManagedNatsSettings, ManagedNatsState, ManagedNatsStatus, NatsFabric,
    NatsSettings, NatsState, NatsSync,
};
use secret::Secret;
use testkit::{ServerKind, free_port, processes};

use super::{LIMIT, connect, node, wait_for_status};

/// Settings of a server without others; nothing if the program is not here.
pub(crate) fn managed_settings_or_skip(directory: &Path) -> Option<ManagedNatsSettings> {
    let program = ServerKind::ClusterNats.program_or_skip()?;
    Some(ManagedNatsSettings {
        program: Some(program),
        client_port: free_port(),
        listen: format!("127.0.0.1:{}", free_port()),
        sync: NatsSync::Interval(std::time::Duration::from_millis(100)),
        ..ManagedNatsSettings::new(
            directory.to_owned(),
            "test",
            node("a"),
            Secret::from("secret of the test cluster"),
        )
    })
}

/// Settings of servers `a`, `b`, and so on, which form a cluster; nothing if the program is not here.
pub(crate) fn cluster_settings_or_skip(
    directory: &Path,
    servers: usize,
) -> Option<Vec<ManagedNatsSettings>> {
    let first = managed_settings_or_skip(directory)?;
    let peers: Vec<String> = (0..servers)
        .map(|_| format!("127.0.0.1:{}", free_port()))
        .collect();
    let names = ["a", "b", "c", "d", "e"];
    let settings = names
        .iter()
        .zip(&peers)
        .map(|(name, peer)| ManagedNatsSettings {
            node: node(name),
            directory: directory.join(name),
            client_port: free_port(),
            listen: peer.clone(),
            peers: peers.clone(),
            ..first.clone()
        });
    Some(settings.collect())
}

/// A server of a node, and the connections of the node to it.
pub(crate) struct ManagedNode {
    pub(crate) settings: ManagedNatsSettings,
    pub(crate) nats: ManagedNats,
    pub(crate) fabric: NatsFabric,
}

impl ManagedNode {
    pub(crate) async fn start(settings: ManagedNatsSettings) -> Self {
        Self::start_with(settings, |_| {}).await
    }

    pub(crate) async fn start_with(
        settings: ManagedNatsSettings,
        change: impl FnOnce(&mut NatsSettings),
    ) -> Self {
        let nats = ManagedNats::start(settings.clone()).await.unwrap();
        let mut connection = nats.connection();
        change(&mut connection);
        let fabric = connect(connection, settings.node.as_str()).await;
        Self {
            settings,
            nats,
            fabric,
        }
    }

    pub(crate) async fn wait_until_ready(&self) {
        wait_for_status(&self.fabric, "ready", |status| {
            status.state == NatsState::Ready && status.are_links_connected
        })
        .await;
    }

    pub(crate) async fn wait_until_not_ready(&self) {
        wait_for_status(&self.fabric, "interrupted", |status| {
            status.state != NatsState::Ready
        })
        .await;
    }

    pub(crate) fn pid(&self) -> u32 {
        self.nats.status().pid.unwrap()
    }

    /// Kills the server, which is started again.
    pub(crate) fn kill(&self) {
        assert!(processes::signal(self.pid(), libc::SIGKILL));
    }

    /// Stops the server in its tracks.
    pub(crate) fn freeze(&self) {
        assert!(processes::signal(self.pid(), libc::SIGSTOP));
    }

    pub(crate) fn resume(&self) {
        assert!(processes::signal(self.pid(), libc::SIGCONT));
    }

    pub(crate) async fn stop(self) {
        drop(self.fabric);
        self.nats.stop().await;
    }
}

pub(crate) async fn wait_for_server(
    nats: &ManagedNats,
    what: &str,
    matches: impl Fn(&ManagedNatsStatus) -> bool,
) -> ManagedNatsStatus {
    let began = Instant::now();
    loop {
        let status = nats.status();
        if matches(&status) {
            return status;
        }
        assert!(began.elapsed() < LIMIT, "not {what}: {status:?}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

pub(crate) async fn wait_until_running(nats: &ManagedNats) -> ManagedNatsStatus {
    wait_for_server(nats, "running", |status| {
        status.state == ManagedNatsState::Running
    })
    .await
}
