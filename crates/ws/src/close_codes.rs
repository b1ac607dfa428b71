//! Close codes (RFC 6455 section 7.4 and the IANA registry) and which of them a close frame may contain.

pub const NORMAL: u16 = 1000;
pub const GOING_AWAY: u16 = 1001;
pub const PROTOCOL_ERROR: u16 = 1002;
pub const UNSUPPORTED_DATA: u16 = 1003;
pub const INVALID_PAYLOAD: u16 = 1007;
pub const POLICY_VIOLATION: u16 = 1008;
pub const MESSAGE_TOO_BIG: u16 = 1009;
pub const INTERNAL_ERROR: u16 = 1011;
pub const SERVICE_RESTART: u16 = 1012;
pub const TRY_AGAIN_LATER: u16 = 1013;

/// Longest reason of a close frame, in bytes: 125 minus two bytes for the code.
pub const MAX_REASON_BYTES: usize = 123;

/// Whether `code` may be sent. 1004 to 1006 and 1015 are reserved for local use; 1016 to 2999 are unassigned.
pub const fn is_valid_on_wire(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_may_not_be_sent_are_known() {
        for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, u16::MAX] {
            assert!(!is_valid_on_wire(code), "{code}");
        }
        for code in [1000, 1003, 1007, 1009, 1011, 1014, 3000, 3999, 4000, 4999] {
            assert!(is_valid_on_wire(code), "{code}");
        }
    }
}
