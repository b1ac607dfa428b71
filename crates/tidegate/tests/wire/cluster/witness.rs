//! Two nodes and a witness: any one of the three machines may fail.

use std::time::Instant;

use super::failover::{drain, reconnect, wait_for_ack};
use super::objects::put_rule;
use super::own_servers::{
    ServerSettings, has_rule, problem, wait_for_standby, wait_until_changes_are_accepted,
    wait_until_connected, within,
};
use super::support::{durable, member_count, servers, status};
use super::trial;
use crate::support::{Publish, Raw, kind, unique};

#[test]
fn two_nodes_with_a_witness_survive_the_loss_of_any_machine() {
    let _alone = trial::run_alone();
    let Some(settings) = ServerSettings::new_or_skip(3) else {
        return;
    };
    let peers = settings.peers(&[0, 1, 2]);
    let mut witness = settings.start_witness(2, &peers);
    let [mut first, second] = <[_; 2]>::try_from(settings.start(&[0, 1], &peers))
        .ok()
        .expect("two nodes");
    wait_until_connected(&[&first, &second]);
    // There are three servers, so that the default is to have a standby.
    assert_eq!(wait_for_standby(&first), "node-2");
    assert_eq!(wait_for_standby(&second), "node-1");
    assert_eq!(member_count(&status(second.node())), 2, "no third member");
    within("the witness names all servers", || {
        let log = witness.witness_log();
        log.contains("all NATS servers of the cluster are connected")
    });
    wait_until_changes_are_accepted(&first, "before");
    let listed = |has_node: [bool; 3], is_connected: [bool; 3]| {
        let names = ["node-1", "node-2", "witness-1"].into_iter();
        let states = has_node.into_iter().zip(is_connected);
        let servers = names.zip(states);
        let servers = servers.map(|(name, (has, is))| (name.to_owned(), has, is));
        servers.collect::<Vec<_>>()
    };
    within("all servers are listed", || {
        servers(first.node()) == listed([true, true, false], [true; 3])
    });

    let (topic, id) = (unique("witness/"), unique("w"));
    let mut client = Raw::connect(first.node(), &durable(&id));
    client.subscribe(&topic, 1);
    client.disconnect();
    let mut publisher = Raw::client(second.node(), 5);
    publisher.publish_qos1(&topic, "before", 1);

    // A node and its server are killed.
    let killed = Instant::now();
    first.kill();
    publisher.send_publish(&Publish::new(&topic, "during").qos(1, 2));
    wait_for_ack(&mut publisher, kind::PUBACK);
    let (mut client, connack) = reconnect(second.node(), &durable(&id));
    assert!(connack.session_present);
    eprintln!(
        "{:5.1} s: the client has its session at the other node",
        killed.elapsed().as_secs_f64()
    );
    assert_eq!(drain(&mut client), ["before", "during"]);
    client.cut();
    wait_until_changes_are_accepted(&second, "without-first");
    within("the witness notices", || {
        witness.witness_log().contains("missing=node-1")
    });
    first.start_again();
    wait_until_connected(&[&first, &second]);
    within("the node has what it missed", || {
        has_rule(&first, "without-first")
    });
    wait_for_standby(&first);
    wait_for_standby(&second);

    // The witness ends: nobody notices. An election may be necessary before the next change.
    witness.stop_witness();
    publisher.publish_qos1(&topic, "without the witness", 3);
    wait_until_changes_are_accepted(&first, "without-witness");
    within("no node is degraded", || {
        problem(&first).is_none() && problem(&second).is_none()
    });

    within("the witness is listed as silent", || {
        servers(first.node()) == listed([true, true, false], [true, true, false])
    });

    // Without the witness and a node, there is no majority.
    first.kill();
    within("the node is degraded", || problem(&second).is_some());
    let rejected = put_rule(second.node(), "rejected", "SELECT * FROM \"a\"");
    assert_eq!(rejected.status, 503, "{}", rejected.body);
    witness.start_again();
    wait_until_changes_are_accepted(&second, "healed");
    within("the node is not degraded", || problem(&second).is_none());
    let (mut client, connack) = reconnect(second.node(), &durable(&id));
    assert!(connack.session_present);
    assert_eq!(drain(&mut client), ["without the witness"]);
    first.start_again();
    wait_until_connected(&[&first, &second]);
    within("the node has what it missed", || has_rule(&first, "healed"));
}
