//! `pub` and `sub` over everything that can carry MQTT, in every version and at every QoS.

use std::fmt::Write as _;

use super::program::{Node, certificate, certificate_with, run, run_with_input, subscriber};

/// A hundred lines through `pub -l` and out of `sub -C 100` again.
fn lines_pass(how: &[&str], options: &[&str]) {
    let mut lines = String::new();
    for number in 1..=100 {
        writeln!(lines, "line {number} ü").unwrap();
    }
    let receiving = [&["-t", "lines/#", "-C", "100"], how, options].concat();
    let subscriber = subscriber(&receiving);
    let sending = [&["pub", "-t", "lines/x", "-l"], how, options].concat();
    run_with_input(&sending, &lines).succeeded();
    assert_eq!(subscriber.end().succeeded(), lines, "{how:?} {options:?}");
}

#[test]
fn every_version_and_qos() {
    let node = Node::start(&[]);
    let port = node.port("mqtt");
    for version in ["3.1", "3.1.1", "5"] {
        for qos in ["0", "1", "2"] {
            lines_pass(
                &["-h", "127.0.0.1", "-p", &port],
                &["-V", version, "-q", qos],
            );
        }
    }
}

#[test]
fn tls_websocket_and_unix_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let (pem, key) = certificate(folder.path(), "server", "server");
    let socket = folder.path().join("socket");
    let config = folder.path().join("tidegate.toml");
    let text = format!(
        "[[listener]]\nname = 'local'\nprotocol = 'unix'\nbind = '{}'\n\
         [[listener]]\nprotocol = 'wss'\nbind = '127.0.0.1:0'\nwebsocket_path = '/deep/path'\n\
         tls = {{ certificate = 'server.pem', private_key = 'server.key' }}\n",
        socket.display()
    );
    std::fs::write(&config, text).unwrap();
    let node = Node::start(&[
        "--config",
        config.to_str().unwrap(),
        "--mqtts",
        "127.0.0.1:0",
        "--set",
        &format!("listener.mqtts.tls.certificate={pem}"),
        "--set",
        &format!("listener.mqtts.tls.private_key={key}"),
    ]);
    let (ws, wss, mqtts) = (node.port("ws"), node.port("wss"), node.port("mqtts"));
    let url = format!("wss://127.0.0.1:{wss}/deep/path");
    let ways: [&[&str]; 6] = [
        &["--unix", socket.to_str().unwrap()],
        &["-L", &format!("unix://{}", socket.display())],
        &["-h", "127.0.0.1", "-p", &ws, "--ws"],
        &["-h", "localhost", "-p", &mqtts, "--cafile", &pem],
        &["-L", &url, "--cafile", &pem],
        &["-h", "127.0.0.1", "-p", &mqtts, "--insecure"],
    ];
    for how in ways {
        lines_pass(how, &["-q", "2"]);
    }
}

#[test]
fn a_wrong_transport_is_reported_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let (pem, key) = certificate(folder.path(), "server", "server");
    let (other, _) = certificate(folder.path(), "other", "other");
    let node = Node::start(&[
        "--mqtts",
        "127.0.0.1:0",
        "--set",
        &format!("listener.mqtts.tls.certificate={pem}"),
        "--set",
        &format!("listener.mqtts.tls.private_key={key}"),
    ]);
    let (mqtt, mqtts, ws) = (node.port("mqtt"), node.port("mqtts"), node.port("ws"));
    let error = |how: &[&str]| {
        let arguments = [&["pub", "-h", "127.0.0.1", "-t", "a", "-n"], how].concat();
        run(&arguments).failed(3)
    };
    let unknown = error(&["-p", &mqtts, "--cafile", &other]);
    assert!(
        unknown.contains("is not signed by a trusted authority")
            && unknown.contains("--cafile FILE"),
        "{unknown}"
    );
    let (renewed, _) = certificate(folder.path(), "renewed", "server");
    let renewed = error(&["-p", &mqtts, "--cafile", &renewed]);
    assert!(
        renewed.contains("is not signed by a trusted authority; name its authority with --cafile"),
        "{renewed}"
    );
    let no_tls = error(&["-p", &mqtt, "--cafile", &pem]);
    assert!(
        no_tls.contains(
            "closed the connection during the TLS handshake; check that the port serves TLS"
        ),
        "{no_tls}"
    );
    let authority = testkit::CertificateAuthority::new(folder.path().join("authority"));
    let authority = authority.certificate_path();
    let self_signed = ["--cafile", authority.to_str().unwrap()];
    assert_plain(&error(&[&["-p", &mqtts], &self_signed[..]].concat()));
    assert_plain(&unknown);
    let name = error(&[
        "-p",
        &mqtts,
        "--cafile",
        &pem,
        "--tls-server-name",
        "else.example",
    ]);
    assert!(
        name.contains("certificate is not for else.example, only for localhost, 127.0.0.1;")
            && name.contains("--tls-server-name"),
        "{name}"
    );
    assert_plain(&name);
    let plain = error(&["-p", &mqtts]);
    assert!(plain.contains("serves MQTT without TLS"), "{plain}");
    let path = error(&["-p", &ws, "--ws-path", "/nowhere"]);
    assert!(path.contains("with status 404"), "{path}");
    assert!(error(&["-p", &mqtt, "--ws"]).contains("cannot reach ws://127.0.0.1:"));
    // Nobody listens on port 1.
    let nobody = error(&["-p", "1"]);
    assert!(
        nobody.contains("cannot reach mqtt://127.0.0.1:1: ") && nobody.contains("`tidegate serve`"),
        "{nobody}"
    );
}

/// No debug representation of Rust.
fn assert_plain(error: &str) {
    let signs = [
        "Error(",
        "Name(",
        "UnknownIssuer",
        "CaUsedAsEndEntity",
        "{ ",
    ];
    assert!(!signs.iter().any(|sign| error.contains(sign)), "{error}");
}

#[test]
fn unusable_certificates_of_servers_are_described() {
    let folder = tempfile::tempdir().unwrap();
    let ports_and_errors = [
        (
            "authority",
            "is that of an authority, which servers cannot use",
        ),
        ("expired", "expired on 2001-01-01T00:00:00Z"),
    ];
    for (kind, expected) in ports_and_errors {
        let (pem, key) = certificate_with(folder.path(), kind, "server", |parameters| match kind {
            "expired" => parameters.not_after = rcgen::date_time_ymd(2001, 1, 1),
            _ => parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained),
        });
        let node = Node::start(&[
            "--mqtts",
            "127.0.0.1:0",
            "--set",
            &format!("listener.mqtts.tls.certificate={pem}"),
            "--set",
            &format!("listener.mqtts.tls.private_key={key}"),
        ]);
        let port = node.port("mqtts");
        let how = ["-h", "127.0.0.1", "-p", &port, "--cafile", &pem];
        let error = run(&[&["pub", "-t", "a", "-n"], &how[..]].concat()).failed(3);
        assert!(error.contains(expected), "{error}");
        assert_plain(&error);
    }
}
