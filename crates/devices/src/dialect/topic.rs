//! From a topic to what may be said on it.

use super::Dialect;

/// Where a message of a device belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route<'t> {
    pub dialect: Dialect,
    /// As the topic names them; `None`: it is the connection that says who speaks.
    pub product: Option<&'t str>,
    pub device: Option<&'t str>,
    /// The device behind `device` that it is about.
    pub child: Option<&'t str>,
    pub kind: Kind<'t>,
}

/// What is said on a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'t> {
    Telemetry,
    Attributes,
    AttributesRequest(&'t str),
    RpcRequest(&'t str),
    Reply(Reply, Option<&'t str>),
    Event(&'t str),
    Online,
    Offline,
    Register,
    Unregister,
    Tags,
    Claim,
    Provision,
    Log,
    /// The device asks for the time.
    TimeSync,
    /// A message past the thing model.
    Direct,
    DerivedModel,
    Firmware(&'t str),
    Gateway(Gateway),
}

impl Kind<'_> {
    /// Whether payloads of this kind may hold secrets: what a device is claimed or registered with.
    #[must_use]
    pub fn is_secret(self) -> bool {
        matches!(
            self,
            Self::Claim | Self::Register | Self::Provision | Self::Gateway(Gateway::Claim)
        )
    }
}

/// What a gateway of ThingsBoard says of the devices behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gateway {
    Connect,
    Disconnect,
    Telemetry,
    Attributes,
    AttributesRequest,
    Rpc,
    Claim,
}

/// What is replied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reply {
    Rpc,
    Read,
    Write,
    Invoke,
    Command,
    Disconnect,
    StateCheck,
}

/// Whether a device may say something on this topic: asked of every message of the node, so it looks at the beginning only.
#[inline]
pub fn may_route(topic: &str) -> bool {
    matches!(
        topic.as_bytes(),
        [b'v', b'1', b'/', ..] | [b't', b'g', b'/', ..] | [b'/', ..]
    )
}

/// What a topic says; `None`: it is no topic on which devices speak.
pub fn route(topic: &str) -> Option<Route<'_>> {
    match topic.as_bytes() {
        // Most messages are on this one, and it says nothing else.
        b"v1/devices/me/telemetry" => Some(Route {
            dialect: Dialect::ThingsBoard,
            product: None,
            device: None,
            child: None,
            kind: Kind::Telemetry,
        }),
        [b'v', b'1', b'/', ..] => thingsboard(&topic[3..]),
        [b't', b'g', b'/', ..] => own(&topic[3..]),
        [b'/', ..] => jetlinks(&topic[1..]),
        _ => None,
    }
}

/// Whether values for the telemetry store come on this topic.
pub fn has_rows(topic: &str) -> bool {
    route(topic).is_some_and(|route| {
        matches!(
            route.kind,
            Kind::Telemetry | Kind::Gateway(Gateway::Telemetry)
        )
    })
}

/// A topic on which the platform sends messages to devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Downward<'t> {
    /// The product that the topic names.
    pub product: Option<&'t str>,
    /// Devices publish on it as well.
    pub is_both_ways: bool,
}

/// Whether the platform sends messages to devices on this topic.
#[inline]
pub fn downward(topic: &str) -> Option<Downward<'_>> {
    match topic.as_bytes() {
        [b'v', b'1', b'/', ..] => thingsboard_downward(&topic[3..]),
        [b't', b'g', b'/', ..] => {
            let (_, rest) = topic[3..].split_once('/')?;
            rest.starts_with("down/").then_some(Downward {
                product: None,
                is_both_ways: false,
            })
        }
        [b'/', ..] => jetlinks_downward(&topic[1..]),
        _ => None,
    }
}

/// ThingsBoard has topics that are the same for all devices, on which they speak and are told.
fn thingsboard_downward(rest: &str) -> Option<Downward<'_>> {
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
    Some(Downward {
        product: None,
        is_both_ways,
    })
}

fn jetlinks_downward(rest: &str) -> Option<Downward<'_>> {
    let (product, rest) = rest.split_once('/')?;
    if (product, rest) == ("provision", "response") {
        return Some(Downward {
            product: None,
            is_both_ways: false,
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
        // Gateways of version 1.0 report it like this.
        "disconnect" => is_child,
        _ => return None,
    };
    Some(Downward {
        product: Some(product),
        is_both_ways,
    })
}

/// Not empty and one level.
fn level(text: &str) -> Option<&str> {
    (!text.is_empty() && !text.contains('/')).then_some(text)
}

fn thingsboard(rest: &str) -> Option<Route<'_>> {
    let kind = match rest.split_once('/')? {
        ("devices", rest) => match rest.strip_prefix("me/")? {
            "telemetry" => Kind::Telemetry,
            "attributes" => Kind::Attributes,
            "claim" => Kind::Claim,
            rest => match rest.strip_prefix("rpc/") {
                Some(rpc) => match rpc.split_once('/')? {
                    ("response", id) => Kind::Reply(Reply::Rpc, Some(level(id)?)),
                    ("request", id) => Kind::RpcRequest(level(id)?),
                    _ => return None,
                },
                None => Kind::AttributesRequest(level(rest.strip_prefix("attributes/request/")?)?),
            },
        },
        ("gateway", rest) => Kind::Gateway(match rest {
            "telemetry" => Gateway::Telemetry,
            "attributes" => Gateway::Attributes,
            "attributes/request" => Gateway::AttributesRequest,
            "connect" => Gateway::Connect,
            "disconnect" => Gateway::Disconnect,
            "rpc" => Gateway::Rpc,
            "claim" => Gateway::Claim,
            _ => return None,
        }),
        _ => return None,
    };
    Some(Route {
        dialect: Dialect::ThingsBoard,
        product: None,
        device: None,
        child: None,
        kind,
    })
}

fn jetlinks(rest: &str) -> Option<Route<'_>> {
    let (product, rest) = rest.split_once('/')?;
    if product == "provision" {
        return (rest == "request").then_some(Route {
            dialect: Dialect::ThingsBoard,
            product: None,
            device: None,
            child: None,
            kind: Kind::Provision,
        });
    }
    let (device, mut rest) = rest.split_once('/')?;
    let mut child = None;
    let behind = rest.strip_prefix("child/");
    if let Some(behind) = behind.or_else(|| rest.strip_prefix("child-reply/")) {
        let (name, about) = behind.split_once('/')?;
        (child, rest) = (Some(level(name)?), about);
    }
    let kind = match rest {
        "properties/report" => Kind::Telemetry,
        "properties/read/reply" => Kind::Reply(Reply::Read, None),
        // Old firmware cannot spell.
        "properties/write/reply" | "properties/wirte/reply" => Kind::Reply(Reply::Write, None),
        "function/invoke/reply" => Kind::Reply(Reply::Invoke, None),
        "online" => Kind::Online,
        "offline" => Kind::Offline,
        // As gateways of version 1.0 say it.
        "connected" if child.is_some() => Kind::Online,
        "disconnected" | "disconnect" if child.is_some() => Kind::Offline,
        "register" => Kind::Register,
        "unregister" => Kind::Unregister,
        "disconnect/reply" => Kind::Reply(Reply::Disconnect, None),
        "state-check/reply" => Kind::Reply(Reply::StateCheck, None),
        "tags" => Kind::Tags,
        "log" => Kind::Log,
        "time-sync" => Kind::TimeSync,
        "direct" => Kind::Direct,
        "metadata/derived" => Kind::DerivedModel,
        rest => match rest.split_once('/')? {
            ("event", id) => Kind::Event(level(id)?),
            ("firmware", step @ ("pull" | "report" | "upgrade/progress" | "read/reply")) => {
                Kind::Firmware(step)
            }
            _ => return None,
        },
    };
    Some(Route {
        dialect: Dialect::JetLinks,
        product: Some(level(product)?),
        device: Some(level(device)?),
        child,
        kind,
    })
}

fn own(rest: &str) -> Option<Route<'_>> {
    let (device, rest) = rest.split_once('/')?;
    let kind = match rest.strip_prefix("up/")? {
        "telemetry" => Kind::Telemetry,
        "attributes" => Kind::Attributes,
        "online" => Kind::Online,
        "offline" => Kind::Offline,
        rest => match rest.split_once('/')? {
            ("event", id) => Kind::Event(level(id)?),
            ("command", id) => Kind::Reply(Reply::Command, Some(level(id)?)),
            ("request", id) => Kind::RpcRequest(level(id)?),
            ("attributes", id) => Kind::AttributesRequest(level(id)?),
            _ => return None,
        },
    };
    Some(Route {
        dialect: Dialect::Own,
        product: None,
        device: Some(level(device)?),
        child: None,
        kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(topic: &str) -> Option<Kind<'_>> {
        let route = route(topic);
        assert!(route.is_none() || may_route(topic), "{topic}");
        route.map(|route| route.kind)
    }

    #[test]
    fn topics_of_thingsboard() {
        for (topic, expected) in [
            ("v1/devices/me/telemetry", Some(Kind::Telemetry)),
            ("v1/devices/me/attributes", Some(Kind::Attributes)),
            (
                "v1/devices/me/attributes/request/7",
                Some(Kind::AttributesRequest("7")),
            ),
            ("v1/devices/me/attributes/response/7", None),
            (
                "v1/devices/me/rpc/response/8",
                Some(Kind::Reply(Reply::Rpc, Some("8"))),
            ),
            ("v1/devices/me/rpc/request/9", Some(Kind::RpcRequest("9"))),
            ("v1/devices/me/rpc/request/", None),
            ("v1/devices/me/rpc/request/9/x", None),
            ("v1/devices/me/claim", Some(Kind::Claim)),
            ("v1/devices/you/claim", None),
            ("/provision/request", Some(Kind::Provision)),
            ("/provision/response", None),
            (
                "v1/gateway/telemetry",
                Some(Kind::Gateway(Gateway::Telemetry)),
            ),
            (
                "v1/gateway/attributes/request",
                Some(Kind::Gateway(Gateway::AttributesRequest)),
            ),
            ("v1/gateway/connect", Some(Kind::Gateway(Gateway::Connect))),
            ("v1/gateway", None),
            ("v2/fw/request/1/chunk/0", None),
        ] {
            assert_eq!(kind(topic), expected, "{topic}");
        }
    }

    #[test]
    fn topics_of_jetlinks_name_product_device_and_child() {
        let read = route("/p/d/properties/report").expect("a topic");
        assert_eq!(
            (read.product, read.device, read.child),
            (Some("p"), Some("d"), None)
        );
        let read = route("/p/d/child/c/event/fire").expect("a topic");
        assert_eq!((read.child, read.kind), (Some("c"), Kind::Event("fire")));
        let read = route("/p/d/child-reply/c/properties/read/reply").expect("a topic");
        assert_eq!(
            (read.child, read.kind),
            (Some("c"), Kind::Reply(Reply::Read, None))
        );
        for (topic, expected) in [
            (
                "/p/d/properties/wirte/reply",
                Some(Kind::Reply(Reply::Write, None)),
            ),
            ("/p/d/properties/write", None),
            ("/p/d/tags", Some(Kind::Tags)),
            ("/p/d/register", Some(Kind::Register)),
            ("/p/d/child/c", None),
            ("/p/d/child/c/connected", Some(Kind::Online)),
            ("/p/d/child/c/disconnect", Some(Kind::Offline)),
            ("/p/d/connected", None),
            ("/p/d/child//online", None),
            ("/p/d/event/a/b", None),
            ("/p/d", None),
            ("//d/tags", None),
            ("/", None),
            ("/p/d/firmware/pull", Some(Kind::Firmware("pull"))),
        ] {
            assert_eq!(kind(topic), expected, "{topic}");
        }
    }

    #[test]
    fn topics_of_messages_to_devices() {
        let both = |topic| downward(topic).map(|found| found.is_both_ways);
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
            downward("/p/d/disconnect").and_then(|found| found.product),
            Some("p")
        );
    }

    #[test]
    fn own_topics_name_the_device() {
        let read = route("tg/d/up/telemetry").expect("a topic");
        assert_eq!((read.device, read.kind), (Some("d"), Kind::Telemetry));
        for (topic, expected) in [
            ("tg/d/up/event/e", Some(Kind::Event("e"))),
            (
                "tg/d/up/command/c1",
                Some(Kind::Reply(Reply::Command, Some("c1"))),
            ),
            ("tg/d/up/attributes/4", Some(Kind::AttributesRequest("4"))),
            ("tg/d/down/command/c1", None),
            ("tg//up/telemetry", None),
            ("tg/d/up", None),
        ] {
            assert_eq!(kind(topic), expected, "{topic}");
        }
    }
}
