//! Chapter 4.11, server redirection. Every statement is a MAY; this server names another one when it stops.

use super::*;

#[test]
fn mqtt5_section_4_11_a_stopping_server_names_another_one() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::start(&["--set", "node.server_reference=other.example:1883"]);
    let mut raw = Raw::client(&node, 5);
    let mut silent = Raw::client(&node, 5);
    let mut old = Raw::client(&node, 4);
    node.signal(libc::SIGTERM);
    for raw in [&mut raw, &mut silent] {
        // "Use another server" would be the code the chapter means; the specification binds nobody to it.
        let packet = expect_disconnect_for(raw, &[reason::SHUTTING_DOWN, 0x9c]);
        assert_eq!(
            packet.property(property::SERVER_REFERENCE),
            Some(&Value::String("other.example:1883".into()))
        );
        assert_eq!(packet.property(property::SESSION_EXPIRY), None);
    }
    // 3.1.1 has no DISCONNECT from the server.
    old.expect_closed();
}

#[test]
fn mqtt5_section_4_11_without_another_server_none_is_named() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::start(&[]);
    let mut raw = Raw::client(&node, 5);
    node.signal(libc::SIGTERM);
    let packet = expect_disconnect_for(&mut raw, &[reason::SHUTTING_DOWN]);
    assert_eq!(packet.property(property::SERVER_REFERENCE), None);
}
