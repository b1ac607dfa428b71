//! Files sent by clients of other people.

use std::fs;
use std::process::Command;

use super::{content, node, stored_files};
use crate::api::local_token;
use crate::interop::client::Client;
use crate::interop::{find_program, installed, report_skipped};
use crate::support::{temporary_directory, unique};

#[test]
fn paho_sends_files_as_to_emqx() {
    let packages = installed("TIDEGATE_TEST_PYTHONPATH", "python")
        .filter(|dir| dir.join("paho/mqtt").is_dir() && find_program("python3").is_some());
    let Some(packages) = packages else {
        return report_skipped("paho-mqtt for Python is not installed");
    };
    let Some(node) = node(&[]) else { return };
    let file = temporary_directory().join("file");
    let bytes = content(200_003);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, &bytes).unwrap();
    let (_, port) = node.address("mqtt").rsplit_once(':').unwrap();
    for (version, mode) in [("5", "$file"), ("4", "$file"), ("5", "$file-async")] {
        let mut command = Command::new("python3");
        command
            .env("PYTHONPATH", &packages)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command.arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/wire/files/emqx_upload.py"
        ));
        command.args(["--port", port, "--version", version, "--mode", mode]);
        command.args(["--id", &unique("paho")]).arg(&file);
        let lines = Client::start(&mut command).finish();
        assert_eq!(lines, ["0"; 5], "version {version}, {mode}");
    }
    let stored = stored_files(node.data_dir());
    assert_eq!(stored.len(), 3);
    assert!(
        stored
            .iter()
            .all(|(name, stored)| name == "paho.bin" && *stored == bytes)
    );
}

#[test]
fn tus_js_client_uploads_files_and_resumes_them() {
    const SIZE: usize = 5_000_011;
    let packages = installed("TIDEGATE_TEST_TUS", "tus/node_modules")
        .filter(|dir| dir.join("tus-js-client").is_dir() && find_program("node").is_some());
    let Some(packages) = packages else {
        return report_skipped("tus-js-client for Node is not installed");
    };
    let Some(node) = node(&[]) else { return };
    let directory = temporary_directory();
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join("file");
    let bytes = content(SIZE);
    fs::write(&file, &bytes).unwrap();
    let mut complete = 0;
    for (scenario, expected) in [
        (
            "chunks",
            &["complete from 0,1000003,2000006,3000009,4000012"][..],
        ),
        (
            "resume",
            &[
                "aborted from 0,1000003",
                "complete from 2000006,3000009,4000012",
            ],
        ),
        (
            "interruption",
            &["complete from 0, then from what was received"],
        ),
        ("parallel", &["complete from 0,0,0"]),
        ("wrong_digest", &["error 460"]),
    ] {
        let mut command = Command::new("node");
        command.env("TIDEGATE_TEST_TUS", &packages);
        command.arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/wire/files/tus_upload.mjs"
        ));
        command.arg(scenario);
        command.arg(format!("http://{}/api/v1/tus", node.address("http")));
        command.arg(local_token(&node));
        command.arg(&file).arg(directory.join(scenario));
        let lines = Client::start(&mut command).finish();
        assert_eq!(lines, expected, "{scenario}");
        complete += usize::from(scenario != "wrong_digest");
        let stored = stored_files(node.data_dir());
        assert_eq!(stored.len(), complete, "{scenario}");
        assert!(
            stored
                .iter()
                .all(|(name, stored)| name == "tus.bin" && *stored == bytes),
            "{scenario}"
        );
    }
}
