//! Topics and payloads of device protocols: ThingsBoard, JetLinks and native. See docs/reference/device-protocols.md.

use crate::definition::{DeviceProtocol, RequestKind, SendKind};
use crate::plan::ImageKind;

/// Topics of messages at relay endpoints, which tell what a message of the device is, and what one of the endpoint is.
pub(crate) const RELAY_DATA: &str = "data";
pub(crate) const RELAY_REQUESTS: &str = "request";
pub(crate) const RELAY_CONTROL: &str = "control/+";
pub(crate) const RELAY_ACKNOWLEDGEMENTS: &str = "control_ack";
pub(crate) const RELAY_MESSAGES: &str = "message";

const RELAY_SUCCESS: &str =
    "{\"type\":\"control_ack\",\"commandId\":\"{request.id}\",\"status\":\"success\"}";

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
            "`kind` needs a product with `protocol` thingsboard, jetlinks, native or relay; give `topic` and `payload`"
                .to_owned(),
        ),
        (DeviceProtocol::Relay, SendKind::Telemetry) => form(
            RELAY_DATA,
            "{\"type\":\"data\",\"timestamp\":{now},\"data\":",
            "}",
        ),
        (DeviceProtocol::Relay, SendKind::Request) => form(RELAY_REQUESTS, "", ""),
        (DeviceProtocol::Relay, _) => {
            Err("devices of relay endpoints send `telemetry` and `request`".to_owned())
        }
        (_, SendKind::Request) => {
            Err("`request` needs a product with `protocol` relay".to_owned())
        }
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

/// Begin of the topics of firmware in JetLinks' protocol.
pub(crate) const JETLINKS_FIRMWARE: &str = "/{product}/{id}/firmware/";

/// Filters that devices of a protocol need to install images of a kind.
pub(crate) fn image_filters(
    protocol: DeviceProtocol,
    kind: ImageKind,
) -> Result<Vec<String>, String> {
    let prefix = kind.prefix();
    match (protocol, kind) {
        (DeviceProtocol::Thingsboard, _) => Ok(vec![
            "v1/devices/me/attributes".to_owned(),
            "v1/devices/me/attributes/response/+".to_owned(),
            format!("v2/{prefix}/response/+/chunk/+"),
            format!("v2/{prefix}/error"),
        ]),
        (DeviceProtocol::Jetlinks, ImageKind::Firmware) => Ok(["upgrade", "read"]
            .map(|step| format!("{JETLINKS_FIRMWARE}{step}"))
            .to_vec()),
        (DeviceProtocol::Jetlinks, ImageKind::Software) => {
            Err("JetLinks' protocol has no software; use `firmware`".to_owned())
        }
        _ => Err("images need a product with `protocol` thingsboard or jetlinks".to_owned()),
    }
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
    let relay = |method, success| {
        form(
            RELAY_CONTROL,
            method,
            RELAY_ACKNOWLEDGEMENTS,
            success,
            "{\"type\":\"control_ack\",\"commandId\":\"{request.id}\",\"status\":\"failed\",\"message\":\"simulated failure\"}",
        )
    };
    let jetlinks = |filter: &str, answer_topic: &str, success| {
        let failed = "{\"messageId\":\"{request.id}\",\"timestamp\":{now},\"success\":false,\"code\":\"simulated\",\
                      \"message\":\"simulated failure\"}";
        form(filter, None, answer_topic, success, failed)
    };
    match (protocol, kind) {
        (_, RequestKind::Firmware | RequestKind::Software) => {
            Err("images are installed, not answered".to_owned())
        }
        (_, RequestKind::Topic) => Err("`kind = \"topic\"` has its own `topic`".to_owned()),
        (DeviceProtocol::Raw, _) => Err(
            "this kind needs a product with `protocol` thingsboard, jetlinks, native or relay; use `kind = \"topic\"`"
                .to_owned(),
        ),
        (DeviceProtocol::Relay, RequestKind::Command | RequestKind::Function | RequestKind::File) => {
            relay(None, RELAY_SUCCESS)
        }
        (DeviceProtocol::Relay, RequestKind::Read) => relay(
            Some("readProperties"),
            "{\"type\":\"control_ack\",\"commandId\":\"{request.id}\",\"status\":\"success\",\"data\":{values}}",
        ),
        (DeviceProtocol::Relay, RequestKind::Write) => {
            relay(Some("writeProperties"), RELAY_SUCCESS)
        }
        (DeviceProtocol::Relay, RequestKind::Attributes) => Err(
            "devices of relay endpoints are not told about attributes; let them send `request` with config_query"
                .to_owned(),
        ),
        (DeviceProtocol::Thingsboard, RequestKind::Command | RequestKind::Function | RequestKind::File) => {
            thingsboard(None, "{\"success\":true}")
        }
        (DeviceProtocol::Thingsboard, RequestKind::Read) => thingsboard(Some("readProperties"), "{values}"),
        (DeviceProtocol::Thingsboard, RequestKind::Write) => {
            thingsboard(Some("writeProperties"), "{\"success\":true}")
        }
        (DeviceProtocol::Native, RequestKind::Command | RequestKind::Function | RequestKind::File) => {
            native(None, "{\"success\":true}")
        }
        (DeviceProtocol::Native, RequestKind::Read) => {
            native(Some("readProperties"), "{\"success\":true,\"data\":{values}}")
        }
        (DeviceProtocol::Native, RequestKind::Write) => {
            native(Some("writeProperties"), "{\"success\":true}")
        }
        (DeviceProtocol::Jetlinks, RequestKind::Command | RequestKind::Function | RequestKind::File) => jetlinks(
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
