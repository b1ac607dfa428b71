//! `tidegate demo`: the fleet comes alive, and only the fleet is removed.

use serde_json::Value;

use crate::program::{Node, run};

fn demo(node: &Node, arguments: &[&str]) -> crate::program::ProgramResult {
    let data_dir = node.data_dir().display().to_string();
    run(&[&["demo", "--data-dir", &data_dir], arguments].concat())
}

fn ctl(node: &Node, arguments: &[&str]) -> Value {
    let data_dir = node.data_dir().display().to_string();
    let all = [&["ctl", "--json", "--data-dir", &data_dir], arguments].concat();
    serde_json::from_str(&run(&all).succeeded()).unwrap()
}

#[test]
fn the_demo_fleet_comes_alive_and_is_removed() {
    let node = Node::start(&[]);
    ctl(&node, &["products", "add", "mine"]);
    ctl(&node, &["devices", "add", "mine-1", "--product", "mine"]);
    let wrong = demo(&node, &["--mqtt", "127.0.0.1:9", "--for", "2"]).failed(2);
    assert!(wrong.contains("127.0.0.1:9"), "{wrong}");
    let products = ctl(&node, &["products", "list"]).to_string();
    assert!(!products.contains("demo-"), "{products}");
    let output = demo(&node, &["--for", "5"]).succeeded();
    assert!(output.contains("50 devices report to mqtt://"), "{output}");
    let counts = ctl(&node, &["devices", "count"]);
    assert_eq!(counts["devices"], 51, "{counts}");
    let alarms = ctl(&node, &["alarms", "list", "--active"]).to_string();
    assert!(alarms.contains("demo-pump-03"), "{alarms}");
    let latest = ctl(&node, &["telemetry", "latest", "demo-room-30"]);
    assert!(latest[0]["value"].is_number(), "{latest}");

    // What exists is used again.
    let output = demo(&node, &["--for", "1"]).succeeded();
    assert!(output.contains("created 0 of "), "{output}");

    let output = demo(&node, &["--remove"]).succeeded();
    assert_eq!(output, "deleted 50 devices and 11 other objects\n");
    let counts = ctl(&node, &["devices", "count"]);
    assert_eq!(counts["devices"], 1, "{counts}");
    for kind in ["rules", "endpoints", "device-groups", "dashboards"] {
        let left = ctl(&node, &[kind, "list"]).to_string();
        assert!(!left.contains("demo-"), "{kind}: {left}");
    }
    let output = demo(&node, &["--remove"]).succeeded();
    assert_eq!(output, "deleted 0 devices and 0 other objects\n");
}

#[test]
fn objects_of_others_are_neither_used_nor_removed() {
    let node = Node::start(&[]);
    ctl(&node, &["products", "add", "demo-room", "name=Guest rooms"]);
    let rejected = demo(&node, &["--for", "1"]).failed(2);
    assert!(
        rejected.contains("the product `demo-room` exists and was not created by a simulation"),
        "{rejected}"
    );
    let removed = demo(&node, &["--remove"]);
    assert!(
        removed.stderr.contains("`demo-room` is kept"),
        "{}",
        removed.stderr
    );
    let kept = ctl(&node, &["products", "show", "demo-room"]);
    assert_eq!(kept["name"], "Guest rooms");
}
