//! The names of the language with a description each, for editors: fields of events, sources, windows and aggregates.
//! Functions are described in their tables.

use crate::event_field::{EventField, field_names};
use crate::rule_source::{EventKind, event_names};
use crate::window::AggregateKind;

/// A name that statements can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LanguageName {
    pub name: String,
    /// Other spellings of the name.
    pub aliases: Vec<String>,
    pub help: &'static str,
}

/// The fields of events, in the order of the table of fields.
#[must_use]
pub fn fields() -> Vec<LanguageName> {
    let mut described: Vec<(EventField, LanguageName)> = Vec::new();
    for (name, field) in field_names() {
        let Some(help) = field.help() else { continue };
        match described.iter_mut().find(|(known, _)| *known == field) {
            Some((_, entry)) => entry.aliases.push(name.to_owned()),
            None => described.push((field, language_name(name, help))),
        }
    }
    described.into_iter().map(|(_, entry)| entry).collect()
}

/// The events that FROM can name, and the prefixes of rules and connectors.
#[must_use]
pub fn sources() -> Vec<LanguageName> {
    let events = EventKind::ALL.map(|kind| LanguageName {
        name: kind.name().to_owned(),
        aliases: event_names(kind)
            .filter(|name| name != kind.name())
            .collect(),
        help: kind.help(),
    });
    let mut sources = Vec::from(events);
    sources.push(language_name(
        "$rule/",
        "Outputs of the rule with this name",
    ));
    sources.push(language_name(
        "$bridges/",
        "Messages from the source of a connector: $bridges/TYPE:NAME",
    ));
    sources
}

/// The aggregates of a rule with a window, each with its arguments.
#[must_use]
pub fn aggregates() -> Vec<LanguageName> {
    AggregateKind::ALL
        .iter()
        .map(|&(name, kind)| language_name(name, kind.help()))
        .collect()
}

/// The windows that GROUP BY accepts.
#[must_use]
pub fn windows() -> Vec<LanguageName> {
    [
        (
            "tumbling(10s)",
            "Consecutive intervals; also tumbling(1w) and tumbling(1mo)",
        ),
        (
            "hopping(1m, 10s)",
            "Intervals of one minute, one beginning every 10 seconds",
        ),
        ("sliding(1m)", "The minute before each event"),
        (
            "session(30s)",
            "Events that follow each other within 30 seconds",
        ),
        ("count(100)", "One hundred events"),
    ]
    .map(|(name, help)| language_name(name, help))
    .into()
}

fn language_name(name: &str, help: &'static str) -> LanguageName {
    LanguageName {
        name: name.to_owned(),
        aliases: Vec::new(),
        help,
    }
}

impl EventField {
    /// What the field contains; `None`: this broker has no values for it.
    fn help(self) -> Option<&'static str> {
        Some(match self {
            Self::Protocol => "MQTT, or WebSocket for events of relay endpoints",
            Self::Id => "Identity of the message, 32 hexadecimal digits",
            Self::Timestamp => "Time of the event in milliseconds since 1970",
            Self::ClientId => "Client id; of a delivery, that of the subscriber",
            Self::Username => "User name of the client",
            Self::ClientIp => "Address of the client without the port",
            Self::PeerName => "Address and port of the client",
            Self::SockName => "Address and port that the client connected to",
            Self::NodeIp => "Address of the node",
            Self::Node => "Name of the node",
            Self::EventName => "Name of the event, such as message.publish",
            Self::Topic => "Topic of the message, or filter of a subscription",
            Self::Qos => "Quality of service: 0, 1 or 2",
            Self::Retain => "Whether the message is retained",
            Self::Dup => "Whether the packet is a repetition",
            Self::Flags => "Flags retain and dup of the packet",
            Self::MessageId => "Packet identifier",
            Self::Payload => "Payload; a path such as payload.temperature reads it as JSON",
            Self::Properties => "MQTT 5 properties of the packet, such as pub_props.'Content-Type'",
            Self::AckProperties => "MQTT 5 properties of the acknowledgement",
            Self::ReceivedAt => "Time the message was received, in milliseconds since 1970",
            Self::FromClientId => {
                "Client id of the publisher of a message that was delivered or dropped"
            }
            Self::FromUsername => {
                "User name of the publisher of a message that was delivered or dropped"
            }
            Self::Reason | Self::EmqxReason => "Reason of a disconnection, drop or failure",
            Self::Result => "Result of an authorisation: allow or deny",
            Self::Action => "Action of an authorisation: publish or subscribe",
            Self::AuthzSource => "What decided an authorisation",
            Self::AckStatus => "Kind of acknowledgement: ack, rec or comp",
            Self::RuleName => "Name of the rule that failed",
            Self::Version => "MQTT version of the client, such as MQTT_5",
            Self::ProtoVer => "MQTT version of the client as a number: 3, 4 or 5",
            Self::ProtoName => "Protocol name of the client: MQTT or MQIsdp",
            Self::KeepAlive => "Keep-alive of the client in seconds",
            Self::CleanStart => "Whether the client began a new session",
            Self::ExpiryInterval => {
                "Seconds for which the session is kept after the client disconnects"
            }
            Self::ReceiveMaximum => "Maximum number of messages in flight to the client",
            Self::ConnectedAt => "Time the client connected, in milliseconds since 1970",
            Self::DisconnectedAt => "Time the client disconnected, in milliseconds since 1970",
            Self::IsSuperuser => "Whether the client has all permissions",
            Self::IsAnonymous => "Whether the client has no user name",
            Self::Auth => {
                "Credentials of the connection: auth.username; the password is never shown"
            }
            Self::Will => "Will of the connection, such as will.willTopic",
            Self::Absent => return None,
        })
    }
}

impl EventKind {
    fn help(self) -> &'static str {
        match self {
            Self::Publish => "A message was received",
            Self::Delivered => "A message was sent to a subscriber",
            Self::Acked => "A subscriber acknowledged a message; twice for QoS 2",
            Self::MessageAcked => "A subscriber acknowledged a message",
            Self::Dropped => "A message was dropped for one subscriber, or for all",
            Self::MessageDropped => "A message had no recipient",
            Self::DeliveryDropped => "A message was dropped for one subscriber",
            Self::Offline => "A message was queued for a disconnected client",
            Self::Connected => "A client connected",
            Self::Connack => "The response to a connection attempt was sent",
            Self::AuthnComplete => "An authentication completed",
            Self::AuthzComplete => "An authorisation completed",
            Self::Disconnected => "A client disconnected",
            Self::Subscribed => "A client subscribed",
            Self::Unsubscribed => "A client unsubscribed",
            Self::Ping => "A client sent PINGREQ",
            Self::Device => {
                "An event of a device: property, event, online, offline, alarm, command, attributes"
            }
            Self::RelayConnected => "A client connected to a relay endpoint",
            Self::RelayIdentified => "A client of a relay endpoint identified itself as a device",
            Self::RelayDisconnected => "A client disconnected from a relay endpoint",
            Self::FileReceived => "A file was received completely",
            Self::RuleFailed => "A rule failed, or one of its actions failed permanently",
        }
    }
}

impl AggregateKind {
    fn help(self) -> &'static str {
        match self {
            Self::Count => {
                "Number of events, or of values that are not null: count(*), count(x), count(distinct x)"
            }
            Self::Sum => "Sum of the values: sum(x)",
            Self::Avg => "Mean of the values: avg(x)",
            Self::Min => "Smallest value: min(x)",
            Self::Max => "Largest value: max(x)",
            Self::First => "First value: first(x)",
            Self::Last => "Last value: last(x)",
            Self::Collect => "List of all values: collect(x)",
            Self::Stddev => "Population standard deviation: stddev(x)",
            Self::Percentile => "Percentile, interpolated: percentile(x, 95)",
            Self::DistinctCount => "Number of different values: distinct_count(x)",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_all_spellings_and_none_without_values() {
        let fields = fields();
        let client = fields.iter().find(|field| field.name == "clientId");
        assert_eq!(
            client.expect("the field exists").aliases,
            ["clientid", "client_id"]
        );
        assert!(fields.iter().all(|field| field.name != "mountpoint"));
    }

    #[test]
    fn every_name_of_a_source_can_be_parsed() {
        use crate::rule_source::RuleSource;
        for source in sources() {
            for name in source.aliases.iter().chain([&source.name]) {
                assert!(RuleSource::parse(name).is_ok(), "{name}");
            }
        }
        let publish = &sources()[0];
        assert_eq!(publish.name, "$EVENT.PUBLISH");
        assert_eq!(publish.aliases, ["$events/message/publish"]);
    }
}
