//! `tidegate ctl devices import` that is interrupted and resumed, its file of rejects, and `tidegate ctl devices events`.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::program::{Node, ProgramResult, run};

/// Forwards connections to a node until so many bytes have been sent to it, and then cuts all of them.
struct CuttingProxy {
    address: String,
    left: Arc<AtomicUsize>,
}

impl CuttingProxy {
    fn start(node: String, bytes: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let left = Arc::new(AtomicUsize::new(bytes));
        let limit = left.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&node) else {
                    continue;
                };
                let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || copy(from, to, None));
                let limit = limit.clone();
                std::thread::spawn(move || copy(client, server, Some(&limit)));
            }
        });
        Self { address, left }
    }

    fn has_cut(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, limit: Option<&AtomicUsize>) {
    let mut buffer = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if let Some(limit) = limit {
            let left = limit.load(Ordering::SeqCst);
            limit.store(left.saturating_sub(read), Ordering::SeqCst);
            if left <= read {
                break;
            }
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn ctl(node: &Node, arguments: &[&str]) -> ProgramResult {
    let data_dir = node.data_dir();
    run(&[
        &["ctl", "--data-dir", data_dir.to_str().unwrap()],
        arguments,
    ]
    .concat())
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Line numbers in a file of rejects.
fn rejected_lines(path: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(parse);
    lines
        .map(|rejection| {
            assert_eq!(rejection["field"], "product", "{rejection}");
            assert!(
                rejection["reason"]
                    .as_str()
                    .is_some_and(|reason| !reason.is_empty())
            );
            rejection["line"].as_u64().unwrap()
        })
        .collect()
}

#[test]
fn an_interrupted_import_resumes_and_all_rejected_lines_are_in_the_file_of_rejects() {
    const LINES: u64 = 40_000;
    const REJECTED_EVERY: u64 = 100;
    let node = Node::start(&[]);
    ctl(&node, &["products", "add", "meter"]).succeeded();
    let mut lines = String::new();
    for line in 1..=LINES {
        let product = if line % REJECTED_EVERY == 0 {
            "none"
        } else {
            "meter"
        };
        let name = "n".repeat(100);
        writeln!(
            lines,
            r#"{{"id":"d{line}","product":"{product}","name":"{name}"}}"#
        )
        .unwrap();
    }
    let path = node.folder.path().join("fleet.jsonl");
    std::fs::write(&path, &lines).unwrap();
    let file = path.to_str().unwrap();
    let (progress, rejects) = (format!("{file}.progress"), format!("{file}.rejects"));

    // The upload goes in pieces of 2 MiB; the third one does not arrive.
    let proxy = CuttingProxy::start(node.address("http"), 5 << 20);
    let key = ctl(&node, &["api-keys", "add", "role=admin"]).succeeded();
    let key_file = node.folder.path().join("key");
    std::fs::write(&key_file, key.lines().last().unwrap()).unwrap();
    let url = format!("http://{}", proxy.address);
    let import = [
        "ctl",
        "--url",
        &url,
        "--key-file",
        key_file.to_str().unwrap(),
        "--json",
        "devices",
        "import",
        file,
    ];
    let broken = run(&import);
    assert!(proxy.has_cut(), "{broken:?}");
    assert_ne!(broken.code, Some(0), "{broken:?}");
    assert!(broken.stderr.contains("--resume"), "{broken:?}");
    let written = parse(&std::fs::read_to_string(&progress).unwrap());
    let next_line = written["next_line"].as_u64().unwrap();
    assert!(1 < next_line && next_line < LINES, "{written}");
    let before: Vec<_> = (1..next_line)
        .filter(|line| line % REJECTED_EVERY == 0)
        .collect();
    assert_eq!(rejected_lines(Path::new(&rejects)), before);
    let counts = || {
        let counts = ctl(&node, &["--json", "devices", "count"]).succeeded();
        parse(&counts)["devices"].as_u64().unwrap()
    };
    assert_eq!(counts(), next_line - 1 - before.len() as u64);

    let resumed = ctl(&node, &["--json", "devices", "import", file, "--resume"]);
    let ended = parse(&resumed.stdout);
    let rejected: Vec<_> = (1..=LINES)
        .filter(|line| line % REJECTED_EVERY == 0)
        .collect();
    assert_eq!(
        ended["created"],
        LINES - (next_line - 1) - (rejected.len() - before.len()) as u64,
        "{ended}"
    );
    assert_eq!(ended["updated"], 0, "no line is sent again: {ended}");
    assert_eq!(ended["next_line"], LINES + 1);
    assert_eq!(ended["rejects"], rejects.as_str());
    assert_ne!(resumed.code, Some(0), "lines were rejected");
    assert!(resumed.stderr.contains(&rejects), "{}", resumed.stderr);
    assert_eq!(rejected_lines(Path::new(&rejects)), rejected);
    assert_eq!(counts(), LINES - rejected.len() as u64);
    assert!(!Path::new(&progress).exists(), "the import has ended");
    let again = ctl(&node, &["devices", "import", file, "--resume"]);
    assert!(again.stderr.contains("no interrupted import"), "{again:?}");
    // A new import begins a new file of rejects.
    let whole = ctl(&node, &["--json", "devices", "import", file]);
    let ended = parse(&whole.stdout);
    assert_eq!(ended["updated"], LINES - rejected.len() as u64, "{ended}");
    assert_eq!(rejected_lines(Path::new(&rejects)), rejected);
}

#[test]
fn files_of_spreadsheets_are_imported_and_files_without_devices_rejected() {
    let node = Node::start(&[]);
    ctl(&node, &["products", "add", "meter"]).succeeded();
    let import = |name: &str, content: &[u8]| {
        let path = node.folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let file = path.to_str().unwrap().to_owned();
        let result = ctl(&node, &["devices", "import", &file]);
        assert!(!Path::new(&format!("{file}.progress")).exists());
        result
    };
    let with_mark = import("excel.csv", "\u{feff}id,product\r\nd1,meter\r\n".as_bytes());
    assert!(with_mark.succeeded().contains("1 devices created"));
    let with_mark = import(
        "excel.jsonl",
        "\u{feff}{\"id\":\"d2\",\"product\":\"meter\"}\n".as_bytes(),
    );
    assert!(with_mark.succeeded().contains("1 devices created"));
    for (name, content, expected) in [
        (
            "head.csv",
            &b"idd,product\nd1,meter\n"[..],
            "unknown column",
        ),
        ("none.csv", b"id,product\n", "contains no devices"),
        ("empty.jsonl", b"", "contains no devices"),
        ("empty.csv", b"", "head line"),
        ("png.csv", b"\x89PNG\r\x1a\x00", "UTF-8"),
    ] {
        let rejected = import(name, content);
        assert_ne!(rejected.code, Some(0), "{name}: {rejected:?}");
        assert!(rejected.stderr.contains(expected), "{name}: {rejected:?}");
        assert!(
            rejected.stderr.contains("nothing is imported"),
            "{name}: {rejected:?}"
        );
        assert!(
            !rejected.stderr.contains("--resume"),
            "{name}: {rejected:?}"
        );
    }
}

#[test]
fn events_of_a_device_are_listed() {
    let node = Node::start(&[]);
    let model = r#"model={"events":[{"id":"fire","name":"Fire","valueType":{"type":"object","properties":[]}},{"id":"door","name":"Door","valueType":{"type":"object","properties":[]}}]}"#;
    ctl(&node, &["products", "add", "lamp", model]).succeeded();
    let added = ctl(
        &node,
        &["--json", "devices", "add", "l1", "--product", "lamp"],
    );
    let token = parse(&added.succeeded())["issued"][0]["token"].clone();
    let token = token.as_str().unwrap();
    for (event, degrees) in [("fire", 80), ("door", 1), ("fire", 90)] {
        let (topic, payload) = (
            format!("/lamp/l1/event/{event}"),
            format!(r#"{{"data":{{"degrees":{degrees}}}}}"#),
        );
        let message = ["-u", token, "-q", "1", "-t", &topic, "-m", &payload];
        node.publish(&message).succeeded();
    }
    let events = |arguments: &[&str]| {
        let all = [&["devices", "events", "l1"], arguments].concat();
        let text = ctl(&node, &all).succeeded();
        let rows = text.lines().skip(1).map(str::to_owned);
        rows.collect::<Vec<_>>()
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    let all = loop {
        let rows = events(&[]);
        if rows.len() == 3 {
            break rows;
        }
        assert!(Instant::now() < deadline, "{rows:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    // The newest first.
    for (row, parts) in all
        .iter()
        .zip([["fire", "90"], ["door", "1"], ["fire", "80"]])
    {
        assert!(parts.iter().all(|part| row.contains(part)), "{all:?}");
    }
    let fires = events(&["--event", "fire"]);
    assert_eq!(fires, [all[0].clone(), all[2].clone()]);
    assert_eq!(events(&["--count", "1"]), [all[0].clone()]);
    let unknown = ctl(&node, &["devices", "events", "l2"]).failed(4);
    assert!(unknown.contains("404"), "{unknown}");
}

#[test]
fn jobs_import_devices_that_do_not_exist_only_if_told_so() {
    let node = Node::start(&[]);
    ctl(&node, &["products", "add", "meter"]).succeeded();
    let file = |name: &str, content: &str| {
        let path = node.folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let first = file("first.csv", "id,product,name\nd1,meter,Old\n");
    ctl(&node, &["jobs", "import", "devices", &first]).succeeded();
    let second = file(
        "second.csv",
        "id,product,name\nd1,meter,New\nd2,meter,New\n",
    );
    let import = |options: &[&str]| {
        let arguments = ["jobs", "import", "devices", &second];
        ctl(&node, &[&arguments, options].concat())
    };
    let name = |id: &str| {
        let device = ctl(&node, &["--json", "devices", "show", id]).succeeded();
        parse(&device)["name"].clone()
    };
    let rejected = import(&["--create-only"]);
    assert_ne!(rejected.code, Some(0), "{rejected:?}");
    assert!(rejected.stderr.contains("line 2"), "{rejected:?}");
    assert_eq!((name("d1"), name("d2")), ("Old".into(), "New".into()));
    import(&[]).succeeded();
    assert_eq!(name("d1"), "New");
    let telemetry = ["jobs", "import", "telemetry", &second, "--create-only"];
    ctl(&node, &telemetry).failed(2);
}
