//! Chapter 4.10, request and response, and 3.1.2.11.6, Request Response Information.

use super::*;

#[test]
fn mqtt5_3_1_2_28_without_a_request_there_is_no_response_information() {
    for properties in [
        Props::new(),
        Props::new().byte(property::REQUEST_RESPONSE_INFO, 0),
    ] {
        let connect = connect(&unique("c")).properties(properties);
        let (_, connack) = Raw::connect_for_connack(node(), &connect);
        assert_eq!(connack.property(property::RESPONSE_INFO), None);
    }
}

#[test]
fn mqtt5_section_3_2_2_3_15_requested_response_information_is_a_usable_topic_part() {
    let properties = Props::new().byte(property::REQUEST_RESPONSE_INFO, 1);
    let connect = connect(&unique("c")).properties(properties);
    let (mut raw, connack) = Raw::connect_for_connack(node(), &connect);
    // The server may leave it out.
    if let Some(value) = connack.property(property::RESPONSE_INFO) {
        let Value::String(information) = value else {
            panic!("{connack:?}")
        };
        let topic = format!("{}/reply", information.trim_end_matches('/'));
        raw.subscribe(&topic, 0);
        client().publish(&topic, "reply");
        raw.recv_message(&topic, "reply");
    }
}

#[test]
fn mqtt5_section_4_10_a_request_is_answered_on_its_response_topic() {
    let requests = unique("requests/");
    let replies = unique("replies/");
    let mut requester = client();
    requester.subscribe(&replies, 1);
    let mut responder = client();
    responder.subscribe(&requests, 1);
    for number in 0..3_u8 {
        let properties = Props::new()
            .string(property::RESPONSE_TOPIC, &replies)
            .string(property::CORRELATION_DATA, [number, 0, 255]);
        requester.send_publish(
            &Publish::new(&requests, "?")
                .qos(1, 1)
                .properties(properties),
        );
        requester.recv(kind::PUBACK);
        let request = responder.recv_message(&requests, "?");
        responder.acknowledge(&request);
        let Some(Value::String(reply_to)) = request.property(property::RESPONSE_TOPIC) else {
            panic!("no response topic: {request:?}")
        };
        let Some(Value::Binary(correlation)) = request.property(property::CORRELATION_DATA) else {
            panic!("no correlation data: {request:?}")
        };
        let properties = Props::new().string(property::CORRELATION_DATA, correlation);
        responder.send_publish(&Publish::new(reply_to, "!").properties(properties));
        let reply = requester.recv_message(&replies, "!");
        assert_eq!(
            reply.property(property::CORRELATION_DATA),
            Some(&Value::Binary(vec![number, 0, 255]))
        );
    }
}
