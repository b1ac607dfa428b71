//! NATS servers as child processes.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::{
    ClusterError, ClusterObjects as _, ExpectedRevision, MemberChange, MemberEntries as _,
    ObjectChange, PutError,
};
use cluster_nats::{
    ManagedNats, ManagedNatsError, ManagedNatsSettings, ManagedNatsState, ManagedNatsTls,
};
use secret::Secret;
use support::servers::{
    ManagedNode, cluster_settings_or_skip, managed_settings_or_skip, wait_for_server,
    wait_until_running,
};
use support::{LIMIT, describe, member, next, node, until_complete, within};
use testkit::{CertificateAuthority, ServerKind, free_port, processes};

/// Stores an object as soon as that is possible.
async fn put(at: &ManagedNode, key: &str, text: &'static str) -> u64 {
    let value = Bytes::from_static(text.as_bytes());
    within("a stored object", async {
        loop {
            match at
                .fabric
                .objects()
                .put(key, value.clone(), ExpectedRevision::Any)
                .await
            {
                Ok(revision) => return revision,
                Err(PutError::Conflict) => panic!("any revision is expected"),
                Err(PutError::Cluster(_)) => {}
            }
        }
    })
    .await
}

async fn get(at: &ManagedNode, key: &str) -> String {
    within("an object", async {
        loop {
            if let Ok(entry) = at.fabric.objects().get(key).await {
                return String::from_utf8(entry.unwrap().value.to_vec()).unwrap();
            }
        }
    })
    .await
}

async fn wait_for_servers(at: &ManagedNode, what: &str, expected: &[&str]) {
    let began = Instant::now();
    loop {
        let servers = at.nats.servers().await;
        if let Ok(servers) = &servers
            && servers
                .iter()
                .filter(|server| !server.is_offline && server.is_current)
                .map(|server| server.node.as_str())
                .eq(expected.iter().copied())
        {
            return;
        }
        assert!(began.elapsed() < LIMIT, "not {what}: {servers:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_is_started_again_with_its_objects() {
    let directory = tempfile::tempdir().unwrap();
    let Some(settings) = managed_settings_or_skip(&directory.path().join("nats")) else {
        return;
    };
    let server = ManagedNode::start(settings.clone()).await;
    let mut changes = server.fabric.objects().watch();
    assert!(until_complete(&mut changes).await.is_empty());
    put(&server, "a", "1").await;
    assert_eq!(describe(&next(&mut changes).await), "a=1");
    let before = wait_until_running(&server.nats).await;
    assert!(before.resident_bytes.unwrap() > 1 << 20);
    assert!(before.version.starts_with("2."), "{before:?}");

    for round in 1..=3 {
        server.kill();
        let status =
            wait_for_server(&server.nats, "restarted", |status| status.restarts == round).await;
        let error = status.last_error.unwrap();
        assert!(error.contains("SIGKILL") || error.contains("9"), "{error}");
        let status = wait_until_running(&server.nats).await;
        assert_ne!(status.pid, before.pid);
        assert_eq!(get(&server, "a").await, "1");
    }
    put(&server, "b", "2").await;
    loop {
        if describe(&next(&mut changes).await) == "b=2" {
            break;
        }
    }

    let pid = server.pid();
    server.stop().await;
    assert!(!processes::signal(pid, 0), "the server still runs");
    let server = ManagedNode::start(settings).await;
    assert_eq!(get(&server, "b").await, "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_a_killed_node_is_ended() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut settings) = managed_settings_or_skip(&directory.path().join("nats")) else {
        return;
    };
    settings.client_port = free_port();
    let server = ManagedNode::start(settings.clone()).await;
    put(&server, "a", "1").await;
    // As if the node had been killed: its server runs on.
    let config = settings.directory.join("nats.conf");
    server.stop().await;
    let mut command = std::process::Command::new(settings.program.as_ref().unwrap());
    command
        .arg("--config")
        .arg(&config)
        .stderr(std::process::Stdio::null());
    let mut left_behind = processes::spawn(command);
    let pid_path = settings.directory.join("nats.pid");
    let began = Instant::now();
    while fs::read_to_string(&pid_path).ok() != Some(left_behind.id().to_string()) {
        assert!(began.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    let server = ManagedNode::start(settings).await;
    assert_eq!(get(&server, "a").await, "1");
    assert!(left_behind.try_wait().unwrap().is_some());
    assert_eq!(server.nats.status().restarts, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_prevents_a_start_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let Some(settings) = managed_settings_or_skip(&directory.path().join("nats")) else {
        return;
    };
    let start = async |change: &dyn Fn(&mut ManagedNatsSettings)| {
        let mut settings = settings.clone();
        change(&mut settings);
        ManagedNats::start(settings).await.unwrap_err()
    };
    let error = start(&|settings| settings.program = Some("/missing/nats-server".into())).await;
    assert!(
        matches!(error, ManagedNatsError::Unusable { .. }),
        "{error}"
    );
    assert!(
        error.to_string().contains("/missing/nats-server"),
        "{error}"
    );
    let error = start(&|settings| settings.program = Some("/bin/echo".into())).await;
    assert!(
        error.to_string().contains("`--version` printed \""),
        "{error}"
    );
    let error = start(&|settings| settings.directory = "/proc/nats".into()).await;
    assert!(
        error.to_string().starts_with("/proc/nats cannot be used"),
        "{error}"
    );
    let error = start(&|settings| settings.secret = Secret::from("short")).await;
    assert!(error.to_string().contains("at least 16"), "{error}");
    if let Some(old) = ServerKind::Nats.program_or_skip() {
        let error = start(&|settings| settings.program = Some(old.clone())).await;
        assert!(matches!(error, ManagedNatsError::TooOld { .. }), "{error}");
        assert!(error.to_string().contains("at least 2.12.15"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_run_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut settings) = managed_settings_or_skip(&directory.path().join("nats")) else {
        return;
    };
    // Another program has the port.
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    settings.client_port = occupied.local_addr().unwrap().port();
    let server = ManagedNode::start(settings).await;
    let status = wait_for_server(&server.nats, "restarted", |status| status.restarts >= 2).await;
    let error = status.last_error.unwrap();
    assert!(error.contains("address already in use"), "{error}");
    drop(occupied);
    wait_until_running(&server.nats).await;
    put(&server, "a", "1").await;
    assert_eq!(server.nats.status().last_error, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_servers_keep_objects_while_one_is_away() {
    let directory = tempfile::tempdir().unwrap();
    let Some(settings) = cluster_settings_or_skip(directory.path(), 3) else {
        return;
    };
    let mut nodes = Vec::new();
    for settings in settings {
        nodes.push(ManagedNode::start(settings).await);
    }
    wait_for_servers(&nodes[0], "complete", &["a", "b", "c"]).await;
    let first = put(&nodes[0], "a", "1").await;
    let mut changes = nodes[1].fabric.objects().watch();
    assert_eq!(until_complete(&mut changes).await, ["a=1"]);

    // One is killed, and comes back by itself.
    nodes[2].kill();
    let second = put(&nodes[0], "a", "2").await;
    assert!(second > first);
    // If the server that was killed had the consumer of the watch, the watch begins again, and can report the first value
    // and the end of the listing once more before the second value.
    loop {
        let change = describe(&next(&mut changes).await);
        if change == "a=2" {
            break;
        }
        assert!(["a=1", "complete"].contains(&change.as_str()), "{change}");
    }
    nodes[2].wait_until_ready().await;
    assert_eq!(get(&nodes[2], "a").await, "2");

    // Without a majority nothing is stored, and afterwards everything is.
    nodes[1].freeze();
    nodes[2].freeze();
    let objects = nodes[0].fabric.objects();
    let error = within("an error", async {
        loop {
            let put = objects.put("b", Bytes::from_static(b"x"), ExpectedRevision::Absent);
            if let Err(error) = put.await {
                return error;
            }
            objects.delete("b", ExpectedRevision::Any).await.ok();
        }
    })
    .await;
    assert!(
        matches!(error, PutError::Cluster(ClusterError::Unreachable(_))),
        "{error}"
    );
    nodes[1].resume();
    nodes[2].resume();
    put(&nodes[0], "c", "3").await;
    for node in &nodes {
        node.wait_until_ready().await;
        assert_eq!(get(node, "c").await, "3");
    }
    loop {
        if describe(&next(&mut changes).await) == "c=3" {
            break;
        }
    }

    // A server that does not come back is not counted any more.
    let gone = nodes.pop().unwrap();
    gone.stop().await;
    within("the removal of a server", async {
        while let Err(error) = nodes[0].nats.remove_server(&node("c")).await {
            assert!(matches!(error, ClusterError::Unreachable(_)), "{error}");
        }
    })
    .await;
    wait_for_servers(&nodes[0], "without c", &["a", "b"]).await;
    put(&nodes[1], "d", "4").await;
    let error = nodes[0].nats.remove_server(&node("x")).await.unwrap_err();
    assert!(matches!(error, ClusterError::Rejected(_)), "{error}");
}

/// Two of three servers stop, and one of them returns without its copy of the list in memory: nobody can lead that copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn members_are_listed_anew_when_their_list_has_no_leader() {
    let directory = tempfile::tempdir().unwrap();
    let Some(settings) = cluster_settings_or_skip(directory.path(), 3) else {
        return;
    };
    let mut nodes = Vec::new();
    for settings in settings {
        nodes.push(ManagedNode::start(settings).await);
    }
    let own = member("a", 1);
    let members = nodes[0].fabric.members();
    let renewed = async |what: &str| {
        let began = Instant::now();
        within(what, async {
            while members.renew(&own).await.is_err() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
        println!("{what}: {:?}", began.elapsed());
    };
    renewed("a renewal with all servers").await;
    wait_for_servers(&nodes[0], "complete", &["a", "b", "c"]).await;
    let mut changes = members.watch();
    nodes.pop().unwrap().stop().await;
    renewed("a renewal without c").await;
    let second = nodes.pop().unwrap();
    let settings = second.settings.clone();
    second.stop().await;
    // Until the server without a majority has noticed that it leads nothing any more.
    within("no leader", async {
        let servers = || nodes[0].nats.servers();
        while servers().await.is_ok_and(|servers| !servers.is_empty()) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let _second = ManagedNode::start(settings).await;
    renewed("a renewal with a server that was started again").await;
    // The watch goes on with the new list.
    let last = member("a", 2);
    within("a change of the new list", async {
        loop {
            let _ = members.renew(&last).await;
            if next(&mut changes).await == MemberChange::Renewed(last.clone()) {
                return;
            }
        }
    })
    .await;
}

/// Whatever a server is killed in the middle of: each watch sees the changes of a key in order, and the last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watches_lose_nothing_while_servers_are_killed() {
    const KEYS: u64 = 5;
    const KILLS: usize = 4;
    let directory = tempfile::tempdir().unwrap();
    let Some(settings) = cluster_settings_or_skip(directory.path(), 3) else {
        return;
    };
    let mut nodes = Vec::new();
    for settings in settings {
        nodes.push(ManagedNode::start(settings).await);
    }
    let kills_done = AtomicBool::new(false);
    let writes = AtomicU64::new(0);
    let mut watches = Vec::new();
    for node in &nodes {
        let mut changes = node.fabric.objects().watch();
        watches.push(tokio::spawn(async move {
            let mut seen: HashMap<String, u64> = HashMap::new();
            loop {
                let change = next(&mut changes).await;
                let ObjectChange::Put { key, entry } = change else {
                    continue;
                };
                let text = std::str::from_utf8(&entry.value).unwrap();
                let number: u64 = text.parse().unwrap();
                if key == "last" {
                    return seen;
                }
                // After an interruption, the latest value is reported again.
                let before = seen.insert(key.clone(), number).unwrap_or_default();
                assert!(number >= before, "{key}: {number} after {before}");
            }
        }));
    }
    let writing = async {
        let mut stored: HashMap<String, u64> = HashMap::new();
        let mut number = 0;
        loop {
            number += 1;
            let key = format!("key-{}", number % KEYS);
            let value = Bytes::from(number.to_string());
            let objects = nodes[(number % 3) as usize].fabric.objects();
            // A failed request may have been carried out, so that it is repeated until it succeeds.
            while objects
                .put(&key, value.clone(), ExpectedRevision::Any)
                .await
                .is_err()
            {}
            stored.insert(key, number);
            writes.store(number, Ordering::Relaxed);
            if kills_done.load(Ordering::Relaxed) {
                return stored;
            }
        }
    };
    let killing = async {
        put(&nodes[0], "key-0", "0").await;
        for kill in 0..KILLS {
            let before = writes.load(Ordering::Relaxed);
            nodes[kill % 3].kill();
            let began = Instant::now();
            while writes.load(Ordering::Relaxed) < before + 3 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            println!(
                "writes continued {:?} after a server was killed",
                began.elapsed()
            );
            while writes.load(Ordering::Relaxed) < before + 200 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            nodes[kill % 3].wait_until_ready().await;
        }
        kills_done.store(true, Ordering::Relaxed);
    };
    let (stored, ()) = within("writes while servers are killed", async {
        tokio::join!(writing, killing)
    })
    .await;
    put(&nodes[0], "last", "0").await;
    println!("{} writes", stored.values().max().unwrap());
    for watch in watches {
        assert_eq!(within("the last change", watch).await.unwrap(), stored);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn servers_connect_with_tls_and_only_with_the_same_secret() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut settings) = cluster_settings_or_skip(directory.path(), 3) else {
        return;
    };
    let authority = CertificateAuthority::new(directory.path());
    let identity = authority.issue_peer("peer");
    for server in &mut settings {
        server.tls = Some(ManagedNatsTls {
            certificate: identity.certificate.clone(),
            key: identity.key.clone(),
            authorities: authority.certificate_path(),
        });
    }
    let right = settings[2].secret.clone();
    settings[2].secret = Secret::from("another secret, also long");
    let mut nodes = Vec::new();
    for settings in settings {
        nodes.push(ManagedNode::start(settings).await);
    }
    put(&nodes[0], "a", "1").await;
    // The third one is alone, and tells so.
    wait_until_running(&nodes[2].nats).await;
    let error = nodes[2].fabric.objects().get("a").await.unwrap_err();
    assert!(matches!(error, ClusterError::Unreachable(_)), "{error}");
    let third = nodes.pop().unwrap();
    let mut settings = third.settings.clone();
    third.stop().await;
    settings.secret = right;
    nodes.push(ManagedNode::start(settings).await);
    assert_eq!(get(&nodes[2], "a").await, "1");
    let file = fs::metadata(nodes[2].settings.directory.join("nats.conf")).unwrap();
    assert_eq!(file.permissions().mode() & 0o077, 0);
    assert_eq!(nodes[0].nats.status().state, ManagedNatsState::Running);
}
