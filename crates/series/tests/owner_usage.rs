//! The stored bytes of owners, through flushes, merges, deletions and restarts.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use common::{Random, config};
use series::{
    BytesByOwner, DeviceNo, KeyId, OwnerUsageMeter, PARTITION_COUNT, Point, PointValue, Series,
};

const NOBODYS: DeviceNo = DeviceNo(3);

/// Odd devices belong to owner 1, even ones to owner 2.
fn owner_of(device: DeviceNo) -> u16 {
    match device {
        NOBODYS => 0,
        DeviceNo(number) => 2 - (number % 2) as u16,
    }
}

fn open(dir: &std::path::Path) -> (Series, OwnerUsageMeter) {
    let (series, _) = Series::open(dir, config()).unwrap();
    series.get_or_create_key("number").unwrap();
    (series.clone(), OwnerUsageMeter::new(series))
}

/// Appends rows of random numbers of eight bytes, which cannot be compressed.
fn append(series: &Series, device: DeviceNo, rows: i64, random: &mut Random) {
    for row in 0..rows {
        let value = PointValue::Int(((random.next() >> 2) | (1 << 62)) as i64);
        let point = Point {
            key: KeyId(0),
            value,
        };
        series.append(device, row * 1000, &[point]).unwrap();
    }
}

fn bytes_of(bytes: &BytesByOwner, owner: u16) -> u64 {
    bytes.get(&owner).copied().unwrap_or(0)
}

#[test]
fn the_bytes_of_an_owner_are_those_of_its_devices_wherever_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let (series, mut meter) = open(directory.path());
    let measure = |meter: &mut OwnerUsageMeter| meter.measure(&owner_of);
    assert!(measure(&mut meter).is_empty());
    let random = &mut Random::new(7);
    let devices = 0..2 * PARTITION_COUNT as u32;
    for number in devices.clone() {
        append(&series, DeviceNo(number), 100, random);
    }
    // Rows in memory: eight bytes of the number, its tag, and the head of the row.
    let waiting = measure(&mut meter);
    let rows = |devices: u64| devices * 100 * (9 + 16);
    assert_eq!(bytes_of(&waiting, 1), rows(7), "without that of nobody");
    assert_eq!(bytes_of(&waiting, 2), rows(8));
    assert_eq!(waiting.len(), 2);
    // Also of devices that are known already.
    append(&series, DeviceNo(0), 100, random);
    assert_eq!(bytes_of(&measure(&mut meter), 2), rows(9));

    // A restart, as after a crash, reads the same rows from the log.
    drop(meter);
    drop(series);
    let (series, mut meter) = open(directory.path());
    assert_eq!(bytes_of(&measure(&mut meter), 1), rows(7));
    assert_eq!(bytes_of(&measure(&mut meter), 2), rows(9));

    // In segment files they are compressed: the second values of device 0 have replaced the first ones.
    series.flush().unwrap();
    let flushed = measure(&mut meter);
    let size = |bytes: &BytesByOwner, owner, devices: u64| {
        let bytes = bytes_of(bytes, owner);
        let values = devices * 100 * 7;
        assert!((values..2 * values).contains(&bytes), "{bytes} of {owner}");
    };
    size(&flushed, 1, 7);
    size(&flushed, 2, 8);
    append(&series, DeviceNo(1), 1, random);
    series.flush().unwrap();
    series.compact().unwrap();
    size(&measure(&mut meter), 1, 7);
    drop(meter);
    drop(series);
    let (series, mut meter) = open(directory.path());
    size(&measure(&mut meter), 1, 7);

    // Deleted rows count until their files are merged.
    for number in devices.filter(|number| number % 2 == 0) {
        series.delete_device(DeviceNo(number)).unwrap();
    }
    series.compact().unwrap();
    let left = measure(&mut meter);
    assert_eq!(bytes_of(&left, 2), 0);
    size(&left, 1, 7);
    // Rows in memory go at once.
    append(&series, DeviceNo(2), 10, random);
    assert_eq!(bytes_of(&measure(&mut meter), 2), 10 * (9 + 16));
    series.delete_device(DeviceNo(2)).unwrap();
    assert_eq!(bytes_of(&measure(&mut meter), 2), 0);
    append(&series, DeviceNo(2), 1, random);
    assert_eq!(bytes_of(&measure(&mut meter), 2), 9 + 16);
}
