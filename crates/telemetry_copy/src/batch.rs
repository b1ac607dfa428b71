//! Batches of rows and deletions on their way to the standby, in order.
//!
//! | entry | content |
//! |---|---|
//! | 1 | a device, which gets the next number, from 0: its id |
//! | 2 | a key, which gets the next number, from 0: its name |
//! | 3 | a row: number of the device, time (signed varint), number of points, for each of them the number of its key and the value |
//! | 4 | a deletion: number of the device, first time and end (signed varints), 0 for all keys or their number and 1, numbers of the keys |
//!
//! Numbers are varints; texts are a length and bytes. Values are described in `point_codec.rs`.

use std::collections::HashMap;

use disk::varint::{self, VarintReader};
use foldhash::fast::RandomState;
use series::{DeviceNo, KeyId, MAX_POINTS, Point, PointValue};

use crate::point_codec::{put_text, put_value, read_text, read_value};

const DEVICE: u8 = 1;
const KEY: u8 = 2;
const ROW: u8 = 3;
const DELETION: u8 = 4;

/// Size from which a batch is sent. One row more has up to 128 KiB, and the names of its keys.
pub(crate) const BATCH_BYTES: usize = 256 << 10;

/// The times of the rows of a device in a batch: the first and the last.
pub(crate) type RowTimes = (i64, i64);

/// A batch that is being filled.
#[derive(Default)]
pub(crate) struct BatchWriter {
    bytes: Vec<u8>,
    /// In the order of their numbers.
    devices: Vec<(DeviceNo, Option<RowTimes>)>,
    device_numbers: HashMap<DeviceNo, u64, RandomState>,
    key_numbers: HashMap<KeyId, u64, RandomState>,
    pub(crate) rows: u64,
}

impl BatchWriter {
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether the id of the device is in the batch, so that it need not be known again.
    pub(crate) fn has_device(&self, device: DeviceNo) -> bool {
        self.device_numbers.contains_key(&device)
    }

    fn device_number(&mut self, device: DeviceNo, id: &str) -> u64 {
        if let Some(number) = self.device_numbers.get(&device) {
            return *number;
        }
        self.bytes.push(DEVICE);
        put_text(&mut self.bytes, id);
        let number = self.devices.len() as u64;
        self.device_numbers.insert(device, number);
        self.devices.push((device, None));
        number
    }

    /// `None`: there is no such key.
    fn key_number<'k>(
        &mut self,
        key: KeyId,
        name_of: impl Fn(KeyId) -> Option<&'k str>,
    ) -> Option<u64> {
        if let Some(number) = self.key_numbers.get(&key) {
            return Some(*number);
        }
        let name = name_of(key)?;
        self.bytes.push(KEY);
        put_text(&mut self.bytes, name);
        let number = self.key_numbers.len() as u64;
        self.key_numbers.insert(key, number);
        Some(number)
    }

    /// Adds a row of the device with this id.
    pub(crate) fn add_row<'k>(
        &mut self,
        (device, id): (DeviceNo, &str),
        ts_ms: i64,
        points: &[Point<'_>],
        name_of: impl Fn(KeyId) -> Option<&'k str>,
    ) {
        let number = self.device_number(device, id);
        // Their names are written before the row.
        let known: Vec<(u64, PointValue<'_>)> = points
            .iter()
            .filter_map(|point| Some((self.key_number(point.key, &name_of)?, point.value)))
            .collect();
        let times = &mut self.devices[number as usize].1;
        *times = Some(match *times {
            Some((first, last)) => (first.min(ts_ms), last.max(ts_ms)),
            None => (ts_ms, ts_ms),
        });
        let out = &mut self.bytes;
        out.push(ROW);
        varint::put(out, number);
        varint::put_signed(out, ts_ms);
        varint::put(out, known.len() as u64);
        for (key, value) in known {
            varint::put(out, key);
            put_value(out, value);
        }
        self.rows += 1;
    }

    /// Adds a deletion of the values of these keys, or of all, in [`from_ms`, `to_ms`).
    pub(crate) fn add_deletion<'k>(
        &mut self,
        (device, id): (DeviceNo, &str),
        keys: Option<&[KeyId]>,
        (from_ms, to_ms): (i64, i64),
        name_of: impl Fn(KeyId) -> Option<&'k str>,
    ) {
        let number = self.device_number(device, id);
        let known: Option<Vec<u64>> = keys.map(|keys| {
            let numbers = keys.iter().map(|key| self.key_number(*key, &name_of));
            numbers.flatten().collect()
        });
        let out = &mut self.bytes;
        out.push(DELETION);
        varint::put(out, number);
        varint::put_signed(out, from_ms);
        varint::put_signed(out, to_ms);
        varint::put(out, known.as_ref().map_or(0, |keys| keys.len() as u64 + 1));
        for key in known.iter().flatten() {
            varint::put(out, *key);
        }
    }

    /// The bytes, and the devices with the times of their rows, in the order of their numbers.
    pub(crate) fn finish(self) -> (Vec<u8>, Vec<(DeviceNo, Option<RowTimes>)>) {
        (self.bytes, self.devices)
    }
}

/// An entry of a received batch. Devices and keys are named by their numbers in the batch.
#[derive(Debug, PartialEq)]
pub(crate) enum BatchEntry<'a> {
    Device(&'a str),
    Key(&'a str),
    Row {
        device: usize,
        ts_ms: i64,
    },
    Deletion {
        device: usize,
        /// `None`: all keys.
        keys: Option<Vec<usize>>,
        from_ms: i64,
        to_ms: i64,
    },
}

/// Reads a batch. Numbers of devices and keys are known ones.
pub(crate) struct BatchReader<'a> {
    reader: VarintReader<'a>,
    devices: usize,
    keys: usize,
    /// Of the last row: numbers of keys, and values.
    pub(crate) points: Vec<(usize, PointValue<'a>)>,
}

impl<'a> BatchReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self {
            reader: VarintReader::new(bytes),
            devices: 0,
            keys: 0,
            points: Vec::new(),
        }
    }

    /// The next entry; `Ok(None)` at the end.
    ///
    /// # Errors
    /// If the batch is damaged.
    pub(crate) fn next(&mut self) -> Result<Option<BatchEntry<'a>>, String> {
        if self.reader.is_empty() {
            return Ok(None);
        }
        let at = self.reader.at;
        let entry = self.read();
        entry
            .map(Some)
            .ok_or_else(|| format!("the batch cannot be read from byte {at} on"))
    }

    fn read(&mut self) -> Option<BatchEntry<'a>> {
        let reader = &mut self.reader;
        Some(match reader.byte()? {
            DEVICE => {
                self.devices += 1;
                BatchEntry::Device(read_text(reader)?)
            }
            KEY => {
                self.keys += 1;
                BatchEntry::Key(read_text(reader)?)
            }
            ROW => {
                let device = reader.number_up_to(self.devices.checked_sub(1)?)?;
                let ts_ms = reader.signed()?;
                let count = reader.number_up_to(MAX_POINTS)?;
                self.points.clear();
                for _ in 0..count {
                    let key = reader.number_up_to(self.keys.checked_sub(1)?)?;
                    self.points.push((key, read_value(reader)?));
                }
                BatchEntry::Row { device, ts_ms }
            }
            DELETION => {
                let device = reader.number_up_to(self.devices.checked_sub(1)?)?;
                let (from_ms, to_ms) = (reader.signed()?, reader.signed()?);
                let keys = match reader.number_up_to(self.keys + 1)? {
                    0 => None,
                    count => {
                        let mut keys = Vec::with_capacity(count - 1);
                        for _ in 1..count {
                            keys.push(reader.number_up_to(self.keys.checked_sub(1)?)?);
                        }
                        Some(keys)
                    }
                };
                BatchEntry::Deletion {
                    device,
                    keys,
                    from_ms,
                    to_ms,
                }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(key: u32, value: PointValue<'_>) -> Point<'_> {
        Point {
            key: KeyId(key),
            value,
        }
    }

    fn sample() -> Vec<u8> {
        let names = ["t", "mode", "unused"];
        let name_of = |key: KeyId| names.get(key.0 as usize).copied();
        let mut batch = BatchWriter::default();
        let (one, two) = ((DeviceNo(7), "one"), (DeviceNo(9), "two"));
        let points = [
            point(1, PointValue::Text("auto")),
            point(0, PointValue::Float(0.1)),
        ];
        batch.add_row(one, 5, &points, name_of);
        batch.add_row(two, -3, &[point(0, PointValue::Int(i64::MIN))], name_of);
        batch.add_deletion(one, Some(&[KeyId(0), KeyId(99)]), (1, 6), name_of);
        batch.add_deletion(two, None, (i64::MIN, i64::MAX), name_of);
        batch.add_row(one, 2, &[point(0, PointValue::Json("[1]"))], name_of);
        assert_eq!(batch.rows, 3);
        let (bytes, devices) = batch.finish();
        assert_eq!(
            devices,
            [(DeviceNo(7), Some((2, 5))), (DeviceNo(9), Some((-3, -3)))]
        );
        bytes
    }

    #[test]
    fn rows_and_deletions_come_back_in_order() {
        let bytes = sample();
        let mut reader = BatchReader::new(&bytes);
        let mut read = Vec::new();
        let mut points = Vec::new();
        while let Some(entry) = reader.next().unwrap() {
            if matches!(entry, BatchEntry::Row { .. }) {
                points.push(std::mem::take(&mut reader.points));
            }
            read.push(entry);
        }
        let deletion = |device, keys, from_ms, to_ms| BatchEntry::Deletion {
            device,
            keys,
            from_ms,
            to_ms,
        };
        let row = |device, ts_ms| BatchEntry::Row { device, ts_ms };
        assert_eq!(
            read,
            [
                BatchEntry::Device("one"),
                BatchEntry::Key("mode"),
                BatchEntry::Key("t"),
                row(0, 5),
                BatchEntry::Device("two"),
                row(1, -3),
                deletion(0, Some(vec![1]), 1, 6),
                deletion(1, None, i64::MIN, i64::MAX),
                row(0, 2),
            ]
        );
        assert_eq!(
            points,
            [
                vec![(0, PointValue::Text("auto")), (1, PointValue::Float(0.1))],
                vec![(1, PointValue::Int(i64::MIN))],
                vec![(1, PointValue::Json("[1]"))],
            ]
        );
    }

    #[test]
    fn damaged_batches_are_errors_and_no_panics() {
        let bytes = sample();
        for at in 0..bytes.len() {
            for value in [0, 1, 3, 4, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                for changed in [&changed[..], &changed[..at]] {
                    let mut reader = BatchReader::new(changed);
                    while let Ok(Some(_)) = reader.next() {}
                }
            }
        }
        let row_of_unknown_device = [ROW, 0, 0, 0];
        assert!(BatchReader::new(&row_of_unknown_device).next().is_err());
    }
}
