//! Encoding of Kafka's protocol, the requests used here, and the meaning of error codes.
//!
//! All requests use versions without "flexible" fields: every broker since 2.4 (2019) supports them, and Kafka 4 still does.

use std::fmt;

/// The bytes are truncated or invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DecodeError(pub(crate) &'static str);

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid response: {}", self.0)
    }
}

/// Reads values from the front of a buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decoder<'a>(pub(crate) &'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) fn raw(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(DecodeError("too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(DecodeError("too short"))?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn i8(&mut self) -> Result<i8, DecodeError> {
        Ok(i8::from_be_bytes(self.array()?))
    }

    pub(crate) fn i16(&mut self) -> Result<i16, DecodeError> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub(crate) fn i32(&mut self) -> Result<i32, DecodeError> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    pub(crate) fn nullable_text(&mut self) -> Result<Option<&'a str>, DecodeError> {
        let Ok(length) = usize::try_from(self.i16()?) else {
            return Ok(None);
        };
        let text = std::str::from_utf8(self.raw(length)?);
        text.map(Some)
            .map_err(|_| DecodeError("a text is not UTF-8"))
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, DecodeError> {
        self.nullable_text()?
            .ok_or(DecodeError("a text is missing"))
    }

    /// Empty if null.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        match usize::try_from(self.i32()?) {
            Ok(length) => self.raw(length),
            Err(_) => Ok(&[]),
        }
    }

    /// Reads an array length, 0 for null. Each element takes at least one byte.
    pub(crate) fn count(&mut self) -> Result<usize, DecodeError> {
        let count = usize::try_from(self.i32()?).unwrap_or(0);
        match count <= self.0.len() {
            true => Ok(count),
            false => Err(DecodeError("an array is longer than the answer")),
        }
    }

    /// Zigzag encoding, seven bits per byte.
    pub(crate) fn varint(&mut self) -> Result<i64, DecodeError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        Err(DecodeError("a number is too long"))
    }
}

/// Appends values to a buffer.
pub(crate) trait Encode {
    fn put_raw(&mut self, bytes: &[u8]);

    fn put_i8(&mut self, value: i8) {
        self.put_raw(&value.to_be_bytes());
    }

    fn put_i16(&mut self, value: i16) {
        self.put_raw(&value.to_be_bytes());
    }

    fn put_i32(&mut self, value: i32) {
        self.put_raw(&value.to_be_bytes());
    }

    fn put_i64(&mut self, value: i64) {
        self.put_raw(&value.to_be_bytes());
    }

    /// Texts are names, whose lengths are validated at their origin.
    fn put_text(&mut self, text: &str) {
        let length = text.len().min(i16::MAX as usize);
        self.put_i16(length as i16);
        self.put_raw(&text.as_bytes()[..length]);
    }

    fn put_no_text(&mut self) {
        self.put_i16(-1);
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_count(bytes.len());
        self.put_raw(bytes);
    }

    fn put_count(&mut self, count: usize) {
        self.put_i32(i32::try_from(count).expect("requests are smaller than 2 GiB"));
    }

    fn put_varint(&mut self, value: i64) {
        let mut left = (value << 1 ^ value >> 63) as u64;
        while left >= 0x80 {
            self.put_raw(&[left as u8 | 0x80]);
            left >>= 7;
        }
        self.put_raw(&[left as u8]);
    }
}

impl Encode for Vec<u8> {
    fn put_raw(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Encoded size of a number in bytes.
pub(crate) fn varint_len(value: i64) -> usize {
    let zigzag = (value << 1 ^ value >> 63) as u64;
    (64 - (zigzag | 1).leading_zeros() as usize).div_ceil(7)
}

/// A kind of request: its API key and the supported versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ApiRequest {
    pub(crate) key: i16,
    pub(crate) name: &'static str,
    pub(crate) min: i16,
    pub(crate) max: i16,
}

const fn api(key: i16, name: &'static str, min: i16, max: i16) -> ApiRequest {
    ApiRequest {
        key,
        name,
        min,
        max,
    }
}

pub(crate) const PRODUCE: ApiRequest = api(0, "Produce", 7, 8);
pub(crate) const FETCH: ApiRequest = api(1, "Fetch", 10, 11);
pub(crate) const LIST_OFFSETS: ApiRequest = api(2, "ListOffsets", 4, 5);
pub(crate) const METADATA: ApiRequest = api(3, "Metadata", 7, 8);
pub(crate) const OFFSET_COMMIT: ApiRequest = api(8, "OffsetCommit", 6, 7);
pub(crate) const OFFSET_FETCH: ApiRequest = api(9, "OffsetFetch", 4, 5);
pub(crate) const FIND_COORDINATOR: ApiRequest = api(10, "FindCoordinator", 1, 2);
pub(crate) const JOIN_GROUP: ApiRequest = api(11, "JoinGroup", 4, 5);
pub(crate) const HEARTBEAT: ApiRequest = api(12, "Heartbeat", 1, 3);
pub(crate) const LEAVE_GROUP: ApiRequest = api(13, "LeaveGroup", 1, 2);
pub(crate) const SYNC_GROUP: ApiRequest = api(14, "SyncGroup", 1, 3);
pub(crate) const SASL_HANDSHAKE: ApiRequest = api(17, "SaslHandshake", 1, 1);
pub(crate) const API_VERSIONS: ApiRequest = api(18, "ApiVersions", 0, 0);
pub(crate) const INIT_PRODUCER_ID: ApiRequest = api(22, "InitProducerId", 0, 1);
pub(crate) const SASL_AUTHENTICATE: ApiRequest = api(36, "SaslAuthenticate", 0, 1);

/// Encodes a request with its length prefix.
pub(crate) fn encode_request(
    api: ApiRequest,
    version: i16,
    correlation: i32,
    client_id: &str,
    body: &[u8],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + client_id.len() + 14);
    out.put_count(10 + client_id.len() + body.len());
    out.put_i16(api.key);
    out.put_i16(version);
    out.put_i32(correlation);
    out.put_text(client_id);
    out.put_raw(body);
    out
}

/// An error code of a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorCode(pub(crate) i16);

impl ErrorCode {
    pub const NONE: Self = Self(0);
    pub(crate) const OFFSET_OUT_OF_RANGE: Self = Self(1);
    pub(crate) const UNKNOWN_TOPIC: Self = Self(3);
    pub const INVALID_TOPIC: Self = Self(17);
    pub(crate) const ILLEGAL_GENERATION: Self = Self(22);
    pub(crate) const UNKNOWN_MEMBER: Self = Self(25);
    pub(crate) const REBALANCE_IN_PROGRESS: Self = Self(27);
    pub(crate) const UNSUPPORTED_MECHANISM: Self = Self(33);
    pub(crate) const OUT_OF_ORDER_SEQUENCE: Self = Self(45);
    pub(crate) const DUPLICATE_SEQUENCE: Self = Self(46);
    pub(crate) const INVALID_PRODUCER_EPOCH: Self = Self(47);
    pub(crate) const INVALID_PRODUCER_ID: Self = Self(49);
    pub(crate) const UNKNOWN_PRODUCER_ID: Self = Self(59);
    pub(crate) const MEMBER_ID_REQUIRED: Self = Self(79);

    pub(crate) fn take(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.i16().map(Self)
    }

    pub(crate) fn is_error(self) -> bool {
        self != Self::NONE
    }

    /// Whether the content of the messages is the cause, independent of where and when they are sent.
    pub(crate) fn is_message_error(self) -> bool {
        // Corrupt, too large, timestamp out of range, format or compression unsupported by the topic, rejected by its policy.
        matches!(self.0, 2 | 10 | 32 | 43 | 76 | 87 | 44)
    }

    /// Whether the broker does not know the producer's sequence, or has a different one.
    pub(crate) fn is_producer_error(self) -> bool {
        [
            Self::OUT_OF_ORDER_SEQUENCE,
            Self::INVALID_PRODUCER_EPOCH,
            Self::INVALID_PRODUCER_ID,
            Self::UNKNOWN_PRODUCER_ID,
        ]
        .contains(&self)
    }

    fn text(self) -> &'static str {
        match self.0 {
            1 => "the offset is out of range",
            2 => "the messages arrived damaged",
            3 => "the topic or partition does not exist",
            5 => "the partition has no leader at the moment",
            6 => "the broker does not lead the partition any more",
            7 => "the replicas did not confirm in time",
            10 => "it is larger than the topic allows (max.message.bytes)",
            14 => "the coordinator is loading",
            15 => "no coordinator is available at the moment",
            16 => "the broker is not the coordinator any more",
            17 => "no topic can have this name",
            19 | 20 => "too few replicas are in sync (min.insync.replicas)",
            22 => "the group has a newer generation",
            23 => "the group's members have no assignor in common with `range`",
            25 => "the group no longer contains this member",
            26 => "the session timeout is outside of what the broker allows",
            27 => "the group is rebalancing",
            29 => "not authorised for the topic",
            30 => "not authorised for the group",
            31 => "not authorised for the cluster",
            32 => "the timestamp is out of the range the topic allows",
            33 => "the broker does not have this SASL mechanism",
            34 => "not possible in this state of authentication",
            35 => "the broker is too old or too new for this request",
            41 => "the broker is not the controller",
            43 => "the topic's format is too old for such messages",
            44 => "it violates a policy of the broker",
            45 => "the broker expects another sequence number",
            46 => "the broker has it already",
            47 | 49 | 59 => "the broker does not know our producer id any more",
            56 => "the broker's disk fails",
            58 => "user or password are wrong",
            74 | 75 => "the leader of the partition has changed",
            76 => "the topic cannot have this compression",
            79 => "a member id is needed",
            81 => "the group is full",
            87 => "the broker rejects the record",
            89 => "the broker throttles this client",
            _ => "error of the broker",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (Kafka error {})", self.text(), self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_size_come_back() {
        let values = [
            0,
            -1,
            1,
            63,
            -64,
            64,
            300,
            -301,
            i32::MAX.into(),
            i64::MAX,
            i64::MIN,
        ];
        for value in values {
            let mut out = Vec::new();
            out.put_varint(value);
            assert_eq!(varint_len(value), out.len(), "{value}");
            let mut take = Decoder(&out);
            assert_eq!(take.varint(), Ok(value));
            assert!(take.0.is_empty());
        }
        assert!(Decoder(&[0xff; 11]).varint().is_err());
    }

    #[test]
    fn what_is_too_short_is_an_error() {
        assert!(Decoder(&[0, 5, b'a']).text().is_err());
        assert!(Decoder(&[0, 0, 1, 0, 9]).count().is_err());
        assert!(Decoder(&[0x7f, 0xff, 0xff, 0xff]).bytes().is_err());
        assert_eq!(Decoder(&[0xff, 0xff]).nullable_text(), Ok(None));
        assert_eq!(Decoder(&[0xff; 4]).bytes(), Ok(&[][..]));
    }

    #[test]
    fn a_request_has_its_length_in_front() {
        let out = encode_request(METADATA, 7, 9, "me", b"body");
        let expected = b"\0\0\0\x10\0\x03\0\x07\0\0\0\x09\0\x02mebody";
        assert_eq!(out, expected);
    }
}
