//! Simulations that a node runs against itself.

use serde_json::Value;

use crate::program::{DEADLINE, Node, ProgramResult, run};

fn ctl(node: &Node, arguments: &[&str]) -> ProgramResult {
    let data_dir = node.data_dir().display().to_string();
    run(&[&["ctl", "--json", "--data-dir", &data_dir], arguments].concat())
}

fn read(node: &Node, arguments: &[&str]) -> Value {
    serde_json::from_str(&ctl(node, arguments).succeeded()).unwrap()
}

/// The simulation when `is_reached` holds for it.
fn wait_for(node: &Node, name: &str, is_reached: impl Fn(&Value) -> bool) -> Value {
    let deadline = std::time::Instant::now() + DEADLINE;
    loop {
        let simulation = read(node, &["simulations", "show", name]);
        if is_reached(&simulation) {
            return simulation;
        }
        assert!(std::time::Instant::now() < deadline, "{simulation}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn device_count(node: &Node) -> Value {
    read(node, &["devices", "count"])["devices"].clone()
}

#[test]
fn a_node_runs_small_simulations_and_removes_them() {
    let node = Node::start(&["--set", "simulations.max_devices=40"]);
    let list = read(&node, &["simulations", "list"]);
    let list = list.as_array().unwrap();
    assert!(list.iter().any(|simulation| simulation["name"] == "demo"));
    assert!(
        list.iter()
            .all(|simulation| simulation["devices"].as_u64().unwrap() <= 40)
    );
    ctl(&node, &["simulations", "start", "nothing"]).failed(4);

    // Without `create = true` in its file, and with fewer devices.
    ctl(
        &node,
        &["simulations", "start", "smart-meter", "--devices", "20"],
    )
    .succeeded();
    let running = wait_for(&node, "smart-meter", |simulation| {
        simulation["connected"] == 20 && simulation["sent"].as_u64() > Some(20)
    });
    assert_eq!(running["state"], "running");
    assert_eq!(running["failures"], 0, "{running}");
    assert_eq!(device_count(&node), 20);
    let refused = ctl(&node, &["simulations", "start", "weather"]).failed(4);
    assert!(refused.contains("simulations.max_running"), "{refused}");
    ctl(&node, &["simulations", "stop", "smart-meter"]).succeeded();
    let ended = wait_for(&node, "smart-meter", |simulation| {
        simulation["state"] != "running"
    });
    assert_eq!(ended["state"], "cancelled", "{ended}");
    assert_eq!(device_count(&node), 0);
    let jobs = read(&node, &["jobs", "list"]);
    assert_eq!(jobs[0]["kind"], "simulation");
    assert_eq!(jobs[0]["subject"], "smart-meter");
}

#[test]
fn the_demo_runs_in_a_node_which_removes_it_when_it_stops() {
    let node = Node::start(&[]);
    ctl(&node, &["simulations", "start", "demo"]).succeeded();
    wait_for(&node, "demo", |simulation| simulation["connected"] == 50);
    let dashboards = read(&node, &["dashboards", "list"]).to_string();
    assert!(dashboards.contains("demo-site"), "{dashboards}");
    let (_, folder) = node.stop();
    let node = Node::start_in(folder, &[]);
    assert_eq!(device_count(&node), 0);
    let rules = read(&node, &["rules", "list"]).to_string();
    assert!(!rules.contains("demo-"), "{rules}");
}

#[test]
fn what_the_demo_command_has_left_is_removed_over_the_api() {
    let node = Node::start(&[]);
    let data_dir = node.data_dir().display().to_string();
    run(&["demo", "--data-dir", &data_dir, "--for", "1"]).succeeded();
    ctl(&node, &["simulations", "start", "demo"]).succeeded();
    let failed = wait_for(&node, "demo", |simulation| simulation["state"] == "failed");
    assert!(failed["error"].to_string().contains("exists"), "{failed}");
    assert_eq!(device_count(&node), 50);
    ctl(&node, &["simulations", "clean", "demo"]).succeeded();
    assert_eq!(device_count(&node), 0);
}
