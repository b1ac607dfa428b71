//! What the node tells a device, in the words of its dialect: a topic and a payload.

use super::Dialect;

/// Whom a message is for.
#[derive(Debug, Clone, Copy)]
pub struct Addressee<'a> {
    pub product: &'a str,
    pub device: &'a str,
    /// It is behind this one: its product and id, and the name by which the gateway knows the device.
    pub gateway: Option<(&'a str, &'a str)>,
}

/// What a device is told. Texts called `json` are JSON.
#[derive(Debug, Clone, Copy)]
pub enum Tell<'a> {
    /// Shared attributes have new values.
    Attributes {
        json: &'a str,
    },
    /// Shared attributes are no more.
    AttributesDeleted {
        keys: &'a [&'a str],
    },
    /// The answer to a request for attributes; `None`: that scope was not asked for.
    AttributesResponse {
        id: &'a str,
        client_json: Option<&'a str>,
        shared_json: Option<&'a str>,
    },
    /// Do something, and answer with this id.
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
    /// The answer to what the device has asked the platform to do.
    RpcResponse {
        id: &'a str,
        json: &'a str,
    },
    /// The answer to a request to be made a device.
    Provisioned {
        json: &'a str,
    },
    /// The time, for a device that has asked for it with this id.
    Time {
        id: &'a str,
    },
    /// A device behind the gateway shall be cut off.
    Disconnect {
        id: &'a str,
    },
}

/// A dialect has no words for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{} has no message for this", dialect.as_str())]
pub struct Untold {
    pub dialect: Dialect,
}

/// Writes topic and payload behind what is in the two.
///
/// # Errors
/// If the dialect has no words for it.
pub fn write(
    dialect: Dialect,
    to: &Addressee<'_>,
    tell: &Tell<'_>,
    now_ms: i64,
    topic: &mut String,
    payload: &mut String,
) -> Result<(), Untold> {
    let is_told = match dialect {
        Dialect::ThingsBoard => match to.gateway {
            Some(_) => thingsboard_gateway(to, tell, topic, payload),
            None => thingsboard(tell, topic, payload),
        },
        Dialect::JetLinks => jetlinks(to, tell, now_ms, topic, payload),
        Dialect::Own => own(to, tell, topic, payload),
    };
    match is_told {
        true => Ok(()),
        false => Err(Untold { dialect }),
    }
}

fn put(out: &mut String, parts: &[&str]) {
    parts.iter().for_each(|part| out.push_str(part));
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A number if it is one: what devices of ThingsBoard give and take as ids.
fn id_json(id: &str) -> String {
    match id.parse::<i64>() {
        Ok(number) => number.to_string(),
        Err(_) => quoted(id),
    }
}

fn list(keys: &[&str]) -> String {
    serde_json::Value::from(keys.to_vec()).to_string()
}

/// What is done with properties where only procedures can be called.
fn as_call(tell: &Tell<'_>) -> Option<(String, String, String)> {
    Some(match tell {
        Tell::Command {
            id,
            method,
            params_json,
        } => ((*id).into(), (*method).into(), (*params_json).into()),
        Tell::ReadProperties { id, keys } => ((*id).into(), "readProperties".into(), list(keys)),
        Tell::WriteProperties { id, json } => {
            ((*id).into(), "writeProperties".into(), (*json).into())
        }
        _ => return None,
    })
}

/// Where the dialects that call procedures say what they say alike. An id follows what ends with a slash.
struct Topics {
    call: &'static str,
    attributes: &'static str,
    attributes_response: &'static str,
    rpc_response: &'static str,
}

const OF_THINGSBOARD: Topics = Topics {
    call: "v1/devices/me/rpc/request/",
    attributes: "v1/devices/me/attributes",
    attributes_response: "v1/devices/me/attributes/response/",
    rpc_response: "v1/devices/me/rpc/response/",
};

/// Behind `tg/{deviceId}/down/`.
const OF_OWN: Topics = Topics {
    call: "command/",
    attributes: "attributes",
    attributes_response: "attributes/",
    rpc_response: "response/",
};

fn tell_alike(topics: &Topics, tell: &Tell<'_>, topic: &mut String, payload: &mut String) -> bool {
    if let Some((id, method, params)) = as_call(tell) {
        put(topic, &[topics.call, &id]);
        put(
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
    match tell {
        Tell::Attributes { json } => {
            topic.push_str(topics.attributes);
            payload.push_str(json);
        }
        Tell::AttributesDeleted { keys } => {
            topic.push_str(topics.attributes);
            put(payload, &["{\"deleted\":", &list(keys), "}"]);
        }
        Tell::AttributesResponse {
            id,
            client_json,
            shared_json,
        } => {
            put(topic, &[topics.attributes_response, id]);
            scopes(*client_json, *shared_json, payload);
        }
        Tell::RpcResponse { id, json } => {
            put(topic, &[topics.rpc_response, id]);
            payload.push_str(json);
        }
        _ => return false,
    }
    true
}

fn thingsboard(tell: &Tell<'_>, topic: &mut String, payload: &mut String) -> bool {
    match tell {
        Tell::Provisioned { json } => {
            topic.push_str("/provision/response");
            payload.push_str(json);
        }
        _ => return tell_alike(&OF_THINGSBOARD, tell, topic, payload),
    }
    true
}

fn scopes(client_json: Option<&str>, shared_json: Option<&str>, payload: &mut String) {
    payload.push('{');
    let mut comma = "";
    for (name, json) in [("client", client_json), ("shared", shared_json)] {
        if let Some(json) = json {
            put(payload, &[comma, "\"", name, "\":", json]);
            comma = ",";
        }
    }
    payload.push('}');
}

fn thingsboard_gateway(
    to: &Addressee<'_>,
    tell: &Tell<'_>,
    topic: &mut String,
    payload: &mut String,
) -> bool {
    let device = quoted(to.device);
    if let Some((id, method, params)) = as_call(tell) {
        topic.push_str("v1/gateway/rpc");
        let call = ["\"method\":", &quoted(&method), ",\"params\":", &params].concat();
        put(
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
    match tell {
        Tell::Attributes { json } => {
            topic.push_str("v1/gateway/attributes");
            put(payload, &["{\"device\":", &device, ",\"data\":", json, "}"]);
        }
        Tell::AttributesDeleted { keys } => {
            topic.push_str("v1/gateway/attributes");
            put(
                payload,
                &[
                    "{\"device\":",
                    &device,
                    ",\"data\":{\"deleted\":",
                    &list(keys),
                    "}}",
                ],
            );
        }
        Tell::AttributesResponse {
            id,
            client_json,
            shared_json,
        } => {
            topic.push_str("v1/gateway/attributes/response");
            put(
                payload,
                &["{\"id\":", &id_json(id), ",\"device\":", &device],
            );
            let values = client_json.or(*shared_json).unwrap_or("{}");
            // One value is told alone, as it is asked for alone.
            match sole_value(values) {
                Some(value) => put(payload, &[",\"value\":", &value, "}"]),
                None => put(payload, &[",\"values\":", values, "}"]),
            }
        }
        Tell::Disconnect { .. } => {
            topic.push_str("v1/gateway/disconnect");
            put(payload, &["{\"device\":", &device, "}"]);
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

fn jetlinks(
    to: &Addressee<'_>,
    tell: &Tell<'_>,
    now_ms: i64,
    topic: &mut String,
    payload: &mut String,
) -> bool {
    let (suffix, id, rest) = match tell {
        Tell::ReadProperties { id, keys } => (
            "properties/read",
            id,
            format!(",\"properties\":{}", list(keys)),
        ),
        Tell::WriteProperties { id, json } => {
            ("properties/write", id, format!(",\"properties\":{json}"))
        }
        Tell::Command {
            id,
            method,
            params_json,
        } => {
            let function = quoted(method);
            let inputs = inputs(params_json);
            let rest =
                format!(",\"functionId\":{function},\"function\":{function},\"inputs\":{inputs}");
            ("function/invoke", id, rest)
        }
        Tell::Disconnect { id } => ("disconnect", id, String::new()),
        Tell::Time { id } => ("time-sync/reply", id, String::new()),
        _ => return false,
    };
    match to.gateway {
        Some((product, gateway)) => put(
            topic,
            &[
                "/", product, "/", gateway, "/child/", to.device, "/", suffix,
            ],
        ),
        None => put(topic, &["/", to.product, "/", to.device, "/", suffix]),
    }
    let time = itoa::Buffer::new().format(now_ms).to_owned();
    put(
        payload,
        &["{\"timestamp\":", &time, ",\"messageId\":", &quoted(id)],
    );
    put(payload, &[",\"deviceId\":", &quoted(to.device), &rest, "}"]);
    true
}

/// Parameters as the list of names and values that a function takes.
fn inputs(params_json: &str) -> String {
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

fn own(to: &Addressee<'_>, tell: &Tell<'_>, topic: &mut String, payload: &mut String) -> bool {
    put(topic, &["tg/", to.device, "/down/"]);
    tell_alike(&OF_OWN, tell, topic, payload)
}
