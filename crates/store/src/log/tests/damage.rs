//! Tests with logs that are cut or changed at every byte.

use std::path::Path;

use super::common::script::StoreModel;
use super::common::{StoreFixture, small};
use crate::StoreOpenError;
use crate::log::file_system::FileSystem as _;
use crate::log::file_system::OsFileSystem;
use crate::log::frame::{FrameReader, NextFrame, SEGMENT_HEAD, SegmentHead};
use crate::log::log_mark::{self, LogMark};
use crate::log::recovery::{RecoveredLog, recover_log};
use crate::log::segments::{list_segment_ids, segment_path};

const SEED: u64 = 5;

/// The queues of all sessions in a comparable form.
type QueueState = Vec<(u64, Vec<(u64, u16, bool)>, Vec<u16>)>;

fn state_of(recovered: &RecoveredLog) -> QueueState {
    let mut sessions = recovered.index.queued_sessions();
    sessions.sort_unstable();
    let state = sessions.into_iter().map(|session| {
        let queue = recovered.index.queue(session).unwrap();
        let entry = |entry: &crate::log::session_queue::IndexEntry| {
            (entry.seq, entry.packet_id, entry.is_released())
        };
        let summary = recovered.index.summary(session).unwrap();
        (
            session,
            queue.entries_from(0).map(entry).collect(),
            summary.received,
        )
    });
    state.collect()
}

fn state_of_model(model: &StoreModel) -> QueueState {
    let state = model.waiting().into_iter().map(|id| {
        let session = &model.sessions[&id];
        let entries = session.entries.iter();
        let entries = entries.map(|(&seq, item)| (seq, item.packet_id, item.released));
        (
            id,
            entries.collect(),
            session.received.iter().copied().collect(),
        )
    });
    state.collect()
}

/// A log of `batches` batches in few segments, and the states after each of them.
fn make(dir: &Path, batches: u64) -> Vec<QueueState> {
    let mut bench = StoreFixture::open(dir, small());
    let mut model = StoreModel::default();
    let mut states = vec![state_of_model(&model)];
    for nth in 0..batches {
        bench.write(|batch| model.step(SEED, batch));
        states.push(state_of_model(&model));
        if nth == batches / 2 {
            super::common::wait_until("it is on disk", || bench.store.is_all_synced());
        }
    }
    states
}

fn read(log: &Path) -> Result<(QueueState, bool), StoreOpenError> {
    read_marked(log, &LogMark::default())
}

fn read_marked(log: &Path, mark: &LogMark) -> Result<(QueueState, bool), StoreOpenError> {
    let recovered = recover_log(log, &OsFileSystem, mark, &mut |_, _| Ok(()))?;
    Ok((state_of(&recovered), recovered.truncation.is_some()))
}

/// Offsets of the frames of a segment, and the end of the last one.
fn frames(path: &Path) -> Vec<u64> {
    let file = OsFileSystem.open(path).unwrap();
    let mut head = [0; SEGMENT_HEAD];
    file.read_at(&mut head, 0).unwrap();
    let head = SegmentHead::decode(&head).unwrap().unwrap();
    let len = file.len().unwrap();
    let mut reader = FrameReader::new(&*file, head.seed(), SEGMENT_HEAD as u64, len);
    let mut places = vec![reader.offset];
    while let NextFrame::Frame(frame) = reader.next().unwrap() {
        places.push(frame.end());
    }
    places
}

/// Offsets at which to cut or change a segment: every byte of its head and of frame heads, and some in between; every
/// byte if `TIDEGATE_STORE_EVERY_BYTE` is set.
fn bytes_to_try(len: usize, places: &[u64]) -> Vec<usize> {
    let is_every = std::env::var_os("TIDEGATE_STORE_EVERY_BYTE").is_some();
    let is_near = |at: usize| {
        let mut near = places.iter().map(|&place| place as usize);
        near.any(|place| (place..place + 36).contains(&(at + 2)))
    };
    let is_tried =
        |&at: &usize| is_every || at <= SEGMENT_HEAD || is_near(at) || at.is_multiple_of(97);
    (0..len).filter(is_tried).collect()
}

#[test]
fn an_end_cut_at_any_byte_is_cut_back_to_whole_batches() {
    let dir = tempfile::tempdir().unwrap();
    let states = make(dir.path(), 12);
    let log = dir.path().join("log");
    let id = *list_segment_ids(&log).unwrap().last().unwrap();
    let path = segment_path(&log, id);
    let whole = std::fs::read(&path).unwrap();
    let places = frames(&path);
    assert_eq!(places.len(), 13);
    for len in bytes_to_try(whole.len() + 1, &places).into_iter().rev() {
        std::fs::write(&path, &whole[..len]).unwrap();
        let batches = places.iter().filter(|&&place| place <= len as u64).count();
        let (state, was_cut) = read(&log).unwrap();
        assert_eq!(
            state,
            states[batches.saturating_sub(1)],
            "cut to {len} bytes"
        );
        let is_whole = len == 0 || places.contains(&(len as u64));
        assert_eq!(was_cut, !is_whole, "cut to {len} bytes");
        // The same with preallocated space behind it.
        let mut padded = whole[..len].to_vec();
        padded.resize(whole.len() + 100, 0);
        std::fs::write(&path, &padded).unwrap();
        let (state, _) = read(&log).unwrap();
        // A batch may itself end in zeros.
        let is_whole = |place: &&u64| padded[..**place as usize] == whole[..**place as usize];
        let batches = places.iter().take_while(is_whole).count();
        let expected = batches.saturating_sub(1);
        assert_eq!(state, states[expected], "zeros from byte {len} on");
    }
}

#[test]
fn a_changed_byte_is_never_taken_for_data() {
    let dir = tempfile::tempdir().unwrap();
    let states = make(dir.path(), 24);
    let log = dir.path().join("log");
    let ids = list_segment_ids(&log).unwrap();
    assert_eq!(ids.len(), 1);
    let path = segment_path(&log, ids[0]);
    let whole = std::fs::read(&path).unwrap();
    let places = frames(&path);
    let (mut refused, mut cut) = (0, 0);
    for at in bytes_to_try(whole.len(), &places) {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        std::fs::write(&path, &changed).unwrap();
        match read(&log) {
            Err(StoreOpenError::Damaged { .. }) => refused += 1,
            Err(StoreOpenError::Version { .. }) => assert!(at < SEGMENT_HEAD),
            Err(error) => panic!("byte {at}: {error}"),
            Ok((state, was_cut)) => {
                let before = places.iter().filter(|&&place| place <= at as u64).count();
                assert_eq!(state, states[before.saturating_sub(1)], "byte {at}");
                assert!(was_cut || at < SEGMENT_HEAD, "byte {at}");
                // Frames 1 to 12 were on disk, as later ones record.
                assert!(
                    before == 0 || before > 12,
                    "byte {at} was known to be on disk"
                );
                cut += 1;
            }
        }
    }
    assert!(refused > 0 && cut > 0, "{refused} refused, {cut} cut");
}

#[test]
fn a_missing_segment_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), 400);
    let log = dir.path().join("log");
    let ids = list_segment_ids(&log).unwrap();
    assert!(ids.len() > 2);
    std::fs::remove_file(segment_path(&log, ids[1])).unwrap();
    let error = read(&log).unwrap_err();
    assert!(matches!(error, StoreOpenError::Damaged { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("tidegate store repair"), "{message}");
}

#[test]
fn with_its_marks_a_log_loses_nothing_unnoticed() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), 400);
    let log = dir.path().join("log");
    let mark = log_mark::read(dir.path()).unwrap();
    assert!(mark.problem.is_none(), "{mark:?}");
    let ids = list_segment_ids(&log).unwrap();
    assert_eq!(mark.mark.last_lsn, 400);
    assert_eq!(mark.mark.first_segment, ids.first().copied());
    assert!(ids.len() > 2);
    assert!(read_marked(&log, &mark.mark).is_ok());
    for id in [ids[0], ids[1], ids[ids.len() - 1]] {
        let path = segment_path(&log, id);
        let whole = std::fs::read(&path).unwrap();
        let places = frames(&path);
        let end = places[places.len() - 1] as usize;
        let last = places[places.len() - 2] as usize;
        let cut = |len: usize| whole[..len].to_vec();
        let zeroed = |at: usize| {
            let mut bytes = whole.clone();
            let to = end.min(at + 512);
            bytes[at..to].fill(0);
            bytes
        };
        let flipped = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            bytes
        };
        let damages = [
            ("empty", Vec::new()),
            ("zeros", vec![0; whole.len()]),
            ("cut within the head", cut(20)),
            ("cut to half", cut(whole.len() / 2)),
            ("without the last batch", cut(last)),
            ("without three bytes", cut(end - 3)),
            ("a head of zeros", zeroed(0)),
            ("zeros at the end", zeroed(last)),
            ("a bit of the salt", flipped(18)),
            ("a bit of the last batch", flipped(last + 40)),
        ];
        for (what, bytes) in damages {
            std::fs::write(&path, bytes).unwrap();
            let result = read_marked(&log, &mark.mark);
            let is_refused = matches!(result, Err(StoreOpenError::Damaged { .. }));
            assert!(is_refused, "segment {id}: {what}");
        }
        std::fs::remove_file(&path).unwrap();
        let result = read_marked(&log, &mark.mark);
        assert!(
            matches!(result, Err(StoreOpenError::Damaged { .. })),
            "segment {id}: removed"
        );
        std::fs::write(&path, whole).unwrap();
    }
    for id in ids {
        std::fs::remove_file(segment_path(&log, id)).unwrap();
    }
    let error = read_marked(&log, &mark.mark).unwrap_err();
    assert!(matches!(error, StoreOpenError::Damaged { .. }), "{error}");
}
