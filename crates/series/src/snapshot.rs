//! Snapshots: all rows of an open store at one moment, as the files of a directory, for backups.
//!
//! A snapshot flushes the rows in memory first, so that segment files contain all of them and no write-ahead log is needed.
//! Segment files are immutable, and one that is merged meanwhile is removed only after its last reader. The other files are
//! small and are encoded in memory.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::deletions::{self, Deletion};
use crate::directory;
use crate::error::{SeriesError, SeriesOpenError, io_error};
use crate::file_operations::sync_dir;
use crate::handle::Series;
use crate::key_dictionary;
use crate::lock::lock;
use crate::partitioning::PARTITION_COUNT;
use crate::segment::{Segment, SegmentMeta};
use crate::series_marks::{self, MANIFEST, Manifest, ManifestFile, SeriesMarks};

/// A consistent copy of a store, to be read file by file.
pub struct SeriesSnapshot {
    small: Vec<(String, Vec<u8>)>,
    segments: Vec<Arc<Segment>>,
    /// Rows in all segment files; several files may contain values of the same row.
    pub rows: u64,
}

/// A file of a snapshot.
pub struct SnapshotFile {
    /// Path in the directory of the store.
    pub path: String,
    pub bytes: u64,
    pub content: Box<dyn io::Read + Send>,
}

impl Series {
    /// Takes a snapshot of all rows appended before the call. Rows that are appended meanwhile may be in it or not; of each
    /// partition it contains the rows up to one point.
    ///
    /// # Errors
    /// If the rows in memory cannot be written to segment files, for example on a full disk.
    pub fn snapshot(&self) -> Result<SeriesSnapshot, SeriesError> {
        self.flush()?;
        let shared = self.shared();
        let (mut segments, mut deleted) = (Vec::new(), Vec::new());
        let mut manifest = Manifest::default();
        for (cell, flushed) in shared.partitions.iter().zip(&mut manifest.flushed) {
            let part = lock(&cell.partition);
            *flushed = part.written_lsn;
            segments.extend(part.files.iter().cloned());
            deleted.extend(part.deletions.values().flatten().map(|deletion| Deletion {
                // The rows behind are not in the snapshot, and their numbers will be given to other rows.
                lsn: deletion.lsn.min(part.written_lsn),
                ..*deletion
            }));
        }
        deleted.sort_by_key(|deletion| deletion.number);
        // Read after the files, so that it includes all of their keys and deletions.
        manifest.keys = shared.keys.len();
        manifest.deletions = lock(&shared.deletions).next_number;
        manifest.next_file_id = shared.file_ids.load(Ordering::Relaxed);
        let last = manifest.deletions.saturating_sub(1);
        if last > 0 && deleted.last().is_none_or(|deletion| deletion.number < last) {
            // Deletes nothing: the highest number must be there, so that none is reused.
            deleted.push(Deletion {
                number: last,
                device: u32::MAX,
                key: None,
                from_ms: 0,
                to_ms: 0,
                lsn: 0,
            });
        }
        let files = segments.iter().map(|segment| ManifestFile {
            partition: segment.meta.partition,
            window: segment.meta.window,
            id: segment.meta.id,
        });
        manifest.files = files.collect();
        let names = (0..manifest.keys).map(crate::point::KeyId);
        let names = names.filter_map(|key| shared.keys.name(key));
        let version = directory::expected_version(shared.config.window_ms);
        let small = vec![
            ("version".to_owned(), version.into_bytes()),
            (
                key_dictionary::FILE.to_owned(),
                key_dictionary::encode_file(names),
            ),
            (deletions::FILE.to_owned(), deletions::encode_file(&deleted)),
            (MANIFEST.to_owned(), manifest.encode()),
        ];
        Ok(SeriesSnapshot {
            small,
            rows: segments.iter().map(|segment| segment.meta.rows).sum(),
            segments,
        })
    }
}

impl SeriesSnapshot {
    /// Size of all files.
    pub fn bytes(&self) -> u64 {
        let small = self.small.iter().map(|(_, bytes)| bytes.len() as u64);
        let segments = self.segments.iter().map(|segment| segment.bytes);
        small.chain(segments).sum()
    }

    /// The files one after the other. A segment file is opened when it is reached, and released after that.
    pub fn into_files(self) -> impl Iterator<Item = Result<SnapshotFile, SeriesError>> {
        let small = self.small.into_iter().map(|(path, bytes)| {
            Ok(SnapshotFile {
                path,
                bytes: bytes.len() as u64,
                content: Box::new(io::Cursor::new(bytes)),
            })
        });
        let segments = self.segments.into_iter().map(|segment| {
            let meta = &segment.meta;
            let name = SegmentMeta::file_name(meta.partition, meta.window, meta.id);
            Ok(SnapshotFile {
                path: format!("{}/{name}", directory::SEGMENTS),
                bytes: segment.bytes,
                content: Box::new(segment.open_file()?),
            })
        });
        small.chain(segments)
    }
}

/// Where a file of a snapshot belongs; `None`: no snapshot has such a file.
pub fn snapshot_path(dir: &Path, path: &str) -> Option<PathBuf> {
    let is_segment = |name: &str| {
        name.strip_suffix(".seg").is_some_and(|numbers| {
            (numbers.bytes()).all(|byte| byte.is_ascii_digit() || byte == b'-')
        })
    };
    let is_known = match path.split_once('/') {
        Some((folder, name)) => folder == directory::SEGMENTS && is_segment(name),
        None => ["version", key_dictionary::FILE, deletions::FILE, MANIFEST].contains(&path),
    };
    is_known.then(|| dir.join(path))
}

/// Completes a directory that contains all files of a snapshot, so that it can be opened. The files are on disk.
///
/// # Errors
/// If the manifest is missing or damaged, or a file cannot be written.
pub fn finish_snapshot_directory(dir: &Path) -> Result<(), SeriesOpenError> {
    let expected = series_marks::read_expected(dir)?;
    if let Some((path, detail)) = expected
        .unreadable
        .iter()
        .find(|(path, _)| path.ends_with(MANIFEST))
    {
        return Err(SeriesOpenError::Damaged {
            path: path.clone(),
            offset: 0,
            detail: (*detail).to_owned(),
        });
    }
    for name in [directory::WAL, directory::SEGMENTS] {
        let path = dir.join(name);
        fs::create_dir_all(&path).map_err(io_error("create the directory", &path))?;
        sync_dir(&path)?;
    }
    let manifest = expected.manifest;
    let flushed: [u64; PARTITION_COUNT] = manifest.flushed;
    SeriesMarks::create(dir, flushed, manifest.keys, manifest.deletions)?;
    let opened = File::open(dir).and_then(|dir| dir.sync_all());
    opened.map_err(io_error("force to disk", dir))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::config::{PolicyAssignment, RetentionPolicy, SeriesConfig};
    use crate::{DeviceNo, Point, PointValue, RangeQuery};

    /// The rows of these tests are old.
    fn config() -> SeriesConfig {
        let keep = RetentionPolicy {
            retention_ms: None,
            tiers: Vec::new(),
        };
        SeriesConfig {
            assignment: PolicyAssignment {
                policies: vec![(0, keep)],
                ..PolicyAssignment::default()
            },
            ..SeriesConfig::default()
        }
    }

    fn open(dir: &Path) -> Series {
        Series::open(dir, config()).unwrap().0
    }

    fn append(series: &Series, device: u32, ts_ms: i64, value: i64) {
        let key = series.get_or_create_key("value").unwrap();
        let point = Point {
            key,
            value: PointValue::Int(value),
        };
        series.append(DeviceNo(device), ts_ms, &[point]).unwrap();
    }

    fn rows(series: &Series, device: u32) -> Vec<(i64, String)> {
        let mut found = Vec::new();
        let query = RangeQuery::default();
        let visit = &mut |row: crate::SeriesRow<'_>| {
            found.push((row.ts_ms, format!("{:?}", row.points)));
            ControlFlow::Continue(())
        };
        let device = DeviceNo(device);
        series.range(device, None, &query, visit).unwrap();
        found
    }

    fn write(snapshot: SeriesSnapshot, dir: &Path) {
        for file in snapshot.into_files() {
            let mut file = file.unwrap();
            let path = snapshot_path(dir, &file.path).expect(&file.path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let copied = io::copy(&mut file.content, &mut File::create(path).unwrap()).unwrap();
            assert_eq!(copied, file.bytes);
        }
        finish_snapshot_directory(dir).unwrap();
    }

    #[test]
    fn a_snapshot_is_a_store_with_the_rows_of_its_moment() {
        let dir = tempfile::tempdir().unwrap();
        let series = open(&dir.path().join("a"));
        for at in 0..1000 {
            append(&series, at % 20, 1_000_000 + i64::from(at), i64::from(at));
        }
        series.delete_device(DeviceNo(7)).unwrap();
        let snapshot = series.snapshot().unwrap();
        // After the snapshot: neither new rows nor merged files change it.
        let before: Vec<_> = (0..20).map(|device| rows(&series, device)).collect();
        for at in 0..1000 {
            append(&series, at % 20, 5_000_000 + i64::from(at), 1);
        }
        series.flush().unwrap();
        series.compact().unwrap();
        let copy = dir.path().join("b");
        write(snapshot, &copy);
        let checked = crate::check(&copy, &config()).unwrap();
        assert_eq!(checked.problems, Vec::<String>::new());
        let restored = open(&copy);
        let after: Vec<_> = (0..20).map(|device| rows(&restored, device)).collect();
        assert_eq!(before, after);
        assert_eq!((after[7].len(), after[8].len()), (0, 50));
        // The numbers of later rows follow those of the snapshot, also those of a deleted device.
        append(&restored, 7, 6_000_000, 1);
        assert_eq!(rows(&restored, 7).len(), 1);
        drop(restored);
        assert_eq!(rows(&open(&copy), 7).len(), 1);
    }

    #[test]
    fn only_files_of_a_snapshot_have_a_place() {
        let dir = Path::new("/d");
        for path in ["keys", "segments/0-1-2.seg", "segments/3--4-5.seg"] {
            assert_eq!(snapshot_path(dir, path), Some(dir.join(path)));
        }
        for path in [
            "../keys",
            "segments/../../x.seg",
            "wal/1.wal",
            "/keys",
            "segments/a.seg",
            "lock",
        ] {
            assert_eq!(snapshot_path(dir, path), None, "{path}");
        }
    }
}
