//! Parsing of tokens.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A parsed token whose signature is not verified yet.
pub(super) struct ParsedToken<'a> {
    pub(super) algorithm: String,
    pub(super) key_id: Option<String>,
    /// The signed bytes.
    pub(super) message: &'a [u8],
    pub(super) signature: Vec<u8>,
    pub(super) claims: Map<String, Value>,
}

#[derive(Deserialize)]
struct TokenHeader {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    /// Critical extensions; none is supported.
    #[serde(default)]
    crit: Option<Value>,
}

impl<'a> ParsedToken<'a> {
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let (message, signature) = text.rsplit_once('.')?;
        let (head, claims) = message.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let head: TokenHeader = serde_json::from_slice(&decode(head)?).ok()?;
        if head.crit.is_some() {
            return None;
        }
        Some(Self {
            algorithm: head.alg,
            key_id: head.kid,
            message: message.as_bytes(),
            signature: decode(signature)?,
            claims: serde_json::from_slice(&decode(claims)?).ok()?,
        })
    }
}
