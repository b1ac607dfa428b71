//! Sources of events: the names allowed in FROM, in the spellings of FluxMQ and EMQX.

use std::fmt;

/// The kind of an event. Each kind has one set of fields, independent of its name in FROM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EventKind {
    Publish,
    Delivered,
    /// Every acknowledgement of a subscriber: two for QoS 2.
    Acked,
    /// A subscriber acknowledged a message; for QoS 2 with its PUBREC.
    MessageAcked,
    /// A message was dropped for one subscriber, or for all.
    Dropped,
    /// A message had no recipient.
    MessageDropped,
    /// A message was dropped for one subscriber.
    DeliveryDropped,
    Offline,
    Connected,
    Connack,
    AuthnComplete,
    AuthzComplete,
    Disconnected,
    Subscribed,
    Unsubscribed,
    Ping,
    Device,
    /// A client has connected to a relay endpoint.
    RelayConnected,
    /// A client of a relay endpoint has identified itself as a device.
    RelayIdentified,
    /// A client of a relay endpoint has disconnected.
    RelayDisconnected,
    /// A file was received completely.
    FileReceived,
    /// A rule failed, or one of its actions failed permanently.
    RuleFailed,
}

impl EventKind {
    pub const ALL: [Self; 22] = [
        Self::Publish,
        Self::Delivered,
        Self::Acked,
        Self::MessageAcked,
        Self::Dropped,
        Self::MessageDropped,
        Self::DeliveryDropped,
        Self::Offline,
        Self::Connected,
        Self::Connack,
        Self::AuthnComplete,
        Self::AuthzComplete,
        Self::Disconnected,
        Self::Subscribed,
        Self::Unsubscribed,
        Self::Ping,
        Self::Device,
        Self::RelayConnected,
        Self::RelayIdentified,
        Self::RelayDisconnected,
        Self::FileReceived,
        Self::RuleFailed,
    ];

    /// The name in FROM: FluxMQ's if it exists, otherwise EMQX's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Publish => "$EVENT.PUBLISH",
            Self::Delivered => "$EVENT.DELIVERED",
            Self::Acked => "$EVENT.ACK",
            Self::MessageAcked => "$events/message/acked",
            Self::Dropped => "$EVENT.DROP",
            Self::MessageDropped => "$events/message/dropped",
            Self::DeliveryDropped => "$events/message/delivery_dropped",
            Self::Offline => "$EVENT.OFFLINE",
            Self::Connected => "$EVENT.CONNECT",
            Self::Connack => "$events/client/connack",
            Self::AuthnComplete => "$events/auth/check_authn_complete",
            Self::AuthzComplete => "$events/auth/check_authz_complete",
            Self::Disconnected => "$EVENT.DISCONNECT",
            Self::Subscribed => "$EVENT.SUBSCRIBE",
            Self::Unsubscribed => "$EVENT.UNSUBSCRIBE",
            Self::Ping => "$EVENT.PING",
            Self::Device => "$EVENT.DEVICE",
            Self::RelayConnected => "$events/relay/connected",
            Self::RelayIdentified => "$events/relay/identified",
            Self::RelayDisconnected => "$events/relay/disconnected",
            Self::FileReceived => "$events/file/received",
            Self::RuleFailed => "$EVENT.RULE_FAILED",
        }
    }

    /// The value of the field `event`: EMQX's name.
    pub fn event_name(self) -> &'static str {
        match self {
            Self::Publish => "message.publish",
            Self::Delivered => "message.delivered",
            Self::Acked | Self::MessageAcked => "message.acked",
            Self::Dropped | Self::MessageDropped => "message.dropped",
            Self::DeliveryDropped => "delivery.dropped",
            Self::Offline => "message.offline",
            Self::Connected => "client.connected",
            Self::Connack => "client.connack",
            Self::AuthnComplete => "client.check_authn_complete",
            Self::AuthzComplete => "client.check_authz_complete",
            Self::Disconnected => "client.disconnected",
            Self::Subscribed => "session.subscribed",
            Self::Unsubscribed => "session.unsubscribed",
            Self::Ping => "client.ping",
            Self::Device => "device",
            Self::RelayConnected => "relay.connected",
            Self::RelayIdentified => "relay.identified",
            Self::RelayDisconnected => "relay.disconnected",
            Self::FileReceived => "file.received",
            Self::RuleFailed => "rule.failed",
        }
    }

    /// The names of the fields in [`RuleEvent::extra`](crate::RuleEvent::extra), if only this kind of event has them
    /// and all are known.
    pub fn own_fields(self) -> &'static [&'static str] {
        match self {
            Self::RelayConnected | Self::RelayIdentified | Self::RelayDisconnected => RELAY_FIELDS,
            _ => &[],
        }
    }

    /// Whether `SELECT *` selects the fields in [`RuleEvent::extra`](crate::RuleEvent::extra) in addition to the columns
    /// of the event.
    pub(crate) fn extends_columns(self) -> bool {
        matches!(self, Self::Device | Self::FileReceived) || !self.own_fields().is_empty()
    }
}

/// The fields of events of relay endpoints; an event has a part of them.
const RELAY_FIELDS: &[&str] = &[
    "endpoint_id",
    "namespace",
    "connection_id",
    "peer_address",
    "connected_at",
    "device_id",
    "db_device_id",
    "reason",
    "duration_ms",
    "messages_in",
    "bytes_in",
    "messages_out",
    "bytes_out",
];

/// FluxMQ's names without `$EVENT.`; a `/` is accepted instead of the dot.
const FLUXMQ_EVENTS: &[(&str, EventKind)] = &[
    ("PUBLISH", EventKind::Publish),
    ("DELIVERED", EventKind::Delivered),
    ("ACK", EventKind::Acked),
    ("DROP", EventKind::Dropped),
    ("OFFLINE", EventKind::Offline),
    ("CONNECT", EventKind::Connected),
    ("DISCONNECT", EventKind::Disconnected),
    ("CLOSE", EventKind::Disconnected),
    ("SUBSCRIBE", EventKind::Subscribed),
    ("UNSUBSCRIBE", EventKind::Unsubscribed),
    ("PING", EventKind::Ping),
    ("DEVICE", EventKind::Device),
    ("RULE_FAILED", EventKind::RuleFailed),
];

/// EMQX's names without `$events/`; a `_` is accepted instead of the first `/`.
const EMQX_EVENTS: &[(&str, EventKind)] = &[
    ("message/publish", EventKind::Publish),
    ("message/delivered", EventKind::Delivered),
    ("message/acked", EventKind::MessageAcked),
    ("message/dropped", EventKind::MessageDropped),
    ("message/delivery_dropped", EventKind::DeliveryDropped),
    ("client/connected", EventKind::Connected),
    ("client/disconnected", EventKind::Disconnected),
    ("client/connack", EventKind::Connack),
    ("client/ping", EventKind::Ping),
    ("auth/check_authn_complete", EventKind::AuthnComplete),
    ("auth/check_authz_complete", EventKind::AuthzComplete),
    ("session/subscribed", EventKind::Subscribed),
    ("session/unsubscribed", EventKind::Unsubscribed),
    ("relay/connected", EventKind::RelayConnected),
    ("relay/identified", EventKind::RelayIdentified),
    ("relay/disconnected", EventKind::RelayDisconnected),
    ("file/received", EventKind::FileReceived),
    // Names before EMQX 5.7, which existing rules still use.
    ("client/check_authn_complete", EventKind::AuthnComplete),
    ("client/check_authz_complete", EventKind::AuthzComplete),
    ("delivery/dropped", EventKind::DeliveryDropped),
];

/// The names of an event in FROM, FluxMQ's first.
pub(crate) fn event_names(kind: EventKind) -> impl Iterator<Item = String> {
    let names = |prefix: &'static str, table: &'static [(&'static str, EventKind)]| {
        let of_kind = table.iter().filter(move |(_, known)| *known == kind);
        of_kind.map(move |(name, _)| format!("{prefix}{name}"))
    };
    names("$EVENT.", FLUXMQ_EVENTS).chain(names("$events/", EMQX_EVENTS))
}

/// One name in FROM.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RuleSource {
    Event(EventKind),
    /// Messages published to topics that match this filter.
    Topic(Box<str>),
    /// The outputs of another rule: `$rule/NAME`.
    Rule(Box<str>),
    /// Messages from a connector: `$bridges/TYPE:NAME`, here `TYPE:NAME`.
    Bridge(Box<str>),
}

/// An unknown name that begins with `$`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownSourceError {
    pub nearest: Option<&'static str>,
}

impl RuleSource {
    /// Parses a name in FROM. Does not check whether a topic filter is valid.
    pub fn parse(name: &str) -> Result<Self, UnknownSourceError> {
        if let Some(rest) = strip_prefix_ignore_case(name, "$EVENT.")
            .or_else(|| strip_prefix_ignore_case(name, "$EVENT/"))
        {
            return FLUXMQ_EVENTS
                .iter()
                .find(|(known, _)| known.eq_ignore_ascii_case(rest))
                .map(|&(_, kind)| Self::Event(kind))
                .ok_or_else(|| UnknownSourceError {
                    nearest: nearest_event(name),
                });
        }
        if let Some(rest) = name.strip_prefix("$events/") {
            return EMQX_EVENTS
                .iter()
                .find(|(known, _)| *known == rest || known.replacen('/', "_", 1) == rest)
                .map(|&(_, kind)| Self::Event(kind))
                .ok_or_else(|| UnknownSourceError {
                    nearest: nearest_event(name),
                });
        }
        for prefix in ["$rule/", "$rules/"] {
            if let Some(rest) = name.strip_prefix(prefix) {
                return Ok(Self::Rule(rest.into()));
            }
        }
        for prefix in ["$bridges/", "$sources/"] {
            if let Some(rest) = name.strip_prefix(prefix) {
                return Ok(Self::Bridge(rest.into()));
            }
        }
        Ok(Self::Topic(name.into()))
    }

    /// Parses a name in FROM that may stand for several events: `$events/client/+`, `$events/#`. As in EMQX,
    /// such a pattern does not include published messages.
    pub fn parse_all(name: &str) -> Result<Vec<Self>, UnknownSourceError> {
        let Some(filter) = name
            .strip_prefix("$events/")
            .filter(|filter| filter.contains(['+', '#']))
        else {
            return Self::parse(name).map(|source| vec![source]);
        };
        let mut sources = Vec::new();
        for &(known, kind) in EMQX_EVENTS {
            let source = Self::Event(kind);
            // Its fields are open, so that a general pattern would no longer find misspelt fields of other events.
            let is_general = kind == EventKind::FileReceived && !filter.starts_with("file/");
            if kind != EventKind::Publish
                && !is_general
                && mqtt::filter_matches(filter, known)
                && !sources.contains(&source)
            {
                sources.push(source);
            }
        }
        match sources.is_empty() {
            true => Err(UnknownSourceError {
                nearest: nearest_event(name),
            }),
            false => Ok(sources),
        }
    }

    /// Whether this source can yield events of this kind.
    pub fn accepts_kind(&self, kind: EventKind) -> bool {
        match self {
            Self::Event(own) => *own == kind,
            Self::Topic(_) => kind == EventKind::Publish,
            Self::Rule(_) | Self::Bridge(_) => false,
        }
    }

    /// The names of the fields that only events of this source have, if they are known.
    pub(crate) fn own_fields(&self) -> &'static [&'static str] {
        match self {
            Self::Event(kind) => kind.own_fields(),
            Self::Topic(_) | Self::Rule(_) | Self::Bridge(_) => &[],
        }
    }

    /// Whether the fields are known only to the sender.
    pub fn has_open_fields(&self) -> bool {
        matches!(
            self,
            Self::Rule(_)
                | Self::Bridge(_)
                | Self::Event(EventKind::Device | EventKind::FileReceived)
        )
    }
}

/// The names of the fields that only events of these sources have. All kinds with such fields have the same ones.
pub(crate) fn own_fields(sources: &[RuleSource]) -> &'static [&'static str] {
    let mut lists = sources.iter().map(RuleSource::own_fields);
    lists.find(|list| !list.is_empty()).unwrap_or_default()
}

impl fmt::Display for RuleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event(kind) => f.write_str(kind.name()),
            Self::Topic(filter) => f.write_str(filter),
            Self::Rule(name) => write!(f, "$rule/{name}"),
            Self::Bridge(name) => write!(f, "$bridges/{name}"),
        }
    }
}

fn strip_prefix_ignore_case<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let head = text.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix)
        .then(|| &text[prefix.len()..])
}

fn nearest_event(name: &str) -> Option<&'static str> {
    const NAMES: &[&str] = &[
        "$EVENT.PUBLISH",
        "$EVENT.DELIVERED",
        "$EVENT.ACK",
        "$EVENT.DROP",
        "$EVENT.OFFLINE",
        "$EVENT.CONNECT",
        "$EVENT.DISCONNECT",
        "$EVENT.CLOSE",
        "$EVENT.SUBSCRIBE",
        "$EVENT.UNSUBSCRIBE",
        "$EVENT.PING",
        "$EVENT.DEVICE",
        "$EVENT.RULE_FAILED",
        "$events/message/publish",
        "$events/message/delivered",
        "$events/message/acked",
        "$events/message/dropped",
        "$events/message/delivery_dropped",
        "$events/client/connected",
        "$events/client/disconnected",
        "$events/client/connack",
        "$events/client/ping",
        "$events/auth/check_authn_complete",
        "$events/auth/check_authz_complete",
        "$events/session/subscribed",
        "$events/session/unsubscribed",
        "$events/relay/connected",
        "$events/relay/identified",
        "$events/relay/disconnected",
        "$events/file/received",
    ];
    crate::suggestion::nearest_name(name, NAMES.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_dialects_name_the_same_events() {
        for (name, kind) in [
            ("$EVENT.PUBLISH", EventKind::Publish),
            ("$event.publish", EventKind::Publish),
            ("$EVENT/SUBSCRIBE", EventKind::Subscribed),
            ("$EVENT.CLOSE", EventKind::Disconnected),
            ("$events/client/connected", EventKind::Connected),
            ("$events/client_connected", EventKind::Connected),
            ("$EVENT.DROP", EventKind::Dropped),
            ("$events/message/dropped", EventKind::MessageDropped),
            (
                "$events/message_delivery_dropped",
                EventKind::DeliveryDropped,
            ),
            (
                "$events/auth/check_authz_complete",
                EventKind::AuthzComplete,
            ),
        ] {
            assert_eq!(
                RuleSource::parse(name),
                Ok(RuleSource::Event(kind)),
                "{name}"
            );
        }
        assert_eq!(
            RuleSource::parse("t/+/#"),
            Ok(RuleSource::Topic("t/+/#".into()))
        );
        assert_eq!(
            RuleSource::parse("$SYS/#"),
            Ok(RuleSource::Topic("$SYS/#".into()))
        );
        assert_eq!(
            RuleSource::parse("$rule/a"),
            Ok(RuleSource::Rule("a".into()))
        );
        assert_eq!(
            RuleSource::parse("$bridges/mqtt:in"),
            Ok(RuleSource::Bridge("mqtt:in".into()))
        );
    }

    #[test]
    fn wildcards_stand_for_several_events() {
        let kinds = |name| {
            let sources = RuleSource::parse_all(name).unwrap_or_default();
            let kind = |source| match source {
                RuleSource::Event(kind) => kind,
                other => panic!("{other}"),
            };
            sources.into_iter().map(kind).collect::<Vec<_>>()
        };
        assert_eq!(
            kinds("$events/session/+"),
            [EventKind::Subscribed, EventKind::Unsubscribed]
        );
        let all = kinds("$events/#");
        assert!(all.contains(&EventKind::Connected) && all.contains(&EventKind::MessageDropped));
        assert!(!all.contains(&EventKind::Publish) && !all.contains(&EventKind::Device));
        assert!(!all.contains(&EventKind::FileReceived));
        assert_eq!(kinds("$events/file/+"), [EventKind::FileReceived]);
        assert_eq!(kinds("$EVENT.RULE_FAILED"), [EventKind::RuleFailed]);
        assert!(RuleSource::parse_all("$events/sesion/+").is_err());
    }

    #[test]
    fn an_unknown_event_gets_a_suggestion() {
        let nearest = |name| RuleSource::parse(name).expect_err(name).nearest;
        assert_eq!(nearest("$EVENT.PUBLISHED"), Some("$EVENT.PUBLISH"));
        assert_eq!(
            nearest("$events/client/conected"),
            Some("$events/client/connected")
        );
    }
}
