//! Topics and payloads of the dialects: ThingsBoard, JetLinks and Tidegate. See docs/reference/device-protocols.md.

use crate::definition::{Dialect, RequestKind, SendKind};

/// What is written before and after the values of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageForm {
    /// A template.
    pub(crate) topic: &'static str,
    /// Templates around `{"name":value,..}`.
    pub(crate) front: &'static str,
    pub(crate) back: &'static str,
}

/// How devices of a dialect send messages of a kind.
pub(crate) fn message_form(dialect: Dialect, kind: SendKind) -> Result<MessageForm, String> {
    let form = |topic, front, back| Ok(MessageForm { topic, front, back });
    match (dialect, kind) {
        (Dialect::Raw, _) => Err(
            "`kind` needs a product with the dialect thingsboard, jetlinks or tidegate; give `topic` and `payload`"
                .to_owned(),
        ),
        (Dialect::Thingsboard, SendKind::Telemetry) => {
            form("v1/devices/me/telemetry", "{\"ts\":{now},\"values\":", "}")
        }
        (Dialect::Thingsboard, SendKind::Attributes) => form("v1/devices/me/attributes", "", ""),
        (Dialect::Thingsboard, SendKind::Event) => {
            Err("ThingsBoard has no events; send `telemetry`".to_owned())
        }
        (Dialect::Jetlinks, SendKind::Telemetry) => form(
            "/{product}/{id}/properties/report",
            "{\"messageId\":\"{message}\",\"timestamp\":{now},\"properties\":",
            "}",
        ),
        (Dialect::Jetlinks, SendKind::Event) => form(
            "/{product}/{id}/event/{event}",
            "{\"messageId\":\"{message}\",\"timestamp\":{now},\"data\":",
            "}",
        ),
        (Dialect::Jetlinks, SendKind::Attributes) => {
            Err("JetLinks has no attributes of devices; send `telemetry`".to_owned())
        }
        (Dialect::Tidegate, SendKind::Telemetry) => {
            form("tg/{id}/up/telemetry", "{\"ts\":{now},\"values\":", "}")
        }
        (Dialect::Tidegate, SendKind::Attributes) => form("tg/{id}/up/attributes", "", ""),
        (Dialect::Tidegate, SendKind::Event) => form("tg/{id}/up/event/{event}", "", ""),
    }
}

/// How devices of a dialect receive and answer requests of a kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestForm {
    /// Template of the topic filter.
    pub(crate) filter: &'static str,
    /// Method that tells the kind where several kinds have the same topic.
    pub(crate) method: Option<&'static str>,
    /// Templates of the topic and payloads of the answer; empty if there is none.
    pub(crate) answer_topic: &'static str,
    pub(crate) success: &'static str,
    pub(crate) failure: &'static str,
}

/// How devices of a dialect receive requests of a kind.
pub(crate) fn request_form(dialect: Dialect, kind: RequestKind) -> Result<RequestForm, String> {
    let form = |filter, method, answer_topic, success, failure| {
        Ok(RequestForm {
            filter,
            method,
            answer_topic,
            success,
            failure,
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
    let tidegate = |method, success| {
        form(
            "tg/{id}/down/command/+",
            method,
            "tg/{id}/up/command/{request.id}",
            success,
            failed,
        )
    };
    let jetlinks = |filter, answer_topic, success| {
        let failed = "{\"messageId\":\"{request.id}\",\"timestamp\":{now},\"success\":false,\"code\":\"simulated\",\
                      \"message\":\"simulated failure\"}";
        form(filter, None, answer_topic, success, failed)
    };
    match (dialect, kind) {
        (_, RequestKind::Topic) => Err("`kind = \"topic\"` has its own `topic`".to_owned()),
        (Dialect::Raw, _) => Err(
            "this kind needs a product with the dialect thingsboard, jetlinks or tidegate; use `kind = \"topic\"`"
                .to_owned(),
        ),
        (Dialect::Thingsboard, RequestKind::Command | RequestKind::Function) => {
            thingsboard(None, "{\"success\":true}")
        }
        (Dialect::Thingsboard, RequestKind::Read) => thingsboard(Some("readProperties"), "{values}"),
        (Dialect::Thingsboard, RequestKind::Write) => {
            thingsboard(Some("writeProperties"), "{\"success\":true}")
        }
        (Dialect::Tidegate, RequestKind::Command | RequestKind::Function) => {
            tidegate(None, "{\"success\":true}")
        }
        (Dialect::Tidegate, RequestKind::Read) => {
            tidegate(Some("readProperties"), "{\"success\":true,\"data\":{values}}")
        }
        (Dialect::Tidegate, RequestKind::Write) => {
            tidegate(Some("writeProperties"), "{\"success\":true}")
        }
        (Dialect::Jetlinks, RequestKind::Command | RequestKind::Function) => jetlinks(
            "/{product}/{id}/function/invoke",
            "/{product}/{id}/function/invoke/reply",
            "{\"messageId\":\"{request.id}\",\"timestamp\":{now},\"success\":true,\"output\":true}",
        ),
        (Dialect::Jetlinks, RequestKind::Read) => jetlinks(
            "/{product}/{id}/properties/read",
            "/{product}/{id}/properties/read/reply",
            "{\"messageId\":\"{request.id}\",\"timestamp\":{now},\"success\":true,\"properties\":{values}}",
        ),
        (Dialect::Jetlinks, RequestKind::Write) => jetlinks(
            "/{product}/{id}/properties/write",
            "/{product}/{id}/properties/write/reply",
            "{\"messageId\":\"{request.id}\",\"timestamp\":{now},\"success\":true,\"properties\":{request.params}}",
        ),
        (Dialect::Thingsboard, RequestKind::Attributes) => {
            form("v1/devices/me/attributes", None, "", "", "")
        }
        (Dialect::Tidegate, RequestKind::Attributes) => {
            form("tg/{id}/down/attributes", None, "", "", "")
        }
        (Dialect::Jetlinks, RequestKind::Attributes) => {
            Err("JetLinks has no shared attributes; use `write`".to_owned())
        }
    }
}
