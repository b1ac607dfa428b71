//! The clients of the guide "A relay in five minutes", as they are printed there.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::{BINARY, RelayClient, TEXT, ask, change_endpoint};
use crate::api::own_node;
use crate::interop::client::Client;
use crate::interop::mqtt_js::packages;
use crate::interop::{browser, find_program, installed, report_skipped};
use crate::support::{Node, masked_frame, temporary_directory};

/// The code of a section of the guide.
fn printed_code(section: &str) -> &'static str {
    let page = include_str!("../../../../../docs/guides/relay.md");
    let (_, rest) = page.split_once(&format!("\n## {section}\n")).unwrap();
    let (_, block) = rest.split_once("```").unwrap();
    let (code, _) = block.split_once("\n```").unwrap();
    code.split_once('\n').unwrap().1
}

/// The code of a section of the guide, for the address of this node.
fn code_of(section: &str, node: &Node) -> String {
    let code = printed_code(section);
    let address = "127.0.0.1:8083";
    assert!(code.contains(address), "{code}");
    code.replace(address, node.address("ws"))
}

/// A node with the endpoint of the guide, and another client of it.
fn set_up() -> (Node, RelayClient) {
    let node = Node::start(&[]);
    let (status, answer) = ask(
        &node,
        "PUT",
        "endpoints/workshop",
        json!({"mode": "direct"}),
    );
    assert_eq!(status, 201, "{answer}");
    let peer = RelayClient::join(&node, "workshop");
    (node, peer)
}

/// Each client sends a message when it is connected, and shows those that it gets.
fn exchange(mut client: Client, peer: &mut RelayClient, hello: &str) -> Client {
    assert_eq!(peer.expect_text(), hello);
    for text in ["grüße", "second message"] {
        peer.send_text(text);
        assert_eq!(client.next_line().as_deref(), Some(text), "{hello}");
    }
    client
}

#[test]
fn the_python_client_of_the_guide_runs() {
    if !own_node() {
        return;
    }
    let packages = installed("TIDEGATE_TEST_WEBSOCKETS", "websockets");
    let Some(packages) = packages.filter(|_| find_program("python3").is_some()) else {
        return report_skipped("websockets for Python is not installed");
    };
    let (node, mut peer) = set_up();
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", &packages);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("PYTHONUNBUFFERED", "1");
    command.env("PYTHONIOENCODING", "utf-8");
    command.args(["-c", &code_of("Python", &node)]);
    exchange(Client::start(&mut command), &mut peer, "hello from Python").kill();
}

#[test]
fn the_node_client_of_the_guide_runs() {
    if !own_node() {
        return;
    }
    let Some(packages) = packages() else { return };
    let (node, mut peer) = set_up();
    let directory = temporary_directory();
    symlink(&packages, directory.join("node_modules")).unwrap();
    let script = directory.join("client.mjs");
    std::fs::write(&script, code_of("Node", &node)).unwrap();
    let mut command = Command::new("node");
    command.arg(&script);
    let mut client = exchange(Client::start(&mut command), &mut peer, "hello from Node");
    peer.0.send_frame(BINARY, &[0, 255]);
    assert_eq!(client.next_line().as_deref(), Some("<Buffer 00 ff>"));
    client.kill();
}

#[test]
fn the_web_page_of_the_guide_runs() {
    if !own_node() {
        return;
    }
    let Some(mut pages) = browser::start_script("relay/guide_page.mjs") else {
        return;
    };
    let (node, mut peer) = set_up();
    pages.feed(&format!("{}\n", json!(code_of("Browser", &node))));
    exchange(pages, &mut peer, "hello from a page").kill();
}

/// The sketch, compiled for this machine with the library that it uses and what both need of the Arduino core.
fn compile_sketch(library: &Path, directory: &Path) -> PathBuf {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wire/relay/arduino");
    let headers = [
        "Arduino.h",
        "IPAddress.h",
        "WiFi.h",
        "WiFiClientSecure.h",
        "esp_system.h",
        "hwcrypto/sha.h",
    ];
    std::fs::create_dir(directory.join("hwcrypto")).unwrap();
    for header in headers {
        let text = format!("#include \"{own}/core.h\"\n");
        std::fs::write(directory.join(header), text).unwrap();
    }
    std::fs::write(directory.join("sketch.ino"), printed_code("ESP32")).unwrap();
    let program = directory.join("sketch");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=gnu++17", "-w", "-DESP32", "-I"]);
    compiler.arg(directory).arg("-I").arg(library);
    compiler.arg(format!("{own}/main.cpp"));
    compiler.args(["WebSockets.cpp", "WebSocketsClient.cpp"].map(|file| library.join(file)));
    let compiled = compiler.arg("-o").arg(&program).output().unwrap();
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{errors}");
    program
}

/// There is no ESP32 here; the library speaks for it.
#[test]
fn the_sketch_of_the_guide_runs() {
    if !own_node() {
        return;
    }
    let library = installed("TIDEGATE_TEST_ARDUINO_WEBSOCKETS", "arduino-websockets");
    let Some(library) = library.filter(|_| find_program("g++").is_some()) else {
        return report_skipped(
            "the folder src of the Arduino library WebSockets, in TIDEGATE_TEST_ARDUINO_WEBSOCKETS, or g++ is missing",
        );
    };
    let directory = temporary_directory();
    let program = compile_sketch(&library, &directory);
    let (node, mut peer) = set_up();
    let (_, port) = node.address("ws").rsplit_once(':').unwrap();
    let mut command = Command::new(program);
    command.env("TIDEGATE_TEST_PORT", port);
    exchange(
        Client::start(&mut command),
        &mut peer,
        "hello from an ESP32",
    )
    .kill();
}

/// What version 2.7.3 of the library sends for the sketch of the guide, with the sub-protocol and the origin that it always adds.
#[test]
fn the_handshake_of_the_arduino_library_is_accepted() {
    if !own_node() {
        return;
    }
    let (node, mut peer) = set_up();
    let with_origins =
        json!({"mode": "direct", "allowed_origins": ["https://example.org", "file://"]});
    change_endpoint(&node, "workshop", with_origins);
    let mut socket = TcpStream::connect(node.address("ws")).unwrap();
    let request = "GET /ws/workshop HTTP/1.1\r\nHost: 192.168.1.10:8083\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: arduino\r\nOrigin: file://\r\nUser-Agent: arduino-WebSocket-Client\r\n\r\n";
    socket.write_all(request.as_bytes()).unwrap();
    let mut head = String::new();
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
    }
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    socket.write_all(&masked_frame(TEXT, b"hello")).unwrap();
    assert_eq!(peer.expect_text(), "hello");
}
