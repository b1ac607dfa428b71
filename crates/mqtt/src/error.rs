//! Reason codes (MQTT 5.0 section 2.4) and the error of all decoders.

use std::fmt;

/// A reason code. Values below 0x80 mean success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReasonCode(pub u8);

macro_rules! reason_codes {
    ($($name:ident = $code:literal $text:literal;)*) => {
        impl ReasonCode {
            $(#[doc = $text] pub const $name: Self = Self($code);)*

            /// The name in the specification, in lower case.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($code => $text,)*
                    _ => "unknown reason code",
                }
            }
        }
    };
}

reason_codes! {
    SUCCESS = 0x00 "success";
    GRANTED_QOS_1 = 0x01 "granted QoS 1";
    GRANTED_QOS_2 = 0x02 "granted QoS 2";
    DISCONNECT_WITH_WILL = 0x04 "disconnect with will message";
    NO_MATCHING_SUBSCRIBERS = 0x10 "no matching subscribers";
    NO_SUBSCRIPTION_EXISTED = 0x11 "no subscription existed";
    CONTINUE_AUTHENTICATION = 0x18 "continue authentication";
    RE_AUTHENTICATE = 0x19 "re-authenticate";
    UNSPECIFIED_ERROR = 0x80 "unspecified error";
    MALFORMED_PACKET = 0x81 "malformed packet";
    PROTOCOL_ERROR = 0x82 "protocol error";
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83 "implementation specific error";
    UNSUPPORTED_PROTOCOL_VERSION = 0x84 "unsupported protocol version";
    CLIENT_IDENTIFIER_NOT_VALID = 0x85 "client identifier not valid";
    BAD_USER_NAME_OR_PASSWORD = 0x86 "bad user name or password";
    NOT_AUTHORIZED = 0x87 "not authorized";
    SERVER_UNAVAILABLE = 0x88 "server unavailable";
    SERVER_BUSY = 0x89 "server busy";
    BANNED = 0x8a "banned";
    SERVER_SHUTTING_DOWN = 0x8b "server shutting down";
    BAD_AUTHENTICATION_METHOD = 0x8c "bad authentication method";
    KEEP_ALIVE_TIMEOUT = 0x8d "keep alive timeout";
    SESSION_TAKEN_OVER = 0x8e "session taken over";
    TOPIC_FILTER_INVALID = 0x8f "topic filter invalid";
    TOPIC_NAME_INVALID = 0x90 "topic name invalid";
    PACKET_IDENTIFIER_IN_USE = 0x91 "packet identifier in use";
    PACKET_IDENTIFIER_NOT_FOUND = 0x92 "packet identifier not found";
    RECEIVE_MAXIMUM_EXCEEDED = 0x93 "receive maximum exceeded";
    TOPIC_ALIAS_INVALID = 0x94 "topic alias invalid";
    PACKET_TOO_LARGE = 0x95 "packet too large";
    MESSAGE_RATE_TOO_HIGH = 0x96 "message rate too high";
    QUOTA_EXCEEDED = 0x97 "quota exceeded";
    ADMINISTRATIVE_ACTION = 0x98 "administrative action";
    PAYLOAD_FORMAT_INVALID = 0x99 "payload format invalid";
    RETAIN_NOT_SUPPORTED = 0x9a "retain not supported";
    QOS_NOT_SUPPORTED = 0x9b "QoS not supported";
    USE_ANOTHER_SERVER = 0x9c "use another server";
    SERVER_MOVED = 0x9d "server moved";
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9e "shared subscriptions not supported";
    CONNECTION_RATE_EXCEEDED = 0x9f "connection rate exceeded";
    MAXIMUM_CONNECT_TIME = 0xa0 "maximum connect time";
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xa1 "subscription identifiers not supported";
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xa2 "wildcard subscriptions not supported";
}

impl ReasonCode {
    /// The name of 0x00 in DISCONNECT.
    pub const NORMAL_DISCONNECTION: Self = Self(0);

    #[inline]
    pub fn is_error(self) -> bool {
        self.0 >= 0x80
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (0x{:02x})", self.name(), self.0)
    }
}

/// Why bytes are not a valid packet, or a packet that is not allowed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error {
    /// The reason code to send to the peer.
    pub reason: ReasonCode,
    /// Packet, field and expected value, with the statement of the specification if there is one.
    pub detail: &'static str,
}

impl Error {
    #[cold]
    pub(crate) const fn malformed_packet(detail: &'static str) -> Self {
        Self {
            reason: ReasonCode::MALFORMED_PACKET,
            detail,
        }
    }

    #[cold]
    pub(crate) const fn protocol_error(detail: &'static str) -> Self {
        Self {
            reason: ReasonCode::PROTOCOL_ERROR,
            detail,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.name(), self.detail)
    }
}

impl std::error::Error for Error {}
