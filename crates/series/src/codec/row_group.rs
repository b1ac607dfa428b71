//! A row group: rows of one device, column by column.
//!
//! CRC32C of the rest (4 bytes) · rows · interval in ms, 0 for original rows · length and bytes of the times
//! · columns · per column: key, flags and facet, kind, number of rows with a value, length, statistics · the
//! columns' bytes. Numbers are varints. With the statistics of a column without gaps, an aggregate over the
//! whole group skips the column's bytes.

use disk::varint::{VarintReader, put};

use super::{floats, ints, texts};
use crate::column_table::{Column, ColumnFacet, ColumnTable};
use crate::column_values::{ColumnValues, MixedKinds, ValueKind};
use crate::point::{KeyId, PointValue};
use crate::summary::{IntervalSummary, NumericValue};

/// Maximum number of rows in a group.
pub(crate) const MAX_ROWS: usize = 8192;
/// Below this number, reading the rows is as fast as reading statistics.
const MIN_STATISTICS_ROWS: usize = 512;
const MAX_COLUMNS: usize = 1 << 20;

const FACET: u8 = 0x0f;
const SPARSE: u8 = 0x10;
const MIXED: u8 = 0x20;
const STATISTICS: u8 = 0x40;

const KINDS: [ValueKind; 5] = [
    ValueKind::Bool,
    ValueKind::Int,
    ValueKind::Float,
    ValueKind::Text,
    ValueKind::Json,
];

/// Encodes a group into `bytes`, replacing their content. The rows are sorted and at most [`MAX_ROWS`].
pub(crate) fn encode(
    out: &mut Vec<u8>,
    table: &ColumnTable,
    interval_ms: i64,
    bytes: &mut Vec<u8>,
) {
    debug_assert!(
        table.is_sorted && table.ts.len() <= MAX_ROWS,
        "groups are of sorted rows"
    );
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    put(out, table.ts.len() as u64);
    put(out, interval_ms as u64);
    bytes.clear();
    ints::encode(bytes, &table.ts);
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
    put(out, table.columns.len() as u64);
    bytes.clear();
    for column in &table.columns {
        let before = bytes.len();
        let values = &column.values;
        let mut flags = column.facet as u8;
        if let Some(rows) = &column.rows {
            flags |= SPARSE;
            encode_presence(bytes, rows, table.ts.len());
        }
        match &values.mixed {
            None => {
                let kind = values.kind.expect("a column has at least one value");
                encode_kind(bytes, values, kind);
            }
            Some(mixed) => {
                flags |= MIXED;
                let kinds: Vec<i64> = mixed.kinds.iter().map(|&kind| i64::from(kind)).collect();
                ints::encode(bytes, &kinds);
                for kind in KINDS.into_iter().filter(|&kind| values.count(kind) > 0) {
                    encode_kind(bytes, values, kind);
                }
            }
        }
        let statistics = statistics(column, &table.ts);
        if statistics.is_some() {
            flags |= STATISTICS;
        }
        put(out, u64::from(column.key.0));
        out.push(flags);
        if values.mixed.is_none() {
            out.push(values.kind.map_or(0, |kind| kind as u8));
        }
        if let Some(rows) = &column.rows {
            put(out, rows.len() as u64);
        }
        put(out, (bytes.len() - before) as u64);
        for number in statistics.iter().flat_map(ColumnStatistics::encode) {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }
    out.extend_from_slice(bytes);
    let crc = crc32c::crc32c(&out[start + 4..]);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

fn encode_kind(out: &mut Vec<u8>, values: &ColumnValues, kind: ValueKind) {
    match kind {
        ValueKind::Bool => ints::encode(out, &values.bools),
        ValueKind::Int => ints::encode(out, &values.ints),
        ValueKind::Float => floats::encode(out, &values.floats),
        ValueKind::Text => texts::encode(out, &values.texts),
        ValueKind::Json => texts::encode(out, &values.jsons),
    }
}

fn encode_presence(out: &mut Vec<u8>, rows: &[u32], len: usize) {
    let list: Vec<i64> = rows.iter().map(|&row| i64::from(row)).collect();
    let start = out.len();
    out.push(0);
    ints::encode(out, &list);
    if out.len() - start > 1 + len.div_ceil(8) {
        out.truncate(start);
        out.push(1);
        out.resize(start + 1 + len.div_ceil(8), 0);
        for row in rows {
            out[start + 1 + *row as usize / 8] |= 1 << (row % 8);
        }
    }
}

fn decode_presence(reader: &mut VarintReader<'_>, count: usize, len: usize) -> Option<Vec<u32>> {
    let mut rows = Vec::with_capacity(count);
    match reader.byte()? {
        0 => {
            let mut next = 0;
            for row in ints::decode(reader, count)? {
                let row = u32::try_from(row)
                    .ok()
                    .filter(|&row| row >= next && (row as usize) < len)?;
                next = row + 1;
                rows.push(row);
            }
        }
        1 => {
            for (at, byte) in reader.take(len.div_ceil(8))?.iter().enumerate() {
                let of_byte = (0..8).filter(|bit| byte >> bit & 1 == 1);
                rows.extend(of_byte.map(|bit| (at * 8 + bit) as u32));
            }
            if rows.last().is_some_and(|&last| last as usize >= len) {
                return None;
            }
        }
        _ => return None,
    }
    (rows.len() == count).then_some(rows)
}

/// Statistics of a numeric column without gaps and NaN: what an aggregate over all its rows needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ColumnStatistics {
    pub(crate) sum: NumericValue,
    pub(crate) min: NumericValue,
    pub(crate) max: NumericValue,
    pub(crate) first: PointValue<'static>,
    pub(crate) last: PointValue<'static>,
}

fn statistics(column: &Column, ts: &[i64]) -> Option<ColumnStatistics> {
    let values = &column.values;
    let is_number = matches!(
        values.kind,
        Some(ValueKind::Bool | ValueKind::Int | ValueKind::Float)
    );
    let is_plain =
        column.rows.is_none() && values.mixed.is_none() && column.facet == ColumnFacet::Value;
    if !is_plain || !is_number || ts.len() < MIN_STATISTICS_ROWS {
        return None;
    }
    let mut summary = IntervalSummary::default();
    summary.add_values(values, 0..ts.len(), (ts[0], ts[ts.len() - 1]));
    let sum = summary.sum.number();
    // If the sum of integers overflows, the caller adds up the values instead.
    let is_exact = values.kind == Some(ValueKind::Float) || matches!(sum, NumericValue::Int(_));
    if summary.numbers as usize != ts.len() || !is_exact {
        return None;
    }
    let value = |at| match values.get(at) {
        PointValue::Bool(value) => Some(PointValue::Bool(value)),
        PointValue::Int(value) => Some(PointValue::Int(value)),
        PointValue::Float(value) => Some(PointValue::Float(value)),
        PointValue::Text(_) | PointValue::Json(_) => None,
    };
    Some(ColumnStatistics {
        sum,
        min: summary.min?,
        max: summary.max?,
        first: value(0)?,
        last: value(ts.len() - 1)?,
    })
}

impl ColumnStatistics {
    /// Five numbers of 8 bytes: integers or floats, as in the column.
    fn encode(&self) -> [u64; 5] {
        let number = |number: NumericValue| match number {
            NumericValue::Int(number) => number as u64,
            NumericValue::Float(number) => number.to_bits(),
        };
        let value = |value| NumericValue::from_value(value).map_or(0, number);
        [
            number(self.sum),
            number(self.min),
            number(self.max),
            value(self.first),
            value(self.last),
        ]
    }

    fn decode(numbers: [u64; 5], kind: ValueKind) -> Self {
        let [sum, min, max, first, last] = numbers;
        let number = |bits: u64| match kind {
            ValueKind::Float => NumericValue::Float(f64::from_bits(bits)),
            _ => NumericValue::Int(bits as i64),
        };
        let value = |bits: u64| match kind {
            ValueKind::Bool => PointValue::Bool(bits != 0),
            _ => number(bits).value(),
        };
        Self {
            sum: number(sum),
            min: number(min),
            max: number(max),
            first: value(first),
            last: value(last),
        }
    }
}

/// Description of a column in a group.
pub(crate) struct GroupColumn<'a> {
    pub(crate) key: KeyId,
    pub(crate) facet: ColumnFacet,
    kind: Option<ValueKind>,
    count: usize,
    is_sparse: bool,
    pub(crate) statistics: Option<ColumnStatistics>,
    bytes: &'a [u8],
}

/// A group with a parsed head.
pub(crate) struct RowGroup<'a> {
    pub(crate) rows: usize,
    pub(crate) interval_ms: i64,
    times: &'a [u8],
    pub(crate) entries: Vec<GroupColumn<'a>>,
}

/// Whether the checksum matches.
pub(crate) fn is_intact(bytes: &[u8]) -> bool {
    let Some((crc, rest)) = bytes.split_first_chunk() else {
        return false;
    };
    crc32c::crc32c(rest) == u32::from_le_bytes(*crc)
}

/// Parses the head of a group; `None` if it is invalid.
pub(crate) fn parse_group(bytes: &[u8]) -> Option<RowGroup<'_>> {
    let mut reader = VarintReader::new(bytes);
    reader.take(4)?;
    let rows = reader.number_up_to(MAX_ROWS)?;
    let interval_ms = i64::try_from(reader.number()?).ok()?;
    let len = reader.number_up_to(usize::MAX)?;
    let times = reader.take(len)?;
    let columns = reader.number_up_to(MAX_COLUMNS.min(bytes.len()))?;
    let mut entries = Vec::with_capacity(columns);
    let mut lens = Vec::with_capacity(columns);
    for _ in 0..columns {
        let key = KeyId(u32::try_from(reader.number()?).ok()?);
        let flags = reader.byte()?;
        let facet = ColumnFacet::from_byte(flags & FACET)?;
        let kind = if flags & MIXED == 0 {
            Some(ValueKind::from_byte(reader.byte()?)?)
        } else {
            None
        };
        let is_sparse = flags & SPARSE != 0;
        let count = if is_sparse {
            reader.number_up_to(rows)?
        } else {
            rows
        };
        lens.push(reader.number_up_to(usize::MAX)?);
        let statistics = if flags & STATISTICS != 0 {
            let mut numbers = [0; 5];
            for number in &mut numbers {
                *number = reader.fixed_u64()?;
            }
            Some(ColumnStatistics::decode(numbers, kind?))
        } else {
            None
        };
        entries.push(GroupColumn {
            key,
            facet,
            kind,
            count,
            is_sparse,
            statistics,
            bytes: &[],
        });
    }
    for (entry, len) in entries.iter_mut().zip(lens) {
        entry.bytes = reader.take(len)?;
    }
    Some(RowGroup {
        rows,
        interval_ms,
        times,
        entries,
    })
}

impl RowGroup<'_> {
    pub(crate) fn points(&self) -> u64 {
        self.entries.iter().map(|entry| entry.count as u64).sum()
    }

    pub(crate) fn decode_times(&self) -> Option<Vec<i64>> {
        ints::decode(&mut VarintReader::new(self.times), self.rows)
    }

    pub(crate) fn decode_column(&self, entry: &GroupColumn<'_>) -> Option<Column> {
        let mut reader = VarintReader::new(entry.bytes);
        let rows = match entry.is_sparse {
            true => Some(decode_presence(&mut reader, entry.count, self.rows)?),
            false => None,
        };
        let mut values = ColumnValues {
            kind: entry.kind,
            ..ColumnValues::default()
        };
        match entry.kind {
            Some(kind) => decode_kind(&mut reader, &mut values, kind, entry.count)?,
            None => decode_mixed(&mut reader, &mut values, entry.count)?,
        }
        Some(Column {
            key: entry.key,
            facet: entry.facet,
            rows,
            values,
        })
    }

    /// Decodes the columns of these keys; `None` if the bytes are invalid.
    pub(crate) fn decode_table(&self, wanted: Option<&[KeyId]>) -> Option<ColumnTable> {
        let ts = self.decode_times()?;
        let is_wanted =
            |entry: &&GroupColumn<'_>| wanted.is_none_or(|wanted| wanted.contains(&entry.key));
        let columns = self.entries.iter().filter(is_wanted);
        Some(ColumnTable {
            is_sorted: ts.windows(2).all(|two| two[0] < two[1]),
            ts,
            columns: columns
                .map(|entry| self.decode_column(entry))
                .collect::<Option<_>>()?,
        })
    }
}

fn decode_kind(
    reader: &mut VarintReader<'_>,
    values: &mut ColumnValues,
    kind: ValueKind,
    count: usize,
) -> Option<()> {
    match kind {
        ValueKind::Bool => values.bools = ints::decode(reader, count)?,
        ValueKind::Int => values.ints = ints::decode(reader, count)?,
        ValueKind::Float => values.floats = floats::decode(reader, count)?,
        ValueKind::Text => values.texts = texts::decode(reader, count)?,
        ValueKind::Json => values.jsons = texts::decode(reader, count)?,
    }
    Some(())
}

fn decode_mixed(
    reader: &mut VarintReader<'_>,
    values: &mut ColumnValues,
    count: usize,
) -> Option<()> {
    let mut counts = [0_u32; 5];
    let mut mixed = MixedKinds::default();
    for kind in ints::decode(reader, count)? {
        let kind = ValueKind::from_byte(u8::try_from(kind).ok()?)?;
        values.kind = Some(kind);
        mixed.kinds.push(kind as u8);
        let count = &mut counts[kind as usize];
        mixed.places.push(*count);
        *count += 1;
    }
    for kind in KINDS.into_iter().filter(|&kind| counts[kind as usize] > 0) {
        decode_kind(reader, values, kind, counts[kind as usize] as usize)?;
    }
    values.mixed = Some(Box::new(mixed));
    Some(())
}

/// For the fuzzer: decodes bytes as a group, completely if the head is valid.
pub(crate) fn fuzz_decode(bytes: &[u8]) -> usize {
    let Some(table) = parse_group(bytes).and_then(|group| group.decode_table(None)) else {
        return 0;
    };
    let mut values = 0;
    for column in &table.columns {
        for row in 0..table.ts.len() {
            if let Some(place) = column.value_index(row) {
                let _ = column.values.get(place);
                values += 1;
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Cell;
    use proptest::prelude::*;

    fn value(number: u64, text: &str) -> PointValue<'_> {
        match number % 6 {
            0 => PointValue::Bool(number & 8 != 0),
            1 => PointValue::Int(number as i64),
            2 => PointValue::Float(f64::from_bits(number)),
            3 => PointValue::Float((number % 1000) as f64 / 10.0),
            4 => PointValue::Text(text),
            _ => PointValue::Json("{}"),
        }
    }

    fn same(left: PointValue<'_>, right: PointValue<'_>) -> bool {
        match (left, right) {
            (PointValue::Float(left), PointValue::Float(right)) => {
                left.to_bits() == right.to_bits()
            }
            (left, right) => left == right,
        }
    }

    fn check(table: &ColumnTable) {
        let mut bytes = Vec::new();
        encode(&mut bytes, table, 60_000, &mut Vec::new());
        assert!(is_intact(&bytes));
        let group = parse_group(&bytes).unwrap();
        assert_eq!(group.interval_ms, 60_000);
        let found = group.decode_table(None).unwrap();
        assert_eq!(found.ts, table.ts);
        assert_eq!(found.columns.len(), table.columns.len());
        for (found, expected) in found.columns.iter().zip(&table.columns) {
            assert_eq!((found.key, found.facet), (expected.key, expected.facet));
            for row in 0..table.ts.len() {
                let values = (found.value_index(row), expected.value_index(row));
                assert_eq!(values.0.is_some(), values.1.is_some());
                if let (Some(at), Some(of)) = values {
                    assert!(same(found.values.get(at), expected.values.get(of)));
                }
            }
        }
    }

    /// A group whose column 1 has a value in the rows that `value` returns one for.
    fn group<'a>(rows: i64, value: impl Fn(u64) -> Option<PointValue<'a>>) -> Vec<u8> {
        let mut table = ColumnTable::default();
        for row in 0..rows {
            table.begin_row(1_700_000_000_000 + row * 1000 + row % 3);
            if let Some(value) = value(row as u64) {
                let column = table.column(KeyId(1), ColumnFacet::Value);
                table.put(column, Cell::Plain(value));
            }
        }
        table.finish();
        let mut bytes = Vec::new();
        encode(&mut bytes, &table, 60_000, &mut Vec::new());
        bytes
    }

    /// One group of each kind of column, for the fuzzer.
    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let texts = [
            "",
            "on",
            "off",
            "ein l\u{e4}ngerer Text, der nicht in ein Byte passt",
        ];
        vec![
            ("empty", group(0, |_| None)),
            ("one_row", group(1, |_| Some(PointValue::Int(-1)))),
            (
                "booleans",
                group(40, |row| Some(PointValue::Bool(row % 3 == 0))),
            ),
            (
                "counter",
                group(40, |row| Some(PointValue::Int(row as i64 * 5))),
            ),
            (
                "integers",
                group(20, |row| {
                    Some(PointValue::Int(i64::MIN.rotate_left(row as u32 * 7)))
                }),
            ),
            (
                "decimals",
                group(40, |row| {
                    Some(PointValue::Float((200 + row % 7) as f64 / 10.0))
                }),
            ),
            (
                "floats",
                group(20, |row| {
                    Some(PointValue::Float(f64::from_bits(row << 57 | row)))
                }),
            ),
            (
                "texts",
                group(20, |row| {
                    Some(PointValue::Text(texts[row as usize % texts.len()]))
                }),
            ),
            (
                "json",
                group(5, |_| Some(PointValue::Json("{\"a\":[1,2]}"))),
            ),
            ("mixed", group(24, |row| Some(value(row * 11, "text")))),
            (
                "gaps",
                group(40, |row| {
                    (row % 5 == 1).then_some(PointValue::Int(row as i64))
                }),
            ),
        ]
    }

    /// With `TIDEGATE_WRITE_SEEDS=1`, the seeds are written.
    #[test]
    fn the_seeds_of_the_fuzzer_are_groups_and_damaged_ones_do_not_panic() {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/series_group");
        let is_writing = std::env::var_os("TIDEGATE_WRITE_SEEDS").is_some();
        for (name, seed) in seeds() {
            let path = folder.join(name);
            if is_writing {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&path, &seed).unwrap();
            }
            let stored = std::fs::read(&path).unwrap_or_default();
            assert!(
                stored == seed,
                "{} is out of date: run this test with TIDEGATE_WRITE_SEEDS=1",
                path.display()
            );
            assert!(parse_group(&seed).is_some(), "{name}");
            let mut damaged = seed.clone();
            for at in 0..seed.len() {
                fuzz_decode(&seed[..at]);
                for byte in [0, 1, 0x7f, 0x80, 0xff, seed[at] ^ 1] {
                    damaged[at] = byte;
                    fuzz_decode(&damaged);
                }
                damaged[at] = seed[at];
            }
        }
    }

    proptest! {
        #[test]
        fn groups_round_trip(numbers in proptest::collection::vec((any::<u64>(), any::<u8>()), 1..600), pick in 0..6_u64, text in ".{0,9}") {
            let mut table = ColumnTable::default();
            for (row, &(number, present)) in numbers.iter().enumerate() {
                table.begin_row(row as i64 * 7);
                // A column of one kind, one of all kinds, and one with many gaps.
                for (key, number, is_there) in [(1, number / 6 * 6 + pick, true), (2, number, true), (3, number, present < 99)] {
                    let column = table.column(KeyId(key), ColumnFacet::Value);
                    if is_there && number < u64::MAX - 6 {
                        table.put(column, Cell::Plain(value(number, &text)));
                    }
                }
            }
            table.finish();
            check(&table);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            fuzz_decode(&bytes);
        }

        #[test]
        fn changed_bytes_are_detected(at in any::<proptest::sample::Index>(), bit in 0..8_u32) {
            let mut table = ColumnTable::default();
            for row in 0..1000 {
                table.begin_row(row);
                let column = table.column(KeyId(1), ColumnFacet::Value);
                table.put(column, Cell::Plain(PointValue::Int(row * row)));
            }
            let mut bytes = Vec::new();
            encode(&mut bytes, &table, 0, &mut Vec::new());
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            prop_assert!(!is_intact(&bytes));
            fuzz_decode(&bytes);
        }
    }
}
