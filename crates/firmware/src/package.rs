//! Firmware packages: an image with its version, its digest and its signature, for the devices of one product.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use transfer::FileDigest;

use crate::definition_error::{DefinitionError, check_length, read_definition};
use crate::digest::DigestAlgorithm;
use crate::signature::PackageSignature;

/// The kind of the configuration objects that define packages.
pub const KIND: &str = "firmware";
/// Maximum length of `parameters` as JSON.
const MAX_PARAMETERS_BYTES: usize = 8192;
/// Maximum number of packages of a node.
pub const MAX_PACKAGES: usize = 10_000;

/// What an image is for. A device has one target of each type.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FirmwareType {
    #[default]
    Firmware,
    /// An application on the device, which is updated on its own.
    Software,
}

impl FirmwareType {
    pub const ALL: [Self; 2] = [Self::Firmware, Self::Software];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Firmware => "firmware",
            Self::Software => "software",
        }
    }

    /// The prefix of ThingsBoard's topics and keys.
    #[must_use]
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Firmware => "fw",
            Self::Software => "sw",
        }
    }
}

/// A firmware package. The image is a file of the node, which is kept as long as the package exists. `size`, `sha256`, `digest`
/// and `signed_by` are computed from the file; values that are given are verified.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FirmwareDefinition {
    /// Name of the firmware, which devices compare with their own. Cannot change.
    #[schemars(length(min = 1, max = 255))]
    pub title: String,
    /// Version of the firmware; `version` is that of the configuration object. Cannot change.
    #[schemars(length(min = 1, max = 255))]
    pub firmware_version: String,
    /// Id of the product whose devices can install it. Cannot change.
    #[schemars(length(min = 1, max = 256))]
    pub product: String,
    /// Cannot change.
    #[serde(default, rename = "type")]
    pub kind: FirmwareType,
    /// Namespace of the package, its product and its file. Cannot change.
    #[serde(default = "namespaces::default_id")]
    #[schemars(length(min = 1, max = 64))]
    pub namespace: String,
    /// Id of the file with the image. Cannot change.
    #[schemars(length(min = 1, max = 64))]
    pub file: String,
    /// Size of the image in bytes.
    #[serde(default)]
    pub size: Option<u64>,
    /// SHA-256 digest of the image.
    #[serde(default)]
    pub sha256: Option<FileDigest>,
    /// Algorithm of `digest`.
    #[serde(default)]
    pub digest_algorithm: DigestAlgorithm,
    /// Digest of the image that devices receive and verify, in hexadecimal digits.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub digest: Option<String>,
    #[serde(default)]
    pub signature: Option<PackageSignature>,
    /// The key that has signed the image; `null`: it is not signed.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub signed_by: Option<String>,
    /// Text by which ThingsBoard devices distinguish packages; `null`: title and version.
    #[serde(default)]
    #[schemars(length(min = 1, max = 255))]
    pub tag: Option<String>,
    /// `http://` or `https://` link under which devices download the image instead of from the node, such as that of a mirror. Its
    /// content must be that of the file, from which size and digests are computed.
    #[serde(default)]
    #[schemars(length(min = 1, max = 2048))]
    pub url: Option<String>,
    /// What JetLinks devices are sent with the package, at most 8192 bytes of JSON.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// What has changed, for people.
    #[serde(default)]
    #[schemars(length(max = 10000))]
    pub notes: String,
}

impl FirmwareDefinition {
    /// Parses a package and checks what needs no file.
    ///
    /// # Errors
    /// Names the invalid field.
    pub(crate) fn read(value: &Value) -> Result<Self, DefinitionError> {
        let read: Self = read_definition(value)?;
        check_length("title", &read.title, (1, 255))?;
        check_length("firmware_version", &read.firmware_version, (1, 255))?;
        check_length("product", &read.product, (1, 256))?;
        check_length("file", &read.file, (1, 64))?;
        check_length("notes", &read.notes, (0, 10_000))?;
        if let Some(tag) = &read.tag {
            check_length("tag", tag, (1, 255))?;
        }
        if let Some(url) = &read.url {
            check_length("url", url, (1, 2048))?;
            check_url(url)?;
        }
        let parameters = Value::Object(read.parameters.clone()).to_string();
        if parameters.len() > MAX_PARAMETERS_BYTES {
            let detail = format!(
                "expected at most {MAX_PARAMETERS_BYTES} bytes of JSON, not {}",
                parameters.len()
            );
            return Err(DefinitionError::new("parameters", detail));
        }
        Ok(read)
    }

    /// Checks that devices that have begun to download the package still get the same.
    pub(crate) fn check_unchanged(&self, current: &Self) -> Result<(), DefinitionError> {
        let fields = [
            ("title", self.title == current.title),
            (
                "firmware_version",
                self.firmware_version == current.firmware_version,
            ),
            ("product", self.product == current.product),
            ("type", self.kind == current.kind),
            ("file", self.file == current.file),
        ];
        match fields.into_iter().find(|(_, is_same)| !is_same) {
            None => Ok(()),
            Some((field, _)) => Err(DefinitionError::new(
                field,
                "it cannot change, because devices may be downloading the package; create another package",
            )),
        }
    }
}

/// Devices get the link as it is.
fn check_url(url: &str) -> Result<(), DefinitionError> {
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    let has_host = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
    let is_plain = url.bytes().all(|byte| byte.is_ascii_graphic());
    if has_host && is_plain {
        return Ok(());
    }
    let detail = "expected a link such as https://example.com/pump.bin, without spaces; percent-encode other characters";
    Err(DefinitionError::new("url", detail))
}

/// A package as it is stored: verified, and complete.
#[derive(Debug, Clone, PartialEq)]
pub struct FirmwarePackage {
    pub id: String,
    pub title: String,
    pub version: String,
    pub product: String,
    pub kind: FirmwareType,
    pub namespace: String,
    pub file: String,
    pub size: u64,
    pub sha256: Option<FileDigest>,
    pub digest_algorithm: DigestAlgorithm,
    pub digest: String,
    /// Text by which ThingsBoard devices distinguish packages.
    pub tag: String,
    /// Where devices download the image; `None`: from the node.
    pub url: Option<String>,
    /// What JetLinks devices are sent with the package.
    pub parameters: Map<String, Value>,
}

impl FirmwarePackage {
    /// Parses a stored package.
    ///
    /// # Errors
    /// If it was not stored by this program.
    pub(crate) fn from_stored(id: &str, value: &Value) -> Result<Self, DefinitionError> {
        let read: FirmwareDefinition = read_definition(value)?;
        let missing = |field| DefinitionError::new(field, "it is missing");
        Ok(Self {
            id: id.to_owned(),
            size: read.size.ok_or_else(|| missing("size"))?,
            digest: read.digest.ok_or_else(|| missing("digest"))?,
            sha256: read.sha256,
            tag: read
                .tag
                .unwrap_or_else(|| format!("{} {}", read.title, read.firmware_version)),
            url: read.url,
            parameters: read.parameters,
            title: read.title,
            version: read.firmware_version,
            product: read.product,
            kind: read.kind,
            namespace: read.namespace,
            file: read.file,
            digest_algorithm: read.digest_algorithm,
        })
    }

    /// The holder of the file of a package, for messages.
    pub(crate) fn holder(id: &str) -> String {
        format!("the firmware package {id:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dialect_fields_are_checked() {
        let read = |more: Value| {
            let mut value = json!({
                "title": "pump", "firmware_version": "2", "product": "pump", "file": "f",
            });
            for (name, field) in more.as_object().into_iter().flatten() {
                value[name] = field.clone();
            }
            FirmwareDefinition::read(&value)
        };
        assert!(read(json!({"url": "https://example.com/a%20b?c=d", "tag": "a"})).is_ok());
        for (more, field) in [
            (json!({"url": "ftp://example.com/a"}), "url"),
            (json!({"url": "https:///a"}), "url"),
            (json!({"url": "https://example.com/a b"}), "url"),
            (json!({"url": "https://"}), "url"),
            (json!({"tag": ""}), "tag"),
            (json!({"parameters": []}), "parameters"),
            (json!({"parameters": {"a": "b".repeat(9000)}}), "parameters"),
        ] {
            let error = read(more.clone()).expect_err("invalid");
            assert_eq!(error.field, field, "{more} {error}");
        }
    }
}
