//! Ten thousand devices at once, counted from end to end: what was acknowledged is stored, and what is stored can be read.

use std::process::Command;

use serde_json::Value;

use crate::support::Node;

/// How long they report; a minute where there is time for it.
const SECONDS: &str = "TIDEGATE_FLEET_SECONDS";

#[test]
fn nothing_of_ten_thousand_devices_is_lost() {
    let node = Node::start(&[]);
    let seconds = std::env::var(SECONDS).unwrap_or_else(|_| "3".to_owned());
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", "telemetry", "--json", "--devices", "10000"])
        .args(["--keys", "3", "--rate", "10k", "--duration"])
        .arg(format!("{seconds}s"))
        .args(["--broker", &format!("mqtt://{}", node.address("mqtt"))])
        .args(["--api", &format!("http://{}", node.address("http"))])
        .output()
        .unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let report: Value =
        serde_json::from_str(&output_text).unwrap_or_else(|_| panic!("{output_text}{errors}"));
    assert!(output.status.success(), "{report:#}{errors}");
    let sent = report["sent"].as_u64().unwrap();
    assert!(sent >= 10_000, "{report:#}");
    for field in ["acknowledged", "stored", "counted"] {
        assert_eq!(report[field], sent, "{field}: {report:#}");
    }
    assert_eq!(report["disconnected"], 0);
}
