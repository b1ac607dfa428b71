//! The memtable: rows round trip, and memory is reused.

use super::*;
use crate::lock::lock;
use crate::point::PointValue;

fn append(table: &mut Memtable, device: u32, ts_ms: i64, points: &[Point<'_>]) {
    let slot = table.slot_or_insert(device, device);
    let keys: Arc<[KeyId]> = points.iter().map(|point| point.key).collect();
    let known = table
        .last_shape_if_same(slot, points)
        .or_else(|| table.find_shape(&keys));
    let shape = known.unwrap_or_else(|| table.insert_shape(keys));
    let mut values = vec![0; 1 << 17];
    let mut end = 0;
    let (known, words) = table.shape_and_words(shape);
    for (point, hint) in points.iter().zip(known.hints.iter_mut()) {
        end = cell::write(&mut values, end, point.value, hint, words);
    }
    let spare = ChunkPool::new(0, 64 << 10);
    table.push(slot, ts_ms, shape, points.len(), &values[..end], &spare);
}

type FoundRows = Vec<(i64, Vec<(u32, i64)>)>;

fn read(rows: DeviceRows<'_>) -> FoundRows {
    let (mut found, mut numbers) = (Vec::new(), Vec::new());
    rows.numbers(i64::MIN, i64::MAX, &mut numbers);
    for number in numbers {
        let (ts_ms, shape, mut reader) = rows.row(number).unwrap();
        let mut points = Vec::new();
        for key in rows.keys(shape).unwrap().iter() {
            let cell = cell::read(&mut reader, |number| rows.word(number));
            let Some(PointValue::Int(number)) = cell.map(cell::Cell::value) else {
                panic!("only integers were written");
            };
            points.push((key.0, number));
        }
        found.push((ts_ms, points));
    }
    found
}

#[test]
fn rows_round_trip_for_any_keys_and_times() {
    let mut table = Memtable::new(1);
    let mut expected: HashMap<u32, FoundRows> = HashMap::new();
    for number in 0..30_000_i64 {
        let device = (number % 7 * 1000) as u32;
        let ts_ms = if number % 100 == 0 {
            number * -977
        } else {
            1_700_000_000_000 + number
        };
        // More shapes than one page contains.
        let first = if number % 3 == 0 {
            (number % 500) as u32
        } else {
            1
        };
        let keys = [first, 1000, 1001];
        let points = keys.map(|key| Point {
            key: KeyId(key),
            value: PointValue::Int(number * i64::from(key)),
        });
        append(&mut table, device, ts_ms, &points);
        let row = (
            ts_ms,
            keys.map(|key| (key, number * i64::from(key))).to_vec(),
        );
        expected.entry(device).or_default().push(row);
    }
    assert_eq!(table.devices(), [0, 1000, 2000, 3000, 4000, 5000, 6000]);
    assert_eq!(table.rows, 30_000);
    for (device, expected) in &expected {
        assert_eq!(&read(table.device_rows(*device).unwrap()), expected);
        let view = table.view(*device, i64::MIN, i64::MAX).unwrap();
        assert_eq!(&read(view.rows()), expected);
    }
    table.remove_device(1000);
    assert!(table.device_rows(1000).is_none());
    assert_eq!(table.rows, 30_000 - expected[&1000].len() as u64);
    let table = Arc::new(table);
    let view = table.frozen_view(2000, i64::MIN, i64::MAX).unwrap();
    assert_eq!(read(view.rows()), expected[&2000]);
}

#[test]
fn a_large_row_gets_a_chunk_of_its_own_size() {
    let mut table = Memtable::new(1);
    let text = "x".repeat(100_000);
    let point = |value| {
        [Point {
            key: KeyId(1),
            value,
        }]
    };
    append(&mut table, 1, 1, &point(PointValue::Int(1)));
    append(&mut table, 1, 2, &point(PointValue::Text(&text)));
    append(&mut table, 1, 3, &point(PointValue::Int(1)));
    let mut numbers = Vec::new();
    let rows = table.device_rows(1).unwrap();
    rows.numbers(2, 4, &mut numbers);
    assert_eq!(numbers.len(), 2);
    assert!(table.bytes() > 100_000);
    let Some(NewestRow::Row(3, values)) = table.newest(1) else {
        panic!("rows are sorted and have one shape");
    };
    assert_eq!(values.len(), 1);
}

#[test]
fn memory_is_reused() {
    let spare = ChunkPool::new(4 << 13, 1 << 13);
    for _ in 0..2 {
        let mut table = Memtable::new(1);
        let slot = table.slot_or_insert(0, 0);
        let shape = table.insert_shape(Arc::from([KeyId(1)]));
        for ts_ms in 0..20_000 {
            table.push(slot, ts_ms, shape, 1, &[0; 20], &spare);
        }
        assert_eq!(table.full.len(), 20_000 / 389);
        Arc::new(table).recycle(&spare);
        assert_eq!(lock(&spare.chunks).len(), 4);
    }
    spare.shrink();
    assert_eq!(lock(&spare.chunks).len(), 2);
}
