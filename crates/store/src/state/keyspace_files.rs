//! The files of one keyspace: `current` names a version file and contains its checksum; the version file lists the tables and
//! their checksums.

use std::fs::{self, File};
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Directory of all keyspaces.
pub(super) const KEYSPACES: &str = "keyspaces";
pub(crate) const CURRENT: &str = "current";
const CURRENT_BYTES: usize = 25;
const LEVELS: u8 = 7;

/// A file that contains a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableFile {
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
    checksum: u128,
}

/// A file that differs from what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileDamage {
    pub(crate) path: PathBuf,
    pub(crate) detail: String,
}

impl FileDamage {
    pub(crate) fn new(path: PathBuf, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { path, detail }
    }
}

/// Lists the tables of a keyspace.
pub(crate) fn list_tables(keyspace: &Path) -> Result<Vec<TableFile>, FileDamage> {
    let path = keyspace.join(CURRENT);
    let current = read(&path)?;
    let Some(current) = current
        .first_chunk::<CURRENT_BYTES>()
        .filter(|_| current.len() == CURRENT_BYTES)
    else {
        return Err(FileDamage::new(
            path,
            format!("it has {} bytes instead of {CURRENT_BYTES}", current.len()),
        ));
    };
    let mut number = LittleEndianReader(current);
    let (Some(version), Some(checksum), Some(0)) = (number.u64(), number.u128(), number.u8())
    else {
        return Err(FileDamage::new(path, "its checksum has an unknown type"));
    };
    let path = keyspace.join(format!("v{version}"));
    let bytes = read(&path)?;
    if xxh3_128(&bytes) != checksum {
        return Err(FileDamage::new(
            path,
            format!(
                "its checksum is not the one in {}",
                keyspace.join(CURRENT).display()
            ),
        ));
    }
    let Some(listed) = parse_version(&bytes) else {
        return Err(FileDamage::new(
            path,
            "the format of the table list is unknown to this program",
        ));
    };
    let folder = keyspace.join("tables");
    let mut tables = Vec::with_capacity(listed.len());
    for (id, checksum) in listed {
        let path = folder.join(id.to_string());
        match fs::metadata(&path) {
            Ok(metadata) => tables.push(TableFile {
                path,
                len: metadata.len(),
                checksum,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(FileDamage::new(path, "the file is missing"));
            }
            Err(error) => return Err(FileDamage::new(path, error.to_string())),
        }
    }
    Ok(tables)
}

fn read(path: &Path) -> Result<Vec<u8>, FileDamage> {
    fs::read(path).map_err(|error| {
        let detail = if error.kind() == io::ErrorKind::NotFound {
            "the file is missing".to_owned()
        } else {
            error.to_string()
        };
        FileDamage::new(path.to_owned(), detail)
    })
}

/// Numbers and checksums of the tables in a version file, whose own checksum is already verified.
fn parse_version(bytes: &[u8]) -> Option<Vec<(u64, u128)>> {
    let archive = sfa::Reader::from_reader(&mut Cursor::new(bytes)).ok()?;
    let section = archive.toc().section(b"tables")?;
    let start = usize::try_from(section.pos()).ok()?;
    let end = start.checked_add(usize::try_from(section.len()).ok()?)?;
    let mut numbers = LittleEndianReader(bytes.get(start..end)?);
    let mut tables = Vec::new();
    let levels = numbers.u8()?;
    if levels != LEVELS {
        return None;
    }
    for _ in 0..levels {
        for _ in 0..numbers.u8()? {
            for _ in 0..numbers.u32()? {
                let id = numbers.u64()?;
                if numbers.u8()? != 0 {
                    return None;
                }
                tables.push((id, numbers.u128()?));
                // The sequence number of a table that was ingested as a whole.
                numbers.u64()?;
            }
        }
    }
    numbers.0.is_empty().then_some(tables)
}

struct LittleEndianReader<'a>(&'a [u8]);

impl LittleEndianReader<'_> {
    fn take<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn u128(&mut self) -> Option<u128> {
        self.take().map(u128::from_le_bytes)
    }
}

impl TableFile {
    /// Reads the whole file and compares the checksum; also `Ok` if compaction has removed the file in the meantime.
    pub(crate) fn verify(&self) -> Result<(), FileDamage> {
        let failed = |error: io::Error| FileDamage::new(self.path.clone(), error.to_string());
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(failed)?,
        };
        let mut hasher = Xxh3::new();
        let mut buffer = vec![0; 256 << 10];
        loop {
            match file.read(&mut buffer).map_err(failed)? {
                0 => break,
                read => hasher.update(&buffer[..read]),
            }
        }
        if hasher.digest128() == self.checksum {
            Ok(())
        } else {
            Err(FileDamage::new(self.path.clone(), "its checksum is wrong"))
        }
    }
}
