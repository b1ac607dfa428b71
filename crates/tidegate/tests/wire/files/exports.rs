//! Exports of received files by sinks: to directories, HTTP servers and object stores, over restarts and after failures.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::{content, node};
use crate::api::{local_token, send};
use crate::support::{Node, eventually, unique};

const MEBIBYTE: usize = 1 << 20;

/// Paths and bodies of requests.
type ReceivedRequests = Arc<Mutex<Vec<(String, Vec<u8>)>>>;
/// Path and content of an object.
type StoredObject = Arc<Mutex<Option<(String, Vec<u8>)>>>;

/// A request as a test's server sees it.
struct RecordedRequest {
    method: String,
    path: String,
    query: String,
    body: Vec<u8>,
}

/// Starts a server that ends with the test process, and returns its address.
fn serve(answer: impl Fn(&RecordedRequest) -> (u16, String) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || serve_connection(stream, &*answer));
        }
    });
    format!("http://{address}")
}

fn serve_connection(
    stream: TcpStream,
    answer: &dyn Fn(&RecordedRequest) -> (u16, String),
) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let lower = head.to_lowercase();
        let length = lower.split("content-length: ").nth(1);
        let length = length.map_or(0, |rest| {
            rest.lines().next().unwrap().trim().parse().unwrap()
        });
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let mut words = head.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let asked = RecordedRequest {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            body,
        };
        let (status, body) = answer(&asked);
        let length = body.len();
        let tag = "ETag: \"tag\"\r\n";
        let reply = format!("HTTP/1.1 {status} x\r\n{tag}Content-Length: {length}\r\n\r\n{body}");
        reader.get_mut().write_all(reply.as_bytes()).ok()?;
    }
}

fn create(node: &Node, kind: &str, object: Value) {
    let created = send(
        node,
        &local_token(node),
        "POST",
        &format!("/api/v1/{kind}"),
        &object,
    );
    assert!(created.status < 300, "{}", created.body);
}

/// A rule that exports each received file.
fn export_all(node: &Node, connector: Value, sink: Value) {
    let with = |mut object: Value, name: &str| {
        object["name"] = name.into();
        object
    };
    create(node, "connectors", with(connector, "target"));
    let mut sink = with(sink, "archive");
    sink["connector"] = "target".into();
    sink["format"] = "content".into();
    sink["retry"] = json!({"initial_delay_ms": 20, "max_delay_ms": 200});
    create(node, "sinks", sink);
    let rule = json!({
        "name": "archive", "sql": "SELECT * FROM \"$events/file/received\"",
        "actions": [{"kind": "sink", "sink": "archive"}],
    });
    create(node, "rules", rule);
}

/// Sends a file in one request and returns its id.
fn upload(node: &Node, name: &str, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(node.address("http")).unwrap();
    let (token, length) = (local_token(node), bytes.len());
    let head = format!(
        "PUT /api/v1/uploads/{name} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).unwrap();
    socket.write_all(bytes).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let info: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
    info["id"]
        .as_str()
        .unwrap_or_else(|| panic!("{answer}"))
        .to_owned()
}

fn files(node: &Node, query: &str) -> Vec<Value> {
    let path = format!("/api/v1/files?{query}");
    let listed = send(node, &local_token(node), "GET", &path, &Value::Null);
    assert_eq!(listed.status, 200, "{}", listed.body);
    listed.body["data"].as_array().unwrap().clone()
}

#[test]
fn a_received_file_is_copied_to_a_directory_and_deleted() {
    let Some(node) = node(&[]) else { return };
    let sink = json!({"file": "in/${operator}/${name}", "after": "delete"});
    export_all(&node, json!({"type": "file", "directory": "out"}), sink);
    let name = unique("report");
    let bytes = content(3 * MEBIBYTE + 7);
    upload(&node, &name, &bytes);
    let directory = node.data_dir().join("sinks/files/out/in");
    let copy = || {
        let operators = fs::read_dir(&directory).ok()?;
        let mut copies = operators
            .flatten()
            .map(|operator| operator.path().join(&name));
        copies.find(|copy| copy.exists())
    };
    eventually("the copy", || copy().is_some());
    assert!(fs::read(copy().unwrap()).unwrap() == bytes);
    eventually("the file is deleted", || files(&node, "").is_empty());
    assert_eq!(
        fs::read_dir(copy().unwrap().parent().unwrap())
            .unwrap()
            .count(),
        1
    );
}

#[test]
fn a_failed_export_is_shown_with_its_reason_and_can_be_repeated() {
    let status = Arc::new(Mutex::new(422));
    let received = ReceivedRequests::default();
    let (answered, log) = (status.clone(), received.clone());
    let url = serve(move |asked| {
        let status = *answered.lock().unwrap();
        if status < 300 {
            assert_eq!(asked.method, "PUT");
            log.lock()
                .unwrap()
                .push((asked.path.clone(), asked.body.clone()));
        }
        (status, "no room for it".to_owned())
    });
    let Some(node) = node(&[]) else { return };
    let sink = json!({"path": "/${name}"});
    export_all(&node, json!({"type": "http", "url": url}), sink);
    let first = upload(&node, "a", b"first");
    eventually("the export fails", || {
        files(&node, "export=failed").len() == 1
    });
    let export = &files(&node, "export=failed")[0]["exports"][0];
    assert_eq!(
        (&export["sink"], &export["state"]),
        (&json!("archive"), &json!("failed"))
    );
    let error = export["error"].as_str().unwrap();
    assert!(
        error.contains("422") && error.contains("no room for it"),
        "{error}"
    );
    // Another file of the same name does not replace the one that is not exported yet.
    *status.lock().unwrap() = 201;
    let second = upload(&node, "a", b"second");
    eventually("the second is exported", || {
        files(&node, "export=complete").len() == 1
    });
    let path = format!("/api/v1/files/{first}/exports/archive");
    let token = local_token(&node);
    let repeated = send(&node, &token, "POST", &path, &Value::Null);
    assert_eq!(repeated.status, 202, "{}", repeated.body);
    let letters = send(
        &node,
        &token,
        "GET",
        "/api/v1/sinks/archive/dead-letters",
        &Value::Null,
    );
    assert!(
        !letters.body.to_string().contains("\"row\""),
        "{}",
        letters.body
    );
    eventually("the first is exported", || {
        received.lock().unwrap().len() == 2
    });
    assert_eq!(
        received.lock().unwrap()[1],
        ("/a".to_owned(), b"first".to_vec())
    );
    // It was replaced, and is not needed any longer.
    eventually("the first is removed", || {
        files(&node, "")
            .iter()
            .all(|file| file["id"] == second.as_str())
    });

    let path = format!("/api/v1/files/{second}/exports/none");
    assert_eq!(send(&node, &token, "POST", &path, &Value::Null).status, 404);
    let path = format!("/api/v1/files/{second}/exports/archive");
    assert_eq!(
        send(&node, &token, "DELETE", &path, &Value::Null).status,
        204
    );
    assert_eq!(
        send(&node, &token, "DELETE", &path, &Value::Null).status,
        404
    );
    assert_eq!(files(&node, "")[0]["exports"], json!([]));
}

#[test]
fn an_upload_to_an_object_store_continues_after_a_kill_of_the_node() {
    let parts: Arc<Mutex<BTreeMap<u64, Vec<u8>>>> = Arc::default();
    let object = StoredObject::default();
    let is_slow = Arc::new(Mutex::new(true));
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let (stored, whole, slow, log) = (
        parts.clone(),
        object.clone(),
        is_slow.clone(),
        requests.clone(),
    );
    let url = serve(move |asked| {
        log.lock()
            .unwrap()
            .push(format!("{} {}", asked.method, asked.query));
        let number = asked.query.split("partNumber=").nth(1);
        let number = number.map(|rest| rest.split('&').next().unwrap().parse::<u64>().unwrap());
        match (asked.method.as_str(), number) {
            ("POST", _) if asked.query == "uploads=" => {
                (200, "<R><UploadId>1</UploadId></R>".to_owned())
            }
            ("PUT", Some(number)) => {
                while number > 2 && *slow.lock().unwrap() {
                    std::thread::sleep(Duration::from_millis(20));
                }
                stored.lock().unwrap().insert(number, asked.body.clone());
                (200, String::new())
            }
            ("GET", _) => {
                let parts = stored.lock().unwrap();
                let list = parts.iter().filter(|(number, _)| **number <= 2).map(|(number, bytes)| {
                    let size = bytes.len();
                    format!("<Part><PartNumber>{number}</PartNumber><ETag>tag</ETag><Size>{size}</Size></Part>")
                });
                (200, format!("<L>{}</L>", list.collect::<String>()))
            }
            ("POST", _) => {
                let bytes = stored.lock().unwrap().values().flatten().copied().collect();
                *whole.lock().unwrap() = Some((asked.path.clone(), bytes));
                (200, "<R/>".to_owned())
            }
            other => panic!("{other:?}"),
        }
    });
    let Some(mut node) = node(&[]) else { return };
    let connector = json!({
        "type": "s3", "endpoint": url, "bucket": "bucket", "access_key_id": "a", "secret_access_key": "b",
        "path_style": true,
    });
    export_all(
        &node,
        connector,
        json!({"key": "x/${name}", "part_bytes": 5 * MEBIBYTE}),
    );
    let bytes = content(16 * MEBIBYTE + 5);
    let id = upload(&node, "large", &bytes);
    let export = |node: &Node| files(node, "")[0]["exports"][0].clone();
    eventually("two parts", || parts.lock().unwrap().len() == 2);
    eventually("its progress", || {
        export(&node)["sent_bytes"]
            .as_u64()
            .is_some_and(|sent| sent >= 10 * MEBIBYTE as u64)
    });
    assert_eq!(export(&node)["state"], "running");
    node.crash();
    *is_slow.lock().unwrap() = false;
    eventually("the object", || object.lock().unwrap().is_some());
    let (path, received) = object.lock().unwrap().clone().unwrap();
    assert_eq!(path, "/bucket/x/large");
    assert!(received == bytes);
    eventually("the state", || export(&node)["state"] == "complete");
    let location = export(&node)["location"].as_str().unwrap().to_owned();
    assert!(location.ends_with("/bucket/x/large"), "{location}");
    let requests = requests.lock().unwrap();
    let count = |what: &str| {
        requests
            .iter()
            .filter(|asked| asked.starts_with(what))
            .count()
    };
    assert_eq!(count("POST uploads="), 1, "{requests:?}");
    assert_eq!(
        count("PUT partNumber=1&") + count("PUT partNumber=2&"),
        2,
        "{requests:?}"
    );
    assert!(!id.is_empty());
}
