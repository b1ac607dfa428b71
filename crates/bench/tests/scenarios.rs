//! Every scenario from its command line to its JSON, against a broker that is right, and one that is wrong on purpose.

mod fake_api;
mod fake_broker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use clap::Parser;
use fake_broker::{FakeBroker, Faults, Transport};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::Value;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    bench: bench::BenchArgs,
}

struct ScenarioResult {
    succeeded: bool,
    json: Value,
}

impl ScenarioResult {
    fn metric(&self, name: &str) -> f64 {
        self.json["brokers"][0]["measures"][name]
            .as_f64()
            .unwrap_or_else(|| panic!("no {name} in {}", self.json))
    }
}

const SHORT: &str = "--warmup 50ms --duration 200ms --drain 500ms";

fn temporary(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let file = format!("bench-{}-{number}-{name}", std::process::id());
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(file)
}

fn run(line: &str) -> anyhow::Result<ScenarioResult> {
    let file = temporary("result.json");
    let protocol = if line.starts_with("offline") {
        ""
    } else {
        "mqtt "
    };
    let line = format!("bench {protocol}{line} --quiet --json {}", file.display());
    let code = bench::run(Program::parse_from(line.split_whitespace()).bench)?;
    let json = serde_json::from_slice(&std::fs::read(&file)?)?;
    std::fs::remove_file(&file)?;
    Ok(ScenarioResult {
        succeeded: format!("{code:?}") == format!("{:?}", ExitCode::SUCCESS),
        json,
    })
}

fn broker(faults: Faults) -> FakeBroker {
    FakeBroker::start(faults, Transport::Tcp)
}

fn assert_flawless(outcome: &ScenarioResult) {
    assert!(outcome.succeeded, "{}", outcome.json);
    for fault in [
        "lost",
        "repeated",
        "reordered",
        "errors",
        "unexpected",
        "unacknowledged",
    ] {
        assert_eq!(outcome.metric(fault), 0.0, "{fault}: {}", outcome.json);
    }
    assert!(outcome.metric("received") > 0.0, "{}", outcome.json);
}

#[test]
fn pairs_at_every_quality_of_service_and_version() {
    let broker = broker(Faults::default());
    for qos in 0..=2 {
        for version in ["3.1", "3.1.1", "5"] {
            let outcome = run(&format!(
                "p2p --broker {} --pairs 3 --window 5 --qos {qos} --version {version} {SHORT}",
                broker.address
            ))
            .unwrap();
            assert_flawless(&outcome);
            assert!(outcome.metric("p50") <= outcome.metric("p99"));
            assert!(outcome.metric("min") <= outcome.metric("mean"));
        }
    }
}

#[test]
fn a_fan_in_through_a_wildcard() {
    let broker = broker(Faults::default());
    let outcome = run(&format!(
        "fanin --broker {} --publishers 7 --subscribers 2 --window 3 --qos 1 {SHORT}",
        broker.address
    ))
    .unwrap();
    assert_flawless(&outcome);
}

#[test]
fn a_fan_out_counts_every_delivery() {
    let broker = broker(Faults::default());
    let outcome = run(&format!(
        "fanout --broker {} --subscribers 6 --window 4 {SHORT}",
        broker.address
    ))
    .unwrap();
    assert_flawless(&outcome);
    assert!(outcome.metric("received") > outcome.metric("sent") * 3.0);
}

#[test]
fn a_fixed_rate_sends_what_is_due() {
    let broker = broker(Faults::default());
    let outcome = run(&format!(
        "rate --broker {} --pairs 4 --rate 500 --qos 2 {SHORT}",
        broker.address
    ))
    .unwrap();
    assert_flawless(&outcome);
    assert_eq!(outcome.metric("unsent"), 0.0);
}

#[test]
fn many_filters_against_few() {
    let broker = broker(Faults::default());
    let outcome = run(&format!(
        "filters --broker {} --pairs 2 --filters 250 --wildcards 20% --window 4 --rounds 1 {SHORT}",
        broker.address
    ))
    .unwrap();
    assert_flawless(&outcome);
    assert!(outcome.json["ratios"]["cost_ratio"].as_f64().unwrap() > 0.0);
}

#[test]
fn what_comes_out_of_rules_is_counted() {
    let broker = broker(Faults::default());
    let api = fake_api::FakeApi::start();
    for (statement, rules) in [("simple", 1), ("complex", 7)] {
        let outcome = run(&format!(
            "rules {statement} --rules {rules} --broker {} --api http://{} --pairs 3 --window 4 --half-load --payload 200 {SHORT} \
             --assert success>=100% --assert half_p99<10s",
            broker.address, api.address
        ))
        .unwrap();
        assert_flawless(&outcome);
        assert_eq!(outcome.metric("success"), 1.0);
        assert_eq!(outcome.metric("rule_failures"), 0.0);
        let half = &outcome.json["brokers"][1]["measures"];
        assert!(half["received"].as_f64().unwrap() > 0.0, "{}", outcome.json);
        let requests = api.take_requests();
        let count = |method: &str| requests.iter().filter(|r| r.starts_with(method)).count();
        assert_eq!((count("PUT"), count("DELETE")), (rules, rules));
        assert!(requests[0].contains("/api/v1/rules/bench-00000"));
        assert!(requests[0].contains("bench/out/${clientid}"));
    }
    let lossy = FakeBroker::start(
        Faults {
            lose_every: 10,
            ..Faults::default()
        },
        Transport::Tcp,
    );
    let line = format!("--rules --broker {} --pairs 1 --rate 500", lossy.address);
    let outcome = run(&format!("{line} {SHORT} --assert success>=100%")).unwrap();
    assert!(!outcome.succeeded);
    assert!(outcome.metric("success") < 1.0 && outcome.metric("lost") > 0.0);
    let refused = run(&format!("{line} --api http://127.0.0.1:1 {SHORT}"));
    assert!(format!("{:#}", refused.err().unwrap()).contains("PUT http://127.0.0.1:1/api"));
}

#[test]
fn memory_is_drawn() {
    let broker = broker(Faults::default());
    let (plot, table) = (temporary("memory.svg"), temporary("memory.csv"));
    let outcome = run(&format!(
        "p2p --broker {} --pairs 1 --window 2 --warmup 0s --duration 500ms --broker-pid {} --memory-plot {} --memory-csv {}",
        broker.address,
        std::process::id(),
        plot.display(),
        table.display()
    ))
    .unwrap();
    assert!(outcome.succeeded);
    assert!(
        std::fs::read_to_string(&plot)
            .unwrap()
            .contains("<polyline")
    );
    assert!(std::fs::read_to_string(&table).unwrap().lines().count() > 2);
    std::fs::remove_file(plot).unwrap();
    std::fs::remove_file(table).unwrap();
}

#[test]
fn threads_share_the_pairs() {
    let broker = broker(Faults::default());
    let outcome = run(&format!(
        "p2p --broker {} --pairs 5 --window 4 --threads 2 --qos 1 {SHORT}",
        broker.address
    ))
    .unwrap();
    assert_flawless(&outcome);
}

#[test]
fn large_messages_are_counted_without_being_kept() {
    let broker = broker(Faults::default());
    for payload in ["60KiB", "64KiB", "3MiB"] {
        let outcome = run(&format!(
            "p2p --broker {} --pairs 1 --window 2 --payload {payload} --qos 1 --version 5 {SHORT}",
            broker.address
        ))
        .unwrap();
        assert_flawless(&outcome);
    }
}

#[test]
fn over_a_websocket() {
    let broker = FakeBroker::start(Faults::default(), Transport::WebSocket);
    for payload in [100, 100_000] {
        let outcome = run(&format!(
            "p2p --broker ws://{}/mqtt --pairs 2 --window 3 --qos 2 --payload {payload} {SHORT}",
            broker.address
        ))
        .unwrap();
        assert_flawless(&outcome);
    }
    let wrong = run(&format!("p2p --broker ws://{}/no {SHORT}", broker.address));
    assert!(wrong.is_err());
}

#[test]
fn over_tls() {
    let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = temporary("certificate.pem");
    std::fs::write(&certificate, signed.cert.pem()).unwrap();
    let key = PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], PrivateKeyDer::Pkcs8(key))
        .unwrap();
    let broker = FakeBroker::start(Faults::default(), Transport::Tls(Arc::new(config)));
    let port = broker.address.port();
    let load = format!("--pairs 2 --window 3 --qos 1 --payload 100000 {SHORT}");
    let trusted = format!("--cafile {} --server-name localhost", certificate.display());
    let outcome = run(&format!(
        "p2p --broker mqtts://127.0.0.1:{port} {trusted} {load}"
    ))
    .unwrap();
    assert_flawless(&outcome);
    let outcome = run(&format!(
        "p2p --broker mqtts://127.0.0.1:{port} --insecure {load}"
    ))
    .unwrap();
    assert_flawless(&outcome);
    let unnamed = format!("--cafile {}", certificate.display());
    let refused = run(&format!(
        "p2p --broker mqtts://127.0.0.1:{port} {unnamed} {load}"
    ));
    let reason = refused.err().unwrap().to_string();
    assert!(reason.contains("TLS") && reason.contains("-s"), "{reason}");
    std::fs::remove_file(certificate).unwrap();
}

#[test]
fn faults_of_the_broker_are_found_and_demands_broken() {
    let faulty = broker(Faults {
        lose_every: 50,
        repeat_every: 35,
        delay_every: 44,
        ..Faults::default()
    });
    let line = format!(
        "p2p --broker {} --pairs 1 --window 20 {SHORT}",
        faulty.address
    );
    let outcome = run(&format!("{line} --assert lost<1 --assert received>0")).unwrap();
    assert!(!outcome.succeeded);
    for fault in ["lost", "repeated", "reordered"] {
        assert!(outcome.metric(fault) > 0.0, "{fault}: {}", outcome.json);
    }
    let verdicts: Vec<bool> = outcome.json["asserts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|verdict| verdict["holds"].as_bool().unwrap())
        .collect();
    assert_eq!(verdicts, [false, true]);
    let outcome = run(&format!("{line} --assert lost>0 --assert repeated!=0")).unwrap();
    assert!(outcome.succeeded);
}

#[test]
fn a_window_full_of_lost_messages_is_given_up() {
    // All of the first window but one is lost, so nothing would ever open it again.
    let faulty = broker(Faults {
        lose_every: 1,
        ..Faults::default()
    });
    let outcome = run(&format!(
        "p2p --broker {} --pairs 1 --window 3 --warmup 0s --duration 2500ms --drain 100ms",
        faulty.address
    ))
    .unwrap();
    assert!(
        outcome.metric("abandoned_windows") >= 1.0,
        "{}",
        outcome.json
    );
    assert!(outcome.metric("lost") >= 6.0, "{}", outcome.json);
    assert_eq!(outcome.metric("received"), 0.0);
}

#[test]
fn refused_messages_are_counted() {
    let denying = broker(Faults {
        deny: true,
        ..Faults::default()
    });
    for qos in [1, 2] {
        let outcome = run(&format!(
            "rate --broker {} --pairs 1 --rate 200 --qos {qos} --version 5 {SHORT}",
            denying.address
        ))
        .unwrap();
        assert!(outcome.metric("rejected") > 0.0, "{}", outcome.json);
        assert_eq!(outcome.metric("unacknowledged"), 0.0);
    }
}

#[test]
fn a_connection_that_breaks_is_named() {
    let closing = broker(Faults {
        close_after: 10,
        ..Faults::default()
    });
    let outcome = run(&format!(
        "p2p --broker {} --pairs 2 --window 2 {SHORT}",
        closing.address
    ))
    .unwrap();
    assert!(!outcome.succeeded);
    assert!(outcome.metric("errors") >= 1.0);
    let first = outcome.json["brokers"][0]["failures"]["first"][0]
        .as_str()
        .unwrap();
    assert!(first.contains("-p") && first.contains("clos"), "{first}");
}

#[test]
fn connects_are_timed_and_refusals_sorted() {
    let sound = broker(Faults::default());
    let outcome = run(&format!(
        "connect --broker {} --connections 60 --concurrency 20 --hold 50ms --threads 2 --broker-pid {}",
        sound.address,
        std::process::id()
    ))
    .unwrap();
    assert!(outcome.succeeded, "{}", outcome.json);
    assert_eq!(outcome.metric("connects"), 60.0);
    assert!(outcome.metric("rss_end") > 0.0);
    let classes = outcome.json["brokers"][0]["classes"].as_array().unwrap();
    let counted: u64 = classes.iter().filter_map(|c| c["connects"].as_u64()).sum();
    assert_eq!(counted, 60);

    let refusing = broker(Faults {
        refuse_every: 3,
        ..Faults::default()
    });
    let outcome = run(&format!(
        "connect --broker {} --connections 30 --concurrency 5 --hold 0s",
        refusing.address
    ))
    .unwrap();
    assert!(!outcome.succeeded);
    assert_eq!(outcome.metric("connects"), 20.0);
    let kinds = &outcome.json["brokers"][0]["failures"]["by_kind"];
    let (kind, count) = kinds.as_object().unwrap().iter().next().unwrap();
    assert!(kind.contains("CONNACK"), "{kind}");
    assert_eq!(count, 10);
}

#[test]
fn clients_that_were_away_get_everything() {
    let broker = broker(Faults::default());
    for (messages, options) in [
        (7, "--version 3.1.1"),
        (7, "--version 5 --qos 2"),
        (1, "--threads 2"),
    ] {
        let dir = temporary("data");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("log"), [1; 5000]).unwrap();
        let outcome = run(&format!(
            "offline --broker {} --clients 12 --messages {messages} --publishers 3 --window 5 --rest 10ms --data-dir {} \
             --broker-pid {} {options}",
            broker.address,
            dir.display(),
            std::process::id()
        ))
        .unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_flawless(&outcome);
        assert_eq!(
            outcome.metric("stored"),
            f64::from(12 * messages),
            "{options}"
        );
        assert_eq!(
            outcome.metric("received"),
            f64::from(12 * messages),
            "{options}"
        );
        assert_eq!(outcome.metric("incomplete"), 0.0);
        assert!(outcome.metric("stored_rate") > 0.0);
        assert!(outcome.metric("unfairness") >= 1.0);
        assert!(outcome.metric("disk_start") >= 5000.0);
        assert_eq!(outcome.metric("disk_per_payload"), 0.0);
        assert!(outcome.metric("rss_stored") > 0.0);
    }
}

#[test]
fn what_clients_that_were_away_miss_is_found() {
    let faulty = broker(Faults {
        lose_every: 10,
        repeat_every: 7,
        delay_every: 9,
        ..Faults::default()
    });
    let outcome = run(&format!(
        "offline --broker {} --clients 6 --messages 20 --publishers 2 --rest 10ms --drain 300ms",
        faulty.address
    ))
    .unwrap();
    assert_eq!(outcome.metric("stored"), 120.0);
    assert_eq!(outcome.metric("lost"), 12.0, "{}", outcome.json);
    assert!(outcome.metric("repeated") > 0.0);
    assert!(outcome.metric("incomplete") >= 1.0);
}

#[test]
fn two_brokers_in_turn() {
    let (one, other) = (broker(Faults::default()), broker(Faults::default()));
    let report = temporary("report.html");
    let outcome = run(&format!(
        "p2p --broker {} --versus {} --rounds 2 --pairs 2 --window 3 {SHORT} --report {} --assert ratio>0",
        one.address,
        other.address,
        report.display()
    ))
    .unwrap();
    assert!(outcome.succeeded, "{}", outcome.json);
    assert_eq!(outcome.json["brokers"].as_array().unwrap().len(), 2);
    for broker in outcome.json["brokers"].as_array().unwrap() {
        assert_eq!(broker["rounds"].as_array().unwrap().len(), 2);
    }
    assert!(outcome.json["ratios"]["ratio_throughput"].as_f64().unwrap() > 0.0);
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(page.contains("<svg") && page.contains(&other.address.to_string()));
    std::fs::remove_file(report).unwrap();
}

#[test]
fn nobody_there() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let reason = run(&format!("p2p --broker {address} --pairs 1 {SHORT}"));
    let reason = reason.err().unwrap().to_string();
    assert!(
        reason.contains("connection refused") && reason.contains("-s0"),
        "{reason}"
    );
}

#[test]
fn nobody_answers() {
    // The system accepts, but no broker does.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let outcome = run(&format!(
        "connect --broker {} --connections 3 --connect-timeout 100ms --hold 0s",
        silent.local_addr().unwrap()
    ))
    .unwrap();
    assert!(!outcome.succeeded);
    let kinds = &outcome.json["brokers"][0]["failures"]["by_kind"];
    assert_eq!(kinds["timed out"], 3);
}

#[test]
fn the_generator_by_itself() {
    for qos in 0..=2 {
        for version in ["3.1.1", "5"] {
            let outcome = run(&format!(
                "self --pairs 5 --window 50 --qos {qos} --version {version} {SHORT}"
            ))
            .unwrap();
            assert_flawless(&outcome);
            assert!(outcome.metric("generator_per_cpu_second") > 0.0);
        }
    }
}
