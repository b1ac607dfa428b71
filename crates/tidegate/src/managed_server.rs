//! The NATS server that a node or a witness starts, and where its files are.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cluster_nats::{ManagedNats, ManagedNatsSettings};

use crate::config::{ClusterSettings, ManagedServer};

/// The files of the server in a data directory.
pub(crate) fn server_directory(data_dir: &Path) -> PathBuf {
    data_dir.join("nats")
}

/// The copies of the sessions of other nodes in a data directory.
pub(crate) fn copies_directory(data_dir: &Path) -> PathBuf {
    data_dir.join("standby")
}

/// To be called in a tokio runtime.
pub(crate) async fn start_server(
    settings: &ClusterSettings,
    server: &ManagedServer,
    directory: PathBuf,
) -> anyhow::Result<ManagedNats> {
    let managed = ManagedNatsSettings {
        program: server.program.clone(),
        listen: server.listen.clone(),
        advertise: server.advertise.clone(),
        peers: server.peers.clone(),
        tls: server.tls.clone(),
        sync: server.sync,
        max_memory_bytes: server.max_memory / 2,
        memory_limit_bytes: server.max_memory,
        max_store_bytes: server.max_disk,
        ..ManagedNatsSettings::new(
            directory,
            &settings.name,
            settings.node.clone(),
            server.secret.clone(),
        )
    };
    ManagedNats::start(managed)
        .await
        .context("cluster.managed: the NATS server does not start")
}
