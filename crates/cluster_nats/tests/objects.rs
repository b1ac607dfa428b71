//! Objects and members with a real NATS server.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use bytes::Bytes;
use cluster::{
    ClusterError, ExpectedRevision, MAX_OBJECT_BYTES, MemberChange, MemberEntries as _,
    NodeLinks as _, ObjectChange,
};
use cluster::{ClusterObjects as _, PutError};
use cluster_nats::{NatsAuth, NatsSettings, NatsState};
use secret::Secret;
use support::{
    connect, member, next, node, server_or_skip, settings, settings_for, until_complete,
    wait_for_status, within,
};
use testkit::{Proxy, ProxyMode, ServerKind, TestServer};

fn value(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_with_an_outdated_revision_is_a_conflict() {
    let Some(server) = server_or_skip() else {
        return;
    };
    let fabric = connect(settings(&server), "a").await;
    let objects = fabric.objects();
    let put = async |text, expected| objects.put("rule/one", value(text), expected).await;

    assert_eq!(objects.get("rule/one").await.unwrap(), None);
    let conflict = Err(PutError::Conflict);
    assert_eq!(put("x", ExpectedRevision::Revision(7)).await, conflict);
    let first = put("1", ExpectedRevision::Absent).await.unwrap();
    assert_eq!(put("x", ExpectedRevision::Absent).await, conflict);
    let second = put("2", ExpectedRevision::Revision(first)).await.unwrap();
    assert!(second > first);
    assert_eq!(put("x", ExpectedRevision::Revision(first)).await, conflict);
    let entry = objects.get("rule/one").await.unwrap().unwrap();
    assert_eq!((entry.value.as_ref(), entry.revision), (&b"2"[..], second));

    let outdated = objects.delete("rule/one", ExpectedRevision::Revision(first));
    assert_eq!(outdated.await, conflict);
    let third = objects.delete("rule/one", ExpectedRevision::Revision(second));
    let third = third.await.unwrap();
    assert_eq!(objects.get("rule/one").await.unwrap(), None);
    assert_eq!(put("x", ExpectedRevision::Revision(second)).await, conflict);
    // A deleted object is absent.
    let fourth = put("3", ExpectedRevision::Absent).await.unwrap();
    assert!(fourth > third);
    put("4", ExpectedRevision::Any).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_writers_wins_each_revision() {
    let Some(server) = server_or_skip() else {
        return;
    };
    const NODES: usize = 3;
    const ROUNDS: u64 = 20;
    let mut writers = Vec::new();
    for number in 0..NODES {
        let fabric = connect(settings(&server), &format!("node-{number}")).await;
        writers.push(tokio::spawn(async move {
            let objects = fabric.objects();
            let mut successes = 0;
            while successes < ROUNDS {
                let before = objects.get("counter").await.unwrap();
                let (count, expected) = match &before {
                    None => (0, ExpectedRevision::Absent),
                    Some(entry) => {
                        let text = std::str::from_utf8(&entry.value).unwrap();
                        (
                            text.parse::<u64>().unwrap(),
                            ExpectedRevision::Revision(entry.revision),
                        )
                    }
                };
                let text = Bytes::from((count + 1).to_string());
                match objects.put("counter", text, expected).await {
                    Ok(_) => successes += 1,
                    Err(PutError::Conflict) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let fabric = connect(settings(&server), "reader").await;
    let entry = fabric.objects().get("counter").await.unwrap().unwrap();
    let expected = (NODES as u64 * ROUNDS).to_string();
    assert_eq!(entry.value.as_ref(), expected.as_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_values_that_servers_would_not_store_are_rejected() {
    let Some(server) = server_or_skip() else {
        return;
    };
    let fabric = connect(settings(&server), "a").await;
    let objects = fabric.objects();
    for key in ["", ".a", "a.", "a..b", "a b", "a*", "ä", &"k".repeat(513)] {
        let error = objects.get(key).await.unwrap_err();
        assert!(matches!(error, ClusterError::Rejected(_)), "{key}: {error}");
    }
    let longest = "k".repeat(512);
    objects
        .put(&longest, value("x"), ExpectedRevision::Absent)
        .await
        .unwrap();
    let large = Bytes::from(vec![0; MAX_OBJECT_BYTES + 1]);
    let error = objects
        .put("large", large.clone(), ExpectedRevision::Any)
        .await;
    let text = error.unwrap_err().to_string();
    assert!(text.contains("1000001 bytes"), "{text}");
    let largest = large.slice(1..);
    objects
        .put(&longest, largest.clone(), ExpectedRevision::Any)
        .await
        .unwrap();
    assert_eq!(objects.get(&longest).await.unwrap().unwrap().value, largest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_reports_everything_and_then_changes() {
    let Some(server) = server_or_skip() else {
        return;
    };
    let fabric = connect(settings(&server), "a").await;
    let objects = fabric.objects();
    let mut empty = objects.watch();
    assert!(until_complete(&mut empty).await.is_empty());
    for key in ["a", "b", "c"] {
        objects
            .put(key, value("1"), ExpectedRevision::Any)
            .await
            .unwrap();
    }
    objects
        .put("a", value("2"), ExpectedRevision::Any)
        .await
        .unwrap();
    objects.delete("b", ExpectedRevision::Any).await.unwrap();

    let mut changes = objects.watch();
    assert_eq!(until_complete(&mut changes).await, ["c=1", "a=2"]);
    let revision = objects
        .put("d", value("1"), ExpectedRevision::Any)
        .await
        .unwrap();
    let deletion = objects.delete("c", ExpectedRevision::Any).await.unwrap();
    match next(&mut changes).await {
        ObjectChange::Put { key, entry } => {
            assert_eq!((key.as_str(), entry.revision), ("d", revision))
        }
        change => panic!("{change:?}"),
    }
    let deleted = ObjectChange::Deleted {
        key: "c".to_owned(),
        revision: deletion,
    };
    assert_eq!(next(&mut changes).await, deleted);
    // The other watch has seen each change in order.
    let mut seen = Vec::new();
    while seen.len() < 7 {
        seen.push(support::describe(&next(&mut empty).await));
    }
    let expected = ["a=1", "b=1", "c=1", "a=2", "b deleted", "d=1", "c deleted"];
    assert_eq!(seen, expected);
}

/// More than one request of a consumer delivers, and values of the largest size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_and_large_objects_are_listed() {
    let Some(server) = server_or_skip() else {
        return;
    };
    let fabric = connect(settings(&server), "a").await;
    let objects = fabric.objects();
    for number in 0..500 {
        let is_large = number % 50 == 0;
        let size = if is_large { MAX_OBJECT_BYTES } else { 100 };
        let large = Bytes::from(vec![b'x'; size]);
        let key = format!("object.{number}");
        objects
            .put(&key, large, ExpectedRevision::Any)
            .await
            .unwrap();
    }
    let mut changes = objects.watch();
    // The reader is slow for a moment.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let listed = until_complete(&mut changes).await;
    assert_eq!(listed.len(), 500);
    assert!(listed[499].starts_with("object.499="));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_during_an_interruption_are_reported() {
    let Some(server) = server_or_skip() else {
        return;
    };
    let proxy = Proxy::start(server.address());
    let watcher = connect(settings_for(&format!("nats://{}", proxy.address())), "a").await;
    let writer = connect(settings(&server), "b").await;
    let objects = writer.objects();
    for key in ["a", "b", "c"] {
        objects
            .put(key, value("1"), ExpectedRevision::Any)
            .await
            .unwrap();
    }
    let mut changes = watcher.objects().watch();
    assert_eq!(until_complete(&mut changes).await, ["a=1", "b=1", "c=1"]);

    proxy.set_mode(ProxyMode::Refuse);
    proxy.close_connections();
    wait_for_status(&watcher, "disconnected", |status| {
        status.state == NatsState::Disconnected
    })
    .await;
    let error = watcher.objects().get("a").await.unwrap_err();
    assert!(matches!(error, ClusterError::Unreachable(_)), "{error}");
    objects.delete("b", ExpectedRevision::Any).await.unwrap();
    objects
        .put("c", value("2"), ExpectedRevision::Any)
        .await
        .unwrap();
    objects
        .put("d", value("1"), ExpectedRevision::Any)
        .await
        .unwrap();
    // Even the marker of the deletion disappears: only a comparison of keys finds it.
    server.nats().request(
        "$JS.API.STREAM.PURGE.KV_tidegate-objects",
        r#"{"filter":"$KV.tidegate-objects.b"}"#,
    );
    proxy.set_mode(ProxyMode::Pass);

    let mut reported = until_complete(&mut changes).await;
    reported.sort();
    assert_eq!(reported, ["a=1", "b lost", "c=2", "d=1"]);
    let status =
        wait_for_status(&watcher, "ready", |status| status.state == NatsState::Ready).await;
    assert_eq!(status.reconnects, 1);
    objects
        .put("e", value("1"), ExpectedRevision::Any)
        .await
        .unwrap();
    assert_eq!(support::describe(&next(&mut changes).await), "e=1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_survives_restarts_and_the_loss_of_the_stream() {
    let Some(server) = server_or_skip() else {
        return;
    };
    let fabric = connect(settings(&server), "a").await;
    let objects = fabric.objects();
    for key in ["a", "b"] {
        objects
            .put(key, value("1"), ExpectedRevision::Any)
            .await
            .unwrap();
    }
    let mut changes = objects.watch();
    until_complete(&mut changes).await;
    server.kill();
    server.start();
    let last = within("a write after the restart", async {
        loop {
            if let Ok(revision) = objects.put("c", value("1"), ExpectedRevision::Any).await {
                return revision;
            }
        }
    })
    .await;
    let mut reported = Vec::new();
    while !reported.iter().any(|text| text == "c=1") {
        let change = next(&mut changes).await;
        if change != ObjectChange::Complete {
            reported.push(support::describe(&change));
        }
    }
    assert!(reported.contains(&"a=1".to_owned()), "{reported:?}");

    // Somebody removes the stream: the objects are gone, and revisions still grow.
    let answer = server
        .nats()
        .request("$JS.API.STREAM.DELETE.KV_tidegate-objects", "");
    assert!(answer.contains("true"), "{answer}");
    let revision = within("a write after the removal", async {
        loop {
            if let Ok(revision) = objects.put("d", value("1"), ExpectedRevision::Absent).await {
                return revision;
            }
        }
    })
    .await;
    assert!(revision > last, "{revision} after {last}");
    let mut remaining = vec!["a lost", "b lost", "c lost", "d=1"];
    while !remaining.is_empty() {
        let change = support::describe(&next(&mut changes).await);
        remaining.retain(|text| *text != change);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_is_noticed() {
    let Some(server) = server_or_skip() else {
        return;
    };
    let mut settings = settings(&server);
    settings.ping_interval = Duration::from_millis(300);
    settings.request_timeout = Duration::from_secs(1);
    let fabric = connect(settings, "a").await;
    let objects = fabric.objects();
    objects
        .put("a", value("1"), ExpectedRevision::Any)
        .await
        .unwrap();
    let mut changes = objects.watch();
    until_complete(&mut changes).await;
    server.freeze();
    let error = within("an error", async {
        loop {
            // The server may still answer for a moment.
            if let Err(error) = objects.put("a", value("2"), ExpectedRevision::Any).await {
                return error;
            }
        }
    })
    .await;
    assert!(
        matches!(error, PutError::Cluster(ClusterError::Unreachable(_))),
        "{error}"
    );
    wait_for_status(&fabric, "disconnected", |status| {
        status.state == NatsState::Disconnected
    })
    .await;
    server.resume();
    wait_for_status(&fabric, "ready", |status| status.state == NatsState::Ready).await;
    until_complete(&mut changes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_renew_leave_and_expire() {
    let Some(server) = server_or_skip() else {
        return;
    };
    let mut settings = settings(&server);
    settings.member_max_age = Duration::from_secs(2);
    let (a, b) = (
        connect(settings.clone(), "a").await,
        connect(settings, "b").await,
    );
    let mut changes = a.members().watch();
    assert_eq!(next(&mut changes).await, MemberChange::Complete);
    a.members().renew(&member("a", 1)).await.unwrap();
    b.members().renew(&member("b", 1)).await.unwrap();
    b.members().renew(&member("b", 2)).await.unwrap();
    let renewed = |name, connections| MemberChange::Renewed(member(name, connections));
    assert_eq!(next(&mut changes).await, renewed("a", 1));
    let mut reported = Vec::new();
    while reported.last() != Some(&renewed("b", 2)) {
        reported.push(next(&mut changes).await);
    }
    b.members().remove(&node("b")).await.unwrap();
    assert_eq!(next(&mut changes).await, MemberChange::Left(node("b")));
    // Nobody renews the entry.
    assert_eq!(next(&mut changes).await, MemberChange::Expired(node("a")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_members_are_not_reported_again_after_an_interruption() {
    let Some(server) = server_or_skip() else {
        return;
    };
    let proxy = Proxy::start(server.address());
    let watcher = connect(settings_for(&format!("nats://{}", proxy.address())), "a").await;
    let writer = connect(settings(&server), "b").await;
    let members = writer.members();
    members.renew(&member("silent", 1)).await.unwrap();
    members.renew(&member("live", 1)).await.unwrap();
    let mut changes = watcher.members().watch();
    assert_eq!(
        next(&mut changes).await,
        MemberChange::Renewed(member("silent", 1))
    );
    assert_eq!(
        next(&mut changes).await,
        MemberChange::Renewed(member("live", 1))
    );
    assert_eq!(next(&mut changes).await, MemberChange::Complete);
    proxy.set_mode(ProxyMode::Refuse);
    proxy.close_connections();
    wait_for_status(&watcher, "disconnected", |status| {
        status.state == NatsState::Disconnected
    })
    .await;
    members.renew(&member("live", 2)).await.unwrap();
    proxy.set_mode(ProxyMode::Pass);
    assert_eq!(
        next(&mut changes).await,
        MemberChange::Renewed(member("live", 2))
    );
    assert_eq!(next(&mut changes).await, MemberChange::Complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_starts_before_its_servers() {
    let port = testkit::free_port();
    let mut settings = NatsSettings::new(vec![format!("nats://127.0.0.1:{port}")]);
    settings.request_timeout = Duration::from_millis(500);
    let fabric = connect(settings, "a").await;
    let error = fabric.objects().get("a").await.unwrap_err();
    assert!(matches!(error, ClusterError::Unreachable(_)), "{error}");
    let status = wait_for_status(&fabric, "an error", |status| status.last_error.is_some()).await;
    assert_eq!(status.state, NatsState::Disconnected);
    let error = status.last_error.unwrap();
    assert!(
        error.contains(&format!("127.0.0.1:{port}")) && error.contains("refused"),
        "{error}"
    );
    assert_eq!(
        fabric.links().send(&node("b"), Bytes::new()),
        Err(cluster::LinkSendError::Disconnected)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_credentials_are_told_and_tried_again() {
    let Some(server) = server_or_skip() else {
        return;
    };
    let mut settings = settings(&server);
    settings.auth = NatsAuth::Password {
        user: "tidegate".to_owned(),
        password: Secret::from("wrong-password"),
    };
    settings.request_timeout = Duration::from_secs(1);
    let fabric = connect(settings, "a").await;
    let status = wait_for_status(&fabric, "an error", |status| status.last_error.is_some()).await;
    let error = status.last_error.unwrap();
    assert!(
        error.contains("authorization violation") && error.contains("check the user and password"),
        "{error}"
    );
    let error = fabric.objects().get("a").await.unwrap_err().to_string();
    assert!(error.contains("authorization violation"), "{error}");
    assert!(!error.contains("wrong-password"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_server_is_refused() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Nats) else {
        return;
    };
    let mut settings = settings(&server);
    settings.request_timeout = Duration::from_secs(1);
    let fabric = connect(settings, "a").await;
    let status = wait_for_status(&fabric, "refused", |status| {
        status.state == NatsState::Refused
    })
    .await;
    let error = status.last_error.unwrap();
    assert!(
        error.contains("has version 2.9.") && error.contains("at least 2.12.15 is required"),
        "{error}"
    );
    let refused = fabric.objects().get("a").await;
    assert_eq!(refused, Err(ClusterError::Rejected(error)));
    assert_eq!(
        fabric.links().send(&node("b"), Bytes::new()),
        Err(cluster::LinkSendError::Disconnected)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_jetstream_is_refused() {
    let server = TestServer::start_with_or_skip(ServerKind::ClusterNats, &["--jetstream=false"]);
    let Some(server) = server else {
        return;
    };
    let fabric = connect(settings(&server), "a").await;
    let status = wait_for_status(&fabric, "refused", |status| {
        status.state == NatsState::Refused
    })
    .await;
    let error = status.last_error.unwrap();
    assert!(error.contains("JetStream not enabled"), "{error}");
    assert!(error.contains("store_dir"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_accepts_small_messages_only_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("nats.conf");
    std::fs::write(&file, "max_payload: 512KB\n").unwrap();
    let arguments = ["--config", file.to_str().unwrap()];
    let Some(server) = TestServer::start_with_or_skip(ServerKind::ClusterNats, &arguments) else {
        return;
    };
    let fabric = connect(settings(&server), "a").await;
    let status = wait_for_status(&fabric, "refused", |status| {
        status.state == NatsState::Refused
    })
    .await;
    let error = status.last_error.unwrap();
    assert!(error.contains("remove `max_payload`"), "{error}");
}

/// 50 ms in each direction, as between continents.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_works_over_a_slow_connection() {
    let Some(server) = server_or_skip() else {
        return;
    };
    let proxy = Proxy::start(server.address());
    proxy.set_mode(ProxyMode::Delay(Duration::from_millis(50)));
    let slow = connect(settings_for(&format!("nats://{}", proxy.address())), "a").await;
    let fast = connect(settings(&server), "b").await;
    let mut changes = slow.objects().watch();
    until_complete(&mut changes).await;
    let mut members = slow.members().watch();
    assert_eq!(next(&mut members).await, MemberChange::Complete);

    let large = Bytes::from(vec![b'x'; MAX_OBJECT_BYTES]);
    let objects = fast.objects();
    let revision = objects
        .put("large", large, ExpectedRevision::Absent)
        .await
        .unwrap();
    match next(&mut changes).await {
        ObjectChange::Put { key, entry } => {
            assert_eq!((key.as_str(), entry.revision), ("large", revision));
            assert_eq!(entry.value.len(), MAX_OBJECT_BYTES);
        }
        change => panic!("{change:?}"),
    }
    let objects = slow.objects();
    let outdated = objects.delete("large", ExpectedRevision::Revision(revision + 1));
    assert_eq!(outdated.await, Err(PutError::Conflict));
    let deleted = objects.delete("large", ExpectedRevision::Revision(revision));
    deleted.await.unwrap();
    assert_eq!(
        support::describe(&next(&mut changes).await),
        "large deleted"
    );

    fast.members().renew(&member("b", 1)).await.unwrap();
    assert_eq!(
        next(&mut members).await,
        MemberChange::Renewed(member("b", 1))
    );
    let status = wait_for_status(&slow, "measured", |status| {
        status
            .round_trip
            .is_some_and(|time| time >= Duration::from_millis(100))
    })
    .await;
    assert_eq!(status.reconnects, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_with_different_prefixes_share_a_server() {
    let Some(server) = server_or_skip() else {
        return;
    };
    let mut other = settings(&server);
    other.prefix = "other_Cluster-2".to_owned();
    let (one, two) = (
        connect(settings(&server), "a").await,
        connect(other, "a").await,
    );
    let mut members = two.members().watch();
    assert_eq!(next(&mut members).await, MemberChange::Complete);
    let mut objects = two.objects().watch();
    until_complete(&mut objects).await;
    let mut frames = two.links().receive();
    wait_for_status(&two, "connected", |status| status.are_links_connected).await;
    wait_for_status(&one, "connected", |status| status.are_links_connected).await;

    one.objects()
        .put("a", value("1"), ExpectedRevision::Absent)
        .await
        .unwrap();
    one.members().renew(&member("a", 1)).await.unwrap();
    one.links().send(&node("a"), value("one")).unwrap();
    assert_eq!(two.objects().get("a").await.unwrap(), None);
    two.objects()
        .put("a", value("2"), ExpectedRevision::Absent)
        .await
        .unwrap();
    two.members().renew(&member("a", 2)).await.unwrap();
    two.links().send(&node("a"), value("two")).unwrap();
    assert_eq!(support::describe(&next(&mut objects).await), "a=2");
    assert_eq!(
        next(&mut members).await,
        MemberChange::Renewed(member("a", 2))
    );
    assert_eq!(next(&mut frames).await, value("two"));
}
