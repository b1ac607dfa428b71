//! Expiry of messages on both shards.

use super::*;

fn node() -> Option<&'static Node> {
    node_with(&[])
}

fn expiring(topic: &str, payload: &str, seconds: u32) -> Publish {
    Publish::new(topic, payload)
        .qos(1, 1)
        .properties(Props::new().u32(property::MESSAGE_EXPIRY, seconds))
}

#[test]
fn a_message_that_expires_at_once_still_reaches_who_is_there() {
    let Some(node) = node() else { return };
    for mut raw in clients_on_both_shards(node, 1).into_iter().flatten() {
        let topic = unique("expiry/");
        raw.subscribe(&topic, 1);
        publish_for_code(&mut client(node), &expiring(&topic, "brief", 1));
        let message = raw.recv_message(&topic, "brief");
        assert!(matches!(
            message.number(property::MESSAGE_EXPIRY),
            Some(0 | 1)
        ));
    }
}
