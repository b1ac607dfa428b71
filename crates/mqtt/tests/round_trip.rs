//! Round trips: every packet, property, version and direction decodes to what was encoded.

mod invariants;
mod strategies;

use mqtt::{Packet, Properties, Property};
use proptest::prelude::*;
use strategies::sample;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn a_packet_reads_as_it_was_written(sample in sample()) {
        let bytes = sample.encode();
        let found = sample.decode(&bytes).map_err(|error| TestCaseError::fail(error.to_string()))?;
        sample.with_packet(|packet| assert_eq!(found, packet));
        let frame = mqtt::split_frame(&bytes, u32::MAX)?.expect("it is whole");
        invariants::check_packet(&found, frame, sample.version, sample.direction);
    }

    #[test]
    fn properties_read_as_they_were_written(sample in sample()) {
        let bytes = sample.encode();
        let found = sample.decode(&bytes)?;
        let Some(properties) = properties_of(&found) else {
            return Ok(());
        };
        let expected: Vec<Property<'_>> =
            sample.properties().iter().map(|property| property.as_property()).collect();
        prop_assert_eq!(properties.iter().collect::<Vec<_>>(), expected.clone());
        for property in expected {
            prop_assert!(getter_finds(&properties, property), "{:?}", property);
        }
    }

    #[test]
    fn every_prefix_is_incomplete(sample in sample()) {
        invariants::check_prefixes(&sample.encode());
    }

    /// The maximum packet size is exact, and is enforced as soon as the header is complete.
    #[test]
    fn a_packet_over_the_maximum_is_rejected_at_its_header(sample in sample()) {
        let bytes = sample.encode();
        let len = bytes.len() as u32;
        prop_assert!(mqtt::split_frame(&bytes, len).is_ok_and(|frame| frame.is_some()));
        let remaining = bytes[1..].iter().position(|byte| byte & 0x80 == 0).expect("it ends");
        let rejected = mqtt::split_frame(&bytes[..remaining + 2], len - 1);
        prop_assert_eq!(rejected.map_err(|error| error.reason), Err(mqtt::ReasonCode::PACKET_TOO_LARGE));
    }
}

fn properties_of<'a>(packet: &Packet<'a>) -> Option<Properties<'a>> {
    match packet {
        Packet::Connect(packet) => Some(packet.properties),
        Packet::ConnAck(packet) => Some(packet.properties),
        Packet::Publish(packet) => Some(packet.properties),
        Packet::Subscribe(packet) => Some(packet.properties),
        Packet::SubAck(packet) => Some(packet.properties),
        Packet::Disconnect(packet) => Some(packet.properties),
        Packet::Auth(packet) => Some(packet.properties),
        _ => None,
    }
}

/// Whether the getter of this kind of property returns it, alone or among several.
fn getter_finds(all: &Properties<'_>, property: Property<'_>) -> bool {
    use Property::*;
    match property {
        PayloadFormatIndicator(value) => all.payload_format_indicator() == Some(value),
        MessageExpiryInterval(value) => all.message_expiry_interval() == Some(value),
        ContentType(value) => all.content_type() == Some(value),
        ResponseTopic(value) => all.response_topic() == Some(value),
        CorrelationData(value) => all.correlation_data() == Some(value),
        SubscriptionIdentifier(value) => all.subscription_identifiers().any(|id| id == value),
        SessionExpiryInterval(value) => all.session_expiry_interval() == Some(value),
        AssignedClientIdentifier(value) => all.assigned_client_identifier() == Some(value),
        ServerKeepAlive(value) => all.server_keep_alive() == Some(value),
        AuthenticationMethod(value) => all.authentication_method() == Some(value),
        AuthenticationData(value) => all.authentication_data() == Some(value),
        RequestProblemInformation(value) => all.request_problem_information() == Some(value),
        WillDelayInterval(value) => all.will_delay_interval() == Some(value),
        RequestResponseInformation(value) => all.request_response_information() == Some(value),
        ResponseInformation(value) => all.response_information() == Some(value),
        ServerReference(value) => all.server_reference() == Some(value),
        ReasonString(value) => all.reason_string() == Some(value),
        ReceiveMaximum(value) => all.receive_maximum() == Some(value),
        TopicAliasMaximum(value) => all.topic_alias_maximum() == Some(value),
        TopicAlias(value) => all.topic_alias() == Some(value),
        MaximumQos(value) => all.maximum_qos() == Some(value),
        RetainAvailable(value) => all.retain_available() == Some(value),
        UserProperty(name, value) => all.user_properties().any(|pair| pair == (name, value)),
        MaximumPacketSize(value) => all.maximum_packet_size() == Some(value),
        WildcardSubscriptionAvailable(value) => {
            all.wildcard_subscription_available() == Some(value)
        }
        SubscriptionIdentifierAvailable(value) => {
            all.subscription_identifier_available() == Some(value)
        }
        SharedSubscriptionAvailable(value) => all.shared_subscription_available() == Some(value),
    }
}
