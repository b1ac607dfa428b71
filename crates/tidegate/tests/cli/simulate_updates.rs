//! `tidegate simulate` with devices that install firmware: in chunks by MQTT and HTTP, by URL, and in campaigns; and files for commands.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::program::{Node, run};
use crate::simulate::{ctl, device_count, simulate, simulation};

/// A simulation that creates a package and its devices, and installs it by a campaign.
fn campaign(folder: &Path, node: &Node, fleet: &str, phases: &str) -> PathBuf {
    let text = format!(
        r#"api = "http://{http}"
http = "http://{http}"
token_file = "{}"
[product.pump]
create = true
{fleet}
[firmware.image]
product = "pump"
version = "2.0"
bytes = 50001
[firmware.image.campaign]
waves = [{{ percent = 20 }}]
min_success_percent = 0
max_attempts = 1
[[phase]]
name = "connect"
assert = ["connects==10"]
[[phase]]
name = "campaign"
duration = "60s"
campaign = "image"
{phases}
"#,
        node.data_dir().join("api.token").display(),
        http = node.address("http"),
    );
    simulation(folder, Some(node), &text)
}

fn fleet(more: &str) -> String {
    format!(
        r#"
[fleet.pumps]
product = "pump"
count = 10
id = "pump-{{index}}"
qos = 1
reconnect = {{ delay = "0s", backoff = false }}
{more}
"#
    )
}

fn assert_nothing_is_left(node: &Node) {
    assert_eq!(device_count(node), 0);
    for kind in ["firmware", "campaigns", "firmware-assignments", "files"] {
        assert_eq!(ctl(node, &[kind, "list"]), json!([]), "{kind}");
    }
}

fn metrics(report: &Value, phase: usize) -> impl Fn(&str) -> u64 {
    let metrics = report["phases"][phase]["metrics"].clone();
    move |name| {
        metrics[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {metrics:#}"))
    }
}

#[test]
fn a_campaign_installs_firmware_by_each_protocol() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    for (protocol, transport, update) in [
        ("thingsboard", "mqtt", "chunk_bytes = 5000"),
        ("thingsboard", "http", "chunk_bytes = 16384"),
        ("jetlinks", "mqtt", "version = \"1.0\""),
    ] {
        let on = format!(
            "transport = \"{transport}\"\non = [{{ kind = \"firmware\", delay = [\"10ms\", \"50ms\"], {update} }}]"
        );
        let file = campaign(
            folder.path(),
            &node,
            &fleet(&on),
            "assert = [\"completed_updates==10\", \"failed_updates==0\", \"campaign_succeeded==10\"]",
        );
        let set = format!("product.pump.protocol={protocol}");
        let report = simulate(&file, &["--json", "--set", &set]).succeeded();
        let report: Value = serde_json::from_str(&report).unwrap();
        let count = metrics(&report, 1);
        assert_eq!(count("downloaded_bytes"), 10 * 50_001, "{report:#}");
        assert_eq!((count("updates"), count("damaged_images")), (10, 0));
        assert_eq!(count("campaign_failed"), 0);
        assert_eq!(report["phases"][1]["failures"], json!({}), "{report:#}");
        assert_nothing_is_left(&node);
    }
}

#[test]
fn commands_let_devices_download_files() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let content = folder.path().join("map.bin");
    fs::write(&content, "abc".repeat(30_000)).unwrap();
    ctl(&node, &["files", "upload", content.to_str().unwrap()]);
    let files = ctl(&node, &["files", "list"]);
    let id = files[0]["id"].as_str().unwrap();
    let sha256 = files[0]["checksum"].as_str().unwrap();
    let link = ctl(&node, &["files", "link", id]);
    let path = link["path"].as_str().unwrap();
    let wrong = "0".repeat(64);
    for (sha256, downloaded) in [(sha256, true), (wrong.as_str(), false)] {
        let params = format!(r#"{{ url = "{path}", size = 90000, sha256 = "{sha256}" }}"#);
        let text = format!(
            r#"
[target]
broker = "mqtt://{}"
http = "http://{}"
api = "http://{}"
token_file = "{}"
[product.reader]
protocol = "native"
create = true
[fleet.readers]
product = "reader"
count = 3
on = [{{ kind = "file", delay = "10ms" }}]
[[command]]
fleet = "readers"
method = "download"
params = {params}
rate = 10
[[phase]]
name = "connect"
load = 0.0
[[phase]]
name = "steady"
duration = "2s"
"#,
            node.address("mqtt"),
            node.address("http"),
            node.address("http"),
            node.data_dir().join("api.token").display(),
        );
        let file = folder.path().join("files.toml");
        fs::write(&file, text).unwrap();
        let report = simulate(&file, &["--json"]).succeeded();
        let report: Value = serde_json::from_str(&report).unwrap();
        let count = metrics(&report, 1);
        let (files, failed) = (count("downloaded_files"), count("failed_downloads"));
        assert_eq!(files > 0, downloaded, "{report:#}");
        assert_eq!(failed > 0, !downloaded, "{report:#}");
        assert_eq!(count("failed_commands") > 0, !downloaded, "{report:#}");
        assert_eq!(count("downloaded_bytes"), files * 90_000, "{report:#}");
        assert_eq!(count("damaged_images"), failed, "{report:#}");
    }
}

#[test]
fn failures_of_devices_are_reported_and_interruptions_continue() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let on = r#"on = [{ kind = "firmware", chunk_bytes = 500, delay = "300ms", failure = 1.0 }]"#;
    let faults = r#"
assert = ["failed_updates==10", "completed_updates==0", "campaign_failed==10", "faults>=10"]
[[phase.fault]]
kind = "close"
after = "100ms"
"#;
    let file = campaign(folder.path(), &node, &fleet(on), faults);
    let report = simulate(
        &file,
        &["--json", "--set", "product.pump.protocol=thingsboard"],
    );
    let report: Value = serde_json::from_str(&report.succeeded()).unwrap();
    assert_eq!(metrics(&report, 1)("damaged_images"), 0, "{report:#}");
    assert_nothing_is_left(&node);

    // Without a campaign, the package is assigned to the product. Devices without a result end no campaign.
    let text = fs::read_to_string(&file).unwrap();
    let text = text
        .replace("campaign = \"image\"\n", "")
        .replace("failure = 1.0", "silent = 1.0");
    let text = text
        .replace("duration = \"60s\"", "duration = \"20s\"")
        .replace("chunk_bytes = 500,", "chunk_bytes = 5000,")
        .replace("delay = \"300ms\"", "delay = \"20ms\"");
    let (text, _) = text.split_once("assert = [\"failed_updates").unwrap();
    fs::write(&file, text).unwrap();
    let report = simulate(
        &file,
        &["--json", "--set", "product.pump.protocol=thingsboard"],
    );
    let report: Value = serde_json::from_str(&report.succeeded()).unwrap();
    let sum = |name: &str| -> u64 {
        let phases = report["phases"].as_array().unwrap().iter();
        phases
            .filter_map(|phase| phase["metrics"][name].as_u64())
            .sum()
    };
    assert_eq!(sum("downloaded_bytes"), 10 * 50_001, "{report:#}");
    assert_eq!(
        (sum("updates"), sum("completed_updates")),
        (10, 0),
        "{report:#}"
    );
    assert_nothing_is_left(&node);
}

#[test]
fn the_firmware_campaign_runs_at_small_scale() {
    let node = Node::start(&[]);
    let sets = [
        format!("target.broker=mqtt://{}", node.address("mqtt")),
        format!("target.api=http://{}", node.address("http")),
        format!(
            "target.token_file={}",
            node.data_dir().join("api.token").display()
        ),
        "fleet.devices.count=50".to_owned(),
        "fleet.devices.on[0].delay=50ms".to_owned(),
        "phase[1].duration=60s".to_owned(),
        "phase[1].fault[0].after=200ms".to_owned(),
        "phase[1].fault[0].devices=0.1".to_owned(),
        "phase[1].fault[0].duration=100ms".to_owned(),
    ];
    let mut arguments = vec!["simulate", "firmware-campaign", "--json"];
    for set in &sets {
        arguments.extend(["--set", set]);
    }
    let report: Value = serde_json::from_str(&run(&arguments).succeeded()).unwrap();
    let count = metrics(&report, 1);
    let ended = count("campaign_succeeded") + count("campaign_failed");
    assert_eq!(ended, 50, "{report:#}");
    assert!(count("campaign_succeeded") >= 40, "{report:#}");
    assert_nothing_is_left(&node);
}

#[test]
fn firmware_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"
[product.a]
protocol = "native"
[product.b]
protocol = "jetlinks"
[firmware.image]
product = "a"
version = "1"
bytes = 0
[fleet.a]
product = "a"
count = 1
on = [{ kind = "firmware" }, { kind = "command", chunk_bytes = 5 }]
[fleet.b]
product = "b"
count = 1
on = [
  { kind = "firmware", chunk_bytes = 100000 },
  { kind = "firmware" },
  { kind = "software" },
]
[[phase]]
name = "x"
campaign = "imgae"
"#;
    let file = simulation(folder.path(), None, text);
    let errors = simulate(&file, &["--check"]).failed(2);
    for part in [
        "fleet.a.on[0].kind: images need a product with `protocol` thingsboard or jetlinks",
        "fleet.a.on[1]: only the kinds `firmware` and `software` have `chunk_bytes` and `version`",
        "fleet.b.on[0].chunk_bytes: expected 1 to 65536, found 100000",
        "fleet.b.on[1].kind: an earlier entry has the same kind",
        "fleet.b.on[2].kind: JetLinks' protocol has no software",
        "firmware.image.product: the table [product.a] must exist and have create = true",
        "firmware.image.bytes: expected 1 to 67108864, found 0",
        "phase[0].campaign: unknown firmware `imgae`; did you mean `image`?",
    ] {
        assert!(errors.contains(part), "{part}\n{errors}");
    }
}
