//! Small files with a line of text and its checksum, for records that show whether other files are missing.

use std::fs;
use std::io;
use std::path::Path;

/// The content of such a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckedLineState {
    /// The file does not exist.
    Missing,
    /// The file fails its checks.
    Damaged,
    /// The line, without its line break.
    Intact(String),
}

/// The second line: CRC-32C of the first one with its line break, in hexadecimal digits.
fn crc_line(line: &[u8]) -> String {
    format!("{:08x}\n", crc32c::crc32c(line))
}

fn parse(bytes: Vec<u8>) -> Option<String> {
    let mut text = String::from_utf8(bytes).ok()?;
    let end = text.find('\n')?;
    let (line, crc) = text.as_bytes().split_at(end + 1);
    if crc != crc_line(line).as_bytes() {
        return None;
    }
    text.truncate(end);
    Some(text)
}

/// Reads a file without changing it.
///
/// # Errors
/// If the file system returns an error.
pub fn read_checked_line(path: &Path) -> io::Result<CheckedLineState> {
    match fs::read(path) {
        Ok(bytes) => Ok(parse(bytes).map_or(CheckedLineState::Damaged, CheckedLineState::Intact)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(CheckedLineState::Missing),
        Err(error) => Err(error),
    }
}

/// Replaces a file atomically by one with this line, which contains no line break.
///
/// # Errors
/// If the file system returns an error; the old file may still be in place.
pub fn write_checked_line(dir: &Path, name: &str, line: &str) -> io::Result<()> {
    debug_assert!(!line.contains('\n'), "the text must be one line");
    let mut text = format!("{line}\n");
    text.push_str(&crc_line(text.as_bytes()));
    crate::directory::replace_file(dir, name, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_byte_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        assert_eq!(read_checked_line(&path).unwrap(), CheckedLineState::Missing);
        write_checked_line(dir.path(), "record", "{\"a\":1}").unwrap();
        let intact = CheckedLineState::Intact("{\"a\":1}".to_owned());
        assert_eq!(read_checked_line(&path).unwrap(), intact);
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            for damaged in [&changed[..], &bytes[..at]] {
                fs::write(&path, damaged).unwrap();
                let read = read_checked_line(&path).unwrap();
                assert_eq!(read, CheckedLineState::Damaged, "byte {at}");
            }
        }
        fs::write(&path, [&bytes[..], b"more"].concat()).unwrap();
        let read = read_checked_line(&path).unwrap();
        assert_eq!(read, CheckedLineState::Damaged);
    }
}
