//! Record batches (the format since Kafka 0.11), as stored in a partition.

use crate::compression::Compression;
use crate::protocol::{DecodeError, Decoder, Encode as _, varint_len};

/// Size of the head: offset, length, leader epoch, format, checksum, attributes, last offset delta, two timestamps,
/// producer id and epoch, sequence number, count.
const HEAD_BYTES: usize = 61;
/// End of the length field, where the length begins to count.
const LENGTH_END: usize = 12;
/// Offset from which the checksum is computed.
const CHECKED_FROM: usize = 21;
const FORMAT: i8 = 2;
const IS_TRANSACTIONAL: i16 = 16;
const IS_CONTROL: i16 = 32;

/// A message as given by a producer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KafkaMessage {
    pub key: Option<Vec<u8>>,
    /// `None`: a tombstone.
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
    pub timestamp_ms: i64,
}

impl KafkaMessage {
    /// Approximate size in a batch; an upper bound.
    pub fn size(&self) -> usize {
        let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let headers = self.headers.iter();
        let headers: usize = headers
            .map(|(name, value)| name.len() + value.len() + 10)
            .sum();
        40 + length(&self.key) + length(&self.value) + headers
    }
}

/// The producer, by which a broker recognises duplicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProducerId {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
}

impl ProducerId {
    pub(crate) const NONE: Self = Self { id: -1, epoch: -1 };
}

/// The next sequence number; numbers wrap around.
pub(crate) fn sequence_after(first: i32, count: usize) -> i32 {
    let next = (i64::from(first) + count as i64) % (i64::from(i32::MAX) + 1);
    next as i32
}

/// Packed messages without sequence numbers.
#[derive(Debug)]
pub(crate) struct PackedMessages {
    attributes: i16,
    count: usize,
    first_ms: i64,
    last_ms: i64,
    body: Vec<u8>,
}

impl PackedMessages {
    pub(crate) fn new<'a>(
        messages: impl Iterator<Item = &'a KafkaMessage> + Clone,
        compression: Compression,
    ) -> Self {
        let first_ms = messages.clone().map(|m| m.timestamp_ms).next().unwrap_or(0);
        let last_ms = messages.clone().map(|m| m.timestamp_ms).max().unwrap_or(0);
        let mut body = Vec::with_capacity(messages.clone().map(KafkaMessage::size).sum());
        let mut count = 0;
        for message in messages {
            put_record(&mut body, message, count as i64, first_ms);
            count += 1;
        }
        let (compression, body) = match compression {
            Compression::None => (compression, body),
            // Incompressible data is stored uncompressed.
            _ => match compression.compress(&body) {
                Ok(packed) => (compression, packed),
                Err(_) => (Compression::None, body),
            },
        };
        Self {
            attributes: compression.attributes(),
            count,
            first_ms,
            last_ms,
            body,
        }
    }

    pub(crate) fn size(&self) -> usize {
        HEAD_BYTES + self.body.len()
    }

    /// Appends the batch with these numbers.
    pub(crate) fn seal(&self, producer: ProducerId, first_sequence: i32, out: &mut Vec<u8>) {
        let start = out.len();
        let last = self.count.saturating_sub(1) as i32;
        out.put_i64(0);
        out.put_count(self.size() - LENGTH_END);
        out.put_i32(-1);
        out.put_i8(FORMAT);
        out.put_i32(0);
        out.put_i16(self.attributes);
        out.put_i32(last);
        out.put_i64(self.first_ms);
        out.put_i64(self.last_ms);
        out.put_i64(producer.id);
        out.put_i16(producer.epoch);
        out.put_i32(first_sequence);
        out.put_count(self.count);
        out.put_raw(&self.body);
        let sum = crc32c::crc32c(&out[start + CHECKED_FROM..]);
        out[start + CHECKED_FROM - 4..start + CHECKED_FROM].copy_from_slice(&sum.to_be_bytes());
    }
}

fn put_record(out: &mut Vec<u8>, message: &KafkaMessage, number: i64, first_ms: i64) {
    let delta_ms = message.timestamp_ms - first_ms;
    let length_of = |bytes: Option<&[u8]>| {
        let length = bytes.map_or(-1, |bytes| bytes.len() as i64);
        varint_len(length) + length.max(0) as usize
    };
    let (key, value) = (message.key.as_deref(), message.value.as_deref());
    let headers = message.headers.iter();
    let headers: usize = headers
        .map(|(name, value)| length_of(Some(name.as_bytes())) + length_of(Some(value)))
        .sum();
    let length = 1
        + varint_len(delta_ms)
        + varint_len(number)
        + length_of(key)
        + length_of(value)
        + varint_len(message.headers.len() as i64)
        + headers;
    out.put_varint(length as i64);
    // Record attributes, which are unused.
    out.put_i8(0);
    out.put_varint(delta_ms);
    out.put_varint(number);
    let put = |out: &mut Vec<u8>, bytes: Option<&[u8]>| match bytes {
        None => out.put_varint(-1),
        Some(bytes) => {
            out.put_varint(bytes.len() as i64);
            out.put_raw(bytes);
        }
    };
    put(out, key);
    put(out, value);
    out.put_varint(message.headers.len() as i64);
    for (name, value) in &message.headers {
        put(out, Some(name.as_bytes()));
        put(out, Some(value));
    }
}

/// A message read from a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedRecord {
    pub offset: i64,
    pub message: KafkaMessage,
}

/// An aborted transaction: the messages of its producer from this offset up to its end marker do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AbortedTransaction {
    pub(crate) producer: i64,
    pub(crate) first_offset: i64,
}

/// Result of a fetch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FetchedRecords {
    pub(crate) records: Vec<FetchedRecord>,
    /// Offset to continue from; `None` if there is no complete batch.
    pub(crate) next_offset: Option<i64>,
}

/// Reads batches from an offset on; the last one may be truncated.
pub(crate) fn read_batches(
    bytes: &[u8],
    from: i64,
    aborted: &[AbortedTransaction],
) -> Result<FetchedRecords, String> {
    let mut fetched = FetchedRecords::default();
    // Aborted transactions whose end marker is still to come.
    let mut ignored: Vec<i64> = Vec::new();
    let mut pending = aborted.to_vec();
    pending.sort_by_key(|aborted| aborted.first_offset);
    let mut pending = pending.into_iter().peekable();
    let mut rest = bytes;
    while rest.len() >= LENGTH_END {
        let length = Decoder(&rest[8..]).i32().map_err(decode_error_text)?;
        let length = usize::try_from(length).map_err(|_| "a batch of negative length")?;
        let Some((batch, behind)) = rest.split_at_checked(LENGTH_END + length) else {
            break;
        };
        rest = behind;
        let head = BatchHead::read(batch)?;
        while let Some(next) = pending.next_if(|next| next.first_offset <= head.last_offset) {
            ignored.push(next.producer);
        }
        let is_transactional = head.attributes & IS_TRANSACTIONAL != 0;
        if head.attributes & IS_CONTROL != 0 {
            // The marker at the end of a transaction.
            ignored.retain(|producer| *producer != head.producer);
        } else if !(is_transactional && ignored.contains(&head.producer)) {
            read_records(batch, &head, from, &mut fetched.records)?;
        }
        fetched.next_offset = Some(head.last_offset + 1);
    }
    Ok(fetched)
}

fn decode_error_text(error: DecodeError) -> String {
    error.to_string()
}

struct BatchHead {
    first_offset: i64,
    last_offset: i64,
    attributes: i16,
    first_ms: i64,
    last_ms: i64,
    producer: i64,
    count: usize,
}

impl BatchHead {
    fn read(batch: &[u8]) -> Result<Self, String> {
        let mut take = Decoder(batch);
        let mut read = || -> Result<(Self, i8, u32), DecodeError> {
            let first_offset = take.i64()?;
            take.raw(8)?;
            let format = take.i8()?;
            let sum = take.u32()?;
            if format != FORMAT {
                return Ok((Self::empty(first_offset), format, sum));
            }
            let attributes = take.i16()?;
            let last_offset = first_offset.wrapping_add(take.i32()?.into());
            let (first_ms, last_ms) = (take.i64()?, take.i64()?);
            let producer = take.i64()?;
            take.raw(6)?;
            // Compressed records may be small, so the count is not trusted for allocation.
            let count = usize::try_from(take.i32()?).unwrap_or(0);
            let head = Self {
                first_offset,
                last_offset,
                attributes,
                first_ms,
                last_ms,
                producer,
                count,
            };
            Ok((head, format, sum))
        };
        let (head, format, sum) = read().map_err(decode_error_text)?;
        let at = head.first_offset;
        if format != FORMAT {
            return Err(format!(
                "the batch at offset {at} has format {format}, which is older than Kafka 0.11 and is not read"
            ));
        }
        if crc32c::crc32c(&batch[CHECKED_FROM..]) != sum {
            return Err(format!("the checksum of the batch at offset {at} is wrong"));
        }
        Ok(head)
    }

    fn empty(first_offset: i64) -> Self {
        Self {
            first_offset,
            last_offset: first_offset,
            attributes: 0,
            first_ms: 0,
            last_ms: 0,
            producer: -1,
            count: 0,
        }
    }
}

fn read_records(
    batch: &[u8],
    head: &BatchHead,
    from: i64,
    records: &mut Vec<FetchedRecord>,
) -> Result<(), String> {
    let compression = Compression::from_attributes(head.attributes)?;
    let packed = &batch[HEAD_BYTES.min(batch.len())..];
    let unpacked;
    let body = match compression {
        Compression::None => packed,
        _ => {
            unpacked = compression.decompress(packed)?;
            &unpacked
        }
    };
    // The broker's time instead of the producer's.
    let is_broker_time = head.attributes & 8 != 0;
    let mut take = Decoder(body);
    for _ in 0..head.count {
        let mut record = read_record(&mut take, head).map_err(decode_error_text)?;
        if is_broker_time {
            record.message.timestamp_ms = head.last_ms;
        }
        // A batch is sent whole even if the requested offset is within it.
        if record.offset >= from {
            records.push(record);
        }
    }
    Ok(())
}

fn read_record(take: &mut Decoder<'_>, head: &BatchHead) -> Result<FetchedRecord, DecodeError> {
    let length = usize::try_from(take.varint()?).map_err(|_| DecodeError("a negative length"))?;
    let mut take = Decoder(take.raw(length)?);
    take.i8()?;
    let timestamp_ms = head.first_ms.wrapping_add(take.varint()?);
    let offset = head.first_offset.wrapping_add(take.varint()?);
    let bytes = |take: &mut Decoder<'_>| match usize::try_from(take.varint()?) {
        Ok(length) => take.raw(length).map(|bytes| Some(bytes.to_vec())),
        Err(_) => Ok(None),
    };
    let key = bytes(&mut take)?;
    let value = bytes(&mut take)?;
    let count = usize::try_from(take.varint()?).unwrap_or(0);
    let mut headers = Vec::new();
    for _ in 0..count.min(length) {
        let name = bytes(&mut take)?.unwrap_or_default();
        let value = bytes(&mut take)?.unwrap_or_default();
        headers.push((String::from_utf8_lossy(&name).into_owned(), value));
    }
    Ok(FetchedRecord {
        offset,
        message: KafkaMessage {
            key,
            value,
            headers,
            timestamp_ms,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(n: i64) -> KafkaMessage {
        KafkaMessage {
            key: (n % 2 == 0).then(|| format!("k{n}").into_bytes()),
            value: (n % 3 != 0).then(|| vec![b'v'; n as usize * 10]),
            headers: vec![("h".into(), n.to_string().into_bytes()); n as usize % 3],
            timestamp_ms: 1_000_000 - n,
        }
    }

    fn batch(first_offset: i64, attributes: i16, producer: i64) -> Vec<u8> {
        let messages: Vec<_> = (0..3).map(message).collect();
        let mut packed = PackedMessages::new(messages.iter(), Compression::None);
        packed.attributes |= attributes;
        let mut out = Vec::new();
        let producer = ProducerId {
            id: producer,
            epoch: 0,
        };
        packed.seal(producer, 0, &mut out);
        out[..8].copy_from_slice(&first_offset.to_be_bytes());
        out
    }

    #[test]
    fn what_is_written_is_read() {
        for compression in [Compression::None, Compression::Zstd] {
            let messages: Vec<_> = (0..20).map(message).collect();
            let packed = PackedMessages::new(messages.iter(), compression);
            let mut out = b"before".to_vec();
            let producer = ProducerId { id: 7, epoch: 1 };
            packed.seal(producer, 5, &mut out);
            assert_eq!(out.len(), 6 + packed.size());
            let read = read_batches(&out[6..], 4, &[]).unwrap();
            assert_eq!(read.next_offset, Some(20));
            let offsets: Vec<_> = read.records.iter().map(|r| r.offset).collect();
            assert_eq!(offsets, (4..20).collect::<Vec<_>>());
            let read = read.records.into_iter().map(|record| record.message);
            assert!(read.eq(messages[4..].iter().cloned()));
        }
    }

    #[test]
    fn a_message_takes_no_more_than_its_size() {
        for n in 0..10 {
            let message = message(n);
            let mut out = Vec::new();
            put_record(&mut out, &message, 1 << 30, 0);
            assert!(out.len() <= message.size());
        }
    }

    #[test]
    fn a_batch_that_is_cut_off_comes_again_later() {
        let mut bytes = batch(10, 0, -1);
        let second = batch(13, 0, -1);
        bytes.extend_from_slice(&second[..second.len() - 1]);
        let read = read_batches(&bytes, 10, &[]).unwrap();
        assert_eq!((read.records.len(), read.next_offset), (3, Some(13)));
        let read = read_batches(&bytes[..20], 10, &[]).unwrap();
        assert_eq!(read, FetchedRecords::default());
    }

    #[test]
    fn transactions_that_were_given_up_do_not_count() {
        let mut bytes = batch(0, IS_TRANSACTIONAL, 1);
        bytes.extend(batch(3, IS_TRANSACTIONAL, 2));
        bytes.extend(batch(6, IS_TRANSACTIONAL | IS_CONTROL, 1));
        bytes.extend(batch(9, IS_TRANSACTIONAL, 1));
        let aborted = AbortedTransaction {
            producer: 1,
            first_offset: 0,
        };
        let read = read_batches(&bytes, 0, &[aborted]).unwrap();
        let offsets: Vec<_> = read.records.iter().map(|r| r.offset).collect();
        assert_eq!(offsets, [3, 4, 5, 9, 10, 11]);
        assert_eq!(read.next_offset, Some(12));
    }

    #[test]
    fn damaged_batches_are_errors_and_no_danger() {
        let good = batch(0, 0, -1);
        for at in 12..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 0x55;
            let is_checked = at >= 16;
            assert!(!is_checked || read_batches(&bytes, 0, &[]).is_err(), "{at}");
        }
        for end in 0..good.len() {
            let read = read_batches(&good[..end], 0, &[]).unwrap();
            assert_eq!(read.next_offset, None);
        }
        let mut negative = good.clone();
        negative[8..12].copy_from_slice(&(-5_i32).to_be_bytes());
        assert!(read_batches(&negative, 0, &[]).is_err());
    }

    #[test]
    fn sequence_numbers_go_round() {
        assert_eq!(sequence_after(0, 500), 500);
        assert_eq!(sequence_after(i32::MAX - 1, 1), i32::MAX);
        assert_eq!(sequence_after(i32::MAX, 1), 0);
        assert_eq!(sequence_after(i32::MAX - 5, 10), 4);
    }
}
