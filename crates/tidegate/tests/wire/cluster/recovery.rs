//! Two of three machines are lost for good: the third one begins a new cluster with what it has.

use std::process::Output;

use super::failover::{drain, reconnect};
use super::own_servers::{
    ServerMachine, ServerSettings, has_rule, problem, wait_for_standby,
    wait_until_changes_are_accepted, wait_until_connected, within,
};
use super::support::{durable, member_count, status};
use super::trial;
use crate::support::{Raw, unique};

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The name of a client with a durable session at the node, whose queue contains a message.
fn add_session(machine: &ServerMachine, topic: &str) -> String {
    let id = unique("r");
    let mut client = Raw::connect(machine.node(), &durable(&id));
    client.subscribe(topic, 1);
    client.disconnect();
    id
}

#[test]
fn a_node_that_is_left_alone_recovers_with_its_sessions_and_those_it_has_a_copy_of() {
    let _alone = trial::run_alone();
    let Some(settings) = ServerSettings::new_or_skip(4) else {
        return;
    };
    let peers = settings.peers(&[0, 1, 2]);
    let mut machines = settings.start(&[0, 1, 2], &peers);
    wait_until_connected(&machines.iter().collect::<Vec<_>>());
    let standbys: Vec<String> = machines.iter().map(wait_for_standby).collect();
    wait_until_changes_are_accepted(&machines[0], "before");
    let topic = unique("recovery/");
    let ids: Vec<String> = machines
        .iter()
        .map(|machine| add_session(machine, &topic))
        .collect();
    Raw::client(machines[0].node(), 5).publish_qos1(&topic, "before", 1);
    // The node that is left is the standby of the first one.
    let left = match standbys[0].as_str() {
        "node-2" => 1,
        _ => 2,
    };
    within("the node that is left has the rule", || {
        has_rule(&machines[left], "before")
    });
    for index in (0..3).filter(|index| *index != left) {
        machines[index].destroy();
    }
    let machine = &mut machines[left];
    within("the node is degraded", || problem(machine).is_some());

    let alone = settings.peers(&[left]);
    machine.set_peers(&settings, left, &alone);
    let running = machine.recover(&["--yes"]);
    assert_eq!(running.status.code(), Some(1), "{}", text(&running));
    assert!(text(&running).contains("is running"), "{}", text(&running));
    machine.stop();
    let same_secret = machine.recover(&["--yes"]);
    assert_eq!(same_secret.status.code(), Some(2), "{}", text(&same_secret));
    assert!(
        text(&same_secret).contains("new secret"),
        "{}",
        text(&same_secret)
    );
    settings.write_secret("another secret of the cluster");
    let unknown = machine.recover(&["--adopt", "node-9"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", text(&unknown));
    let plan = machine.recover(&["--adopt", "node-1"]);
    assert!(plan.status.success(), "{}", text(&plan));
    for part in [
        "copy of node-1",
        "that of this node alone",
        "Nothing was changed",
    ] {
        assert!(text(&plan).contains(part), "{}", text(&plan));
    }
    assert!(machine.data_dir().join("nats/cluster").exists());
    let recovered = machine.recover(&["--adopt", "node-1", "--yes"]);
    assert!(recovered.status.success(), "{}", text(&recovered));
    assert!(!machine.data_dir().join("nats").exists());
    let aside = std::fs::read_dir(machine.data_dir()).unwrap().flatten();
    let mut aside = aside.filter(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("before-recovery-")
    });
    let aside = aside.next().expect("the former files").path();
    assert!(aside.join("nats/cluster").exists());
    let again = machine.recover(&["--yes"]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again));
    assert!(
        text(&again).contains("nothing to recover"),
        "{}",
        text(&again)
    );

    machine.start_again();
    wait_until_changes_are_accepted(machine, "after");
    assert!(has_rule(machine, "before"), "the configuration is kept");
    within("the node is not degraded", || problem(machine).is_none());
    assert_eq!(member_count(&status(machine.node())), 1);
    let (mut own, connack) = reconnect(machine.node(), &durable(&ids[left]));
    assert!(connack.session_present, "the own session is kept");
    assert_eq!(drain(&mut own), ["before"]);
    own.cut();
    within("the sessions of the lost node are adopted", || {
        status(machine.node())["standby"]["adoptions"] == 1
    });
    let (mut adopted, connack) = reconnect(machine.node(), &durable(&ids[0]));
    assert!(
        connack.session_present,
        "the copy of the session is adopted"
    );
    assert_eq!(drain(&mut adopted), ["before"]);
    adopted.cut();
    Raw::client(machine.node(), 5).publish_qos1(&topic, "alone", 1);

    // A fresh node joins. The servers of both then begin with what the nodes have.
    let both = settings.peers(&[left, 3]);
    machine.set_peers(&settings, left, &both);
    machine.stop();
    let mut fresh = settings.spawn(3, &both);
    machine.start_again();
    fresh.wait_until_it_listens();
    let machine = &machines[left];
    wait_until_connected(&[machine, &fresh]);
    for rule in ["before", "after"] {
        within("the new node has the configuration", || {
            has_rule(&fresh, rule)
        });
        assert!(has_rule(machine, rule));
    }
    wait_until_changes_are_accepted(&fresh, "of-two");
    within("the other node has the change", || {
        has_rule(machine, "of-two")
    });
    for id in [&ids[0], &ids[left]] {
        let (mut client, connack) = reconnect(fresh.node(), &durable(id));
        assert!(connack.session_present);
        assert_eq!(drain(&mut client), ["alone"]);
    }
}
