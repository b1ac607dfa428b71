//! Tests of the HTTP API over a real socket, with a fake node behind it.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod absent;
mod access;
mod access_check;
mod bounds;
mod client;
mod cluster;
mod cluster_files;
mod cluster_telemetry;
mod console;
mod dashboards;
mod description;
mod devices;
mod events;
mod fake;
mod files;
mod limits;
mod memory_telemetry;
mod node_history;
mod objects;
mod observation;
mod outsider;
mod people;
mod steering;
mod thingsboard;

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use api::NotReadyReason;
use client::{delete, exchange, get, request};
use fake::{FakeState, Server, subscription};

#[tokio::test]
async fn health_and_readiness() {
    let state = FakeState::with_clients(0);
    let server = Server::start(&state).await;
    let health = get(server.address, "/healthz").await;
    assert_eq!((health.status, health.body.as_str()), (200, "ok\n"));

    let ready = get(server.address, "/readyz").await;
    assert_eq!(
        (ready.status, ready.json()),
        (
            200,
            json!({"ready": true, "reason": null, "degraded": null})
        )
    );
    for (why, word) in [
        (NotReadyReason::Starting, "starting"),
        (NotReadyReason::Stopping, "stopping"),
        (NotReadyReason::Stalled, "stalled"),
        (NotReadyReason::Draining, "draining"),
    ] {
        *state.not_ready.lock().unwrap() = Some(why);
        let answer = get(server.address, "/readyz").await;
        assert_eq!(
            (answer.status, &answer.json()["ready"]),
            (503, &json!(false))
        );
        assert!(answer.json()["reason"].as_str().unwrap().starts_with(word));
    }
    assert_eq!(
        get(server.address, "/healthz").await.status,
        200,
        "alive though not ready"
    );
}

/// Follows `next` to the end and returns the rows of each page.
pub(crate) async fn pages(server: &Server, path: &str) -> Vec<Vec<Value>> {
    let mut pages = Vec::new();
    let mut after = String::new();
    loop {
        let separator = if path.contains('?') { '&' } else { '?' };
        let answer = get(server.address, &format!("{path}{separator}{after}")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let mut page = answer.json();
        pages.push(serde_json::from_value(page["data"].take()).unwrap());
        match page["next"].as_str() {
            Some(next) => after = format!("after={next}"),
            None => return pages,
        }
    }
}

pub(crate) fn column(pages: &[Vec<Value>], name: &str) -> Vec<String> {
    let rows = pages.iter().flatten();
    rows.map(|row| row[name].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn clients_and_sessions_are_listed_page_by_page() {
    let state = FakeState::with_clients(300);
    let server = Server::start(&state).await;

    let sessions = pages(&server, "/api/v1/sessions").await;
    assert_eq!(
        sessions.iter().map(Vec::len).collect::<Vec<_>>(),
        [100, 100, 100, 1]
    );
    let mut ids = column(&sessions, "client_id");
    assert!(ids.is_sorted());
    ids.dedup();
    assert_eq!(ids.len(), 301);

    // A full last page has no next one.
    let exact = pages(&server, "/api/v1/sessions?limit=301").await;
    assert_eq!(exact.len(), 1);
    assert_eq!(
        column(
            &pages(&server, "/api/v1/clients?limit=7").await,
            "client_id"
        )
        .len(),
        201
    );
    assert_eq!(
        column(
            &pages(&server, "/api/v1/sessions?connected=false").await,
            "client_id"
        )
        .len(),
        100
    );
    let tens = pages(&server, "/api/v1/sessions?client_id_contains=01&limit=10").await;
    assert_eq!(column(&tens, "client_id")[..3], ["c001", "c010", "c011"]);
    let one = pages(
        &server,
        "/api/v1/clients?client_id=b/%C3%A4+%221%22&username=ada",
    )
    .await;
    assert_eq!(column(&one, "client_id"), ["b/ä \"1\""]);
}

#[tokio::test]
async fn a_page_may_end_within_the_subscriptions_of_a_client() {
    let state = FakeState::with_clients(0);
    let rows: Vec<_> = (0..4)
        .flat_map(|client| {
            (0..client * 2 + 1)
                .map(move |filter| subscription(&format!("c{client}"), &format!("f/{filter}")))
        })
        .collect();
    let expected: Vec<_> = rows
        .iter()
        .map(|row| (row.client_id.clone(), row.topic_filter.clone()))
        .collect();
    *state.subscriptions.lock().unwrap() = rows;
    let server = Server::start(&state).await;
    for limit in 1..=expected.len() + 1 {
        let pages = pages(&server, &format!("/api/v1/subscriptions?limit={limit}")).await;
        assert!(pages.iter().rev().skip(1).all(|page| page.len() == limit));
        let seen: Vec<_> = column(&pages, "client_id")
            .into_iter()
            .zip(column(&pages, "topic_filter"))
            .collect();
        assert_eq!(seen, expected, "limit {limit}");
    }
    let filters = column(
        &pages(&server, "/api/v1/subscriptions?client_id=c2&limit=2").await,
        "topic_filter",
    );
    assert_eq!(filters, ["f/0", "f/1", "f/2", "f/3", "f/4"]);
    let clients = column(
        &pages(&server, "/api/v1/subscriptions?topic_filter=f/1&limit=1").await,
        "client_id",
    );
    assert_eq!(clients, ["c1", "c2", "c3"]);
    let topics = pages(&server, "/api/v1/topics?matches_topic=a/b").await;
    assert_eq!(
        topics[0][0],
        json!({"topic_filter": "a/b", "subscribers": 2, "shards": [0, 1]})
    );
}

#[tokio::test]
async fn a_client_is_shown_and_sent_away() {
    let state = FakeState::with_clients(3);
    let server = Server::start(&state).await;
    let path = "/api/v1/clients/b%2F%C3%A4%20%221%22";
    assert_eq!(
        get(server.address, path).await.json()["client_id"],
        "b/ä \"1\""
    );
    assert_eq!(delete(server.address, path).await.status, 204);
    for answer in [
        get(server.address, path).await,
        delete(server.address, path).await,
    ] {
        assert_eq!(answer.status, 404);
        assert!(answer.problem().contains("b/ä"), "{}", answer.body);
    }
    assert_eq!(state.clients.lock().unwrap().len(), 3);

    // c002 is disconnected: not a client, but a session.
    let away = delete(server.address, "/api/v1/clients/c002").await;
    assert_eq!(away.status, 404);
    assert!(away.problem().contains("/api/v1/sessions"), "{}", away.body);
}

#[tokio::test]
async fn a_session_is_shown_and_discarded() {
    let state = FakeState::with_clients(3);
    let server = Server::start(&state).await;
    assert_eq!(
        get(server.address, "/api/v1/sessions/c000").await.json()["connected"],
        true
    );
    assert_eq!(
        get(server.address, "/api/v1/sessions/c002").await.json()["connected"],
        false
    );

    let connected = delete(server.address, "/api/v1/sessions/c000").await;
    assert_eq!(connected.status, 409);
    assert!(connected.problem().contains("/api/v1/clients"));
    assert_eq!(
        delete(server.address, "/api/v1/sessions/c002").await.status,
        204
    );
    assert_eq!(
        delete(server.address, "/api/v1/sessions/c002").await.status,
        404
    );
    assert_eq!(
        get(server.address, "/api/v1/sessions/c002").await.status,
        404
    );
    assert_eq!(state.clients.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn the_node_and_its_listeners_are_described() {
    let state = FakeState::with_clients(0);
    let server = Server::start(&state).await;
    let node = get(server.address, "/api/v1/node").await.json();
    assert_eq!(node["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(node["pid"], std::process::id());
    assert_eq!(
        (&node["ready"], &node["connections"]),
        (&json!(true), &json!(7))
    );
    assert!(node["started_at_ms"].as_u64().unwrap() > 1_700_000_000_000);
    let listeners = get(server.address, "/api/v1/listeners").await.json();
    assert_eq!(listeners["data"][0]["address"], "127.0.0.1:1883");
    assert_eq!(listeners["next"], Value::Null);
}

#[tokio::test]
async fn errors_in_a_request_are_reported() {
    let state = FakeState::with_clients(0);
    let server = Server::start(&state).await;
    let cases = [
        ("GET", "/nothing", 404, "/nothing"),
        ("GET", "/api/v1/clients/", 404, "/api/v1/clients/"),
        ("POST", "/api/v1/clients", 405, "method"),
        ("GET", "/api/v1/clients?connected=true", 400, "connected"),
        ("GET", "/api/v1/sessions?connected=1", 400, "true or false"),
        ("GET", "/api/v1/subscriptions?limit=5000", 400, "1 to 1000"),
        (
            "GET",
            "/api/v1/topics?client_id=a",
            400,
            "there are topic_filter",
        ),
        ("GET", "/api/v1/clients/a%00b", 400, "NUL"),
        ("GET", "/api/v1/node?a", 400, "takes none"),
        ("DELETE", "/api/v1/clients/c001?force=1", 400, "force"),
        ("GET", "/api/v1/clients/%FF", 400, "path"),
    ];
    for (method, target, status, hint) in cases {
        let answer = request(server.address, method, target, "", "").await;
        assert_eq!(answer.status, status, "{method} {target}: {}", answer.body);
        assert!(
            answer.problem().contains(hint),
            "{method} {target}: {}",
            answer.body
        );
        assert!(
            answer.has("cache-control: no-store") && answer.has("x-content-type-options: nosniff")
        );
    }
    let rejected = get(server.address, "/api/v1/clients?limit=0").await;
    let body: Value = serde_json::from_str(&rejected.body).unwrap();
    assert_eq!(body["parameter"], "limit");
    let not_allowed = request(server.address, "PUT", "/api/v1/clients/a", "", "").await;
    let allow = not_allowed
        .head
        .lines()
        .find(|line| line.starts_with("allow: "))
        .unwrap();
    assert!(allow.contains("get") && allow.contains("delete"), "{allow}");
}

#[tokio::test]
async fn the_log_level_is_read_and_set() {
    let state = FakeState::with_clients(0);
    let server = Server::start(&state).await;
    let path = "/api/v1/log-level";
    let json_type = "Content-Type: application/json; charset=utf-8\r\n";
    assert_eq!(
        get(server.address, path).await.json(),
        json!({"level": "info"})
    );
    let set = request(
        server.address,
        "PUT",
        path,
        json_type,
        r#"{"level":"debug"}"#,
    )
    .await;
    assert_eq!((set.status, set.json()), (200, json!({"level": "debug"})));

    let long = format!(r#"{{"level":"{}"}}"#, "x".repeat(1_100_000));
    let cases = [
        (
            json_type,
            r#"{"level":"loud"}"#,
            422,
            "expected info or debug",
        ),
        (
            json_type,
            r#"{"level":1}"#,
            422,
            "level: expected a text, found 1",
        ),
        (json_type, r#"{"levels":"info"}"#, 422, "expected `level`"),
        (json_type, "{", 400, "not JSON"),
        (json_type, "", 400, "body"),
        ("", r#"{"level":"info"}"#, 415, "application/json"),
        (
            "Content-Type: text/plain\r\n",
            r#"{"level":"info"}"#,
            415,
            "application/json",
        ),
        (json_type, &long, 413, ""),
    ];
    for (fields, body, status, hint) in cases {
        let answer = request(server.address, "PUT", path, fields, body).await;
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(answer.problem().contains(hint), "{}", answer.body);
    }
    assert_eq!(*state.level.lock().unwrap(), "debug");
}

#[tokio::test]
async fn requests_a_web_page_could_forge_are_rejected() {
    let state = FakeState::with_clients(3);
    let server = Server::start(&state).await;
    let rebound = exchange(
        server.address,
        "GET /api/v1/clients HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    )
    .await;
    assert_eq!(rebound.status, 421);
    assert!(rebound.problem().contains("localhost"));
    let unnamed = exchange(
        server.address,
        "GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
    )
    .await;
    assert_eq!(unnamed.status, 400);
    let foreign = request(
        server.address,
        "DELETE",
        "/api/v1/clients/c000",
        "Origin: http://evil.example\r\n",
        "",
    )
    .await;
    assert_eq!(foreign.status, 403);
    assert!(foreign.problem().contains("origin"));
    assert_eq!(state.clients.lock().unwrap().len(), 4);
    let ours = request(
        server.address,
        "DELETE",
        "/api/v1/clients/c000",
        "Origin: http://localhost\r\n",
        "",
    )
    .await;
    assert_eq!(ours.status, 204);
}

#[tokio::test]
async fn the_first_page_shows_the_node_and_every_link_leads_somewhere() {
    let state = FakeState::with_clients(1);
    let server = Server::start(&state).await;
    let page = get(server.address, "/").await;
    assert!(page.has("content-type: text/html; charset=utf-8"));
    assert!(page.body.contains("This node is ready") && page.body.contains("127.0.0.1:1883"));
    assert!(!page.body.contains("://"), "nothing from elsewhere");
    let links: Vec<_> = page
        .body
        .split("href=\"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    // Paths that need credentials are listed and explained, but are not links.
    assert_eq!(links.len(), 5);
    assert!(page.body.contains("/api/v1/clients") && page.body.contains("401"));
    for link in links {
        assert_eq!(get(server.address, link).await.status, 200, "{link}");
    }
    let head = request(server.address, "HEAD", "/", "", "").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[tokio::test]
async fn metrics_are_what_prometheus_reads() {
    let state = FakeState::with_clients(0);
    let server = Server::start(&state).await;
    let answer = get(server.address, "/metrics").await;
    assert!(answer.has("content-type: text/plain; version=0.0.4; charset=utf-8"));
    for line in [
        r#"tidegate_messages_received_total{listener="a\"\\\nb"} 12"#,
        r#"tidegate_publish_to_socket_seconds_bucket{listener="a\"\\\nb",le="+Inf"} 5"#,
        "tidegate_allocated_bytes 1024",
    ] {
        assert!(
            answer.body.lines().any(|present| present == line),
            "{line}\n{}",
            answer.body
        );
    }
    #[cfg(target_os = "linux")]
    for name in [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_start_time_seconds",
    ] {
        assert!(answer.body.contains(&format!("\n{name} ")), "{name}");
    }

    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        println!("promtool is not installed: its check of the metrics is left out");
        return;
    };
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(answer.body.as_bytes())
        .unwrap();
    let result = promtool.wait_with_output().unwrap();
    let output = [result.stdout, result.stderr].concat();
    assert!(
        result.status.success() && output.is_empty(),
        "{}",
        String::from_utf8_lossy(&output)
    );
}
