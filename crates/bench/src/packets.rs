//! The packets a client sends besides its messages, encoded once, and what a broker may answer.

use anyhow::ensure;
use mqtt::{Direction, Packet, Properties, Publish, QoS, Version};

use crate::payload_stamp::{self, PayloadStamp, StampFormat};

/// Filters in one SUBSCRIBE.
pub(crate) const FILTERS_PER_SUBSCRIBE: usize = 100;

/// PINGREQ.
pub(crate) const PING: &[u8] = &[0xc0, 0];
/// DISCONNECT without a reason, the same in all versions.
pub(crate) const DISCONNECT: &[u8] = &[0xe0, 0];

/// Whether the broker keeps a client's subscriptions and messages while it is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionKind {
    /// Nothing of an earlier connection counts, nothing of this one stays.
    Clean,
    Persistent,
}

/// What every CONNECT of a run has in common.
#[derive(Clone, Debug)]
pub(crate) struct ConnectTemplate {
    pub(crate) version: Version,
    pub(crate) keep_alive_s: u16,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
}

impl ConnectTemplate {
    /// The CONNECT of one client, with a clean session or with one that stays for an hour after the connection. In the
    /// versions before 5, it stays for as long as the broker keeps it.
    pub(crate) fn connect(&self, client_id: &str, session: SessionKind) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        // Where each client has a name of its own, such as the token of a device.
        let mut parts = client_id.rsplit(|letter: char| !letter.is_ascii_digit());
        let number = parts.next().unwrap_or_default();
        let username = self.username.as_ref();
        let username = username.map(|name| name.replace("{number}", number));
        let mut properties = mqtt::PropertiesBuf::new();
        if self.version == Version::V5 && session == SessionKind::Persistent {
            properties.push(mqtt::Property::SessionExpiryInterval(3600));
        }
        Packet::Connect(mqtt::Connect {
            version: self.version,
            clean_start: session == SessionKind::Clean,
            keep_alive_s: self.keep_alive_s,
            client_id,
            username: username.as_deref(),
            password: self.password.as_deref().map(str::as_bytes),
            will: None,
            properties: properties.as_properties(),
            is_bridge: false,
        })
        .encode(self.version, &mut out);
        out
    }
}

/// SUBSCRIBE packets for all `filters`, in one buffer, and how many there are.
pub(crate) fn subscribe(version: Version, filters: &[String], qos: QoS) -> (Vec<u8>, usize) {
    let mut out = Vec::new();
    let chunks = filters.chunks(FILTERS_PER_SUBSCRIBE);
    let count = chunks.len();
    for (number, chunk) in chunks.enumerate() {
        let id = (number % 65_535 + 1) as u16;
        let mut packet = mqtt::SubscribeBuf::new(id);
        for filter in chunk {
            packet.push(filter, mqtt::SubscriptionOptions::new(qos));
        }
        packet.encode(Properties::EMPTY, version, &mut out);
    }
    (out, count)
}

/// A packet of the broker, as far as the generator uses it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BrokerReply {
    /// CONNACK: accepted, with the number of messages the broker takes in flight, and whether the session is present.
    Accepted {
        receive_maximum: u16,
        session_present: bool,
    },
    /// CONNACK: rejected, with the reason as text.
    Refused(String),
    /// SUBACK: all filters granted at the requested QoS, or the error.
    Subscribed(Result<(), String>),
    /// DISCONNECT with the reason in words.
    Disconnected(String),
    Pong,
}

fn describe_reason(reason: mqtt::ReasonCode, reason_string: Option<&str>) -> String {
    match reason_string {
        Some(text) => format!("{reason}: {text}"),
        None => reason.to_string(),
    }
}

/// Understands a whole packet that is neither a message nor an acknowledgement of one.
pub(crate) fn read_reply(bytes: &[u8], version: Version, qos: QoS) -> Result<BrokerReply, String> {
    let frame = mqtt::split_frame(bytes, u32::MAX)
        .map_err(|error| error.to_string())?
        .ok_or("half a packet")?;
    let packet = Packet::decode(frame, version, Direction::FromServer)
        .map_err(|error| format!("the broker sent a malformed packet: {error}"))?;
    Ok(match packet {
        Packet::ConnAck(ack) if ack.code.is_error() => {
            BrokerReply::Refused(describe_reason(ack.code, ack.properties.reason_string()))
        }
        Packet::ConnAck(ack) => BrokerReply::Accepted {
            receive_maximum: ack.properties.receive_maximum().unwrap_or(u16::MAX),
            session_present: ack.session_present,
        },
        Packet::SubAck(ack) => BrokerReply::Subscribed(check_granted(ack.codes, qos)),
        Packet::Disconnect(packet) => BrokerReply::Disconnected(describe_reason(
            packet.reason,
            packet.properties.reason_string(),
        )),
        Packet::PingResp => BrokerReply::Pong,
        other => {
            return Err(format!(
                "the broker sent {:?}, which the generator does not request",
                other.packet_type()
            ));
        }
    })
}

fn check_granted(codes: &[u8], qos: QoS) -> Result<(), String> {
    for &code in codes {
        if code >= 0x80 {
            return Err(format!("subscription rejected: {}", mqtt::ReasonCode(code)));
        }
        if code != qos as u8 {
            return Err(format!(
                "subscription granted at QoS {code}, not {}",
                qos as u8
            ));
        }
    }
    Ok(())
}

/// What every payload of a run looks like around its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PayloadTemplate {
    /// The header as bytes, then dots: so many bytes in all.
    Padded(usize),
    /// A text with the header in it, where [`STAMP_PLACEHOLDER`] stood.
    Text { front: String, back: String },
}

/// What stands for the header in a text of payloads.
pub(crate) const STAMP_PLACEHOLDER: &str = "${stamp}";

impl PayloadTemplate {
    /// Of a text with one [`STAMP_PLACEHOLDER`], filled up with blanks to at least so many bytes.
    pub(crate) fn text_template(template: &str, at_least: usize) -> anyhow::Result<Self> {
        let parts: Vec<&str> = template.split(STAMP_PLACEHOLDER).collect();
        let [front, back] = parts[..] else {
            anyhow::bail!(
                "the payload {template:?} has {STAMP_PLACEHOLDER} {} times; expected it once, where the header that tells \
                 publisher, sequence and time is to stand",
                parts.len() - 1
            );
        };
        let len = front.len() + payload_stamp::TEXT_BYTES + back.len();
        ensure!(
            len.max(at_least) <= MAX_TEXT_BYTES,
            "a payload of text may have at most {MAX_TEXT_BYTES} bytes"
        );
        let blanks = " ".repeat(at_least.saturating_sub(len));
        Ok(Self::Text {
            front: front.to_owned(),
            back: back.to_owned() + &blanks,
        })
    }

    /// Bytes of a payload.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Padded(bytes) => *bytes,
            Self::Text { front, back } => front.len() + payload_stamp::TEXT_BYTES + back.len(),
        }
    }

    pub(crate) fn stamp_format(&self) -> StampFormat {
        match self {
            Self::Padded(_) => StampFormat::Bytes,
            Self::Text { .. } => StampFormat::Text,
        }
    }

    /// Where the header begins.
    fn stamp_at(&self) -> usize {
        match self {
            Self::Padded(_) => 0,
            Self::Text { front, .. } => front.len(),
        }
    }

    fn payload(&self, stamp: PayloadStamp) -> Vec<u8> {
        let mut payload = vec![b'.'; self.len()];
        match self {
            Self::Padded(_) => stamp.write(&mut payload),
            Self::Text { front, back } => {
                let (head, tail) = payload.split_at_mut(front.len());
                head.copy_from_slice(front.as_bytes());
                stamp.write_text(tail);
                tail[payload_stamp::TEXT_BYTES..].copy_from_slice(back.as_bytes());
            }
        }
        payload
    }
}

/// So much of a text is kept until its header is found.
const MAX_TEXT_BYTES: usize = 16 * 1024;

/// The PUBLISH packets of one publisher, encoded ahead: only sequence, time and packet identifier change.
///
/// All topics of a publisher have the same length, so all packets have, too.
#[derive(Debug)]
pub(crate) struct PublishTemplate {
    /// One whole packet for each topic up to the end of the stamp; `head_bytes` each.
    heads: Vec<u8>,
    head_bytes: usize,
    topics: usize,
    packet_bytes: usize,
    form: StampFormat,
    /// What comes behind the stamp, unless it is dots.
    tail: Box<[u8]>,
    /// Where the packet identifier is; `None` at QoS 0.
    id_at: Option<usize>,
}

impl PublishTemplate {
    /// Encodes the packets. Fails if they would be too large for MQTT or for this broker.
    pub(crate) fn new(
        version: Version,
        qos: QoS,
        topics: &[String],
        body: &PayloadTemplate,
        stamp: PayloadStamp,
    ) -> anyhow::Result<Self> {
        let (payload_bytes, stamp_bytes) = (body.len(), body.stamp_format().bytes());
        ensure!(
            payload_bytes >= stamp_bytes,
            "--payload {payload_bytes} is too small: the header that tells publisher, sequence and time takes \
             {stamp_bytes} bytes"
        );
        let payload = body.payload(stamp);
        let stamp_end = body.stamp_at() + stamp_bytes;
        let mut heads = Vec::new();
        let (mut packet, mut head_bytes) = (Vec::new(), 0);
        for topic in topics {
            packet.clear();
            Packet::Publish(Publish {
                dup: false,
                qos,
                retain: false,
                topic,
                packet_id: u16::from(qos != QoS::AtMostOnce),
                properties: Properties::EMPTY,
                payload: &payload,
            })
            .encode(version, &mut packet);
            head_bytes = packet.len() - payload_bytes + stamp_end;
            heads.extend_from_slice(&packet[..head_bytes]);
        }
        ensure!(
            packet.len() <= 268_435_460,
            "--payload {payload_bytes} makes packets larger than MQTT allows (268435455 bytes and a header)"
        );
        debug_assert_eq!(heads.len(), head_bytes * topics.len());
        // The identifier is followed by the property length (0) in version 5 and then by the payload.
        let properties = usize::from(version == Version::V5);
        let id_at = head_bytes - stamp_end - properties - 2;
        Ok(Self {
            heads,
            head_bytes,
            topics: topics.len(),
            packet_bytes: packet.len(),
            form: body.stamp_format(),
            tail: match body {
                PayloadTemplate::Padded(_) => Box::default(),
                PayloadTemplate::Text { back, .. } => back.as_bytes().into(),
            },
            id_at: (qos != QoS::AtMostOnce).then_some(id_at),
        })
    }

    /// Bytes of one packet.
    pub(crate) fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }

    /// Writes as many packets as fit into `out`, whose length is a multiple of a packet's, starting with message
    /// number `first`. `sent_ns` gives the send time of each and `id` its packet identifier.
    #[inline]
    pub(crate) fn fill(
        &self,
        out: &mut [u8],
        first: u64,
        sent_ns: impl Fn(u64) -> u64,
        id: impl Fn(u64) -> u16,
    ) {
        self.copy_packets(out, first);
        let stamp_at = self.head_bytes - self.form.bytes();
        for (packet, number) in out.chunks_exact_mut(self.packet_bytes).zip(first..) {
            let stamp = &mut packet[stamp_at..];
            match self.form {
                StampFormat::Bytes => {
                    stamp[payload_stamp::SEQUENCE_AT..][..8].copy_from_slice(&number.to_le_bytes());
                    stamp[payload_stamp::SENT_AT..][..8]
                        .copy_from_slice(&sent_ns(number).to_le_bytes());
                }
                StampFormat::Text => {
                    payload_stamp::write_text_number(
                        &mut stamp[payload_stamp::SEQUENCE_TEXT_AT..],
                        number,
                    );
                    payload_stamp::write_text_number(
                        &mut stamp[payload_stamp::SENT_TEXT_AT..],
                        sent_ns(number),
                    );
                }
            }
            if let Some(at) = self.id_at {
                packet[at..at + 2].copy_from_slice(&id(number).to_be_bytes());
            }
        }
    }

    fn copy_packets(&self, out: &mut [u8], first: u64) {
        if self.topics > 1 {
            for (packet, number) in out.chunks_exact_mut(self.packet_bytes).zip(first..) {
                let topic = (number % self.topics as u64) as usize;
                let head = &self.heads[topic * self.head_bytes..][..self.head_bytes];
                packet[..self.head_bytes].copy_from_slice(head);
                self.write_partial_packet(&mut packet[self.head_bytes..]);
            }
            return;
        }
        // One packet, then copies of twice as many each time.
        let total = out.len();
        out[..self.head_bytes].copy_from_slice(&self.heads);
        self.write_partial_packet(&mut out[self.head_bytes..self.packet_bytes]);
        let mut done = self.packet_bytes;
        while done < total {
            let more = done.min(total - done);
            out.copy_within(..more, done);
            done += more;
        }
    }

    fn write_partial_packet(&self, out: &mut [u8]) {
        match self.form {
            StampFormat::Bytes => out.fill(b'.'),
            StampFormat::Text => out.copy_from_slice(&self.tail),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet_scanner::{ScanStep, ScannedPacket, step};

    fn template(version: Version, qos: QoS, topics: &[&str], payload: usize) -> PublishTemplate {
        let topics: Vec<String> = topics.iter().map(|&topic| topic.to_owned()).collect();
        let stamp = PayloadStamp {
            run: 7,
            publisher: 3,
            sequence: 0,
            sent_ns: 0,
        };
        PublishTemplate::new(
            version,
            qos,
            &topics,
            &PayloadTemplate::Padded(payload),
            stamp,
        )
        .expect("small enough")
    }

    #[test]
    fn packets_are_what_the_codec_reads() {
        for version in [Version::V311, Version::V5] {
            for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
                for topics in [&["one/topic"][..], &["a/1", "a/2", "a/3"][..]] {
                    let template = template(version, qos, topics, 200);
                    let mut out = vec![0xff; template.packet_bytes() * 5];
                    template.fill(&mut out, 10, |n| n * 1000, |n| n as u16 + 1);
                    let mut at = 0;
                    for number in 10..15u64 {
                        let frame = mqtt::split_frame(&out[at..], u32::MAX)
                            .expect("well-formed")
                            .expect("whole");
                        at += frame.len;
                        let Ok(Packet::Publish(publish)) =
                            Packet::decode(frame, version, Direction::FromClient)
                        else {
                            panic!("a PUBLISH");
                        };
                        let topic = topics[number as usize % topics.len()];
                        assert_eq!((publish.topic, publish.qos), (topic, qos));
                        if qos != QoS::AtMostOnce {
                            assert_eq!(u64::from(publish.packet_id), number + 1);
                        }
                        assert_eq!(publish.payload.len(), 200);
                        let stamp = PayloadStamp::read(publish.payload).expect("long enough");
                        assert_eq!((stamp.run, stamp.publisher), (7, 3));
                        assert_eq!((stamp.sequence, stamp.sent_ns), (number, number * 1000));
                    }
                    assert_eq!(at, out.len());
                }
            }
        }
    }

    #[test]
    fn a_text_carries_the_header_where_it_is_to_stand() {
        let body = PayloadTemplate::text_template("{\"v\": 1, \"s\": \"${stamp}\"}", 100)
            .expect("one place");
        assert_eq!(body.len(), 100);
        let stamp = PayloadStamp {
            run: 7,
            publisher: 3,
            sequence: 0,
            sent_ns: 0,
        };
        for topics in [&["a"][..], &["a/1", "a/2"][..]] {
            let topics: Vec<String> = topics.iter().map(|&topic| topic.to_owned()).collect();
            let template =
                PublishTemplate::new(Version::V5, QoS::AtLeastOnce, &topics, &body, stamp)
                    .expect("small enough");
            let mut out = vec![0; template.packet_bytes() * 3];
            template.fill(&mut out, 5, |n| n * 10, |n| n as u16);
            let mut at = 0;
            for number in 5..8u64 {
                let Ok(ScanStep::Packet {
                    found: ScannedPacket::Publish(message),
                    len,
                }) = step(&out[at..], true)
                else {
                    panic!("a message");
                };
                at += len;
                let json: serde_json::Value =
                    serde_json::from_slice(message.payload).expect("JSON");
                assert_eq!(json["v"], 1);
                assert_eq!(u64::from(message.id), number);
                let found =
                    payload_stamp::StampFinder::new(StampFormat::Text).find(message.payload);
                let found = found.expect("there");
                assert_eq!((found.sequence, found.sent_ns), (number, number * 10));
            }
        }
        assert!(PayloadTemplate::text_template("{}", 0).is_err());
        assert!(PayloadTemplate::text_template("${stamp}${stamp}", 0).is_err());
    }

    #[test]
    fn the_scanner_agrees() {
        let template = template(Version::V5, QoS::AtLeastOnce, &["t"], 24);
        let mut out = vec![0; template.packet_bytes()];
        template.fill(&mut out, 0, |_| 5, |_| 9);
        let Ok(ScanStep::Packet { found, len }) = step(&out, true) else {
            panic!("a whole packet");
        };
        assert_eq!(len, out.len());
        let ScannedPacket::Publish(message) = found else {
            panic!("a message");
        };
        assert_eq!((message.qos, message.id), (1, 9));
        assert_eq!(
            PayloadStamp::read(message.payload).map(|s| s.sent_ns),
            Some(5)
        );
    }

    #[test]
    fn refuses_payloads_without_room_for_the_header() {
        let topics = ["t".to_owned()];
        let stamp = PayloadStamp {
            run: 0,
            publisher: 0,
            sequence: 0,
            sent_ns: 0,
        };
        let error = PublishTemplate::new(
            Version::V311,
            QoS::AtMostOnce,
            &topics,
            &PayloadTemplate::Padded(23),
            stamp,
        )
        .unwrap_err();
        assert!(error.to_string().contains("24 bytes"));
    }

    #[test]
    fn replies_in_words() {
        let read = |bytes: &[u8], version| read_reply(bytes, version, QoS::AtLeastOnce);
        assert_eq!(
            read(&[0x20, 2, 0, 0], Version::V311),
            Ok(BrokerReply::Accepted {
                receive_maximum: u16::MAX,
                session_present: false
            })
        );
        assert_eq!(
            read(&[0x20, 6, 1, 0, 3, 0x21, 0, 20], Version::V5),
            Ok(BrokerReply::Accepted {
                receive_maximum: 20,
                session_present: true
            })
        );
        assert!(matches!(
            read(&[0x20, 2, 0, 5], Version::V311),
            Ok(BrokerReply::Refused(_))
        ));
        assert_eq!(
            read(&[0x90, 3, 0, 1, 1], Version::V311),
            Ok(BrokerReply::Subscribed(Ok(())))
        );
        let Ok(BrokerReply::Subscribed(Err(reason))) = read(&[0x90, 3, 0, 1, 0x80], Version::V311)
        else {
            panic!("refused");
        };
        assert!(reason.contains("rejected"));
        let Ok(BrokerReply::Subscribed(Err(reason))) = read(&[0x90, 3, 0, 1, 0], Version::V311)
        else {
            panic!("downgraded");
        };
        assert!(reason.contains("QoS 0, not 1"));
        assert!(matches!(
            read(&[0xe0, 1, 0x97], Version::V5),
            Ok(BrokerReply::Disconnected(_))
        ));
        assert_eq!(read(&[0xd0, 0], Version::V311), Ok(BrokerReply::Pong));
    }
}
