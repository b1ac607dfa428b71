//! What the tests with real NATS servers share.

#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used)]

pub(crate) mod servers;

use std::future::Future;
use std::time::Duration;

use cluster::{Member, NodeName, ObjectChange};
use cluster_nats::{NatsAuth, NatsFabric, NatsSettings, NatsStatus};
use secret::Secret;
use testkit::{PASSWORD, ServerKind, TestServer, USER};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Generous: a machine may be building at the same time.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn server_or_skip() -> Option<TestServer> {
    TestServer::start_or_skip(ServerKind::ClusterNats)
}

pub(crate) fn settings(server: &TestServer) -> NatsSettings {
    settings_for(&format!("nats://{}", server.address()))
}

pub(crate) fn settings_for(url: &str) -> NatsSettings {
    NatsSettings {
        auth: NatsAuth::Password {
            user: USER.to_owned(),
            password: Secret::from(PASSWORD),
        },
        ..NatsSettings::new(vec![url.to_owned()])
    }
}

pub(crate) fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

pub(crate) async fn connect(settings: NatsSettings, name: &str) -> NatsFabric {
    NatsFabric::connect(settings, &node(name)).await.unwrap()
}

pub(crate) fn member(name: &str, connections: u64) -> Member {
    Member {
        connections,
        started_ms: 1,
        ..Member::new(node(name), 1, "1.0.0", 1..=1)
    }
}

pub(crate) async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match timeout(LIMIT, work).await {
        Ok(value) => value,
        Err(_) => panic!("not within {LIMIT:?}: {what}"),
    }
}

pub(crate) async fn wait_for_status(
    fabric: &NatsFabric,
    what: &str,
    matches: impl Fn(&NatsStatus) -> bool,
) -> NatsStatus {
    let began = std::time::Instant::now();
    loop {
        let status = fabric.status();
        if matches(&status) {
            return status;
        }
        assert!(began.elapsed() < LIMIT, "not {what}: {status:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) async fn next<T>(receiver: &mut mpsc::Receiver<T>) -> T {
    within("a change", receiver.recv()).await.unwrap()
}

/// The changes up to and with [`ObjectChange::Complete`], as short texts.
pub(crate) async fn until_complete(changes: &mut mpsc::Receiver<ObjectChange>) -> Vec<String> {
    let mut texts = Vec::new();
    loop {
        let change = next(changes).await;
        if change == ObjectChange::Complete {
            return texts;
        }
        texts.push(describe(&change));
    }
}

pub(crate) fn describe(change: &ObjectChange) -> String {
    match change {
        ObjectChange::Put { key, entry } => {
            format!("{key}={}", String::from_utf8_lossy(&entry.value))
        }
        ObjectChange::Deleted { key, .. } => format!("{key} deleted"),
        ObjectChange::Lost { key } => format!("{key} lost"),
        ObjectChange::Complete => "complete".to_owned(),
    }
}
