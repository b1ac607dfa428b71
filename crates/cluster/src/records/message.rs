//! Messages of the exchange of records. All numbers are little-endian; a text and a content begin with their length of 4
//! bytes, a list with its length of 4 bytes.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 1 | which records: 66 devices, 67 attributes of devices, 69 firmware of devices, 70 alarms of devices |
//! | 1 | 1 | what it is, see [`RecordMessage`] in the order of its variants, from 1 |
//! | 2 | 8 | number of a question, which its answer repeats; 0 without an answer |
//! | 10 | | the fields |

use bytes::Bytes;

use super::digests::RECORD_BUCKETS;
use super::shared::Record;
use super::version::RecordVersion;

/// First byte of the messages between nodes that belong to the [`RecordSync`](super::RecordSync) of devices. Versions that
/// do not know it ignore them, because it is larger than [`FIRST_REQUEST_KIND`](crate::FIRST_REQUEST_KIND).
pub const DEVICE_RECORDS_KIND: u8 = 66;
/// The same for the attributes of devices.
pub const ATTRIBUTE_RECORDS_KIND: u8 = 67;
/// The same for what devices install, and the campaigns that decide it.
pub const FIRMWARE_RECORDS_KIND: u8 = 69;
/// The same for the alarms of devices.
pub const ALARM_RECORDS_KIND: u8 = 70;

const STATE: u8 = 1;
const CHANGES: u8 = 2;
const CONFIRMATION: u8 = 3;
const GET_DIGESTS: u8 = 4;
const DIGESTS: u8 = 5;
const GET_VERSIONS: u8 = 6;
const VERSIONS: u8 = 7;
const GET_RECORDS: u8 = 8;
const RECORDS: u8 = 9;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum RecordMessage {
    /// A summary of all records of the sender.
    State {
        root: u64,
        context: Vec<u8>,
    },
    /// Records that the sender has changed.
    Changes {
        number: u64,
        context: Vec<u8>,
        records: Vec<Record>,
    },
    /// The changes are stored.
    Confirmation {
        number: u64,
    },
    GetDigests {
        number: u64,
    },
    Digests {
        number: u64,
        digests: Vec<u64>,
    },
    GetVersions {
        number: u64,
        buckets: Vec<u16>,
    },
    /// The versions of the first `buckets` of the buckets that were asked for.
    Versions {
        number: u64,
        buckets: u32,
        versions: Vec<(String, RecordVersion)>,
    },
    GetRecords {
        number: u64,
        ids: Vec<String>,
    },
    /// The first `ids` of the records that were asked for, as far as there are any.
    Records {
        number: u64,
        ids: u32,
        context: Vec<u8>,
        records: Vec<Record>,
    },
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u8, what: u8, number: u64) -> Self {
        let mut writer = Self(vec![kind, what]);
        writer.u64(number);
        writer
    }

    fn u32(&mut self, number: usize) {
        // Messages are limited to some hundred KiB.
        self.0.extend_from_slice(&(number as u32).to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    fn records(&mut self, records: &[Record]) {
        self.u32(records.len());
        for record in records {
            self.bytes(record.id.as_bytes());
            self.0.extend_from_slice(&record.version.to_bytes());
            self.0.push(u8::from(record.content.is_some()));
            if let Some(content) = &record.content {
                self.bytes(content);
            }
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let length = self.u32()? as usize;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes.to_vec())
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?).ok()
    }

    fn version(&mut self) -> Option<RecordVersion> {
        self.array().map(RecordVersion::from_bytes)
    }

    /// Each item takes at least one byte, so that memory is bounded by the message.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u32()? as usize;
        if count > self.0.len() {
            return None;
        }
        (0..count).map(|_| item(self)).collect()
    }

    fn record(&mut self) -> Option<Record> {
        Some(Record {
            id: self.text()?,
            version: self.version()?,
            content: match self.array()? {
                [0] => None,
                _ => Some(self.bytes()?),
            },
        })
    }
}

impl RecordMessage {
    /// `kind` is the first byte.
    pub(super) fn encode(&self, kind: u8) -> Bytes {
        let mut out;
        match self {
            Self::State { root, context } => {
                out = Writer::new(kind, STATE, 0);
                out.u64(*root);
                out.bytes(context);
            }
            Self::Changes {
                number,
                context,
                records,
            } => {
                out = Writer::new(kind, CHANGES, *number);
                out.bytes(context);
                out.records(records);
            }
            Self::Confirmation { number } => out = Writer::new(kind, CONFIRMATION, *number),
            Self::GetDigests { number } => out = Writer::new(kind, GET_DIGESTS, *number),
            Self::Digests { number, digests } => {
                out = Writer::new(kind, DIGESTS, *number);
                out.u32(digests.len());
                digests.iter().for_each(|digest| out.u64(*digest));
            }
            Self::GetVersions { number, buckets } => {
                out = Writer::new(kind, GET_VERSIONS, *number);
                out.u32(buckets.len());
                let buckets = buckets.iter().flat_map(|bucket| bucket.to_le_bytes());
                out.0.extend(buckets);
            }
            Self::Versions {
                number,
                buckets,
                versions,
            } => {
                out = Writer::new(kind, VERSIONS, *number);
                out.u32(*buckets as usize);
                out.u32(versions.len());
                for (id, version) in versions {
                    out.bytes(id.as_bytes());
                    out.0.extend_from_slice(&version.to_bytes());
                }
            }
            Self::GetRecords { number, ids } => {
                out = Writer::new(kind, GET_RECORDS, *number);
                out.u32(ids.len());
                ids.iter().for_each(|id| out.bytes(id.as_bytes()));
            }
            Self::Records {
                number,
                ids,
                context,
                records,
            } => {
                out = Writer::new(kind, RECORDS, *number);
                out.u32(*ids as usize);
                out.bytes(context);
                out.records(records);
            }
        }
        out.0.into()
    }

    /// The caller has looked at the first byte. `None`: the message is damaged, or of a later version.
    pub(super) fn decode(message: &[u8]) -> Option<Self> {
        let mut input = Reader(message);
        let [_, what] = input.array()?;
        let number = input.u64()?;
        Some(match what {
            STATE => Self::State {
                root: input.u64()?,
                context: input.bytes()?,
            },
            CHANGES => Self::Changes {
                number,
                context: input.bytes()?,
                records: input.list(Reader::record)?,
            },
            CONFIRMATION => Self::Confirmation { number },
            GET_DIGESTS => Self::GetDigests { number },
            DIGESTS => Self::Digests {
                number,
                digests: input
                    .list(Reader::u64)
                    .filter(|digests| digests.len() == RECORD_BUCKETS)?,
            },
            GET_VERSIONS => Self::GetVersions {
                number,
                buckets: input.list(|input| input.array().map(u16::from_le_bytes))?,
            },
            VERSIONS => Self::Versions {
                number,
                buckets: input.u32()?,
                versions: input.list(|input| Some((input.text()?, input.version()?)))?,
            },
            GET_RECORDS => Self::GetRecords {
                number,
                ids: input.list(Reader::text)?,
            },
            RECORDS => Self::Records {
                number,
                ids: input.u32()?,
                context: input.bytes()?,
                records: input.list(Reader::record)?,
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<RecordMessage> {
        let version = RecordVersion {
            time_ms: 7,
            node: 8,
        };
        let records = || {
            let record = |id: &str, content: Option<&[u8]>| Record {
                id: id.to_owned(),
                version,
                content: content.map(<[u8]>::to_vec),
            };
            vec![record("a", Some(b"x")), record("b", None)]
        };
        let (number, context) = (3, b"key".to_vec());
        vec![
            RecordMessage::State {
                root: 1,
                context: context.clone(),
            },
            RecordMessage::Changes {
                number,
                context: context.clone(),
                records: records(),
            },
            RecordMessage::Confirmation { number },
            RecordMessage::GetDigests { number },
            RecordMessage::Digests {
                number,
                digests: (0..RECORD_BUCKETS as u64).collect(),
            },
            RecordMessage::GetVersions {
                number,
                buckets: vec![1, 65_535],
            },
            RecordMessage::Versions {
                number,
                buckets: 1,
                versions: vec![("a".to_owned(), version)],
            },
            RecordMessage::GetRecords {
                number,
                ids: vec!["a".to_owned(), "b".to_owned()],
            },
            RecordMessage::Records {
                number,
                ids: 2,
                context,
                records: records(),
            },
        ]
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        for message in messages() {
            let bytes = message.encode(DEVICE_RECORDS_KIND);
            assert_eq!(RecordMessage::decode(&bytes).as_ref(), Some(&message));
        }
    }

    #[test]
    fn damaged_messages_are_rejected() {
        for message in messages() {
            let bytes = message.encode(DEVICE_RECORDS_KIND);
            let needed = match message {
                RecordMessage::Confirmation { .. } | RecordMessage::GetDigests { .. } => continue,
                _ => bytes.len(),
            };
            for length in (0..needed).filter(|length| *length < 60 || *length > needed - 60) {
                assert_eq!(RecordMessage::decode(&bytes[..length]), None, "{message:?}");
            }
        }
        // A list that claims to be longer than the message.
        let mut bytes = RecordMessage::GetRecords {
            number: 1,
            ids: Vec::new(),
        }
        .encode(DEVICE_RECORDS_KIND)
        .to_vec();
        bytes[10..14].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(RecordMessage::decode(&bytes), None);
    }
}
