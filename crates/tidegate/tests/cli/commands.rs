//! The commands that need no node.

use super::program::{run, run_with_input};

#[test]
fn config_check_reports_all_problems_and_exits_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidegate.toml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, "[limits]\nmax_qoss = 1\nmax_qos = 9\n").unwrap();
    let error = run(&["config", "check", path]).failed(2);
    assert_eq!(
        error,
        format!(
            "error: the configuration has 2 problems\n  \
             {path}:2:1: limits.max_qoss: unknown key; did you mean `limits.max_qos`?\n  \
             {path}:3:1: limits.max_qos: expected a whole number from 0 to 2, found 9\n\
             `tidegate config reference` lists every key with its values and its default.\n"
        )
    );
    assert_eq!(run(&["serve", "--config", path]).failed(2), error);

    std::fs::write(&file, "[limits]\nmax_qos = 1\n").unwrap();
    assert_eq!(
        run(&["config", "check", path]).succeeded(),
        format!("{path} is fine\n")
    );
    let warned = run(&[
        "config",
        "check",
        path,
        "--set",
        "listener.mqtt.bind=0.0.0.0:1883",
    ])
    .succeeded();
    assert!(
        warned
            .contains("\nwarning: listener `mqtt` accepts only users and devices that are created"),
        "{warned}"
    );
}

#[test]
fn the_template_of_the_reference_is_a_configuration() {
    let template = run(&["config", "reference", "--format", "toml"]).succeeded();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidegate.toml");
    std::fs::write(&file, template).unwrap();
    run(&["config", "check", file.to_str().unwrap()]).succeeded();
}

#[test]
fn version_completions_and_help() {
    let version = run(&["version"]).succeeded();
    assert!(
        version.starts_with(concat!("tidegate ", env!("CARGO_PKG_VERSION"), "\ncommit ")),
        "{version}"
    );
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]).succeeded();
        assert!(script.contains("session-expiry"), "{shell}");
    }
    for command in ["serve", "pub", "sub", "config", "password", "bench"] {
        assert!(
            run(&[command, "--help"]).succeeded().contains("Usage:"),
            "{command}"
        );
    }
}

#[test]
fn help_is_a_command_too_and_settings_are_explained() {
    let help = run(&["help", "config"]).succeeded();
    assert!(help.contains("explain"), "{help}");
    let explained = run(&[
        "config",
        "explain",
        "limits.max_qos",
        "--set",
        "limits.max_qos=1",
    ]);
    let explained = explained.succeeded();
    for part in [
        "limits.max_qos\n",
        "value     1\n",
        "from      --set limits.max_qos",
    ] {
        assert!(explained.contains(part), "{part}: {explained}");
    }
    let section = run(&["config", "explain", "limits"]).succeeded();
    assert!(section.contains("limits.max_packet_size\n"), "{section}");
    let unknown = run(&["config", "explain", "limits.max_packet_siz"]).failed(2);
    assert!(
        unknown.contains("did you mean `limits.max_packet_size`?"),
        "{unknown}"
    );
}

#[test]
fn a_benchmark_that_cannot_measure_fails_with_the_reason() {
    let node = super::program::Node::start(&[]);
    let broker = node.address("mqtt");
    // Nobody has created the rules, so that nothing comes out of them.
    let arguments = [
        "bench", "mqtt", "rules", "--broker", &broker, "--pairs", "1",
    ];
    let quick = ["--duration", "100ms", "--warmup", "0s"];
    let nothing = run(&[&arguments[..], &quick].concat()).failed(1);
    assert!(nothing.contains("--api"), "{nothing}");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap().to_string();
    drop(closed);
    let refused = run(&["bench", "mqtt", "p2p", "--broker", &address]).failed(1);
    assert!(
        refused.contains(&address) && refused.contains("connection refused"),
        "{refused}"
    );
}

#[test]
fn a_password_is_never_shown() {
    let credential = run_with_input(&["password"], "correct horse\n").succeeded();
    assert!(
        credential.starts_with("scram-sha-256$15000$"),
        "{credential}"
    );
    assert!(!credential.contains("horse"));
    let other = run_with_input(&["password"], "correct horse\n").succeeded();
    assert_ne!(credential, other, "each has a salt of its own");
    let empty = run_with_input(&["password"], "\n").failed(1);
    assert!(empty.contains("the password is empty"), "{empty}");
}

#[test]
fn wrong_usage_exits_with_2_and_the_reason() {
    let cases: [(&[&str], &str); 11] = [
        (&["pub", "-t", "a"], "--message <TEXT>"),
        (&["pub", "-t", "a/+", "-n"], "no wildcards"),
        (&["pub", "-t", "a", "-n", "-q", "3"], "expected 0, 1 or 2"),
        (
            &["pub", "-t", "a", "-n", "-V", "3.1.1", "--content-type", "x"],
            "only MQTT 5 has",
        ),
        (
            &["pub", "-t", "a", "-n", "-c"],
            "name its client id with -i",
        ),
        (&["sub", "-t", "a/#/b"], "'#'"),
        (
            &["sub", "-t", "a", "-F", "{tpoic}"],
            "did you mean {topic}?",
        ),
        (&["sub", "-t", "a", "-L", "http://x"], "expected mqtt://"),
        (
            &["sub", "-t", "a", "-h", "127.0.0.1:1883"],
            "give the port with -p",
        ),
        (
            &["sub", "-t", "a", "-h", "mqtt://127.0.0.1"],
            "give a URL with -L",
        ),
        (
            &["sub", "-t", "a", "--cafile", "/nonexistent"],
            "/nonexistent cannot be read",
        ),
    ];
    for (arguments, why) in cases {
        let error = run(arguments).failed(2);
        assert!(error.contains(why), "{arguments:?}: {error}");
    }
}

#[test]
fn bench_files_sends_verified_files_by_every_way() {
    let bench = ["bench", "files", "--size", "3MB", "--duration", "1ms"];
    let output = run(&[&bench[..], &["--json", "-"]].concat()).succeeded();
    let result: serde_json::Value = serde_json::from_str(&output).unwrap();
    let cases = result["cases"].as_array().unwrap();
    let names: Vec<&str> = cases
        .iter()
        .filter_map(|case| case["case"].as_str())
        .collect();
    assert_eq!(names, ["MQTT $file/", "HTTP PUT", "tus", "link"]);
    for case in cases {
        let measures = &case["measures"];
        assert_eq!(measures["received"], 1.0, "{case}");
        assert!(measures["payload_rate"].as_f64().unwrap() > 0.0, "{case}");
        assert!(measures["tcp_rate"].as_f64().unwrap() > 0.0, "{case}");
    }
}

#[test]
fn bench_firmware_verifies_images_and_names_the_bottleneck() {
    let bench = ["bench", "firmware", "--devices", "20", "--image", "300kB"];
    let output = run(&[&bench[..], &["--idle", "100ms", "--chunk", "64KiB"]].concat()).succeeded();
    assert!(
        output.contains("20 of 20 devices have verified 300000 bytes each"),
        "{output}"
    );
    assert!(
        output.contains("5 chunks were read from the disk"),
        "{output}"
    );
    assert!(output.contains("bottleneck: "), "{output}");
    for case in [
        "other clients alone: ",
        "while 20 devices connect: ",
        "while 20 devices download: ",
    ] {
        assert!(output.contains(case), "{output}");
    }
}

#[test]
fn bench_report_measures_a_row_of_a_published_report() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().to_str().unwrap();
    let report = ["bench", "report", "001", "--row", "full-buffer"];
    let printed = run(&[&report[..], &["--output", output]].concat()).succeeded();
    assert!(printed.starts_with("001 PointSub: "), "{printed}");
    let results = std::fs::read_to_string(folder.path().join("001.json")).unwrap();
    let results: serde_json::Value = serde_json::from_str(&results).unwrap();
    let row = &results["rows"]["full-buffer"];
    assert_eq!(row["outcome"], "measured", "{results:#}");
    assert!(
        row["values"]["recovery"].as_f64().unwrap() > 0.0,
        "{results:#}"
    );
    assert_eq!(row["machine"]["is_release"], !cfg!(debug_assertions));
    let page = std::fs::read_to_string(folder.path().join("001.md")).unwrap();
    assert!(
        page.contains("| full buffers, the reader resumes | recovery, ms | 150 |"),
        "{page}"
    );
}
