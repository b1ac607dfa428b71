//! What the two ends of a link for files tell each other: JSON in messages and in the metadata of streams, and
//! publications in a binary form. A peer of a node may also subscribe.

use bytes::Bytes;
use link::message::MessageId;
use link::priority::Priority;
use mqtt::TopicLimits;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The first byte of a publication. No JSON begins with it.
const PUBLICATION: u8 = 1;
const RETAIN: u8 = 1;

/// The metadata of a stream that transports a file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FileMetadata {
    /// Path with slashes, relative to the directory of the receiver. A node uses the last part.
    pub name: String,
    /// Time of the last modification in milliseconds since 1970.
    #[serde(default)]
    pub modified_ms: Option<i64>,
    /// The request that the file answers.
    #[serde(default)]
    pub request: Option<u64>,
    /// For a node: the id of the transfer, instead of that of the stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_id: Option<String>,
    /// For a node: the media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// For a node: when the complete file expires, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_at: Option<u64>,
    /// For a node: how long the transfer is kept without a new piece, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segments_ttl: Option<u64>,
    /// For a node: any JSON, which rules and the API see.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub user_data: Value,
}

/// Asks for files of the peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRequest {
    pub request: u64,
    /// Names of files and directories.
    pub names: Vec<String>,
    /// Whether interrupted transfers continue.
    pub resume: bool,
}

/// The answer to [`FileRequest`]. The files follow as streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAnswer {
    pub request: u64,
    pub files: Vec<AnnouncedFile>,
    /// Why there is none.
    pub error: Option<String>,
}

impl FileRequest {
    /// The answer as a message of a link: names and sizes of the files that follow, or why there is none.
    #[must_use]
    pub fn answer(&self, found: Result<Vec<AnnouncedFile>, String>) -> Bytes {
        let (files, error) = match found {
            Ok(files) => (files, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        to_message(&FileAnswer {
            request: self.request,
            files,
            error,
        })
    }
}

/// Changes the subscriptions of the peer at a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubscriptionRequestKind {
    Subscribe(Vec<RequestedSubscription>),
    /// The topic filters.
    Unsubscribe(Vec<String>),
}

/// Asks a node to change subscriptions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionRequest {
    pub request: u64,
    #[serde(flatten)]
    pub kind: SubscriptionRequestKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedSubscription {
    /// Topic filter.
    pub filter: String,
    /// Highest QoS of the messages that are delivered: 0 or 1.
    #[serde(default = "default_qos")]
    pub qos: u8,
}

fn default_qos() -> u8 {
    1
}

/// The answer to [`SubscriptionRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionAnswer {
    pub request: u64,
    /// A reason code of MQTT for each topic filter; none if the request was invalid.
    pub reason_codes: Vec<u8>,
    /// Why the request was invalid, or the broker's explanation.
    pub error: Option<String>,
}

impl SubscriptionAnswer {
    /// The answer to a request that is invalid as a whole.
    #[must_use]
    pub fn rejection(request: u64, error: String) -> Self {
        Self {
            request,
            reason_codes: Vec::new(),
            error: Some(error),
        }
    }

    /// The answer as a message of a link.
    #[must_use]
    pub fn message(&self) -> Bytes {
        to_message(self)
    }
}

/// What the peer of a node asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerRequest {
    Files(FileRequest),
    Subscriptions(SubscriptionRequest),
}

impl PeerRequest {
    /// # Errors
    /// Names the invalid field.
    pub fn decode(message: &[u8]) -> Result<Self, serde_json::Error> {
        let value: Value = serde_json::from_slice(message)?;
        if value.get("subscribe").is_some() || value.get("unsubscribe").is_some() {
            serde_json::from_value(value).map(Self::Subscriptions)
        } else {
            serde_json::from_value(value).map(Self::Files)
        }
    }
}

fn to_message(content: &impl Serialize) -> Bytes {
    serde_json::to_vec(content)
        .expect("texts and numbers are valid JSON")
        .into()
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnouncedFile {
    pub name: String,
    pub size: u64,
}

/// A message on a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publication<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub retain: bool,
}

impl<'a> Publication<'a> {
    /// Appends its encoding, which is the content of a message of a link. The topic has at most 65,535 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let len = u16::try_from(self.topic.len()).expect("a topic name has at most 65,535 bytes");
        out.extend_from_slice(&[PUBLICATION, u8::from(self.retain)]);
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(self.topic.as_bytes());
        out.extend_from_slice(self.payload);
    }

    /// Whether a message of a link is a publication.
    #[must_use]
    pub fn is_publication(message: &[u8]) -> bool {
        message.first() == Some(&PUBLICATION)
    }

    /// # Errors
    /// Names the invalid field.
    pub fn decode(message: &'a [u8]) -> Result<Self, &'static str> {
        let (&[kind, flags, low, high], rest) =
            message.split_first_chunk().ok_or("it is incomplete")?;
        if kind != PUBLICATION {
            return Err("its kind is unknown");
        }
        if flags & !RETAIN != 0 {
            return Err("flags: expected 0, or 1 for a retained message");
        }
        let (topic, payload) = rest
            .split_at_checked(usize::from(u16::from_le_bytes([low, high])))
            .ok_or("the topic is incomplete")?;
        let topic = str::from_utf8(topic).map_err(|_| "the topic is not UTF-8")?;
        mqtt::validate_topic_name(topic, &TopicLimits::NONE)
            .map_err(|_| "the topic is not a valid topic name")?;
        Ok(Self {
            topic,
            payload,
            retain: flags & RETAIN != 0,
        })
    }
}

/// What a node answers to a publication that it did not accept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicationRejection {
    pub rejected: RejectedPublication,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedPublication {
    /// `urgent`, `high`, `normal` or `bulk`.
    pub priority: String,
    /// Number of the message in the lane of this priority.
    pub number: u64,
    /// Empty if it could not be read.
    pub topic: String,
    /// Reason code of MQTT.
    pub reason_code: u8,
    pub reason: String,
}

impl PublicationRejection {
    /// The rejection of a publication as a message of a link.
    #[must_use]
    pub fn message(
        id: MessageId,
        topic: &str,
        reason_code: mqtt::ReasonCode,
        reason: String,
    ) -> Bytes {
        let priority = match id.priority {
            Priority::Urgent => "urgent",
            Priority::High => "high",
            Priority::Normal => "normal",
            Priority::Bulk => "bulk",
        };
        to_message(&Self {
            rejected: RejectedPublication {
                priority: priority.to_owned(),
                number: id.number,
                topic: topic.to_owned(),
                reason_code: reason_code.0,
                reason,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publications_are_encoded_and_decoded() {
        for (topic, payload, retain) in [("a/b", &b"text"[..], false), ("t", &[][..], true)] {
            let publication = Publication {
                topic,
                payload,
                retain,
            };
            let mut bytes = Vec::new();
            publication.encode(&mut bytes);
            assert!(Publication::is_publication(&bytes));
            assert_eq!(Publication::decode(&bytes), Ok(publication));
        }
    }

    #[test]
    fn requests_of_peers_are_distinguished() {
        let decode = |text: &str| PeerRequest::decode(text.as_bytes());
        assert!(matches!(
            decode(r#"{"request": 1, "names": ["firmware"], "resume": true}"#),
            Ok(PeerRequest::Files(FileRequest { request: 1, .. }))
        ));
        let subscribe = decode(
            r#"{"request": 2, "subscribe": [{"filter": "a/#"}, {"filter": "b", "qos": 0}]}"#,
        );
        let requested = |filter: &str, qos| RequestedSubscription {
            filter: filter.to_owned(),
            qos,
        };
        let expected = SubscriptionRequest {
            request: 2,
            kind: SubscriptionRequestKind::Subscribe(vec![requested("a/#", 1), requested("b", 0)]),
        };
        assert_eq!(subscribe.ok(), Some(PeerRequest::Subscriptions(expected)));
        assert!(matches!(
            decode(r#"{"request": 3, "unsubscribe": ["a/#"]}"#),
            Ok(PeerRequest::Subscriptions(SubscriptionRequest {
                request: 3,
                ..
            }))
        ));
        for (text, expected) in [
            (
                r#"{"request": 1, "names": ["firmware"]}"#,
                "missing field `resume`",
            ),
            (r#"{"subscribe": []}"#, "missing field `request`"),
            (
                r#"{"request": 1, "subscribe": [{"qos": 1}]}"#,
                "missing field `filter`",
            ),
            ("[", "EOF"),
        ] {
            let error = decode(text).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn damaged_publications_are_explained() {
        for (bytes, expected) in [
            (&[1, 0, 1][..], "incomplete"),
            (&[2, 0, 0, 0][..], "kind"),
            (&[1, 2, 1, 0, b'a'][..], "flags"),
            (&[1, 0, 2, 0, b'a'][..], "topic is incomplete"),
            (&[1, 0, 1, 0, 0xff][..], "UTF-8"),
            (&[1, 0, 1, 0, b'#'][..], "topic name"),
            (&[1, 0, 0, 0][..], "topic name"),
        ] {
            let error = Publication::decode(bytes).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
