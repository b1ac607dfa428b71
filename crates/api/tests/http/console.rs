//! The web console: its page and files, and the session of a browser.

use std::sync::atomic::Ordering;

use api::HttpConfig;
use serde_json::json;

use crate::access::{bearer, local, make_operator, send};
use crate::client::{HttpResponse, get, request};
use crate::fake::{FakeState, Server};

const SESSION: &str = "/api/v1/console-session";
const PAGE: &str = "Accept: text/html\r\n";

async fn with_console() -> Server {
    let state = FakeState::with_clients(1);
    state.has_console.store(true, Ordering::Relaxed);
    Server::closed(&state).await
}

fn field<'a>(answer: &'a HttpResponse, name: &str) -> &'a str {
    let start = format!("{name}: ");
    let mut lines = answer.head.lines();
    lines
        .find_map(|line| line.strip_prefix(&start))
        .unwrap_or("")
}

#[tokio::test]
async fn every_path_of_the_console_shows_its_page_with_a_new_nonce() {
    let server = with_console().await;
    let mut nonces = Vec::new();
    for path in ["/", "/devices/pump-1", "/login"] {
        let answer = request(server.address, "GET", path, PAGE, "").await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.has("content-type: text/html; charset=utf-8"));
        assert!(answer.has("cache-control: no-store"));
        assert!(answer.has("referrer-policy: no-referrer"));
        let nonce = answer.body.split('"').nth(3).unwrap().to_owned();
        let policy = field(&answer, "content-security-policy").to_owned();
        assert!(
            policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        // The head is compared in lower case.
        let in_policy = format!("style-src 'self' 'nonce-{}'", nonce.to_lowercase());
        assert!(policy.contains(&in_policy), "{policy}");
        nonces.push(nonce);
    }
    nonces.sort();
    nonces.dedup();
    assert_eq!(nonces.len(), 3);
}

#[tokio::test]
async fn the_page_states_whether_people_may_register() {
    for (registration_enabled, expected) in [(false, "off"), (true, "on")] {
        let state = FakeState::with_clients(1);
        state.has_console.store(true, Ordering::Relaxed);
        let config = HttpConfig {
            registration_enabled,
            ..HttpConfig::new("127.0.0.1:0".parse().unwrap())
        };
        let server = Server::start_with(&state, config).await;
        for path in ["/", "/register"] {
            let answer = request(server.address, "GET", path, PAGE, "").await;
            let expected = format!("name=\"registration\" content=\"{expected}\"");
            assert!(answer.body.contains(&expected), "{path}: {}", answer.body);
        }
    }
}

#[tokio::test]
async fn programs_get_an_error_instead_of_the_page() {
    let server = with_console().await;
    for (path, fields) in [
        ("/api/v1/nothing", PAGE),
        ("/assets/old.js", PAGE),
        ("/devices", ""),
    ] {
        let answer = request(server.address, "GET", path, fields, "").await;
        assert_eq!(answer.status, 404, "{path}");
        answer.problem();
    }
    let answer = request(server.address, "POST", "/devices", PAGE, "").await;
    assert_eq!(answer.status, 404);
}

#[tokio::test]
async fn files_are_compressed_and_cached() {
    let server = with_console().await;
    let file =
        async |fields: &str| request(server.address, "GET", "/assets/app.js", fields, "").await;
    let brotli = file("Accept-Encoding: gzip, deflate, br\r\n").await;
    assert_eq!((brotli.status, brotli.body.as_str()), (200, "brotli"));
    assert!(brotli.has("content-encoding: br") && brotli.has("vary: accept-encoding"));
    assert!(brotli.has("cache-control: public, max-age=31536000, immutable"));
    let gzip = file("Accept-Encoding: gzip, br;q=0\r\n").await;
    assert_eq!((gzip.status, gzip.body.as_str()), (200, "gzip"));
    assert!(gzip.has("content-encoding: gzip"));
    let known = file("Accept-Encoding: br\r\nIf-None-Match: \"1\"\r\n").await;
    assert_eq!((known.status, known.body.as_str()), (304, ""));
    let plain = file("").await;
    assert_eq!(plain.status, 406);
}

#[tokio::test]
async fn without_a_console_the_root_page_explains_it() {
    let server = Server::closed(&FakeState::with_clients(1)).await;
    let page = get(server.address, "/").await;
    assert!(
        page.body.contains("no web console: it was left out"),
        "{}",
        page.body
    );
    let other = request(server.address, "GET", "/devices", PAGE, "").await;
    assert_eq!(other.status, 404);
}

#[tokio::test]
async fn a_browser_gets_its_tokens_with_a_cookie_until_it_logs_out() {
    let server = with_console().await;
    make_operator(&server, "ann", "viewer").await;
    let wrong = json!({"username": "ann", "password": "wrong"});
    let rejected = send(&server, "", "POST", SESSION, &wrong).await;
    assert_eq!((rejected.status, field(&rejected, "set-cookie")), (401, ""));
    let right = json!({"username": "ann", "password": "ann-secret"});
    let body = right.to_string();
    let json_field = "Content-Type: application/json\r\n";
    let begun = request(server.address, "POST", SESSION, json_field, &body).await;
    assert_eq!(begun.status, 200, "{}", begun.body);
    let cookie = field(&begun, "set-cookie");
    for attribute in [
        "; path=/api/v1/console-session",
        "; httponly",
        "; samesite=strict",
        "; max-age=604800",
    ] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert!(
        !cookie.contains("secure"),
        "the listener has no TLS: {cookie}"
    );
    assert_eq!(begun.json()["role"], "viewer");

    // The test client shows heads in lower case, so that the value has to be read from the raw answer.
    let cookie = raw_cookie(&server, &body).await;
    let sent = format!("Cookie: other=1; {cookie}\r\n");
    let path = format!("{SESSION}/refresh");
    let next = request(server.address, "POST", &path, &sent, "").await;
    assert_eq!(next.status, 200, "{}", next.body);
    // The session is in use: the browser keeps the cookie for as long again.
    let extended = field(&next, "set-cookie");
    assert!(extended.starts_with("tidegate_session=") && extended.contains("; max-age=604800"));
    let token = next.json()["token"].as_str().unwrap().to_owned();
    let me = request(server.address, "GET", "/api/v1/me", &bearer(&token), "").await;
    assert_eq!(me.json()["name"], "ann");
    // A page of another origin cannot use the cookie, even where browsers ignore SameSite.
    let foreign = format!("{sent}Origin: http://elsewhere.example\r\n");
    assert_eq!(
        request(server.address, "POST", &path, &foreign, "")
            .await
            .status,
        403
    );
    // The cookie is no credential for anything else.
    assert_eq!(
        request(server.address, "GET", "/api/v1/me", &sent, "")
            .await
            .status,
        401
    );

    let ended = request(server.address, "DELETE", SESSION, &sent, "").await;
    assert_eq!(ended.status, 204);
    assert!(field(&ended, "set-cookie").starts_with("tidegate_session=; "));
    assert_eq!(
        request(server.address, "POST", &path, &sent, "")
            .await
            .status,
        401
    );
    let me = request(server.address, "GET", "/api/v1/me", &bearer(&token), "").await;
    assert_eq!(me.status, 401, "its tokens have ended, too");
}

#[tokio::test]
async fn a_session_ends_with_its_operator() {
    let server = with_console().await;
    make_operator(&server, "ann", "viewer").await;
    let body = json!({"username": "ann", "password": "ann-secret"}).to_string();
    let sent = format!("Cookie: {}\r\n", raw_cookie(&server, &body).await);
    let disabled = json!({"role": "viewer", "enabled": false});
    let changed = send(&server, &local(), "PUT", "/api/v1/operators/ann", &disabled).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    let path = format!("{SESSION}/refresh");
    assert_eq!(
        request(server.address, "POST", &path, &sent, "")
            .await
            .status,
        401
    );
}

#[tokio::test]
async fn a_restore_and_log_out_everywhere_end_all_sessions() {
    let server = with_console().await;
    make_operator(&server, "ann", "viewer").await;
    let body = json!({"username": "ann", "password": "ann-secret"}).to_string();
    let path = format!("{SESSION}/refresh");
    let begin = async || format!("Cookie: {}\r\n", raw_cookie(&server, &body).await);
    let refresh = async |sent: &str| request(server.address, "POST", &path, sent, "").await;
    let sent = begin().await;
    let backup = request(server.address, "GET", "/api/v1/backup", &local(), "").await;
    assert_eq!(refresh(&sent).await.status, 200);
    let fields = format!("{}Content-Type: application/x-ndjson\r\n", local());
    let restore = request(
        server.address,
        "POST",
        "/api/v1/restore",
        &fields,
        &backup.body,
    )
    .await;
    assert_eq!(restore.status, 200, "{}", restore.body);
    assert_eq!(refresh(&sent).await.status, 401);

    let (one, other) = (begin().await, begin().await);
    let token = refresh(&one).await.json()["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let everywhere = "/api/v1/me/logout-everywhere";
    let ended = request(server.address, "POST", everywhere, &bearer(&token), "").await;
    assert_eq!(ended.status, 204, "{}", ended.body);
    for sent in [one, other] {
        assert_eq!(refresh(&sent).await.status, 401);
    }
}

/// Logs in and returns the cookie as a browser sends it.
async fn raw_cookie(server: &Server, body: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(server.address)
        .await
        .unwrap();
    let request = format!(
        "POST {SESSION} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let start = answer.find("tidegate_session=").unwrap();
    answer[start..].split(';').next().unwrap().to_owned()
}
