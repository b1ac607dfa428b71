//! Configuration objects of three nodes with a real NATS server.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster::{
    ExpectedRevision, LocalObject, LocalObjects, LocalObjectsError, ObjectName, ReplicaRecord,
    ReplicatedObjects, ReplicatedObjectsError,
};
use cluster_nats::NatsFabric;
use serde_json::{Value, json};
use support::{LIMIT, connect, node, server_or_skip, settings, within};
use testkit::TestServer;
use tokio::task::JoinHandle;

#[derive(Default)]
struct Disk {
    /// What a change takes.
    latency: Mutex<Duration>,
    objects: Mutex<BTreeMap<ObjectName, LocalObject>>,
    record: Mutex<Option<ReplicaRecord>>,
}

impl Disk {
    fn with(objects: &[(&str, Value)]) -> Arc<Self> {
        let disk = Self::default();
        for (number, (id, value)) in objects.iter().enumerate() {
            let object = LocalObject {
                name: name(id),
                value: value.clone(),
                version: 1 + number as u64,
                created_ms: 1,
                updated_ms: 1,
            };
            disk.apply(&object).unwrap();
        }
        Arc::new(disk)
    }

    fn values(&self) -> BTreeMap<String, Value> {
        let objects = self.objects.lock().unwrap();
        let pairs = objects.values();
        pairs
            .map(|object| (object.name.id.clone(), object.value.clone()))
            .collect()
    }

    fn version(&self, id: &str) -> u64 {
        self.objects.lock().unwrap()[&name(id)].version
    }
}

impl LocalObjects for Disk {
    fn list(&self) -> Result<Vec<(ObjectName, u64)>, LocalObjectsError> {
        let objects = self.objects.lock().unwrap();
        let listed = objects.values();
        Ok(listed
            .map(|object| (object.name.clone(), object.version))
            .collect())
    }

    fn get(&self, name: &ObjectName) -> Result<Option<LocalObject>, LocalObjectsError> {
        Ok(self.objects.lock().unwrap().get(name).cloned())
    }

    fn apply(&self, object: &LocalObject) -> Result<(), LocalObjectsError> {
        let latency = *self.latency.lock().unwrap();
        std::thread::sleep(latency);
        let mut objects = self.objects.lock().unwrap();
        objects.insert(object.name.clone(), object.clone());
        Ok(())
    }

    fn remove(&self, name: &ObjectName) -> Result<(), LocalObjectsError> {
        self.objects.lock().unwrap().remove(name);
        Ok(())
    }

    fn record(&self) -> Result<Option<ReplicaRecord>, LocalObjectsError> {
        Ok(self.record.lock().unwrap().clone())
    }

    fn set_record(&self, record: &ReplicaRecord) -> Result<(), LocalObjectsError> {
        *self.record.lock().unwrap() = Some(record.clone());
        Ok(())
    }
}

fn name(id: &str) -> ObjectName {
    ObjectName::new("rule", id)
}

struct Node {
    disk: Arc<Disk>,
    objects: Arc<ReplicatedObjects>,
    task: JoinHandle<()>,
    _fabric: NatsFabric,
}

impl Node {
    async fn start(server: &TestServer, name: &str, disk: Arc<Disk>) -> Self {
        let fabric = connect(settings(server), name).await;
        let mut runs = 0;
        let run = format!("{name} {:?}", Instant::now());
        let random_id = move || {
            runs += 1;
            format!("{run} {runs}")
        };
        let objects = ReplicatedObjects::new(node(name), fabric.objects(), disk.clone(), random_id);
        let task = objects.start();
        Self {
            disk,
            objects,
            task,
            _fabric: fabric,
        }
    }

    async fn synchronized(self) -> Self {
        within("synchronized", self.objects.wait_until_synchronized()).await;
        self
    }

    async fn wait_for(&self, what: &str, expected: &Value) {
        let began = Instant::now();
        loop {
            let values = json!(self.disk.values());
            if values == *expected {
                return;
            }
            assert!(began.elapsed() < LIMIT, "not {what}: {values}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_share_their_objects() {
    let Some(server) = server_or_skip() else {
        return;
    };
    let first = [("one", json!({"sql": "1"})), ("both", json!("a"))];
    let a = Node::start(&server, "a", Disk::with(&first)).await;
    let a = a.synchronized().await;
    let second = [("two", json!({"sql": "2"})), ("both", json!("b"))];
    let b = Node::start(&server, "b", Disk::with(&second)).await;
    let b = b.synchronized().await;
    let all = json!({"one": {"sql": "1"}, "two": {"sql": "2"}, "both": "a"});
    a.wait_for("joined", &all).await;
    b.wait_for("joined", &all).await;
    assert_eq!(b.objects.status().conflicts, [name("both")]);

    // Versions grow, also from those before the cluster.
    *b.disk.latency.lock().unwrap() = Duration::from_millis(300);
    let version = a.disk.version("one");
    assert!(version > 1_700_000_000_000 && version < 1 << 53);
    let changed = a
        .objects
        .put(
            &name("one"),
            json!("new"),
            ExpectedRevision::Revision(version),
        )
        .await
        .unwrap();
    assert!(changed > version);
    assert_eq!(a.disk.version("one"), changed);
    let outdated = ExpectedRevision::Revision(version);
    let conflict = b.objects.put(&name("one"), json!("x"), outdated).await;
    assert_eq!(conflict, Err(ReplicatedObjectsError::Conflict));
    // It has the other change now, and can be asked again.
    assert_eq!(b.disk.version("one"), changed);
    let absent = b
        .objects
        .put(&name("one"), json!("x"), ExpectedRevision::Absent)
        .await;
    assert_eq!(absent, Err(ReplicatedObjectsError::Conflict));
    b.wait_for(
        "changed",
        &json!({"one": "new", "two": {"sql": "2"}, "both": "a"}),
    )
    .await;
    assert!(
        b.objects
            .delete(&name("two"), ExpectedRevision::Any)
            .await
            .unwrap()
    );
    assert!(
        !b.objects
            .delete(&name("two"), ExpectedRevision::Any)
            .await
            .unwrap()
    );
    a.wait_for("deleted", &json!({"one": "new", "both": "a"}))
        .await;
    let large = Value::from("x".repeat(1 << 20));
    let refused = a
        .objects
        .put(&name("large"), large, ExpectedRevision::Any)
        .await;
    assert!(
        matches!(&refused, Err(ReplicatedObjectsError::Invalid(detail)) if detail.contains("at most 1000000")),
        "{refused:?}"
    );

    // A node that was away.
    let disk = b.disk.clone();
    drop(b);
    assert!(
        a.objects
            .delete(&name("one"), ExpectedRevision::Any)
            .await
            .unwrap()
    );
    a.objects
        .put(&name("three"), json!(3), ExpectedRevision::Absent)
        .await
        .unwrap();
    let b = Node::start(&server, "b", disk).await.synchronized().await;
    let expected = json!({"both": "a", "three": 3});
    b.wait_for("as the cluster", &expected).await;

    // The servers lose everything, the nodes nothing.
    let version = a.disk.version("both");
    let answer = server
        .nats()
        .request("$JS.API.STREAM.DELETE.KV_tidegate-objects", "");
    assert!(answer.contains("true"), "{answer}");
    let began = Instant::now();
    while a.disk.version("both") <= version || b.disk.version("both") <= version {
        assert!(began.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    within("a", a.objects.wait_until_synchronized()).await;
    within("b", b.objects.wait_until_synchronized()).await;
    a.wait_for("complete", &expected).await;
    b.wait_for("complete", &expected).await;

    server.stop();
    let refused = a
        .objects
        .put(&name("four"), json!(4), ExpectedRevision::Any)
        .await;
    assert!(
        matches!(refused, Err(ReplicatedObjectsError::Unavailable(_))),
        "{refused:?}"
    );
    assert_eq!(json!(a.disk.values()), expected);
}
