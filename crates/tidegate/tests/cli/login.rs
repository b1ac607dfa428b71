//! Users: `tidegate password` makes a credential, a node knows it, clients prove themselves.

use super::program::{Node, certificate, run, run_with_input, tidegate};

/// A node that lets in nobody but ann with `pencil`.
fn node_of_ann() -> Node {
    let credential = run_with_input(&["password"], "pencil\n").succeeded();
    let set = format!("user.ann.credential={}", credential.trim());
    Node::start(&[
        "--set",
        &set,
        "--set",
        "listener.mqtt.allow_anonymous=false",
    ])
}

#[test]
fn a_password_or_scram_lets_in_and_nothing_else_does() {
    let node = node_of_ann();
    let file = node.folder.path().join("password");
    std::fs::write(&file, "pencil\n").unwrap();
    let file = file.to_str().unwrap();
    let message = ["-t", "a", "-m", "x", "-q", "1"];
    let publish = |login: &[&str]| node.publish(&[&message, login].concat());

    publish(&["-u", "ann", "-P", "pencil"]).succeeded();
    publish(&["-u", "ann", "--password-file", file]).succeeded();
    publish(&["-u", "ann", "-P", "pencil", "-V", "3.1.1"]).succeeded();
    publish(&[
        "-u",
        "ann",
        "-P",
        "pencil",
        "--auth-method",
        "scram-sha-256",
    ])
    .succeeded();
    let port = node.port("mqtt");
    let url = format!("mqtt://ann:pencil@127.0.0.1:{port}");
    run(&["pub", "-L", &url, "-t", "a", "-n"]).succeeded();
    let from_environment = tidegate(&[
        "pub",
        "-L",
        &format!("mqtt://ann@127.0.0.1:{port}"),
        "-t",
        "a",
        "-n",
    ])
    .env("TIDEGATE_PASSWORD", "pencil")
    .status()
    .unwrap();
    assert!(from_environment.success());

    let rejected: [&[&str]; 6] = [
        &[],
        &["-V", "3.1.1"],
        &["-u", "ann", "-P", "wrong"],
        &["-u", "bob", "-P", "pencil"],
        &["-u", "ann", "-P", "wrong", "--auth-method", "scram-sha-256"],
        &[
            "-u",
            "bob",
            "-P",
            "pencil",
            "--auth-method",
            "scram-sha-256",
        ],
    ];
    for login in rejected {
        let error = publish(login).failed(4);
        let beginning = "the broker rejected the connection: ";
        assert!(error.contains(beginning), "{login:?}: {error}");
        let named = error.contains("bad user name or password") || error.contains("not authorized");
        assert!(named, "{login:?}: {error}");
    }
    let method = publish(&["--auth-method", "other", "--auth-data", "x"]).failed(4);
    assert!(
        method.contains("bad authentication method (0x8c)"),
        "{method}"
    );
}

#[test]
fn a_client_certificate_is_a_login() {
    let folder = tempfile::tempdir().unwrap();
    let (server, server_key) = certificate(folder.path(), "server", "server");
    let (ann, ann_key) = certificate(folder.path(), "ann", "ann");
    let (eve, eve_key) = certificate(folder.path(), "eve", "eve");
    let sets = [
        format!("listener.mqtts.tls.certificate={server}"),
        format!("listener.mqtts.tls.private_key={server_key}"),
        format!("listener.mqtts.tls.client_ca={ann}"),
        "listener.mqtts.tls.require_client_certificate=true".to_owned(),
    ];
    let mut arguments = vec!["--mqtts", "127.0.0.1:0"];
    arguments.extend(sets.iter().flat_map(|set| ["--set", set]));
    let node = Node::start(&arguments);
    let port = node.port("mqtts");
    let publish = |identity: &[&str]| {
        let to = [
            "pub",
            "-h",
            "127.0.0.1",
            "-p",
            &port,
            "--cafile",
            &server,
            "-t",
            "a",
            "-n",
            "-q",
            "1",
        ];
        run(&[&to, identity].concat())
    };
    publish(&["--cert", &ann, "--key", &ann_key]).succeeded();
    publish(&[]).failed(3);
    publish(&["--cert", &eve, "--key", &eve_key]).failed(3);
    let mixed = publish(&["--cert", &ann, "--key", &eve_key]).failed(2);
    assert!(mixed.contains("cannot be used together"), "{mixed}");
}

#[test]
fn a_rejection_that_is_not_about_credentials_does_not_blame_them() {
    let node = Node::start(&[]);
    let data_dir = node.data_dir();
    let ctl = |arguments: &[&str]| {
        let arguments = [
            &["ctl", "--data-dir", data_dir.to_str().unwrap()],
            arguments,
        ]
        .concat();
        run(&arguments).succeeded()
    };
    let publish = |login: &[&str]| {
        let message = ["-t", "a", "-m", "x", "-q", "1", "-i", "rogue"];
        let error = node.publish(&[&message, login].concat()).failed(4);
        assert!(!error.contains("credentials were not accepted"), "{error}");
        error
    };
    ctl(&["bans", "add", "client_id=rogue"]);
    let banned = publish(&["-u", "ann", "-P", "pencil"]);
    assert!(
        banned.contains(r#"banned (0x8a), "the client, its user or its address is banned""#),
        "{banned}"
    );

    // Nobody listens on port 1.
    let config = "[[auth.authenticator]]\ntype = \"http\"\nurl = \"http://127.0.0.1:1/\"\n";
    let path = node.folder.path().join("unreachable.toml");
    std::fs::write(&path, config).unwrap();
    let other = Node::start(&["--config", path.to_str().unwrap()]);
    let message = ["-t", "a", "-m", "x", "-q", "1", "-u", "ann", "-P", "pencil"];
    let unavailable = other.publish(&message).failed(4);
    assert!(
        unavailable.contains(
            r#"server unavailable (0x88), "the credentials cannot be checked now, try again later""#
        ),
        "{unavailable}"
    );
}
