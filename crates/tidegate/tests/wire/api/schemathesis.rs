//! schemathesis reads the API's own description and sends requests of all kinds, valid and invalid. No answer may be a
//! failure of the server or have another shape than described. Nothing that the description forbids may be accepted.

use std::process::{Command, Stdio};

use super::{closed_with, local_token, own_node};
use crate::interop::{installed, report_skipped};
use crate::support::temporary_directory;

/// A condition may fail before the body is looked at. ThingsBoard answers 504 to a call of a device that is not connected.
const CONFIG: &str = r#"
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 412, 413, 415, 422, 428, 429]

[[operations]]
include-path-regex = "^/api/rpc/(oneway|twoway)/"
checks.not_a_server_error.enabled = false
"#;

/// How bodies of media types are written that schemathesis does not know.
const HOOKS: &str = r#"
import schemathesis

schemathesis.serializer.alias("application/offset+octet-stream", "application/octet-stream")
"#;

/// Streams without an end, operations that would stop the node or revoke the test's credentials, and bodies of lines,
/// which schemathesis cannot write.
const LEFT_OUT: &[&str] = &[
    "events",
    "watchTelemetry",
    "watchTelemetryOfDevices",
    "watchAlarms",
    "restore",
    "stopListener",
    "login",
    "importDevices",
];

#[test]
fn schemathesis_finds_nothing() {
    if !own_node() {
        return;
    }
    let Some(packages) = installed("TIDEGATE_TEST_SCHEMATHESIS", "schemathesis") else {
        return report_skipped("schemathesis is not installed");
    };
    // Dozens of commands are sent to a device that never answers; each request waits for the time limit.
    let node = closed_with(&["--set", "commands.timeout_ms=50"]);
    let folder = temporary_directory();
    let config = folder.join("schemathesis.toml");
    std::fs::write(&config, CONFIG).unwrap();
    std::fs::write(folder.join("tidegate_hooks.py"), HOOKS).unwrap();
    let url = format!("http://{}", node.address("http"));
    let mut command = Command::new("python3");
    command
        .env("PYTHONPATH", packages)
        .env("SCHEMATHESIS_HOOKS", "tidegate_hooks")
        .current_dir(&folder)
        .args(["-m", "schemathesis.cli", "--config-file"])
        .arg(&config)
        .args(["run", &format!("{url}/api/v1/openapi.json"), "--url", &url])
        .args([
            "-H",
            &format!("Authorization: Bearer {}", local_token(&node)),
        ])
        .args([
            "--phases",
            "examples,coverage,fuzzing",
            "--max-examples",
            "10",
        ])
        .args([
            // With two, Python 3.11 fails now and then where both parse its own source (cpython issue 106905).
            "--workers",
            "1",
            "--seed",
            "1",
            "--no-color",
            "--suppress-health-check",
            "all",
        ])
        // What the description cannot say (a password that fits, a topic without wildcards) may be rejected.
        .args(["--exclude-checks", "positive_data_acceptance"]);
    for operation in LEFT_OUT {
        command.args(["--exclude-operation-id", operation]);
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{output_text}\n{errors}\nthe node wrote:\n{}",
        node.log()
    );
    assert!(node.is_running());
    assert!(!node.log().contains("panic"), "{}", node.log());
}
