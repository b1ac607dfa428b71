//! What sslyze, a scanner for weaknesses of TLS servers, finds on our listeners: nothing.

use std::process::Command;

use serde_json::Value;

use super::{folder, listener, own_node};
use crate::certificates::Authority;
use crate::interop::{installed, report_skipped};
use crate::support::Node;

/// All of them have forward secrecy and authenticated encryption.
const SUITES: [&str; 9] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];
const CURVES: [&str; 3] = ["X25519", "secp256r1", "secp384r1"];

#[test]
fn sslyze_finds_no_weakness() {
    if !own_node() {
        return;
    }
    let Some(modules) = installed("TIDEGATE_TEST_SSLYZE", "sslyze") else {
        return report_skipped("sslyze is not installed; run `cargo xtask test`");
    };
    let authority = Authority::new(folder());
    let server = authority.issue_server("server");
    let (certificate, key) = (server.certificate.display(), server.key.display());
    let files = format!("certificate = \"{certificate}\", private_key = \"{key}\"");
    let clients = format!(
        ", client_ca = \"{}\"",
        authority.certificate_path().display()
    );
    let config: String = [
        ("mqtts", "mqtts", ""),
        ("wss", "wss", ""),
        ("known", "mqtts", clients.as_str()),
    ]
    .map(|(name, protocol, more)| {
        let tls = format!("tls = {{ {files}{more} }}");
        listener(name, protocol, "127.0.0.1:0", &tls)
    })
    .concat();
    let node = Node::start_with_config(&[], &config);

    let report = folder().join("report.json");
    let mut command = Command::new("python3");
    command.args(["-m", "sslyze", "--quiet", "--mozilla_config=disable"]);
    command.args([
        "--sslv2",
        "--sslv3",
        "--tlsv1",
        "--tlsv1_1",
        "--tlsv1_2",
        "--tlsv1_3",
    ]);
    command.args([
        "--compression",
        "--openssl_ccs",
        "--fallback",
        "--heartbleed",
        "--robot",
    ]);
    command.args(["--reneg", "--elliptic_curves", "--ems"]);
    command.arg(format!("--json_out={}", report.display()));
    // For the listener that asks for one.
    let client = authority.issue_client("scanner");
    command.arg(format!("--cert={}", client.certificate.display()));
    command.arg(format!("--key={}", client.key.display()));
    for name in ["mqtts", "wss", "known"] {
        command.arg(node.address(name));
    }
    let output = command.env("PYTHONPATH", modules).output().unwrap();
    let text = std::fs::read(&report).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let report: Value = serde_json::from_slice(&text).unwrap();
    let results = report["server_scan_results"].as_array().unwrap();
    assert_eq!(results.len(), 3, "{report}");
    for result in results {
        assert_eq!(result["scan_status"], "COMPLETED", "{result}");
        check(&result["scan_result"]);
    }
}

/// Checks what was found on one listener.
fn check(scan: &Value) {
    let found = |what: &str, pointer: &str| {
        assert_eq!(scan[what]["status"], "COMPLETED", "{what}: {}", scan[what]);
        let value = scan[what]["result"].pointer(pointer);
        value
            .unwrap_or_else(|| panic!("no {pointer} in {}", scan[what]))
            .clone()
    };
    for old in ["ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1"] {
        let what = format!("{old}_cipher_suites");
        assert_eq!(found(&what, "/is_tls_version_supported"), false, "{old}");
    }
    for version in ["tls_1_2", "tls_1_3"] {
        let what = format!("{version}_cipher_suites");
        let accepted = found(&what, "/accepted_cipher_suites");
        let accepted = accepted.as_array().unwrap();
        assert!(!accepted.is_empty(), "{version} is not served");
        for suite in accepted {
            let name = suite["cipher_suite"]["name"].as_str().unwrap();
            assert!(SUITES.contains(&name), "{version} accepts {name}");
        }
    }
    for curve in found("elliptic_curves", "/supported_curves")
        .as_array()
        .unwrap()
    {
        let name = curve["name"].as_str().unwrap();
        assert!(CURVES.contains(&name), "key exchange by {name}");
    }
    let robot = found("robot", "/robot_result");
    assert_eq!(robot, "NOT_VULNERABLE_RSA_NOT_SUPPORTED");
    for (what, pointer, expected) in [
        ("tls_compression", "/supports_compression", false),
        (
            "openssl_ccs_injection",
            "/is_vulnerable_to_ccs_injection",
            false,
        ),
        ("heartbleed", "/is_vulnerable_to_heartbleed", false),
        (
            "session_renegotiation",
            "/is_vulnerable_to_client_renegotiation_dos",
            false,
        ),
        (
            "session_renegotiation",
            "/supports_secure_renegotiation",
            true,
        ),
        ("tls_fallback_scsv", "/supports_fallback_scsv", true),
        (
            "tls_extended_master_secret",
            "/supports_ems_extension",
            true,
        ),
    ] {
        assert_eq!(found(what, pointer), expected, "{what}{pointer}");
    }
}
