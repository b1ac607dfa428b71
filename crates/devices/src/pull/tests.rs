//! Tests pull sources against a small test server and a real Prometheus.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{ServerKind, TestServer};

use super::*;

/// Answers each request with the next entry of a list; the last entry repeats.
struct FakeHttpServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    open: Arc<AtomicUsize>,
    most_open: Arc<AtomicUsize>,
    is_ended: Arc<AtomicBool>,
}

impl FakeHttpServer {
    fn start(answers: &[&str], takes: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let web = Self {
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
            open: Arc::default(),
            most_open: Arc::default(),
            is_ended: Arc::default(),
        };
        let answers: VecDeque<String> = answers.iter().map(|text| (*text).to_owned()).collect();
        let answers = Arc::new(Mutex::new(answers));
        let (requests, is_ended) = (web.requests.clone(), web.is_ended.clone());
        let (open, most_open) = (web.open.clone(), web.most_open.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if is_ended.load(Ordering::Relaxed) {
                    return;
                }
                let mut stream = stream.unwrap();
                let (answers, requests) = (answers.clone(), requests.clone());
                let (open, most_open) = (open.clone(), most_open.clone());
                std::thread::spawn(move || {
                    let mut request = Vec::new();
                    let mut piece = [0; 4096];
                    while !is_whole(&request) {
                        match stream.read(&mut piece) {
                            Ok(0) | Err(_) => return,
                            Ok(count) => request.extend_from_slice(&piece[..count]),
                        }
                    }
                    most_open.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    let request = String::from_utf8_lossy(&request).into_owned();
                    requests.lock().unwrap().push(request);
                    std::thread::sleep(takes);
                    let mut answers = answers.lock().unwrap();
                    let answer = match answers.len() {
                        1 => answers[0].clone(),
                        _ => answers.pop_front().unwrap(),
                    };
                    drop(answers);
                    open.fetch_sub(1, Ordering::SeqCst);
                    let (status, body) = answer.split_once(' ').unwrap();
                    let _ = write!(
                        stream,
                        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                        body.len()
                    );
                });
            }
        });
        web
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for FakeHttpServer {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Relaxed);
        let _ = std::net::TcpStream::connect(self.address);
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_it = name.eq_ignore_ascii_case("content-length");
        is_it.then(|| value.trim().parse::<usize>().unwrap())
    });
    body.len() >= length.unwrap_or(0)
}

/// Stores readings; knows all devices except `nobody`.
#[derive(Default)]
struct StoredReadings {
    rows: Mutex<Vec<Reading>>,
    is_full: AtomicBool,
}

impl ReadingIntake for StoredReadings {
    fn store_readings(&self, readings: &[Reading], _: i64) -> IntakeOutcome {
        let mut taken = IntakeOutcome::default();
        for reading in readings {
            if reading.device == "nobody" {
                taken.unknown += 1;
                taken.unknown_device = Some(reading.device.clone());
                continue;
            }
            taken.rows += 1;
            taken.values += reading.values.len() as u64;
            self.rows.lock().unwrap().push(reading.clone());
        }
        taken
    }

    fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }
}

async fn until<T>(what: &str, mut is_so: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(value) = is_so() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn pulls() -> (PullScheduler, Arc<StoredReadings>) {
    let pulls = PullScheduler::new(tokio::runtime::Handle::current(), &PullOptions::default());
    let stored = Arc::<StoredReadings>::default();
    pulls.start(stored.clone());
    (pulls, stored)
}

const ROOMS: &str =
    r#"200 {"rooms": [{"id": "a", "t": 20.5}, {"id": "b", "t": 19}, {"id": "nobody", "t": 1}]}"#;

fn rooms(url: &str) -> Value {
    json!({
        "interval_s": 1,
        "devices": {"b": "hall"},
        "http": {
            "server": {"url": url, "token": "s3cret", "headers": {"x-key": "k3y"}},
            "items": "rooms", "device": "${id}", "values": {"temperature": "t"},
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_is_polled_on_schedule_and_never_twice_at_once() {
    let web = FakeHttpServer::start(&[ROOMS], Duration::from_millis(1200));
    let (pulls, stored) = pulls();
    pulls.set("rooms", &rooms(&web.url()));
    // A test runs at the same time.
    let tested = pulls.test("rooms").await.unwrap().unwrap();
    assert_eq!(tested["rows"], 3);
    assert_eq!(tested["data"][1]["device"], "hall");
    let status = until("the source was polled twice", || {
        pulls
            .status("rooms")
            .filter(|status| status.health.runs >= 2)
    })
    .await;
    assert!(status.is_ok && status.r#type == "http", "{status:?}");
    assert!(status.health.rows >= 4 && status.health.unknown_rows >= 2);
    let problem = status.health.last_error.unwrap();
    assert!(
        problem.contains("not registered, such as \"nobody\""),
        "{problem}"
    );
    assert_eq!(web.most_open.load(Ordering::SeqCst), 1);
    let request = &web.requests()[0].to_lowercase();
    assert!(request.contains("authorization: bearer s3cret") && request.contains("x-key: k3y"));
    pulls.stop().await;
    let rows = stored.rows.lock().unwrap();
    assert_eq!(
        (rows[0].device.as_str(), rows[1].device.as_str()),
        ("a", "hall")
    );
    assert_eq!(rows[0].values["temperature"], 20.5);
}

/// Whether it is this node's turn.
struct Turn(AtomicBool);

impl PollingTurn for Turn {
    fn check(&self) -> Result<(), String> {
        match self.0.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err("another node polls".to_owned()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_is_polled_only_while_it_is_the_turn_of_this_node() {
    let web = FakeHttpServer::start(&[ROOMS], Duration::ZERO);
    let pulls = PullScheduler::new(tokio::runtime::Handle::current(), &PullOptions::default());
    let turn = Arc::new(Turn(AtomicBool::new(false)));
    pulls.set_turn(turn.clone());
    pulls.start(Arc::<StoredReadings>::default());
    pulls.set("rooms", &rooms(&web.url()));
    let elsewhere = || {
        let status = pulls.status("rooms")?;
        (status.state == PullSourceState::Elsewhere).then_some(status)
    };
    let status = until("the source is polled elsewhere", elsewhere).await;
    let reason = status.health.not_polled_reason.as_deref();
    assert_eq!(reason, Some("another node polls"));
    assert!(web.requests().is_empty());

    turn.0.store(true, Ordering::Relaxed);
    let polled = || {
        pulls
            .status("rooms")
            .filter(|status| status.health.runs > 0)
    };
    let status = until("the source is polled here", polled).await;
    assert_eq!(status.health.not_polled_reason, None);
    turn.0.store(false, Ordering::Relaxed);
    until("the source is polled elsewhere again", elsewhere).await;
    pulls.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_polls_are_reported_and_retried() {
    let web = FakeHttpServer::start(&["503 too busy", "200 no json", ROOMS], Duration::ZERO);
    let (pulls, stored) = pulls();
    stored.is_full.store(true, Ordering::Relaxed);
    pulls.set("rooms", &rooms(&web.url()));
    let failed = |part: &'static str| {
        let pulls = pulls.clone();
        until(part, move || {
            let status = pulls.status("rooms")?;
            let error = status.health.last_error.as_deref().unwrap_or_default();
            error.contains(part).then_some(status)
        })
    };
    failed("no room").await;
    stored.is_full.store(false, Ordering::Relaxed);
    let status = failed("status 503: too busy").await;
    assert!(!status.is_ok && status.health.failures >= 1);
    failed("no JSON").await;
    let status = until("the source recovers", || {
        pulls.status("rooms").filter(|status| status.is_ok)
    })
    .await;
    assert!(status.health.failed_runs >= 3);

    // A server that does not exist, and one that is too slow.
    let mut gone = rooms("http://127.0.0.1:1");
    pulls.set("rooms", &gone);
    assert!(pulls.test("rooms").await.unwrap().is_err());
    let slow = FakeHttpServer::start(&[ROOMS], Duration::from_secs(20));
    gone["http"]["server"]["url"] = slow.url().into();
    gone["timeout_ms"] = 200.into();
    pulls.set("rooms", &gone);
    let error = pulls.test("rooms").await.unwrap().unwrap_err();
    assert_eq!(error, "no answer within 200 ms");
    pulls.remove("rooms");
    assert!(pulls.test("rooms").await.is_none() && pulls.statuses().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_follow_the_store() {
    let web = FakeHttpServer::start(&[ROOMS], Duration::ZERO);
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = store::Store::open(directory.path(), store::StoreConfig::default()).unwrap();
    let objects = store.objects();
    let accepted = PullScheduler::stored_form(&rooms(&web.url())).unwrap();
    let put = |value: Value| {
        objects
            .put(KIND, "rooms", value, store::ExpectedVersion::Any)
            .unwrap()
    };
    put(accepted.clone());
    let (pulls, stored) = pulls();
    pulls.watch_objects(objects).unwrap();
    until("the source is polled", || {
        (!stored.rows.lock().unwrap().is_empty()).then_some(())
    })
    .await;
    let mut off = accepted;
    off["enabled"] = false.into();
    put(off);
    assert_eq!(
        pulls.status("rooms").unwrap().state,
        PullSourceState::Disabled
    );
    put(json!({"interval_s": 1}));
    let status = pulls.status("rooms").unwrap();
    assert!(status.state == PullSourceState::Invalid && status.health.last_error.is_some());
    objects
        .delete(KIND, "rooms", store::ExpectedVersion::Any)
        .unwrap();
    assert!(pulls.statuses().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_prometheus_is_queried_with_promql() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Prometheus) else {
        return;
    };
    let (pulls, stored) = pulls();
    let source = json!({
        "interval_s": 1,
        "devices": {"hall": "room-2"},
        "prometheus": {
            "server": {"url": format!("http://{}/", server.address())},
            "queries": [
                {"query": "kit_temperature", "key": "temperature_${sensor}", "device": "${room}"},
                {"query": "kit_nan", "key": "nan", "device": "${room}"},
                {"query": "sum(up)", "key": "up", "device": "all"},
                {"query": "nonsense(", "key": "x", "device": "all"},
            ],
        },
    });
    pulls.set("plant", &source);
    let rows = until("both rooms are stored", || {
        let rows = stored.rows.lock().unwrap().clone();
        let has = |device: &str| rows.iter().any(|row| row.device == device);
        (has("kitchen") && has("room-2") && has("all")).then_some(rows)
    })
    .await;
    let of = |device: &str| rows.iter().find(|row| row.device == device).unwrap();
    assert_eq!(of("kitchen").values["temperature_t1"], 21.5);
    assert_eq!(of("room-2").values["temperature_t1"], 18);
    let now_ms = wall_clock::now_ms() as i64;
    assert!((now_ms - of("kitchen").ts_ms.unwrap()).abs() < 120_000);
    let status = until("NaN is skipped", || {
        pulls
            .status("plant")
            .filter(|status| status.health.skipped_values > 0)
    })
    .await;
    assert!(status.is_ok, "{status:?}");
    let problem = status.health.last_error.unwrap();
    assert!(problem.starts_with("\"nonsense(\": bad_data"), "{problem}");
    // While the server is stopped the value is missing; after a restart it is found.
    server.stop();
    until("the failure is reported", || {
        pulls.status("plant").filter(|status| !status.is_ok)
    })
    .await;
    server.start();
    until("the source recovers", || {
        pulls.status("plant").filter(|status| status.is_ok)
    })
    .await;
    pulls.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_tls_is_trusted_by_its_authority() {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    std::fs::write(&ca, made.cert.pem()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut request = [0; 4096];
            if stream.read(&mut request).await.is_ok() {
                let answer =
                    b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\nconnection: close\r\n\r\n{\"t\": 1}";
                let _ = stream.write_all(answer).await;
                let _ = stream.shutdown().await;
            }
        }
    });
    let (pulls, _) = pulls();
    let mut source = json!({
        "interval_s": 3600,
        "http": {"server": {"url": format!("https://{address}/t")}, "device": "d"},
    });
    source["http"]["server"]["tls"] = json!({"ca": ca});
    pulls.set("s", &source);
    let tested = pulls.test("s").await.unwrap().unwrap();
    assert_eq!(tested["data"][0]["values"], json!({"t": 1}));
    // Another certificate is not trusted.
    let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(&ca, other.cert.pem()).unwrap();
    pulls.set("s", &source);
    let error = pulls.test("s").await.unwrap().unwrap_err();
    assert!(error.contains("certificate"), "{error}");
    server.abort();
}

#[test]
fn source_errors_name_the_field() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _runtime = runtime.enter();
    let field = |source: Value| PullScheduler::stored_form(&source).unwrap_err().field;
    let server = json!({"url": "http://h"});
    assert_eq!(field(json!({})), "");
    assert_eq!(
        field(json!({"interval_s": 0, "http": {"server": server, "device": "d"}})),
        "interval_s"
    );
    let http = |extra: Value| {
        let mut http = json!({"server": server, "device": "d"});
        http.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        field(json!({"http": http}))
    };
    assert_eq!(
        http(json!({"server": {"url": "ftp://h"}})),
        "http.server.url"
    );
    assert_eq!(
        http(json!({"server": {"url": "http://u:p@h"}})),
        "http.server.url"
    );
    assert_eq!(
        http(json!({"server": {"url": "http://h", "x": 1}})),
        "http.server.x"
    );
    assert_eq!(http(json!({"device": "${"})), "http.device");
    assert_eq!(http(json!({"device": "${a..b}"})), "http.device");
    assert_eq!(http(json!({"values": {"t": "a["}})), "http.values.t");
    assert_eq!(
        http(json!({"server": {"url": "http://h", "token": "t", "username": "u"}})),
        "http.server.token"
    );
    let missing = json!({"url": "http://h", "password_file": "/no/such/file"});
    assert_eq!(
        http(json!({"server": missing})),
        "http.server.password_file"
    );
    let query = json!({"query": "up", "key": "$"});
    let prometheus = json!({"prometheus": {"server": server, "queries": [query]}});
    assert_eq!(field(prometheus), "prometheus.queries[0].key");
}
