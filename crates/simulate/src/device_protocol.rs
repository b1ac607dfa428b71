//! Topics and payloads of device protocols: ThingsBoard, JetLinks and native. See docs/reference/device-protocols.md.

use crate::definition::{DeviceProtocol, RequestKind, SendKind};

/// What is written before and after the values of a message.
#[derive(Clone, Debug)]
pub(crate) struct MessageForm {
    /// A template.
    pub(crate) topic: String,
    /// Templates around `{"name":value,..}`.
    pub(crate) front: &'static str,
    pub(crate) back: &'static str,
}

/// How devices of a protocol send messages of a kind.
pub(crate) fn message_form(
    protocol: DeviceProtocol,
    kind: SendKind,
) -> Result<MessageForm, String> {
    let form = |topic: &str, front, back| {
        Ok(MessageForm {
            topic: topic.to_owned(),
            front,
            back,
        })
    };
    match (protocol, kind) {
        (DeviceProtocol::Raw, _) => Err(
            "`kind` needs a product with `protocol` thingsboard, jetlinks or native; give `topic` and `payload`"
                .to_owned(),
        ),
        (DeviceProtocol::Thingsboard, SendKind::Telemetry) => {
            form("v1/devices/me/telemetry", "{\"ts\":{now},\"values\":", "}")
        }
        (DeviceProtocol::Thingsboard, SendKind::Attributes) => form("v1/devices/me/attributes", "", ""),
        (DeviceProtocol::Thingsboard, SendKind::Event) => {
            Err("ThingsBoard has no events; send `telemetry`".to_owned())
        }
        (DeviceProtocol::Jetlinks, SendKind::Telemetry) => form(
            "/{product}/{id}/properties/report",
            "{\"messageId\":\"{message}\",\"timestamp\":{now},\"properties\":",
            "}",
        ),
        (DeviceProtocol::Jetlinks, SendKind::Event) => form(
            "/{product}/{id}/event/{event}",
            "{\"messageId\":\"{message}\",\"timestamp\":{now},\"data\":",
            "}",
        ),
        (DeviceProtocol::Jetlinks, SendKind::Attributes) => {
            Err("JetLinks has no attributes of devices; send `telemetry`".to_owned())
        }
        (DeviceProtocol::Native, SendKind::Telemetry) => {
            form("tg/{id}/up/telemetry", "{\"ts\":{now},\"values\":", "}")
        }
        (DeviceProtocol::Native, SendKind::Attributes) => form("tg/{id}/up/attributes", "", ""),
        (DeviceProtocol::Native, SendKind::Event) => form("tg/{id}/up/event/{event}", "", ""),
    }
}

/// How devices of a protocol receive and answer requests of a kind.
#[derive(Clone, Debug)]
pub(crate) struct RequestForm {
    /// Template of the topic filter.
    pub(crate) filter: String,
    /// Method that tells the kind where several kinds have the same topic.
    pub(crate) method: Option<&'static str>,
    /// Templates of the topic and payloads of the answer; empty if there is none.
    pub(crate) answer_topic: String,
    pub(crate) success: &'static str,
    pub(crate) failure: &'static str,
    /// Templates around each payload.
    pub(crate) front: &'static str,
    pub(crate) back: &'static str,
}

/// How devices of a protocol receive requests of a kind.
pub(crate) fn request_form(
    protocol: DeviceProtocol,
    kind: RequestKind,
) -> Result<RequestForm, String> {
    let form = |filter: &str, method, answer_topic: &str, success, failure| {
        Ok(RequestForm {
            filter: filter.to_owned(),
            method,
            answer_topic: answer_topic.to_owned(),
            success,
            failure,
            front: "",
            back: "",
        })
    };
    let failed = "{\"success\":false,\"code\":\"simulated\",\"message\":\"simulated failure\"}";
    let thingsboard = |method, success| {
        form(
            "v1/devices/me/rpc/request/+",
            method,
            "v1/devices/me/rpc/response/{request.id}",
            success,
            failed,
        )
    };
    let native = |method, success| {
        form(
            "tg/{id}/down/command/+",
            method,
            "tg/{id}/up/command/{request.id}",
            success,
            failed,
        )
    };
    let jetlinks = |filter: &str, answer_topic: &str, success| {
        let failed = "{\"messageId\":\"{request.id}\",\"timestamp\":{now},\"success\":false,\"code\":\"simulated\",\
                      \"message\":\"simulated failure\"}";
        form(filter, None, answer_topic, success, failed)
    };
    match (protocol, kind) {
        (_, RequestKind::Topic) => Err("`kind = \"topic\"` has its own `topic`".to_owned()),
        (DeviceProtocol::Raw, _) => Err(
            "this kind needs a product with `protocol` thingsboard, jetlinks or native; use `kind = \"topic\"`"
                .to_owned(),
        ),
        (DeviceProtocol::Thingsboard, RequestKind::Command | RequestKind::Function) => {
            thingsboard(None, "{\"success\":true}")
        }
        (DeviceProtocol::Thingsboard, RequestKind::Read) => thingsboard(Some("readProperties"), "{values}"),
        (DeviceProtocol::Thingsboard, RequestKind::Write) => {
            thingsboard(Some("writeProperties"), "{\"success\":true}")
        }
        (DeviceProtocol::Native, RequestKind::Command | RequestKind::Function) => {
            native(None, "{\"success\":true}")
        }
        (DeviceProtocol::Native, RequestKind::Read) => {
            native(Some("readProperties"), "{\"success\":true,\"data\":{values}}")
        }
        (DeviceProtocol::Native, RequestKind::Write) => {
            native(Some("writeProperties"), "{\"success\":true}")
        }
        (DeviceProtocol::Jetlinks, RequestKind::Command | RequestKind::Function) => jetlinks(
            "/{product}/{id}/function/invoke",
            "/{product}/{id}/function/invoke/reply",
            "{\"messageId\":\"{request.id}\",\"timestamp\":{now},\"success\":true,\"output\":true}",
        ),
        (DeviceProtocol::Jetlinks, RequestKind::Read) => jetlinks(
            "/{product}/{id}/properties/read",
            "/{product}/{id}/properties/read/reply",
            "{\"messageId\":\"{request.id}\",\"timestamp\":{now},\"success\":true,\"properties\":{values}}",
        ),
        (DeviceProtocol::Jetlinks, RequestKind::Write) => jetlinks(
            "/{product}/{id}/properties/write",
            "/{product}/{id}/properties/write/reply",
            "{\"messageId\":\"{request.id}\",\"timestamp\":{now},\"success\":true,\"properties\":{request.params}}",
        ),
        (DeviceProtocol::Thingsboard, RequestKind::Attributes) => {
            form("v1/devices/me/attributes", None, "", "", "")
        }
        (DeviceProtocol::Native, RequestKind::Attributes) => {
            form("tg/{id}/down/attributes", None, "", "", "")
        }
        (DeviceProtocol::Jetlinks, RequestKind::Attributes) => {
            Err("JetLinks has no shared attributes; use `write`".to_owned())
        }
    }
}
