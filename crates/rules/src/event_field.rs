//! Fields of events: each is one small number, with the spellings of both dialects.

mod field_values;

use crate::event::{ConnectionDetails, RuleEvent};
use crate::function_context::Dialect;
use crate::rule_source::EventKind;
use crate::value::{Arena, Value};
use field_values::{
    ack_properties, ack_status, address_text, flags_map, hex, host_text, properties_map,
    version_name, will_map,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum EventField {
    Protocol,
    Id,
    Timestamp,
    ClientId,
    Username,
    ClientIp,
    PeerName,
    SockName,
    NodeIp,
    Node,
    EventName,
    Topic,
    Qos,
    Retain,
    Dup,
    Flags,
    MessageId,
    Payload,
    Properties,
    AckProperties,
    ReceivedAt,
    FromClientId,
    FromUsername,
    Reason,
    /// The reason in EMQX's terms.
    EmqxReason,
    Result,
    Action,
    AuthzSource,
    AckStatus,
    RuleName,
    Version,
    ProtoVer,
    ProtoName,
    KeepAlive,
    CleanStart,
    ExpiryInterval,
    ReceiveMaximum,
    ConnectedAt,
    DisconnectedAt,
    IsSuperuser,
    IsAnonymous,
    Auth,
    Will,
    /// Fields of EMQX that this broker has no values for.
    Absent,
}

use EventField as F;

/// Every spelling of every field. The first one is FluxMQ's if it exists.
const FIELD_NAMES: &[(&str, EventField)] = &[
    ("protocol", F::Protocol),
    ("id", F::Id),
    ("timestamp", F::Timestamp),
    ("time", F::Timestamp),
    ("clientId", F::ClientId),
    ("clientid", F::ClientId),
    ("client_id", F::ClientId),
    ("username", F::Username),
    ("clientIp", F::ClientIp),
    ("client_ip", F::ClientIp),
    ("peerhost", F::ClientIp),
    ("peername", F::PeerName),
    ("sockname", F::SockName),
    ("nodeIp", F::NodeIp),
    ("node_ip", F::NodeIp),
    ("node", F::Node),
    ("event", F::EventName),
    ("topic", F::Topic),
    ("qos", F::Qos),
    ("retain", F::Retain),
    ("dup", F::Dup),
    ("flags", F::Flags),
    ("messageId", F::MessageId),
    ("message_id", F::MessageId),
    ("packet_id", F::MessageId),
    ("payload", F::Payload),
    ("msg", F::Payload),
    ("pub_props", F::Properties),
    ("conn_props", F::Properties),
    ("sub_props", F::Properties),
    ("unsub_props", F::Properties),
    ("disconn_props", F::Properties),
    ("puback_props", F::AckProperties),
    ("publish_received_at", F::ReceivedAt),
    ("from_clientid", F::FromClientId),
    ("fromClientId", F::FromClientId),
    ("from_username", F::FromUsername),
    ("fromUsername", F::FromUsername),
    ("reason", F::Reason),
    ("reason_code", F::Reason),
    ("desc", F::Reason),
    ("result", F::Result),
    ("action", F::Action),
    ("authz_source", F::AuthzSource),
    ("ack_status", F::AckStatus),
    ("ackStatus", F::AckStatus),
    ("rule_name", F::RuleName),
    ("ruleName", F::RuleName),
    ("error_message", F::Reason),
    ("errorMessage", F::Reason),
    ("version", F::Version),
    ("proto_ver", F::ProtoVer),
    ("proto_name", F::ProtoName),
    ("keepalive", F::KeepAlive),
    ("keepAlive", F::KeepAlive),
    ("cleanSession", F::CleanStart),
    ("clean_start", F::CleanStart),
    ("clean_session", F::CleanStart),
    ("expiry_interval", F::ExpiryInterval),
    ("receive_maximum", F::ReceiveMaximum),
    ("connected_at", F::ConnectedAt),
    ("disconnected_at", F::DisconnectedAt),
    ("is_superuser", F::IsSuperuser),
    ("is_anonymous", F::IsAnonymous),
    ("auth", F::Auth),
    ("will", F::Will),
    ("client_attrs", F::Absent),
    ("headers", F::Absent),
    ("metadata", F::Absent),
    ("user_properties", F::Absent),
    ("mountpoint", F::Absent),
    ("is_bridge", F::Absent),
];

/// Other spellings of an event's field: `payload` for `msg`, `clientid` for `clientId`. Empty if no field has
/// this name.
pub fn spellings(name: &str) -> impl Iterator<Item = &'static str> {
    let field = EventField::find(name).filter(|field| *field != F::Absent);
    FIELD_NAMES
        .iter()
        .filter(move |(other, of)| Some(*of) == field && *other != name)
        .map(|(other, _)| *other)
}

/// Every spelling of every field, in the order of the table.
pub(crate) fn field_names() -> impl Iterator<Item = (&'static str, EventField)> {
    FIELD_NAMES.iter().copied()
}

/// The column names and fields of `SELECT *` for an event, in order.
type EventColumns = &'static [(&'static str, EventField)];

impl EventField {
    pub(crate) fn find(name: &str) -> Option<Self> {
        FIELD_NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|&(_, field)| field)
    }

    /// The field that this one stands for in a dialect.
    pub(crate) fn for_dialect(self, dialect: Dialect) -> Self {
        match (self, dialect) {
            (F::Reason, Dialect::Emqx) => F::EmqxReason,
            (field, _) => field,
        }
    }

    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        FIELD_NAMES.iter().map(|&(name, _)| name)
    }

    /// One of its names, for messages to people.
    pub(crate) fn name(self) -> &'static str {
        if self == F::EmqxReason {
            return "reason";
        }
        FIELD_NAMES
            .iter()
            .find(|&&(_, field)| field == self)
            .map_or("", |&(name, _)| name)
    }

    /// Reads any field except the payload, which needs more than the event.
    pub(crate) fn read<'a>(self, event: &RuleEvent<'a>, arena: &'a Arena) -> Value<'a> {
        let mut value = Value::Undefined;
        self.read_into(event, arena, &mut value);
        value
    }

    /// Like `read`, but writes the value to its destination. Returning and copying it took a third of the
    /// time of `SELECT *`: a value stored in parts cannot be loaded as a whole immediately.
    #[inline]
    pub(crate) fn read_into<'a>(
        self,
        event: &RuleEvent<'a>,
        arena: &'a Arena,
        out: &mut Value<'a>,
    ) {
        self.read_known_into(event, arena, out);
    }

    /// Like `read_into` for a field known at compile time, so that the compiler removes all other cases.
    #[inline(always)]
    pub(crate) fn read_known_into<'a>(
        self,
        event: &RuleEvent<'a>,
        arena: &'a Arena,
        out: &mut Value<'a>,
    ) {
        let text = |text: Option<&'a str>| text.map_or(Value::Undefined, Value::Str);
        let number = |number: Option<u64>| {
            number.map_or(Value::Undefined, |number| Value::Int(number as i64))
        };
        let of_connection = |read: &dyn Fn(&'a ConnectionDetails<'a>) -> Value<'a>| {
            event.connection.map_or(Value::Undefined, read)
        };
        match self {
            F::Protocol => *out = Value::Str(event.protocol),
            F::Id => {
                *out = event
                    .id
                    .map_or(Value::Undefined, |id| Value::Str(hex(id, arena)))
            }
            F::Timestamp => *out = Value::Int(event.timestamp_ms as i64),
            F::ClientId => *out = Value::Str(event.client_id),
            F::Username => *out = text(event.username),
            F::ClientIp => {
                *out = event
                    .peer
                    .map_or(Value::Undefined, |peer| Value::Str(host_text(peer, arena)))
            }
            F::PeerName => {
                *out = event.peer.map_or(Value::Undefined, |peer| {
                    Value::Str(address_text(peer, arena))
                })
            }
            F::SockName => {
                *out = event.socket.map_or(Value::Undefined, |socket| {
                    Value::Str(address_text(socket, arena))
                })
            }
            F::NodeIp => {
                *out = match event.socket {
                    // The address that the client connected to.
                    Some(socket) if !socket.ip().is_unspecified() => {
                        Value::Str(host_text(socket, arena))
                    }
                    _ => Value::Str(event.node_ip),
                }
            }
            F::Node => *out = Value::Str(event.node),
            F::EventName => *out = Value::Str(event.kind.event_name()),
            F::Topic => *out = text(event.topic),
            F::Qos => *out = number(event.qos.map(u64::from)),
            F::Retain => {
                *out = event
                    .topic
                    .map_or(Value::Undefined, |_| Value::Bool(event.retain))
            }
            F::Dup => {
                *out = event
                    .topic
                    .map_or(Value::Undefined, |_| Value::Bool(event.dup))
            }
            F::Flags => {
                *out = event
                    .topic
                    .map_or(Value::Undefined, |_| flags_map(event, arena))
            }
            F::MessageId => *out = number(event.message_id.map(u64::from)),
            F::Payload => *out = event.payload.map_or(Value::Undefined, Value::Bytes),
            F::Properties => *out = properties_map(event.properties, arena),
            F::AckProperties => *out = ack_properties(event, arena),
            F::ReceivedAt => *out = number(event.received_at_ms),
            F::FromClientId => *out = text(event.from_client_id),
            F::FromUsername => *out = text(event.from_username),
            F::Reason => *out = text(event.reason),
            F::EmqxReason => *out = text(event.emqx_reason.or(event.reason)),
            F::Result => *out = text(event.result),
            F::Action => *out = text(event.action),
            F::AuthzSource => *out = text(event.authz_source),
            F::AckStatus => *out = ack_status(event),
            F::RuleName => *out = text(event.rule_name),
            F::Version => {
                *out = of_connection(&|connection| Value::Str(version_name(connection.version)))
            }
            F::ProtoVer => {
                *out = of_connection(&|connection| Value::Int(connection.version.into()))
            }
            F::ProtoName => {
                *out = of_connection(&|connection| {
                    Value::Str(if connection.version == 3 {
                        "MQIsdp"
                    } else {
                        "MQTT"
                    })
                })
            }
            F::KeepAlive => {
                *out = of_connection(&|connection| Value::Int(connection.keep_alive_s.into()))
            }
            F::CleanStart => {
                *out = of_connection(&|connection| Value::Bool(connection.clean_start))
            }
            F::ExpiryInterval => {
                *out = of_connection(&|connection| Value::Int(connection.session_expiry_s.into()))
            }
            F::ReceiveMaximum => {
                *out = of_connection(&|connection| Value::Int(connection.receive_maximum.into()))
            }
            F::ConnectedAt => {
                *out = of_connection(&|connection| Value::Int(connection.connected_at_ms as i64))
            }
            F::DisconnectedAt => {
                *out = number(
                    event
                        .connection
                        .and_then(|connection| connection.disconnected_at_ms),
                )
            }
            F::IsSuperuser => {
                *out = of_connection(&|connection| Value::Bool(connection.is_superuser))
            }
            F::IsAnonymous => {
                *out = of_connection(&|connection| Value::Bool(connection.is_anonymous))
            }
            // A password is never shown.
            F::Auth => {
                *out = Value::Map(arena.alloc_slice_copy(&[
                    ("username", text(event.username)),
                    ("password", Value::Undefined),
                ]))
            }
            F::Will => *out = of_connection(&|connection| will_map(connection, arena)),
            F::Absent => *out = Value::Undefined,
        }
    }
}

/// The columns that `SELECT *` selects for an event of this kind.
pub(crate) fn columns(kind: EventKind, dialect: Dialect) -> EventColumns {
    match dialect {
        Dialect::Fluxmq => fluxmq_columns(kind),
        Dialect::Emqx => emqx_columns(kind),
    }
}

macro_rules! columns {
    ($first:ident { $($name:literal: $field:ident),* $(,)? }) => {
        columns!(@ $first [$(($name, F::$field)),*])
    };
    (@ fluxmq [$($own:tt),*]) => {
        &[
            ("protocol", F::Protocol),
            ("timestamp", F::Timestamp),
            ("clientId", F::ClientId),
            ("username", F::Username),
            ("clientIp", F::ClientIp),
            ("nodeIp", F::NodeIp),
            $($own),*
        ]
    };
    (@ emqx [$($own:tt),*]) => {
        &[
            ("event", F::EventName),
            ("timestamp", F::Timestamp),
            ("node", F::Node),
            ("clientid", F::ClientId),
            ("username", F::Username),
            ("peername", F::PeerName),
            $($own),*
        ]
    };
}

/// Columns besides the fields that describe the file.
const FILE_COLUMNS: EventColumns = &[
    ("event", F::EventName),
    ("timestamp", F::Timestamp),
    ("node", F::Node),
];

fn fluxmq_columns(kind: EventKind) -> EventColumns {
    match kind {
        EventKind::Publish | EventKind::Delivered | EventKind::Offline => columns!(fluxmq {
            "id": Id, "messageId": MessageId, "topic": Topic, "qos": Qos, "retain": Retain, "payload": Payload,
        }),
        EventKind::Acked | EventKind::MessageAcked => columns!(fluxmq {
            "id": Id, "messageId": MessageId, "topic": Topic, "qos": Qos, "payload": Payload, "desc": Reason,
        }),
        EventKind::Dropped | EventKind::MessageDropped | EventKind::DeliveryDropped => {
            columns!(fluxmq {
                "id": Id, "messageId": MessageId, "topic": Topic, "qos": Qos, "retain": Retain, "payload": Payload,
                "reason": Reason,
            })
        }
        EventKind::Connected => columns!(fluxmq {
            "version": Version, "keepalive": KeepAlive, "cleanSession": CleanStart, "auth": Auth, "will": Will,
        }),
        EventKind::Connack | EventKind::AuthnComplete => columns!(fluxmq { "reason_code": Reason }),
        EventKind::AuthzComplete => columns!(fluxmq {
            "topic": Topic, "action": Action, "result": Result, "authz_source": AuthzSource,
        }),
        EventKind::Disconnected => columns!(fluxmq { "time": Timestamp, "reason": Reason }),
        EventKind::Subscribed => {
            columns!(fluxmq { "messageId": MessageId, "topic": Topic, "qos": Qos })
        }
        EventKind::Unsubscribed => columns!(fluxmq { "messageId": MessageId, "topic": Topic }),
        EventKind::Ping => columns!(fluxmq {}),
        EventKind::Device
        | EventKind::RelayConnected
        | EventKind::RelayIdentified
        | EventKind::RelayDisconnected => &[("timestamp", F::Timestamp)],
        EventKind::FileReceived => FILE_COLUMNS,
        EventKind::RuleFailed => columns!(fluxmq {
            "rule_name": RuleName, "error_message": Reason, "topic": Topic, "payload": Payload,
        }),
    }
}

fn emqx_columns(kind: EventKind) -> EventColumns {
    match kind {
        EventKind::Publish => columns!(emqx {
            "id": Id, "peerhost": ClientIp, "topic": Topic, "qos": Qos, "flags": Flags, "payload": Payload,
            "pub_props": Properties, "publish_received_at": ReceivedAt,
        }),
        EventKind::Acked | EventKind::MessageAcked => columns!(emqx {
            "id": Id, "from_clientid": FromClientId, "from_username": FromUsername, "peerhost": ClientIp, "topic": Topic,
            "qos": Qos, "flags": Flags, "payload": Payload, "pub_props": Properties, "puback_props": AckProperties,
            "publish_received_at": ReceivedAt,
        }),
        EventKind::Delivered | EventKind::Offline => {
            columns!(emqx {
                "id": Id, "from_clientid": FromClientId, "from_username": FromUsername, "peerhost": ClientIp, "topic": Topic,
                "qos": Qos, "flags": Flags, "payload": Payload, "pub_props": Properties, "publish_received_at": ReceivedAt,
            })
        }
        EventKind::Dropped | EventKind::MessageDropped | EventKind::DeliveryDropped => {
            columns!(emqx {
                "id": Id, "reason": EmqxReason, "from_clientid": FromClientId, "from_username": FromUsername, "peerhost": ClientIp,
                "topic": Topic, "qos": Qos, "flags": Flags, "payload": Payload, "pub_props": Properties,
                "publish_received_at": ReceivedAt,
            })
        }
        EventKind::Connected => columns!(emqx {
            "sockname": SockName, "proto_name": ProtoName, "proto_ver": ProtoVer, "keepalive": KeepAlive,
            "clean_start": CleanStart, "expiry_interval": ExpiryInterval, "receive_maximum": ReceiveMaximum,
            "connected_at": ConnectedAt, "conn_props": Properties,
        }),
        EventKind::Connack => columns!(emqx {
            "reason_code": Reason, "sockname": SockName, "proto_name": ProtoName, "proto_ver": ProtoVer,
            "keepalive": KeepAlive, "clean_start": CleanStart, "expiry_interval": ExpiryInterval,
            "connected_at": ConnectedAt, "conn_props": Properties,
        }),
        EventKind::AuthnComplete => columns!(emqx {
            "reason_code": Reason, "is_superuser": IsSuperuser, "is_anonymous": IsAnonymous,
        }),
        EventKind::AuthzComplete => columns!(emqx {
            "peerhost": ClientIp, "topic": Topic, "action": Action, "result": Result, "authz_source": AuthzSource,
        }),
        EventKind::Disconnected => columns!(emqx {
            "reason": EmqxReason, "sockname": SockName, "proto_name": ProtoName, "proto_ver": ProtoVer,
            "connected_at": ConnectedAt, "disconnected_at": DisconnectedAt, "disconn_props": Properties,
        }),
        EventKind::Subscribed => columns!(emqx {
            "peerhost": ClientIp, "topic": Topic, "qos": Qos, "sub_props": Properties,
        }),
        EventKind::Unsubscribed => columns!(emqx {
            "peerhost": ClientIp, "topic": Topic, "qos": Qos, "unsub_props": Properties,
        }),
        EventKind::Ping => columns!(emqx {
            "sockname": SockName, "proto_name": ProtoName, "proto_ver": ProtoVer, "keepalive": KeepAlive,
            "clean_start": CleanStart, "expiry_interval": ExpiryInterval, "conn_props": Properties,
        }),
        EventKind::Device => &[("timestamp", F::Timestamp)],
        EventKind::RelayConnected | EventKind::RelayIdentified | EventKind::RelayDisconnected => {
            &[("event", F::EventName), ("timestamp", F::Timestamp)]
        }
        EventKind::FileReceived => FILE_COLUMNS,
        EventKind::RuleFailed => columns!(emqx {
            "rule_name": RuleName, "error_message": Reason, "topic": Topic, "payload": Payload,
        }),
    }
}
