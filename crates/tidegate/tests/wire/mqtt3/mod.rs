//! MQTT 3.1.1: one test per normative statement that a server can break, named after it.

use crate::support::{Node, Raw};

#[test]
fn mqtt_3_12_4_1_pingreq_is_answered_by_pingresp() {
    let mut client = Raw::client(Node::shared(), 4);
    client.ping();
}
