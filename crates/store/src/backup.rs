//! Export of all objects and tables to one file, and import: a head line, one JSON object per line, then one line per table
//! row, in hexadecimal. For backups and for moving to another node.
//!
//! There may be millions of rows: an import holds them in a temporary file, not in memory, until the whole file was checked.

use std::collections::HashSet;
use std::io::{self, BufRead as _, BufReader, Read, Write};

use serde_json::json;
use wall_clock::now_ms;

use crate::error::{ObjectError, StoreError};
use crate::objects::{
    Object, ObjectChange, Objects, change_from_object, check_names, decode, encode, object_key,
};
use crate::objects::{last_version, put_last_version};
use crate::row_spool::{self, RowSpool};

const FORMAT: &str = "tidegate-objects";
const VERSION: u64 = 1;
/// Fits an object with its JSON escapes.
const MAX_LINE_BYTES: u64 = 32 << 20;

/// What an import does with existing objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportMode {
    /// Objects of the file replace those with the same kind and id; all others are left alone.
    Merge,
    /// Afterwards only the objects of the file exist.
    Replace,
}

/// Result of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportReport {
    pub written: u64,
    pub removed: u64,
}

/// A file that cannot be imported. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    #[error("the file cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("line {line}: {detail}")]
    Line { line: u64, detail: String },
    #[error(transparent)]
    Storage(#[from] StoreError),
}

impl Objects {
    /// Writes all objects and table rows; returns their number. Journals are not included. The file contains password hashes and
    /// keys: protect it accordingly.
    pub fn export_to(&self, out: &mut dyn Write) -> Result<u64, ImportError> {
        let db = self.db()?;
        let head = json!({ "format": FORMAT, "version": VERSION, "created_ms": now_ms() });
        writeln!(out, "{head}")?;
        let mut count = 0;
        for item in db.objects.iter() {
            let (key, value) = item
                .into_inner()
                .map_err(StoreError::keyed_error("read configuration objects"))?;
            let object = decode(&key, &value)?;
            serde_json::to_writer(&mut *out, &object).map_err(io::Error::from)?;
            out.write_all(b"\n")?;
            count += 1;
        }
        for (name, keyspace) in db.tables.list() {
            let mut line = String::new();
            for item in keyspace.iter() {
                let (key, value) = item
                    .into_inner()
                    .map_err(StoreError::keyed_error("read a table"))?;
                row_spool::write_line(&name, &key, &value, &mut line);
                out.write_all(line.as_bytes())?;
                count += 1;
            }
        }
        out.flush()?;
        Ok(count)
    }

    /// Imports what [`export_to`](Self::export_to) wrote: everything, or nothing if a line is invalid. Rows are written in
    /// portions, before the objects; after a disk failure, repeat the same import. Objects get new versions and keep their
    /// creation time.
    pub fn import_from(
        &self,
        input: &mut dyn Read,
        mode: ImportMode,
    ) -> Result<ImportReport, ImportError> {
        if self.is_replicated() {
            return Err(StoreError::Cluster(
                "restore the backup on a node that is in no cluster, before it joins".to_owned(),
            )
            .into());
        }
        let mut spool = RowSpool::new();
        let objects = parse_backup(input, &mut spool)?;
        let mut rows = spool.finish()?;
        let writing = self.lock_writes();
        let db = self.db()?;
        let mut version = last_version(&db)?;
        let now_ms = now_ms();
        let mut batch = db.database.batch();
        let mut changes = Vec::new();
        let mut imported_keys = HashSet::new();
        for (line, mut object) in objects {
            version += 1;
            object.version = version;
            object.updated_ms = now_ms;
            let key = object_key(&object.kind, &object.id);
            let encoded = encode(&object).map_err(|error| line_error(line, &error))?;
            batch.insert(&db.objects, key.clone(), encoded);
            changes.push(change_from_object(&object));
            imported_keys.insert(key);
        }
        let written = changes.len() as u64;
        if mode == ImportMode::Replace {
            for item in db.objects.iter() {
                let key = item
                    .key()
                    .map_err(StoreError::keyed_error("read configuration objects"))?;
                if !imported_keys.contains(&key[..]) {
                    changes.push(change_from_removed_key(&key));
                    batch.remove(&db.objects, key);
                }
            }
        }
        put_last_version(&db, &mut batch, version);
        let has_tables = rows.is_some() || mode == ImportMode::Replace;
        let mut replace = || {
            let removed = match mode {
                ImportMode::Replace => row_spool::clear_tables(&db)?,
                ImportMode::Merge => 0,
            };
            let written = match &mut rows {
                Some(rows) => rows.write_to(&db)?,
                None => 0,
            };
            Ok::<_, ImportError>((removed, written))
        };
        // Objects last, so that an interrupted import is recognisable as incomplete.
        let replaced = replace().and_then(|rows| {
            self.commit(batch)?;
            Ok(rows)
        });
        if has_tables {
            // Also for rows that were written before a failure.
            self.tables().notify_restored();
        }
        let (removed_rows, written_rows) = replaced?;
        let removed = changes.len() as u64 - written + removed_rows;
        self.notify_observers(writing, &changes);
        Ok(ImportReport {
            written: written + written_rows,
            removed,
        })
    }
}

fn change_from_removed_key(key: &[u8]) -> ObjectChange {
    let text = String::from_utf8_lossy(key);
    let (kind, id) = text.split_once('\0').unwrap_or((&text, ""));
    ObjectChange {
        kind: kind.to_owned(),
        id: id.to_owned(),
        version: 0,
    }
}

fn line_error(line: u64, error: &ObjectError) -> ImportError {
    ImportError::Line {
        line,
        detail: error.to_string(),
    }
}

fn parse_backup(
    input: &mut dyn Read,
    spool: &mut RowSpool,
) -> Result<Vec<(u64, Object)>, ImportError> {
    let mut reader = BufReader::new(input);
    let mut line = String::new();
    let mut number = 0;
    let mut objects = Vec::new();
    let mut seen = HashSet::new();
    loop {
        line.clear();
        number += 1;
        let wrong = |detail: String| ImportError::Line {
            line: number,
            detail,
        };
        if (&mut reader).take(MAX_LINE_BYTES).read_line(&mut line)? == 0 {
            break;
        }
        if number == 1 {
            check_head(&line).map_err(wrong)?;
            continue;
        }
        if line.trim().is_empty() {
            continue;
        }
        if line.starts_with(row_spool::LINE_START) {
            spool.add(&line)?.map_err(wrong)?;
            continue;
        }
        let object: Object = serde_json::from_str(&line)
            .map_err(|error| wrong(format!("expected an object as exported: {error}")))?;
        check_names(&object.kind, &object.id).map_err(|error| line_error(number, &error))?;
        if !seen.insert((object.kind.clone(), object.id.clone())) {
            let name = format!("{} {:?}", object.kind, object.id);
            return Err(wrong(format!("{name} is in the file twice")));
        }
        objects.push((number, object));
    }
    if number == 1 {
        return Err(ImportError::Line {
            line: 1,
            detail: "the file is empty; expected an export of objects".to_owned(),
        });
    }
    Ok(objects)
}

fn check_head(line: &str) -> Result<(), String> {
    let head: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    if head["format"] != FORMAT {
        return Err(format!(
            "expected a head line with \"format\":\"{FORMAT}\"; this is no export of objects"
        ));
    }
    match head["version"].as_u64() {
        Some(VERSION) => Ok(()),
        _ => Err(format!(
            "format version {} is not {VERSION}, which this program reads",
            head["version"]
        )),
    }
}
