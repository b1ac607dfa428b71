//! Commands that wait at one node of a cluster for a device at another one.

use super::*;
use crate::command::CommandOffer;

/// Numbers of the nodes differ in their upper bits only.
fn nodes() -> (Setup, Setup) {
    let (a, b) = (Setup::new(), Setup::new());
    a.commands.number_from((1 << cluster::NUMBER_BITS) + 1);
    b.commands.number_from((2 << cluster::NUMBER_BITS) + 1);
    // Devices have other numbers at the second node.
    b.device(json!({"id": "other", "product": "meter"}));
    (a, b)
}

fn offer(node: &Setup, device: &str) -> CommandOffer {
    node.commands.offer_waiting(&[device.to_owned()]).unwrap()
}

fn as_received(commands: &[Command]) -> Vec<Command> {
    serde_json::from_str(&serde_json::to_string(commands).unwrap()).unwrap()
}

#[test]
fn commands_follow_a_device_to_another_node() {
    let (a, b) = nodes();
    let meter = json!({"id": "d", "product": "meter"});
    let (here, there) = (a.device(meter.clone()), b.device(meter));
    let ids = [a.call(&here, "one"), a.call(&here, "two")];
    b.connect(&there, &[(RPC, 0)]);
    let offered = offer(&a, "d");
    assert_eq!(offered.commands.len(), 2);
    assert!(!offered.is_partial);
    // Offered commands are neither offered nor sent nor cancelled meanwhile.
    let cancelled = a.commands.cancel(ids[0], "ann");
    assert!(matches!(cancelled, Err(CommandError::HandedOver)));
    assert!(offer(&a, "d").commands.is_empty());
    a.connect(&here, &[(RPC, 0)]);
    assert!(a.take_received().is_empty());
    let sent = as_received(&offered.commands);
    assert_eq!(b.commands.take_over(sent.clone()).unwrap(), ids);
    // A repetition changes nothing.
    assert_eq!(b.commands.take_over(sent).unwrap(), ids);
    a.commands.remove_moved(&ids).unwrap();
    b.commands.inner.process_jobs();
    assert_eq!(
        b.take_received(),
        [
            r#"client-d < v1/devices/me/rpc/request/1 {"method":"one","params":null}"#,
            r#"client-d < v1/devices/me/rpc/request/2 {"method":"two","params":null}"#,
        ]
    );
    b.answer(&there, ReplyKind::Rpc, Some("1"), true);
    assert_eq!(b.state(ids[0]), CommandState::Success);
    assert_eq!(b.commands.stats().unmatched, 0);
    // The first node has nothing left, also after a restart.
    assert_eq!(a.commands.get(ids[0]).unwrap(), None);
    let a = a.restarted();
    assert_eq!(a.commands.stats().open, 0);
    a.connect(&here, &[(RPC, 0)]);
    assert!(a.take_received().is_empty());
    // Those that are moved survive a restart of the second one.
    let b = b.restarted();
    assert_eq!(b.state(ids[1]), CommandState::Sent);
}

#[test]
fn offered_commands_are_sent_when_nobody_takes_them() {
    let (a, _) = nodes();
    let device = a.device(json!({"id": "d", "product": "meter"}));
    let id = a.call(&device, "one");
    assert_eq!(offer(&a, "d").commands.len(), 1);
    a.connect(&device, &[(RPC, 0)]);
    a.pass(9_000);
    assert_eq!(a.state(id), CommandState::Pending);
    a.pass(1_000);
    a.commands.inner.process_jobs();
    assert_eq!(a.state(id), CommandState::Sent);
    // It is too late now.
    a.commands.remove_moved(&[id]).unwrap();
    assert_eq!(a.state(id), CommandState::Sent);
    assert!(offer(&a, "d").commands.is_empty());
}

#[test]
fn commands_that_do_not_wait_for_the_device_remain() {
    let (a, b) = nodes();
    let device = a.device(json!({"id": "d", "product": "meter"}));
    let accepted = a.commands.request(&device, request("waits"), true).unwrap();
    assert!(accepted.waiter.is_some());
    assert!(offer(&a, "d").commands.is_empty());
    assert!(offer(&a, "unknown").commands.is_empty());
    // The second node does not know the device yet.
    a.call(&device, "one");
    let offered = offer(&a, "d").commands;
    assert_eq!(offered.len(), 1);
    assert!(b.commands.take_over(offered).unwrap().is_empty());
}

#[test]
fn of_two_commands_with_the_same_number_at_the_device_one_follows_the_other() {
    let (a, b) = nodes();
    let meter = json!({"id": "d", "product": "meter"});
    let (here, there) = (a.device(meter.clone()), b.device(meter));
    let moved = a.call(&here, "earlier");
    a.pass(10);
    b.now_ms.fetch_add(10, Ordering::Relaxed);
    let own = b.call(&there, "later");
    assert_eq!(moved.at_device(), own.at_device());
    b.commands.take_over(offer(&a, "d").commands).unwrap();
    b.connect(&there, &[(RPC, 0)]);
    let received = b.take_received();
    assert_eq!(received.len(), 1);
    assert!(received[0].contains("earlier"), "{received:?}");
    b.answer(&there, ReplyKind::Rpc, Some("1"), true);
    assert_eq!(b.state(moved), CommandState::Success);
    assert!(b.take_received()[0].contains("later"));
    b.answer(&there, ReplyKind::Rpc, Some("1"), true);
    assert_eq!(b.state(own), CommandState::Success);
}

#[test]
fn devices_with_waiting_commands_are_found_in_steps() {
    let (a, _) = nodes();
    let devices: Vec<_> = ["x", "y", "z"]
        .map(|id| a.device(json!({"id": id, "product": "meter"})))
        .into();
    for device in [&devices[0], &devices[2]] {
        a.call(device, "one");
    }
    let found = |after, limit| -> Vec<String> {
        let (found, _) = a.commands.waiting_devices(after, limit).unwrap();
        found.iter().map(|device| device.id.to_string()).collect()
    };
    assert_eq!(found(None, 1), ["x"]);
    assert_eq!(found(Some(devices[0].no), 1), ["z"]);
    assert_eq!(found(Some(devices[2].no), 1), Vec::<String>::new());
    assert_eq!(found(None, 10), ["x", "z"]);
    let next = |after, limit| a.commands.waiting_devices(after, limit).unwrap().1;
    assert_eq!(next(None, 1), Some(devices[0].no));
    assert_eq!(next(None, 10), None);
}

#[test]
fn a_command_is_not_mistaken_for_another_one_with_its_number() {
    let (a, b) = (Setup::new(), Setup::new());
    let meter = json!({"id": "d", "product": "meter"});
    let (here, _) = (a.device(meter.clone()), b.device(meter));
    // Both nodes have numbered from 1, outside a cluster.
    let other = b.device(json!({"id": "e", "product": "meter"}));
    assert_eq!(a.call(&here, "one"), b.call(&other, "other"));
    let offered = offer(&a, "d").commands;
    assert_eq!(offered.len(), 1);
    assert!(b.commands.take_over(offered).unwrap().is_empty());
    assert_eq!(b.commands.get(CommandId(1)).unwrap().unwrap().device, "e");
}
