//! Encodes messages to devices in their protocol, as a topic and a payload.

use super::device_protocol::DeviceProtocol;

/// The recipient of a message.
#[derive(Debug, Clone, Copy)]
pub struct DownlinkTarget<'a> {
    pub product: &'a str,
    pub device: &'a str,
    /// The gateway of the device: its product and id, and the name by which it knows the device.
    pub gateway: Option<(&'a str, &'a str)>,
}

/// A message to a device. Fields named `json` contain JSON.
#[derive(Debug, Clone, Copy)]
pub enum DownlinkMessage<'a> {
    /// New values of shared attributes.
    Attributes {
        json: &'a str,
    },
    /// Shared attributes were deleted.
    AttributesDeleted {
        keys: &'a [&'a str],
    },
    /// The response to a request for attributes; `None`: that scope was not requested.
    AttributesResponse {
        id: &'a str,
        client_json: Option<&'a str>,
        shared_json: Option<&'a str>,
    },
    /// A command, to be answered with this id.
    Command {
        id: &'a str,
        method: &'a str,
        params_json: &'a str,
    },
    ReadProperties {
        id: &'a str,
        keys: &'a [&'a str],
    },
    WriteProperties {
        id: &'a str,
        json: &'a str,
    },
    /// The response to the device's request to the platform.
    RpcResponse {
        id: &'a str,
        json: &'a str,
    },
    /// The response to a registration request.
    Provisioned {
        json: &'a str,
    },
    /// The time, in response to the device's request with this id.
    Time {
        id: &'a str,
    },
    /// Asks a device to install firmware; `members` are those of a JSON object that describe it.
    FirmwareUpgrade {
        id: &'a str,
        members: &'a str,
    },
    /// The response to a device's request for firmware.
    FirmwarePullReply {
        id: &'a str,
        members: &'a str,
    },
    /// Asks a device for the version of its firmware.
    FirmwareRead {
        id: &'a str,
    },
    /// Asks a gateway to disconnect a child device.
    Disconnect {
        id: &'a str,
    },
}

/// The protocol has no message of this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{} has no message for this", protocol.as_str())]
pub struct UnsupportedDownlinkError {
    pub protocol: DeviceProtocol,
}

/// Appends topic and payload to the two buffers.
///
/// # Errors
/// If the protocol has no message of this kind.
pub fn encode_downlink(
    protocol: DeviceProtocol,
    to: &DownlinkTarget<'_>,
    downlink: &DownlinkMessage<'_>,
    now_ms: i64,
    topic: &mut String,
    payload: &mut String,
) -> Result<(), UnsupportedDownlinkError> {
    let is_encoded = match protocol {
        DeviceProtocol::ThingsBoard => match to.gateway {
            Some(_) => encode_thingsboard_gateway(to, downlink, topic, payload),
            None => encode_thingsboard(downlink, topic, payload),
        },
        DeviceProtocol::JetLinks => encode_jetlinks(to, downlink, now_ms, topic, payload),
        DeviceProtocol::Native => native(to, downlink, topic, payload),
        DeviceProtocol::Relay => encode_relay(to, downlink, now_ms, topic, payload),
    };
    match is_encoded {
        true => Ok(()),
        false => Err(UnsupportedDownlinkError { protocol }),
    }
}

fn append(out: &mut String, parts: &[&str]) {
    parts.iter().for_each(|part| out.push_str(part));
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The id as a JSON number if it is one: ThingsBoard devices use numeric ids.
fn id_json(id: &str) -> String {
    match id.parse::<i64>() {
        Ok(number) => number.to_string(),
        Err(_) => quoted(id),
    }
}

fn json_list(keys: &[&str]) -> String {
    serde_json::Value::from(keys.to_vec()).to_string()
}

/// Expresses a property operation as an RPC call, for protocols that have only these.
fn as_rpc_call(downlink: &DownlinkMessage<'_>) -> Option<(String, String, String)> {
    Some(match downlink {
        DownlinkMessage::Command {
            id,
            method,
            params_json,
        } => ((*id).into(), (*method).into(), (*params_json).into()),
        DownlinkMessage::ReadProperties { id, keys } => {
            ((*id).into(), "readProperties".into(), json_list(keys))
        }
        DownlinkMessage::WriteProperties { id, json } => {
            ((*id).into(), "writeProperties".into(), (*json).into())
        }
        _ => return None,
    })
}

/// Topics of the protocols with RPC calls. An id follows a topic that ends with a slash.
struct RpcTopics {
    call: &'static str,
    attributes: &'static str,
    attributes_response: &'static str,
    rpc_response: &'static str,
}

const THINGSBOARD_TOPICS: RpcTopics = RpcTopics {
    call: "v1/devices/me/rpc/request/",
    attributes: "v1/devices/me/attributes",
    attributes_response: "v1/devices/me/attributes/response/",
    rpc_response: "v1/devices/me/rpc/response/",
};

/// Relative to `tg/{deviceId}/down/`.
const NATIVE_TOPICS: RpcTopics = RpcTopics {
    call: "command/",
    attributes: "attributes",
    attributes_response: "attributes/",
    rpc_response: "response/",
};

fn encode_rpc_protocol(
    topics: &RpcTopics,
    downlink: &DownlinkMessage<'_>,
    topic: &mut String,
    payload: &mut String,
) -> bool {
    if let Some((id, method, params)) = as_rpc_call(downlink) {
        append(topic, &[topics.call, &id]);
        append(
            payload,
            &[
                "{\"method\":",
                &quoted(&method),
                ",\"params\":",
                &params,
                "}",
            ],
        );
        return true;
    }
    match downlink {
        DownlinkMessage::Attributes { json } => {
            topic.push_str(topics.attributes);
            payload.push_str(json);
        }
        DownlinkMessage::AttributesDeleted { keys } => {
            topic.push_str(topics.attributes);
            append(payload, &["{\"deleted\":", &json_list(keys), "}"]);
        }
        DownlinkMessage::AttributesResponse {
            id,
            client_json,
            shared_json,
        } => {
            append(topic, &[topics.attributes_response, id]);
            write_scopes(*client_json, *shared_json, payload);
        }
        DownlinkMessage::RpcResponse { id, json } => {
            append(topic, &[topics.rpc_response, id]);
            payload.push_str(json);
        }
        _ => return false,
    }
    true
}

fn encode_thingsboard(
    downlink: &DownlinkMessage<'_>,
    topic: &mut String,
    payload: &mut String,
) -> bool {
    match downlink {
        DownlinkMessage::Provisioned { json } => {
            topic.push_str("/provision/response");
            payload.push_str(json);
        }
        _ => return encode_rpc_protocol(&THINGSBOARD_TOPICS, downlink, topic, payload),
    }
    true
}

fn write_scopes(client_json: Option<&str>, shared_json: Option<&str>, payload: &mut String) {
    payload.push('{');
    let mut comma = "";
    for (name, json) in [("client", client_json), ("shared", shared_json)] {
        if let Some(json) = json {
            append(payload, &[comma, "\"", name, "\":", json]);
            comma = ",";
        }
    }
    payload.push('}');
}

fn encode_thingsboard_gateway(
    to: &DownlinkTarget<'_>,
    downlink: &DownlinkMessage<'_>,
    topic: &mut String,
    payload: &mut String,
) -> bool {
    let device = quoted(to.device);
    if let Some((id, method, params)) = as_rpc_call(downlink) {
        topic.push_str("v1/gateway/rpc");
        let call = ["\"method\":", &quoted(&method), ",\"params\":", &params].concat();
        append(
            payload,
            &[
                "{\"device\":",
                &device,
                ",\"data\":{\"id\":",
                &id_json(&id),
                ",",
                &call,
                "}}",
            ],
        );
        return true;
    }
    match downlink {
        DownlinkMessage::Attributes { json } => {
            topic.push_str("v1/gateway/attributes");
            append(payload, &["{\"device\":", &device, ",\"data\":", json, "}"]);
        }
        DownlinkMessage::AttributesDeleted { keys } => {
            topic.push_str("v1/gateway/attributes");
            append(
                payload,
                &[
                    "{\"device\":",
                    &device,
                    ",\"data\":{\"deleted\":",
                    &json_list(keys),
                    "}}",
                ],
            );
        }
        DownlinkMessage::AttributesResponse {
            id,
            client_json,
            shared_json,
        } => {
            topic.push_str("v1/gateway/attributes/response");
            append(
                payload,
                &["{\"id\":", &id_json(id), ",\"device\":", &device],
            );
            let values = client_json.or(*shared_json).unwrap_or("{}");
            // A single value is sent on its own, as it is requested on its own.
            match sole_value(values) {
                Some(value) => append(payload, &[",\"value\":", &value, "}"]),
                None => append(payload, &[",\"values\":", values, "}"]),
            }
        }
        DownlinkMessage::Disconnect { .. } => {
            topic.push_str("v1/gateway/disconnect");
            append(payload, &["{\"device\":", &device, "}"]);
        }
        _ => return false,
    }
    true
}

fn sole_value(json: &str) -> Option<String> {
    match serde_json::from_str(json).ok()? {
        serde_json::Value::Object(members) if members.len() == 1 => {
            members.values().next().map(ToString::to_string)
        }
        _ => None,
    }
}

fn encode_jetlinks(
    to: &DownlinkTarget<'_>,
    downlink: &DownlinkMessage<'_>,
    now_ms: i64,
    topic: &mut String,
    payload: &mut String,
) -> bool {
    let (suffix, id, rest) = match downlink {
        DownlinkMessage::ReadProperties { id, keys } => (
            "properties/read",
            id,
            format!(",\"properties\":{}", json_list(keys)),
        ),
        DownlinkMessage::WriteProperties { id, json } => {
            ("properties/write", id, format!(",\"properties\":{json}"))
        }
        DownlinkMessage::Command {
            id,
            method,
            params_json,
        } => {
            let function = quoted(method);
            let inputs = function_inputs(params_json);
            let rest =
                format!(",\"functionId\":{function},\"function\":{function},\"inputs\":{inputs}");
            ("function/invoke", id, rest)
        }
        DownlinkMessage::Disconnect { id } => ("disconnect", id, String::new()),
        DownlinkMessage::Time { id } => ("time-sync/reply", id, String::new()),
        DownlinkMessage::FirmwareUpgrade { id, members } => {
            ("firmware/upgrade", id, format!(",{members}"))
        }
        DownlinkMessage::FirmwarePullReply { id, members } => {
            ("firmware/pull/reply", id, format!(",{members}"))
        }
        DownlinkMessage::FirmwareRead { id } => ("firmware/read", id, String::new()),
        _ => return false,
    };
    match to.gateway {
        Some((product, gateway)) => append(
            topic,
            &[
                "/", product, "/", gateway, "/child/", to.device, "/", suffix,
            ],
        ),
        None => append(topic, &["/", to.product, "/", to.device, "/", suffix]),
    }
    let time = itoa::Buffer::new().format(now_ms).to_owned();
    append(
        payload,
        &["{\"timestamp\":", &time, ",\"messageId\":", &quoted(id)],
    );
    append(payload, &[",\"deviceId\":", &quoted(to.device), &rest, "}"]);
    true
}

/// Converts parameters to the list of names and values that a function takes.
fn function_inputs(params_json: &str) -> String {
    use serde_json::{Value, json};
    let inputs = match serde_json::from_str(params_json) {
        Ok(Value::Object(members)) => members
            .into_iter()
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect(),
        Ok(Value::Null) | Err(_) => Vec::new(),
        Ok(value) => vec![json!({"name": "params", "value": value})],
    };
    Value::from(inputs).to_string()
}

/// `{"type":"control",...}`: everything is a command.
fn encode_relay(
    to: &DownlinkTarget<'_>,
    downlink: &DownlinkMessage<'_>,
    now_ms: i64,
    topic: &mut String,
    payload: &mut String,
) -> bool {
    let Some((id, command, params)) = as_rpc_call(downlink) else {
        return false;
    };
    // The connection receives no topic; the name is for the message log.
    topic.push_str("control");
    let params = match &*params {
        "null" => "{}",
        params => params,
    };
    let time = itoa::Buffer::new().format(now_ms).to_owned();
    append(
        payload,
        &[
            "{\"type\":\"control\",\"commandId\":",
            &quoted(&id),
            ",\"deviceId\":",
            &quoted(to.device),
            ",\"command\":",
            &quoted(&command),
            ",\"params\":",
            params,
            ",\"timestamp\":",
            &time,
            "}",
        ],
    );
    true
}

fn native(
    to: &DownlinkTarget<'_>,
    downlink: &DownlinkMessage<'_>,
    topic: &mut String,
    payload: &mut String,
) -> bool {
    append(topic, &["tg/", to.device, "/down/"]);
    encode_rpc_protocol(&NATIVE_TOPICS, downlink, topic, payload)
}
