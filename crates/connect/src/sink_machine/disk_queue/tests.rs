//! Disk queues: restarts, removal of segments, torn ends and damage.

use super::*;
use crate::row::SinkRowWriter;

fn settings() -> Settings {
    Settings {
        max_bytes: 1 << 20,
        sync: DiskQueueSync::Never,
    }
}

fn open(directory: &Path) -> DiskQueue {
    DiskQueue::open(directory, &settings()).unwrap()
}

fn append(queue: &mut DiskQueue, numbers: std::ops::Range<i64>) {
    let rows: Vec<Vec<u8>> = numbers
        .map(|n| {
            let mut bytes = Vec::new();
            let mut row = SinkRowWriter::new(&mut bytes);
            row.int("n", n);
            row.text("filler", &"x".repeat(100));
            bytes
        })
        .collect();
    let (count, result) = queue.append(rows.iter().map(|bytes| SinkRow::from_bytes(bytes)));
    result.unwrap();
    assert_eq!(count, rows.len());
}

fn read(queue: &mut DiskQueue, max: usize) -> Vec<i64> {
    let mut read = Vec::new();
    queue
        .read(max, usize::MAX, |number, row| {
            let Some(crate::SinkValue::Int(n)) = row.get("n") else {
                panic!("no number in row {number}")
            };
            read.push(n);
        })
        .unwrap();
    read
}

#[test]
fn what_was_not_acknowledged_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut queue = open(directory.path());
    append(&mut queue, 0..10);
    assert_eq!(read(&mut queue, 6), [0, 1, 2, 3, 4, 5]);
    queue.acknowledge(4).unwrap();
    let epoch = queue.epoch();
    drop(queue);
    let mut queue = open(directory.path());
    assert_eq!((queue.epoch(), queue.rows()), (epoch, 6));
    append(&mut queue, 10..12);
    assert_eq!(read(&mut queue, 99), (4..12).collect::<Vec<_>>());
    queue.acknowledge(12).unwrap();
    drop(queue);
    assert_eq!(open(directory.path()).rows(), 0);
}

#[test]
fn numbers_go_on_when_all_segments_are_gone() {
    let directory = tempfile::tempdir().unwrap();
    let mut queue = open(directory.path());
    append(&mut queue, 0..20_000);
    read(&mut queue, 20_000);
    queue.acknowledge(20_000).unwrap();
    assert!(queue.bytes() < 2 << 20, "{}", queue.bytes());
    drop(queue);
    let mut queue = open(directory.path());
    append(&mut queue, 0..1);
    let mut number = None;
    queue.read(1, 1, |n, _| number = Some(n)).unwrap();
    assert_eq!(number, Some(20_000));
}

#[test]
fn segments_go_as_they_are_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let mut queue = open(directory.path());
    let mut appended = 0;
    while !queue.is_full() {
        append(&mut queue, appended..appended + 100);
        appended += 100;
    }
    assert!(queue.segments.len() >= 4);
    let full = queue.bytes();
    let half = appended / 2;
    assert_eq!(read(&mut queue, half as usize).len(), half as usize);
    queue.acknowledge(half as u64).unwrap();
    assert!(queue.bytes() < full && !queue.is_full());
    assert_eq!(read(&mut queue, usize::MAX).len() as i64, appended - half);
}

/// Whatever a torn write left of a record, earlier rows are read and new ones are appended after them.
#[test]
fn a_torn_end_costs_only_what_was_torn() {
    let directory = tempfile::tempdir().unwrap();
    let mut queue = open(directory.path());
    append(&mut queue, 0..3);
    let path = queue.segments[0].path.clone();
    drop(queue);
    // As after a power failure: no mark shows that the last row existed.
    let forget = || fs::remove_file(directory.path().join(POSITION)).unwrap();
    let whole = fs::read(&path).unwrap();
    let start_of_last = whole.len() - (whole.len() - segment::HEAD_BYTES) / 3;
    for end in (start_of_last..whole.len()).step_by(7) {
        fs::write(&path, &whole[..end]).unwrap();
        forget();
        let mut queue = open(directory.path());
        assert_eq!(queue.rows(), 2, "cut at {end}");
        append(&mut queue, 7..8);
        assert_eq!(read(&mut queue, 9), [0, 1, 7], "cut at {end}");
    }
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&path, &damaged).unwrap();
    forget();
    assert_eq!(open(directory.path()).rows(), 2);
}

#[test]
fn rows_are_synced_only_with_the_name_of_their_file() {
    let parent = tempfile::tempdir().unwrap();
    let (directory, moved) = (parent.path().join("queue"), parent.path().join("moved"));
    let synced = |directory: &Path| {
        let marks = disk::read_high_water_marks(&directory.join(POSITION)).unwrap();
        let MarksFileState::Intact { numbers, .. } = marks else {
            panic!("the marks cannot be read");
        };
        numbers[SYNCED]
    };
    let mut queue = open(&directory);
    append(&mut queue, 0..3);
    // The directory cannot be synced under its old name.
    fs::rename(&directory, &moved).unwrap();
    queue.sync().unwrap_err();
    assert_eq!(synced(&moved), 0);
    fs::rename(&moved, &directory).unwrap();
    queue.sync().unwrap();
    assert_eq!(synced(&directory), 3);
    // The file has its name; rows in it need no further sync of the directory.
    append(&mut queue, 3..5);
    fs::rename(&directory, &moved).unwrap();
    queue.sync().unwrap();
    assert_eq!(synced(&moved), 5);
}

/// Kinds of damage to a file, with its resulting content; `None`: removed.
fn damages(bytes: &[u8]) -> Vec<(String, Option<Vec<u8>>)> {
    let len = bytes.len();
    let mut damages = vec![
        ("deleted".to_owned(), None),
        ("emptied".to_owned(), Some(Vec::new())),
        ("cut in half".to_owned(), Some(bytes[..len / 2].to_vec())),
        ("cut by 3".to_owned(), Some(bytes[..len - 3].to_vec())),
    ];
    for at in [0, 5, 30, len / 3, len / 2, len - 1] {
        let mut flipped = bytes.to_vec();
        flipped[at] ^= 4;
        damages.push((format!("flipped at {at}"), Some(flipped)));
        let mut zeroed = bytes.to_vec();
        zeroed[at..len.min(at + 512)].fill(0);
        damages.push((format!("zeroed at {at}"), Some(zeroed)));
    }
    damages.retain(|(_, damaged)| damaged.as_deref() != Some(bytes));
    damages
}

#[test]
fn damage_is_reported_and_loses_only_what_was_damaged() {
    let origin = tempfile::tempdir().unwrap();
    let mut queue = open(origin.path());
    append(&mut queue, 0..6000);
    assert_eq!(queue.segments.len(), 1, "one write is one segment");
    append(&mut queue, 6000..7000);
    assert_eq!(read(&mut queue, 100).len(), 100);
    queue.acknowledge(100).unwrap();
    drop(queue);
    assert_eq!(check_disk_queue(origin.path()).unwrap(), (6900, Vec::new()));
    let names = fs::read_dir(origin.path()).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3);
    for name in &names {
        let bytes = fs::read(origin.path().join(name)).unwrap();
        for (damage, damaged) in damages(&bytes) {
            let what = format!("{} {damage}", name.display());
            let directory = tempfile::tempdir().unwrap();
            for name in &names {
                let copied = fs::copy(origin.path().join(name), directory.path().join(name));
                copied.unwrap();
            }
            match damaged {
                Some(bytes) => fs::write(directory.path().join(name), bytes).unwrap(),
                None => fs::remove_file(directory.path().join(name)).unwrap(),
            }
            let (_, problems) = check_disk_queue(directory.path()).unwrap();
            assert!(!problems.is_empty(), "{what}: a check says nothing");
            let mut queue = open(directory.path());
            let found = read(&mut queue, usize::MAX);
            assert!(found.is_sorted_by(|one, next| one < next), "{what}");
            let expected = match name == POSITION {
                // Rows are repeated, and none is lost.
                true => 7000..=7000,
                false if damage.starts_with("flipped") => 6890..=6900,
                false => 0..=6900,
            };
            assert!(
                expected.contains(&found.len()),
                "{what}: {} rows",
                found.len()
            );
            // Numbers of lost rows are not reused.
            append(&mut queue, 7000..7001);
            let mut number = None;
            queue.read(9, usize::MAX, |n, _| number = Some(n)).unwrap();
            let goes_on = if name == POSITION { 6000 } else { 7000 };
            assert!(number >= Some(goes_on), "{what}: {number:?}");
            let end = queue.next_to_read();
            queue.acknowledge(end).unwrap();
            drop(queue);
            assert_eq!(open(directory.path()).rows(), 0, "{what}");
            let kept = directory.path().join(format!("{}.damaged", name.display()));
            assert!(
                kept.exists() || !damage.starts_with("flipped"),
                "{what}: no copy"
            );
        }
    }
}

#[test]
fn a_damaged_position_repeats_rows_and_loses_none() {
    let directory = tempfile::tempdir().unwrap();
    let mut queue = open(directory.path());
    append(&mut queue, 0..5);
    read(&mut queue, 5);
    queue.acknowledge(3).unwrap();
    drop(queue);
    fs::write(directory.path().join("position"), [7; 20]).unwrap();
    assert_eq!(read(&mut open(directory.path()), 9), [0, 1, 2, 3, 4]);
}
