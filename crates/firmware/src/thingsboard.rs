//! The firmware protocol of ThingsBoard: topics of chunks, attributes of the target, and states in telemetry.

use serde_json::{Value, json};

use crate::package::{FirmwarePackage, FirmwareType};

/// Maximum length of a request id in bytes.
const MAX_REQUEST_ID_BYTES: usize = 64;

/// The topic of a request for a chunk: `v2/fw/request/{id}/chunk/{index}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkTopic<'t> {
    pub(crate) kind: FirmwareType,
    pub(crate) request_id: &'t str,
    pub(crate) index: u64,
    /// As the device wrote it, perhaps with zeros in front: it expects the answer at the same index.
    index_text: &'t str,
}

/// The type of a topic that begins like a request for a chunk.
pub(crate) fn requested_type(topic: &str) -> Option<FirmwareType> {
    match topic.strip_prefix("v2/")?.split_once('/')? {
        ("fw", rest) if rest.starts_with("request/") => Some(FirmwareType::Firmware),
        ("sw", rest) if rest.starts_with("request/") => Some(FirmwareType::Software),
        _ => None,
    }
}

impl<'t> ChunkTopic<'t> {
    pub(crate) fn parse(topic: &'t str) -> Option<Self> {
        let kind = requested_type(topic)?;
        let rest = topic["v2/fw/request/".len()..].split_once("/chunk/");
        let (request_id, index) = rest?;
        let is_id = !request_id.is_empty()
            && request_id.len() <= MAX_REQUEST_ID_BYTES
            && !request_id.contains('/');
        let is_number = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
        (is_id && is_number).then_some(Self {
            kind,
            request_id,
            index: index.parse().ok()?,
            index_text: index,
        })
    }

    pub(crate) fn response(&self) -> String {
        let prefix = self.kind.prefix();
        let (request_id, index) = (self.request_id, self.index_text);
        format!("v2/{prefix}/response/{request_id}/chunk/{index}")
    }
}

pub(crate) fn error_topic(kind: FirmwareType) -> String {
    format!("v2/{}/error", kind.prefix())
}

/// The keys of the shared attributes that name the target of a device.
pub(crate) fn shared_attribute_keys(kind: FirmwareType) -> [String; 7] {
    let prefix = kind.prefix();
    [
        "title",
        "version",
        "tag",
        "size",
        "checksum_algorithm",
        "checksum",
        "url",
    ]
    .map(|name| format!("{prefix}_{name}"))
}

/// The shared attributes of a package, in the order of [`shared_attribute_keys`]. Those that it does not have are `null`.
pub(crate) fn attributes(package: &FirmwarePackage) -> Vec<(String, Value)> {
    let values = [
        json!(package.title),
        json!(package.version),
        json!(package.tag),
        json!(package.size),
        json!(package.digest_algorithm.thingsboard_name()),
        json!(package.digest),
        json!(package.url),
    ];
    let keys = shared_attribute_keys(package.kind).into_iter();
    keys.zip(values).collect()
}

/// The keys of the server attributes that show people and rules the target of a device.
pub(crate) fn target_attribute_keys(kind: FirmwareType) -> [String; 4] {
    let prefix = kind.prefix();
    ["title", "version", "tag", "ts"].map(|name| format!("target_{prefix}_{name}"))
}

/// The server attributes of a package, which was assigned at this time.
pub(crate) fn target_attributes(
    package: &FirmwarePackage,
    assigned_at_ms: u64,
) -> Vec<(String, Value)> {
    let values = [
        json!(package.title),
        json!(package.version),
        json!(package.tag),
        json!(assigned_at_ms),
    ];
    target_attribute_keys(package.kind)
        .into_iter()
        .zip(values)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_of_chunks() {
        let topic = ChunkTopic::parse("v2/sw/request/7a/chunk/12").unwrap();
        let expected = ChunkTopic {
            kind: FirmwareType::Software,
            request_id: "7a",
            index: 12,
            index_text: "12",
        };
        assert_eq!(topic, expected);
        assert_eq!(topic.response(), "v2/sw/response/7a/chunk/12");
        let topic = ChunkTopic::parse("v2/fw/request/1/chunk/007").unwrap();
        assert_eq!(topic.index, 7);
        assert_eq!(topic.response(), "v2/fw/response/1/chunk/007");
        for wrong in [
            "v2/fw/request/7/chunk/",
            "v2/fw/request/7/chunk/-1",
            "v2/fw/request/7/chunk/+1",
            "v2/fw/request/7/chunk/99999999999999999999",
            "v2/fw/request//chunk/1",
            "v2/fw/request/7/8/chunk/1",
            "v2/fw/request/7",
        ] {
            assert_eq!(ChunkTopic::parse(wrong), None, "{wrong}");
            assert!(requested_type(wrong).is_some(), "{wrong}");
        }
        for other in [
            "v2/fw/response/7/chunk/1",
            "v2/hw/request/1/chunk/1",
            "v2/fw",
            "v1/fw/request/",
        ] {
            assert_eq!(requested_type(other), None, "{other}");
        }
    }
}
