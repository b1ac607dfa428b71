//! Parses the topics of device messages.

use hooks::relay::RELAY_TOPIC_PREFIX;

use super::device_protocol::DeviceProtocol;

/// The device and the message type that a topic denotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceTopic<'t> {
    pub protocol: DeviceProtocol,
    /// Product and device as named by the topic; `None`: the connection identifies the device.
    pub product: Option<&'t str>,
    pub device: Option<&'t str>,
    /// The child device of `device` that the message is about.
    pub child: Option<&'t str>,
    pub kind: TopicKind<'t>,
}

/// Message type of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicKind<'t> {
    Telemetry,
    Attributes,
    AttributesRequest(&'t str),
    RpcRequest(&'t str),
    Reply(ReplyKind, Option<&'t str>),
    Event(&'t str),
    Online,
    Offline,
    Register,
    Unregister,
    Tags,
    Claim,
    Provision,
    Log,
    /// A request for the time.
    TimeSync,
    /// A message that bypasses the thing model.
    Direct,
    DerivedModel,
    Firmware(&'t str),
    Gateway(GatewayTopic),
}

impl TopicKind<'_> {
    /// Whether payloads of this kind may contain secrets: those for claims and registration.
    #[must_use]
    pub fn is_secret(self) -> bool {
        matches!(
            self,
            Self::Claim | Self::Register | Self::Provision | Self::Gateway(GatewayTopic::Claim)
        )
    }
}

/// Messages of a ThingsBoard gateway about its child devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatewayTopic {
    Connect,
    Disconnect,
    Telemetry,
    Attributes,
    AttributesRequest,
    Rpc,
    Claim,
}

/// The request that a reply answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplyKind {
    Rpc,
    Read,
    Write,
    Invoke,
    Command,
    Disconnect,
    StateCheck,
}

/// The first bytes of all topics of [`may_be_device_topic`], [`parse_downlink_topic`] and [`is_firmware_downlink`], and of
/// requests for provisioning.
pub const FIRST_TOPIC_BYTES: &[u8] = b"/tv";

/// Whether devices may publish on this topic. Called for every message of the node, so it examines the
/// beginning only.
#[inline]
pub fn may_be_device_topic(topic: &str) -> bool {
    matches!(
        topic.as_bytes(),
        [b'v', b'1', b'/', ..] | [b't', b'g', b'/', ..] | [b'/', ..]
    )
}

/// Parses a topic; `None` if devices do not send messages on it.
///
/// The topics of relay endpoints are only names for messages on their connections: [`may_be_device_topic`] excludes them,
/// so that MQTT clients cannot publish on them as devices.
pub fn parse_device_topic(topic: &str) -> Option<DeviceTopic<'_>> {
    match topic.as_bytes() {
        // Most messages use this topic, which has one meaning only.
        b"v1/devices/me/telemetry" => Some(DeviceTopic {
            protocol: DeviceProtocol::ThingsBoard,
            product: None,
            device: None,
            child: None,
            kind: TopicKind::Telemetry,
        }),
        [b'v', b'1', b'/', ..] => parse_thingsboard(&topic[3..]),
        [b't', b'g', b'/', ..] => parse_native(&topic[3..]),
        [b'/', ..] => parse_jetlinks(&topic[1..]),
        [b'$', ..] => parse_relay(topic.strip_prefix(RELAY_TOPIC_PREFIX)?),
        _ => None,
    }
}

/// Whether messages on this topic contain values for the telemetry store.
pub fn carries_telemetry(topic: &str) -> bool {
    parse_device_topic(topic).is_some_and(|route| {
        matches!(
            route.kind,
            TopicKind::Telemetry | TopicKind::Gateway(GatewayTopic::Telemetry)
        )
    })
}

/// Whether messages on this topic are about child devices of a gateway.
pub fn is_about_children(topic: &str) -> bool {
    parse_device_topic(topic)
        .is_some_and(|route| route.child.is_some() || matches!(route.kind, TopicKind::Gateway(_)))
}

/// A topic on which the platform sends messages to devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownlinkTopic<'t> {
    /// The product that the topic names.
    pub product: Option<&'t str>,
    /// Devices also publish on it.
    pub is_bidirectional: bool,
}

/// Parses a topic on which the platform sends messages to devices.
#[inline]
pub fn parse_downlink_topic(topic: &str) -> Option<DownlinkTopic<'_>> {
    match topic.as_bytes() {
        [b'v', b'1', b'/', ..] => parse_thingsboard_downlink(&topic[3..]),
        [b'v', b'2', b'/', ..] => is_firmware_downlink(topic).then_some(DownlinkTopic {
            product: None,
            is_bidirectional: false,
        }),
        [b't', b'g', b'/', ..] => {
            let (_, rest) = topic[3..].split_once('/')?;
            rest.starts_with("down/").then_some(DownlinkTopic {
                product: None,
                is_bidirectional: false,
            })
        }
        [b'/', ..] => parse_jetlinks_downlink(&topic[1..]),
        _ => None,
    }
}

/// Whether the platform answers requests for firmware on this topic.
#[inline]
pub fn is_firmware_downlink(topic: &str) -> bool {
    let rest = topic.strip_prefix("v2/fw/");
    let rest = rest.or_else(|| topic.strip_prefix("v2/sw/"));
    rest.is_some_and(|rest| rest == "error" || rest.starts_with("response/"))
}

/// Some ThingsBoard topics are shared by all devices and used in both directions.
fn parse_thingsboard_downlink(rest: &str) -> Option<DownlinkTopic<'_>> {
    let is_both_ways = match rest.strip_prefix("devices/me/") {
        Some(rest) => match rest.starts_with("attributes/response/") {
            true => false,
            false if rest == "attributes" || rest.starts_with("rpc/") => true,
            false => return None,
        },
        None => match rest.strip_prefix("gateway/")? {
            "attributes/response" => false,
            "attributes" | "rpc" | "disconnect" => true,
            _ => return None,
        },
    };
    Some(DownlinkTopic {
        product: None,
        is_bidirectional: is_both_ways,
    })
}

fn parse_jetlinks_downlink(rest: &str) -> Option<DownlinkTopic<'_>> {
    let (product, rest) = rest.split_once('/')?;
    if (product, rest) == ("provision", "response") {
        return Some(DownlinkTopic {
            product: None,
            is_bidirectional: false,
        });
    }
    let (_, rest) = rest.split_once('/')?;
    let (rest, is_child) = match rest.strip_prefix("child/") {
        Some(behind) => (behind.split_once('/')?.1, true),
        None => (rest, false),
    };
    let is_both_ways = match rest {
        "properties/read"
        | "properties/write"
        | "function/invoke"
        | "state-check"
        | "time-sync/reply"
        | "firmware/upgrade"
        | "firmware/read"
        | "firmware/pull/reply" => false,
        // Gateways of version 1.0 report disconnects on this topic.
        "disconnect" => is_child,
        _ => return None,
    };
    Some(DownlinkTopic {
        product: Some(product),
        is_bidirectional: is_both_ways,
    })
}

/// A single topic level that is not empty.
fn non_empty_level(text: &str) -> Option<&str> {
    (!text.is_empty() && !text.contains('/')).then_some(text)
}

fn parse_thingsboard(rest: &str) -> Option<DeviceTopic<'_>> {
    let kind = match rest.split_once('/')? {
        ("devices", rest) => match rest.strip_prefix("me/")? {
            "telemetry" => TopicKind::Telemetry,
            "attributes" => TopicKind::Attributes,
            "claim" => TopicKind::Claim,
            rest => match rest.strip_prefix("rpc/") {
                Some(rpc) => match rpc.split_once('/')? {
                    ("response", id) => {
                        TopicKind::Reply(ReplyKind::Rpc, Some(non_empty_level(id)?))
                    }
                    ("request", id) => TopicKind::RpcRequest(non_empty_level(id)?),
                    _ => return None,
                },
                None => TopicKind::AttributesRequest(non_empty_level(
                    rest.strip_prefix("attributes/request/")?,
                )?),
            },
        },
        ("gateway", rest) => TopicKind::Gateway(match rest {
            "telemetry" => GatewayTopic::Telemetry,
            "attributes" => GatewayTopic::Attributes,
            "attributes/request" => GatewayTopic::AttributesRequest,
            "connect" => GatewayTopic::Connect,
            "disconnect" => GatewayTopic::Disconnect,
            "rpc" => GatewayTopic::Rpc,
            "claim" => GatewayTopic::Claim,
            _ => return None,
        }),
        _ => return None,
    };
    Some(DeviceTopic {
        protocol: DeviceProtocol::ThingsBoard,
        product: None,
        device: None,
        child: None,
        kind,
    })
}

fn parse_jetlinks(rest: &str) -> Option<DeviceTopic<'_>> {
    let (product, rest) = rest.split_once('/')?;
    if product == "provision" {
        return (rest == "request").then_some(DeviceTopic {
            protocol: DeviceProtocol::ThingsBoard,
            product: None,
            device: None,
            child: None,
            kind: TopicKind::Provision,
        });
    }
    let (device, mut rest) = rest.split_once('/')?;
    let mut child = None;
    let behind = rest.strip_prefix("child/");
    if let Some(behind) = behind.or_else(|| rest.strip_prefix("child-reply/")) {
        let (name, about) = behind.split_once('/')?;
        (child, rest) = (Some(non_empty_level(name)?), about);
    }
    let kind = match rest {
        "properties/report" => TopicKind::Telemetry,
        "properties/read/reply" => TopicKind::Reply(ReplyKind::Read, None),
        // Old firmware contains this misspelling.
        "properties/write/reply" | "properties/wirte/reply" => {
            TopicKind::Reply(ReplyKind::Write, None)
        }
        "function/invoke/reply" => TopicKind::Reply(ReplyKind::Invoke, None),
        "online" => TopicKind::Online,
        "offline" => TopicKind::Offline,
        // The spelling of gateways of version 1.0.
        "connected" if child.is_some() => TopicKind::Online,
        "disconnected" | "disconnect" if child.is_some() => TopicKind::Offline,
        "register" => TopicKind::Register,
        "unregister" => TopicKind::Unregister,
        "disconnect/reply" => TopicKind::Reply(ReplyKind::Disconnect, None),
        "state-check/reply" => TopicKind::Reply(ReplyKind::StateCheck, None),
        "tags" => TopicKind::Tags,
        "log" => TopicKind::Log,
        "time-sync" => TopicKind::TimeSync,
        "direct" => TopicKind::Direct,
        "metadata/derived" => TopicKind::DerivedModel,
        rest => match rest.split_once('/')? {
            ("event", id) => TopicKind::Event(non_empty_level(id)?),
            ("firmware", step @ ("pull" | "report" | "upgrade/progress" | "read/reply")) => {
                TopicKind::Firmware(step)
            }
            _ => return None,
        },
    };
    Some(DeviceTopic {
        protocol: DeviceProtocol::JetLinks,
        product: Some(non_empty_level(product)?),
        device: Some(non_empty_level(device)?),
        child,
        kind,
    })
}

fn parse_native(rest: &str) -> Option<DeviceTopic<'_>> {
    let (device, rest) = rest.split_once('/')?;
    let kind = match rest.strip_prefix("up/")? {
        "telemetry" => TopicKind::Telemetry,
        "attributes" => TopicKind::Attributes,
        "online" => TopicKind::Online,
        "offline" => TopicKind::Offline,
        rest => match rest.split_once('/')? {
            ("event", id) => TopicKind::Event(non_empty_level(id)?),
            ("command", id) => TopicKind::Reply(ReplyKind::Command, Some(non_empty_level(id)?)),
            ("request", id) => TopicKind::RpcRequest(non_empty_level(id)?),
            ("attributes", id) => TopicKind::AttributesRequest(non_empty_level(id)?),
            _ => return None,
        },
    };
    Some(DeviceTopic {
        protocol: DeviceProtocol::Native,
        product: None,
        device: Some(non_empty_level(device)?),
        child: None,
        kind,
    })
}

const RELAY_DATA: &str = "data";
const RELAY_ACK: &str = "control_ack";

/// The topic under which the data of devices at a relay endpoint are processed.
#[must_use]
pub fn relay_data_topic(endpoint: &str) -> String {
    format!("{RELAY_TOPIC_PREFIX}{endpoint}/{RELAY_DATA}")
}

/// The topic under which the replies to commands of devices at a relay endpoint are processed.
#[must_use]
pub fn relay_ack_topic(endpoint: &str) -> String {
    format!("{RELAY_TOPIC_PREFIX}{endpoint}/{RELAY_ACK}")
}

fn parse_relay(rest: &str) -> Option<DeviceTopic<'_>> {
    let (_, kind) = rest.split_once('/')?;
    let kind = match kind {
        RELAY_DATA => TopicKind::Telemetry,
        RELAY_ACK => TopicKind::Reply(ReplyKind::Command, None),
        _ => return None,
    };
    Some(DeviceTopic {
        protocol: DeviceProtocol::Relay,
        product: None,
        device: None,
        child: None,
        kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(topic: &str) -> Option<TopicKind<'_>> {
        let route = parse_device_topic(topic);
        assert!(route.is_none() || may_be_device_topic(topic), "{topic}");
        route.map(|route| route.kind)
    }

    #[test]
    fn topics_of_thingsboard() {
        for (topic, expected) in [
            ("v1/devices/me/telemetry", Some(TopicKind::Telemetry)),
            ("v1/devices/me/attributes", Some(TopicKind::Attributes)),
            (
                "v1/devices/me/attributes/request/7",
                Some(TopicKind::AttributesRequest("7")),
            ),
            ("v1/devices/me/attributes/response/7", None),
            (
                "v1/devices/me/rpc/response/8",
                Some(TopicKind::Reply(ReplyKind::Rpc, Some("8"))),
            ),
            (
                "v1/devices/me/rpc/request/9",
                Some(TopicKind::RpcRequest("9")),
            ),
            ("v1/devices/me/rpc/request/", None),
            ("v1/devices/me/rpc/request/9/x", None),
            ("v1/devices/me/claim", Some(TopicKind::Claim)),
            ("v1/devices/you/claim", None),
            ("/provision/request", Some(TopicKind::Provision)),
            ("/provision/response", None),
            (
                "v1/gateway/telemetry",
                Some(TopicKind::Gateway(GatewayTopic::Telemetry)),
            ),
            (
                "v1/gateway/attributes/request",
                Some(TopicKind::Gateway(GatewayTopic::AttributesRequest)),
            ),
            (
                "v1/gateway/connect",
                Some(TopicKind::Gateway(GatewayTopic::Connect)),
            ),
            ("v1/gateway", None),
            ("v2/fw/request/1/chunk/0", None),
        ] {
            assert_eq!(kind(topic), expected, "{topic}");
        }
    }

    #[test]
    fn topics_of_jetlinks_name_product_device_and_child() {
        let read = parse_device_topic("/p/d/properties/report").expect("a topic");
        assert_eq!(
            (read.product, read.device, read.child),
            (Some("p"), Some("d"), None)
        );
        let read = parse_device_topic("/p/d/child/c/event/fire").expect("a topic");
        assert_eq!(
            (read.child, read.kind),
            (Some("c"), TopicKind::Event("fire"))
        );
        let read = parse_device_topic("/p/d/child-reply/c/properties/read/reply").expect("a topic");
        assert_eq!(
            (read.child, read.kind),
            (Some("c"), TopicKind::Reply(ReplyKind::Read, None))
        );
        for (topic, expected) in [
            (
                "/p/d/properties/wirte/reply",
                Some(TopicKind::Reply(ReplyKind::Write, None)),
            ),
            ("/p/d/properties/write", None),
            ("/p/d/tags", Some(TopicKind::Tags)),
            ("/p/d/register", Some(TopicKind::Register)),
            ("/p/d/child/c", None),
            ("/p/d/child/c/connected", Some(TopicKind::Online)),
            ("/p/d/child/c/disconnect", Some(TopicKind::Offline)),
            ("/p/d/connected", None),
            ("/p/d/child//online", None),
            ("/p/d/event/a/b", None),
            ("/p/d", None),
            ("//d/tags", None),
            ("/", None),
            ("/p/d/firmware/pull", Some(TopicKind::Firmware("pull"))),
        ] {
            assert_eq!(kind(topic), expected, "{topic}");
        }
    }

    #[test]
    fn messages_of_relay_endpoints_have_topics_that_mqtt_devices_cannot_use() {
        for (topic, expected) in [
            (relay_data_topic("room"), TopicKind::Telemetry),
            (
                relay_ack_topic("room"),
                TopicKind::Reply(ReplyKind::Command, None),
            ),
        ] {
            let route = parse_device_topic(&topic).expect("a topic");
            assert_eq!(
                (route.protocol, route.kind),
                (DeviceProtocol::Relay, expected)
            );
            assert!(!may_be_device_topic(&topic));
        }
        assert_eq!(parse_device_topic("$relay/room"), None);
        assert_eq!(parse_device_topic("$relay/room/other"), None);
    }

    #[test]
    fn downlink_topics() {
        let both = |topic| parse_downlink_topic(topic).map(|found| found.is_bidirectional);
        for (topic, expected) in [
            ("v1/devices/me/rpc/request/1", Some(true)),
            ("v1/devices/me/rpc/response/1", Some(true)),
            ("v1/devices/me/attributes", Some(true)),
            ("v1/devices/me/attributes/response/1", Some(false)),
            ("v1/devices/me/attributes/request/1", None),
            ("v1/devices/me/telemetry", None),
            ("v1/devices/me/claim", None),
            ("v1/gateway/rpc", Some(true)),
            ("v1/gateway/attributes/response", Some(false)),
            ("v1/gateway/telemetry", None),
            ("/provision/response", Some(false)),
            ("/provision/request", None),
            ("tg/d/down/command/1", Some(false)),
            ("tg/d/down/anything/else", Some(false)),
            ("tg/d/up/telemetry", None),
            ("tg/d", None),
            ("/p/d/properties/read", Some(false)),
            ("/p/d/properties/write", Some(false)),
            ("/p/d/properties/write/reply", None),
            ("/p/d/properties/report", None),
            ("/p/d/function/invoke", Some(false)),
            ("/p/d/function/invoke/reply", None),
            ("/p/d/child/c/function/invoke", Some(false)),
            ("/p/d/disconnect", Some(false)),
            ("/p/d/child/c/disconnect", Some(true)),
            ("/p/d/time-sync/reply", Some(false)),
            ("/p/d", None),
            ("/", None),
            ("sensors/1", None),
        ] {
            assert_eq!(both(topic), expected, "{topic}");
        }
        assert_eq!(
            parse_downlink_topic("/p/d/disconnect").and_then(|found| found.product),
            Some("p")
        );
    }

    #[test]
    fn native_topics_name_the_device() {
        let read = parse_device_topic("tg/d/up/telemetry").expect("a topic");
        assert_eq!((read.device, read.kind), (Some("d"), TopicKind::Telemetry));
        for (topic, expected) in [
            ("tg/d/up/event/e", Some(TopicKind::Event("e"))),
            (
                "tg/d/up/command/c1",
                Some(TopicKind::Reply(ReplyKind::Command, Some("c1"))),
            ),
            (
                "tg/d/up/attributes/4",
                Some(TopicKind::AttributesRequest("4")),
            ),
            ("tg/d/down/command/c1", None),
            ("tg//up/telemetry", None),
            ("tg/d/up", None),
        ] {
            assert_eq!(kind(topic), expected, "{topic}");
        }
    }
}
