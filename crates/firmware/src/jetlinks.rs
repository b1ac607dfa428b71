//! The firmware protocol of JetLinks: the fields of its messages.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use transfer::FileDigest;

use crate::device_state::InstallReport;
use crate::digest::DigestAlgorithm;
use crate::package::FirmwarePackage;

/// A message of a device about its firmware.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum FirmwareMessage {
    /// It reports a version or the progress of an upgrade.
    Report(InstallReport),
    /// It asks for a version.
    Pull(PullRequest),
}

/// A request for the description of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PullRequest {
    pub(crate) message_id: String,
    pub(crate) current_version: Option<String>,
    /// `None`: whichever is assigned.
    pub(crate) requested_version: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MessageFields {
    #[serde(default)]
    message_id: Value,
    version: Option<Value>,
    progress: Option<f64>,
    #[serde(default)]
    complete: bool,
    success: Option<bool>,
    error_reason: Option<String>,
    properties: Option<Value>,
    current_version: Option<Value>,
    request_version: Option<Value>,
}

/// Texts, and numbers as devices also write them.
fn text(value: Option<Value>) -> Option<String> {
    match value? {
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Reads a message of one of the steps `upgrade/progress`, `report`, `read/reply` and `pull`; `None`: it is not valid.
pub(crate) fn read_message(step: &str, json: &str) -> Option<FirmwareMessage> {
    let fields: MessageFields = serde_json::from_str(json).ok()?;
    let version = text(fields.version);
    Some(match step {
        "pull" => FirmwareMessage::Pull(PullRequest {
            message_id: text(Some(fields.message_id)).unwrap_or_default(),
            current_version: text(fields.current_version),
            requested_version: text(fields.request_version),
        }),
        "upgrade/progress" => {
            let has_failed = fields.success == Some(false);
            let state = match (has_failed, fields.complete) {
                (true, _) => "failed",
                (false, true) => "updated",
                (false, false) => "downloading",
            };
            FirmwareMessage::Report(InstallReport {
                state: Some(state.to_owned()),
                progress: fields
                    .progress
                    .map(|percent| percent.clamp(0.0, 100.0) as u8),
                error: fields.error_reason,
                // Before the end it is the version that is being installed.
                current_version: version.filter(|_| fields.complete && !has_failed),
                ..InstallReport::default()
            })
        }
        "report" | "read/reply" => FirmwareMessage::Report(InstallReport {
            current_version: Some(version?),
            properties: match fields.properties {
                Some(Value::Object(properties)) => Some(properties),
                _ => None,
            },
            ..InstallReport::default()
        }),
        _ => return None,
    })
}

/// The fields of `firmware/upgrade` and `firmware/pull/reply` that describe a package.
pub(crate) fn package_fields(
    package: &FirmwarePackage,
    sha256: Option<FileDigest>,
    url: &str,
) -> Map<String, Value> {
    let (method, digest) = match package.digest_algorithm {
        DigestAlgorithm::Md5 => ("MD5", package.digest.clone()),
        _ => (
            "SHA256",
            sha256.map(|digest| digest.to_string()).unwrap_or_default(),
        ),
    };
    let fields = json!({
        "url": url,
        "version": package.version,
        "parameters": package.parameters,
        "sign": digest,
        "signMethod": method,
        "firmwareId": package.id,
        "size": package.size,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(step: &str, json: Value) -> InstallReport {
        match read_message(step, &json.to_string()) {
            Some(FirmwareMessage::Report(report)) => report,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn messages_are_read() {
        let progress =
            json!({"progress": 30.5, "complete": false, "version": "2", "success": true});
        let read = report("upgrade/progress", progress);
        assert_eq!(
            (read.state.as_deref(), read.progress),
            (Some("downloading"), Some(30))
        );
        assert_eq!(read.current_version, None);
        let complete = json!({"progress": 100, "complete": true, "version": "2", "success": true});
        let read = report("upgrade/progress", complete);
        assert_eq!(
            (read.state.as_deref(), read.current_version.as_deref()),
            (Some("updated"), Some("2"))
        );
        let failed =
            json!({"progress": 40, "complete": true, "success": false, "errorReason": "no space"});
        let read = report("upgrade/progress", failed);
        assert_eq!(
            (read.state.as_deref(), read.error.as_deref()),
            (Some("failed"), Some("no space"))
        );
        assert_eq!(
            report("report", json!({"version": 3}))
                .current_version
                .as_deref(),
            Some("3")
        );
        let properties = json!({"chip": "a7", "flash_kib": 512});
        let read = report(
            "report",
            json!({"version": "3", "properties": properties.clone()}),
        );
        assert_eq!(read.properties.map(Value::Object), Some(properties));
        // What is no object is ignored, and the version counts.
        let read = report("report", json!({"version": "3", "properties": "a7"}));
        assert_eq!(
            (read.current_version.as_deref(), read.properties),
            (Some("3"), None)
        );
        let pull = json!({"messageId": "m", "currentVersion": "1", "requestVersion": ""});
        let pull = read_message("pull", &pull.to_string());
        let expected = PullRequest {
            message_id: "m".to_owned(),
            current_version: Some("1".to_owned()),
            requested_version: None,
        };
        assert_eq!(pull, Some(FirmwareMessage::Pull(expected)));
        for (step, json) in [("report", "{}"), ("report", "1"), ("other", "{}")] {
            assert_eq!(read_message(step, json), None, "{step} {json}");
        }
    }
}
