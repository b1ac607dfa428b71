//! Messages of the service itself: `{"type":"system","level","code","message","timestamp"}`.

use hooks::relay::RelayClose;
use serde_json::json;
use ws::close_codes;

/// A system message. Times are milliseconds since the Unix epoch.
pub(crate) fn system_message(level: &str, code: &str, message: &str, now_ms: u64) -> String {
    let message = json!({
        "type": "system",
        "level": level,
        "code": code,
        "message": message,
        "timestamp": now_ms,
    });
    message.to_string()
}

/// Tells a client why it is disconnected. `reason` is the reason of the close frame, at most 123 bytes.
pub(crate) fn policy_close(
    code: &str,
    message: &str,
    reason: &'static str,
    now_ms: u64,
) -> RelayClose {
    RelayClose {
        code: close_codes::POLICY_VIOLATION,
        reason: reason.into(),
        message: Some(system_message("error", code, message, now_ms)),
    }
}

/// Tells a client that the node has failed, and not the client.
pub(crate) fn internal_error_close(message: &str, now_ms: u64) -> RelayClose {
    RelayClose {
        code: close_codes::INTERNAL_ERROR,
        reason: "Internal server error".into(),
        message: Some(system_message("error", "INTERNAL_ERROR", message, now_ms)),
    }
}
