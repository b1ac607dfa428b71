//! The request that begins a transfer.

use serde::Deserialize;
use serde_json::Value;

use crate::digest::FileDigest;
use crate::error::TransferError;
use crate::name::{check_file_id, sanitise};
use crate::record::FileOwner;

/// Maximum length of user data as JSON, in bytes.
pub const MAX_USER_DATA_BYTES: usize = 16 << 10;
const MAX_CONTENT_TYPE_BYTES: usize = 255;

/// The announcement of a file by its sender.
#[derive(Debug, Clone, PartialEq)]
pub struct TransferRequest {
    pub owner: FileOwner,
    /// Chosen by the sender; it names the transfer together with the owner.
    pub file_id: String,
    pub name: String,
    pub size: Option<u64>,
    pub checksum: Option<FileDigest>,
    pub content_type: Option<String>,
    /// When the complete file expires, in milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
    /// How long the transfer may stay without a new segment.
    pub segments_ttl_s: Option<u64>,
    pub user_data: Value,
    /// It is a part of a file that is made of several uploads; it does not become a file itself.
    pub is_partial: bool,
}

/// The payload of `$file/{file_id}/init`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InitPayload {
    name: String,
    size: Option<u64>,
    checksum: Option<FileDigest>,
    /// Seconds since 1970.
    expire_at: Option<u64>,
    segments_ttl: Option<u64>,
    #[serde(default)]
    user_data: Value,
}

impl TransferRequest {
    /// A request with nothing but these fields.
    #[must_use]
    pub fn new(owner: FileOwner, file_id: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            owner,
            file_id: file_id.into(),
            name: name.into(),
            size: None,
            checksum: None,
            content_type: None,
            expires_at_ms: None,
            segments_ttl_s: None,
            user_data: Value::Null,
            is_partial: false,
        }
    }

    /// Parses the payload of `$file/{file_id}/init`.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn from_json(
        owner: FileOwner,
        file_id: &str,
        payload: &[u8],
    ) -> Result<Self, TransferError> {
        let mut json = serde_json::Deserializer::from_slice(payload);
        let init: InitPayload = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            match error.path().to_string().as_str() {
                "." | "?" => TransferError::invalid(format!("the payload: {}", error.inner())),
                path => TransferError::invalid(format!("{path}: {}", error.inner())),
            }
        })?;
        json.end()
            .map_err(|error| TransferError::invalid(format!("the payload: {error}")))?;
        Ok(Self {
            size: init.size,
            checksum: init.checksum,
            expires_at_ms: init.expire_at.map(|seconds| seconds.saturating_mul(1000)),
            segments_ttl_s: init.segments_ttl,
            user_data: init.user_data,
            ..Self::new(owner, file_id, init.name)
        })
    }

    /// Makes the name safe, and checks the fields that need no settings.
    pub(crate) fn checked(mut self) -> Result<Self, TransferError> {
        check_file_id(&self.file_id).map_err(TransferError::invalid)?;
        let name = sanitise(&self.name);
        self.name = name.map_err(|detail| TransferError::invalid(format!("name: {detail}")))?;
        if self.segments_ttl_s == Some(0) {
            let detail = "segments_ttl: expected a number of seconds above 0";
            return Err(TransferError::invalid(detail));
        }
        if self.user_data.to_string().len() > MAX_USER_DATA_BYTES {
            let detail = format!("user_data: expected at most {MAX_USER_DATA_BYTES} bytes of JSON");
            return Err(TransferError::invalid(detail));
        }
        let is_header_text = |text: &str| {
            text.len() <= MAX_CONTENT_TYPE_BYTES
                && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        };
        if (self.content_type.as_deref()).is_some_and(|text| !is_header_text(text)) {
            let detail = "content_type: expected a media type such as text/plain";
            return Err(TransferError::invalid(detail));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(payload: &str) -> Result<TransferRequest, TransferError> {
        TransferRequest::from_json(FileOwner::client("c"), "id", payload.as_bytes())?.checked()
    }

    #[test]
    fn the_payload_of_init_is_read() {
        let digest = FileDigest::of(b"abc");
        let payload = format!(
            r#"{{"name": "dir/a:b", "size": 3, "checksum": "{digest}", "expire_at": 5, "segments_ttl": 60,
               "user_data": {{"k": [1]}}}}"#
        );
        let request = read(&payload).expect("valid");
        assert_eq!(request.name, "a_b");
        assert_eq!((request.size, request.checksum), (Some(3), Some(digest)));
        assert_eq!(request.expires_at_ms, Some(5000));
        assert_eq!(request.user_data, serde_json::json!({"k": [1]}));
        assert!(read(r#"{"name": "a"}"#).is_ok());
    }

    #[test]
    fn errors_name_the_field() {
        for (payload, field) in [
            ("{", "the payload"),
            (r#"{"name": "a"} x"#, "the payload"),
            (r#"{}"#, "the payload"),
            (r#"{"name": "a", "size": -1}"#, "size"),
            (r#"{"name": "a", "size": "1"}"#, "size"),
            (r#"{"name": "a", "checksum": "ab"}"#, "checksum"),
            (r#"{"name": "a", "segments_ttl": 0}"#, "segments_ttl"),
            (r#"{"name": "a", "other": 0}"#, "other"),
            (r#"{"name": ".."}"#, "name"),
        ] {
            let error = read(payload).expect_err(payload);
            assert!(error.detail.starts_with(field), "{payload}: {error}");
        }
        let long = format!(r#"{{"name": "a", "user_data": "{}"}}"#, "x".repeat(20_000));
        assert!(
            read(&long)
                .expect_err("too long")
                .detail
                .starts_with("user_data")
        );
    }
}
