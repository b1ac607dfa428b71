//! Topics and payloads of devices that a gateway connects: ThingsBoard's gateway API, and the topics of JetLinks' child devices.

use crate::definition::{DeviceProtocol, RequestKind, SendKind};
use crate::device_protocol::{MessageForm, RequestForm, message_form, request_form};

/// Begin of the topics of a JetLinks device, and of one that a gateway connects.
const JETLINKS_DEVICE: &str = "/{product}/{id}/";
const JETLINKS_CHILD: &str = "/{gateway_product}/{gateway}/child/{id}/";
/// The same for all children, in a subscription of the gateway.
const JETLINKS_CHILDREN: &str = "/{product}/{id}/child/+/";

/// Topic and payload with which a gateway reports that a child is connected.
pub(crate) fn announcement(
    protocol: DeviceProtocol,
) -> Result<(&'static str, &'static str), String> {
    match protocol {
        DeviceProtocol::Thingsboard => Ok((
            "v1/gateway/connect",
            "{\"device\":\"{id}\",\"type\":\"{product}\"}",
        )),
        DeviceProtocol::Jetlinks => Ok((
            "/{gateway_product}/{gateway}/child/{id}/online",
            "{\"deviceId\":\"{id}\",\"timestamp\":{now}}",
        )),
        DeviceProtocol::Native | DeviceProtocol::Raw | DeviceProtocol::Relay => {
            Err("gateways need a product with `protocol` thingsboard or jetlinks".to_owned())
        }
    }
}

/// How a gateway sends a message of a child.
pub(crate) fn child_message_form(
    protocol: DeviceProtocol,
    kind: SendKind,
) -> Result<MessageForm, String> {
    let form = message_form(protocol, kind)?;
    let thingsboard = |topic: &str, front, back| MessageForm {
        topic: topic.to_owned(),
        front,
        back,
    };
    match (protocol, kind) {
        (DeviceProtocol::Thingsboard, SendKind::Telemetry) => Ok(thingsboard(
            "v1/gateway/telemetry",
            "{\"{id}\":[{\"ts\":{now},\"values\":",
            "}]}",
        )),
        (DeviceProtocol::Thingsboard, _) => {
            Ok(thingsboard("v1/gateway/attributes", "{\"{id}\":", "}"))
        }
        _ => Ok(MessageForm {
            topic: form.topic.replace(JETLINKS_DEVICE, JETLINKS_CHILD),
            ..form
        }),
    }
}

/// How a child receives and answers requests of a kind, and the filter that its gateway subscribes to.
pub(crate) fn child_request_form(
    protocol: DeviceProtocol,
    kind: RequestKind,
) -> Result<(RequestForm, String), String> {
    let form = request_form(protocol, kind)?;
    if protocol == DeviceProtocol::Jetlinks {
        let subscription = form.filter.replace(JETLINKS_DEVICE, JETLINKS_CHILDREN);
        let form = RequestForm {
            filter: form.filter.replace(JETLINKS_DEVICE, JETLINKS_CHILD),
            answer_topic: form.answer_topic.replace(JETLINKS_DEVICE, JETLINKS_CHILD),
            ..form
        };
        return Ok((form, subscription));
    }
    let (filter, answer_topic) = match kind {
        RequestKind::Attributes => ("v1/gateway/attributes", ""),
        _ => ("v1/gateway/rpc", "v1/gateway/rpc"),
    };
    let form = RequestForm {
        filter: filter.to_owned(),
        answer_topic: answer_topic.to_owned(),
        front: "{\"device\":\"{id}\",\"id\":{request.id},\"data\":",
        back: "}",
        ..form
    };
    Ok((form, filter.to_owned()))
}
