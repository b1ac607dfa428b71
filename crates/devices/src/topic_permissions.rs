//! Topics that a device may publish and subscribe to: the topics of its product's protocols, for itself and its child
//! devices. Whether a named child is really behind the gateway is checked when the message is read.

use crate::device::Device;
use crate::protocol::DeviceProtocol;

pub const PROVISION_REQUEST: &str = "/provision/request";
pub const PROVISION_RESPONSE: &str = "/provision/response";

const THINGSBOARD: &str = "v1/devices/me/";
const THINGSBOARD_GATEWAY: &str = "v1/gateway/";
/// Topics of firmware and of software.
const THINGSBOARD_FIRMWARE: [&str; 2] = ["v2/fw/", "v2/sw/"];
/// Suffixes of these.
const FIRMWARE_UPLINK: [&str; 1] = ["request/"];
const FIRMWARE_DOWNLINK: [&str; 2] = ["response/", "error"];
/// Suffixes of `v1/devices/me/`; anything may follow a final slash.
const UPLINK: [&str; 6] = [
    "telemetry",
    "attributes",
    "attributes/request/",
    "rpc/response/",
    "rpc/request/",
    "claim",
];
const DOWNLINK: [&str; 4] = [
    "attributes",
    "attributes/response/",
    "rpc/request/",
    "rpc/response/",
];
/// Suffixes of `v1/gateway/`.
const GATEWAY_UPLINK: [&str; 7] = [
    "connect",
    "disconnect",
    "telemetry",
    "attributes",
    "attributes/request",
    "rpc",
    "claim",
];
const GATEWAY_DOWNLINK: [&str; 3] = ["attributes", "attributes/response", "rpc"];

fn is_one_of(list: &[&str], rest: &str) -> bool {
    list.iter().any(|topic| match topic.ends_with('/') {
        true => rest.starts_with(topic),
        false => rest == *topic,
    })
}

impl Device {
    /// Whether the device's protocols allow publishing to a topic.
    #[must_use]
    pub fn may_publish(&self, topic: &str) -> bool {
        self.is_topic_allowed(topic, &UPLINK, &GATEWAY_UPLINK, &FIRMWARE_UPLINK)
    }

    /// Whether the device's protocols allow subscribing to a filter. Wildcards are allowed only behind the device's
    /// own names.
    #[must_use]
    pub fn may_subscribe(&self, filter: &str) -> bool {
        self.is_topic_allowed(filter, &DOWNLINK, &GATEWAY_DOWNLINK, &FIRMWARE_DOWNLINK)
    }

    fn is_topic_allowed(
        &self,
        topic: &str,
        own: &[&str],
        gateway: &[&str],
        firmware: &[&str],
    ) -> bool {
        let product = self.product.get();
        let mut prefixes = THINGSBOARD_FIRMWARE.iter();
        if let Some(rest) = prefixes.find_map(|prefix| topic.strip_prefix(prefix)) {
            return product.allows_protocol(DeviceProtocol::ThingsBoard)
                && is_one_of(firmware, rest);
        }
        if let Some(rest) = topic.strip_prefix(THINGSBOARD) {
            return product.allows_protocol(DeviceProtocol::ThingsBoard) && is_one_of(own, rest);
        }
        if let Some(rest) = topic.strip_prefix(THINGSBOARD_GATEWAY) {
            return product.allows_protocol(DeviceProtocol::ThingsBoard)
                && self.is_gateway()
                && is_one_of(gateway, rest);
        }
        let id = self.id.as_str();
        let is_below = |text: &str, name: &str| {
            let rest = text.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        if let Some(rest) = topic.strip_prefix("tg/") {
            return product.allows_protocol(DeviceProtocol::Native) && is_below(rest, id);
        }
        if let Some(rest) = topic.strip_prefix('/') {
            let rest = rest.strip_prefix(product.id.as_str());
            let rest = rest.and_then(|rest| rest.strip_prefix('/'));
            return product.allows_protocol(DeviceProtocol::JetLinks)
                && rest.is_some_and(|rest| is_below(rest, id));
        }
        false
    }
}
