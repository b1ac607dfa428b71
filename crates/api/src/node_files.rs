//! Files between the nodes of a cluster: what a node asks another, and how it answers.

use std::io;
use std::os::unix::fs::FileExt as _;

use serde::{Deserialize, Serialize};
use transfer::{FileService, FileTarget, TransferError};

use crate::blocking::run_blocking;

/// Bytes of a file that a node sends another at a time. Messages of clients between the nodes wait while a piece is sent.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;
const UNREADABLE: &str = "The file cannot be read now.";

/// What a node asks another about its files. The node that asks for a piece has got the head of the response before, so that
/// the other one has checked the permissions of the caller.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileQuestion {
    /// Is answered with whether the node has the file or transfer, as JSON.
    Presence { id: String },
    /// Is answered with the bytes, at most [`PIECE_BYTES`].
    Piece { part: FilePart, at: u64 },
}

/// The part of a file that a response contains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FilePart {
    pub(crate) id: String,
    /// SHA-256 digest of the whole file.
    pub(crate) checksum: String,
    pub(crate) start: u64,
    /// The byte after the last one.
    pub(crate) end: u64,
}

impl FilePart {
    /// Length of the piece at an offset.
    pub(crate) fn piece_bytes(&self, at: u64) -> u64 {
        self.end.saturating_sub(at).min(PIECE_BYTES)
    }
}

/// Whether this node has a file or transfer.
pub(crate) async fn has_file(files: &FileService, id: &str) -> Result<bool, String> {
    let (files, id) = (files.clone(), id.to_owned());
    let find = move || files.info(FileTarget::Id(&id)).is_some();
    let found = run_blocking(find, "The files cannot be read now.").await;
    found.map_err(|problem| problem.detail)
}

pub(crate) async fn answer(files: &FileService, question: FileQuestion) -> Result<Vec<u8>, String> {
    match question {
        FileQuestion::Presence { id } => {
            let has_file = has_file(files, &id).await?;
            serde_json::to_vec(&has_file).map_err(|error| error.to_string())
        }
        FileQuestion::Piece { part, at } => {
            let files = files.clone();
            let read = move || read_piece(&files, &part, at);
            let piece = run_blocking(read, UNREADABLE).await;
            piece.map_err(|problem| problem.detail)?
        }
    }
}

/// Reads a piece of a complete file. It fails if the file was deleted or replaced meanwhile. May block.
fn read_piece(files: &FileService, part: &FilePart, at: u64) -> Result<Vec<u8>, String> {
    let to_reason = |error: TransferError| error.detail;
    let (info, file) = files.read(&part.id).map_err(to_reason)?;
    if info.checksum.map(|checksum| checksum.to_string()).as_ref() != Some(&part.checksum) {
        return Err("the file has changed".to_owned());
    }
    let mut piece = vec![0; part.piece_bytes(at) as usize];
    let read = file.read_exact_at(&mut piece, at);
    read.map_err(|error: io::Error| format!("the file cannot be read: {error}"))?;
    files.count_sent(piece.len() as u64);
    Ok(piece)
}

#[cfg(test)]
mod tests {
    use transfer::{FileDigest, FileOwner, TransferRequest, TransferSettings};

    use super::*;

    fn complete(files: &FileService, content: &[u8]) -> String {
        let request = TransferRequest {
            size: Some(content.len() as u64),
            ..TransferRequest::new(FileOwner::client("c"), "f".to_owned(), "f".to_owned())
        };
        let id = files.begin(request).unwrap().info().id.clone();
        let target = FileTarget::Id(&id);
        let written = files.write(target, 0, content, None).unwrap();
        files.commit(&written).unwrap();
        files.finish(target, None, None).unwrap();
        id
    }

    #[test]
    fn pieces_are_those_of_the_file_that_was_described() {
        let directory = tempfile::tempdir().unwrap();
        let files = FileService::open(directory.path(), TransferSettings::default()).unwrap();
        let content: Vec<u8> = (0..PIECE_BYTES + 7).map(|n| (n % 251) as u8).collect();
        let id = complete(&files, &content);
        let part = FilePart {
            id: id.clone(),
            checksum: FileDigest::of(&content).to_string(),
            start: 3,
            end: content.len() as u64,
        };
        let first = read_piece(&files, &part, 3).unwrap();
        assert_eq!(first, content[3..PIECE_BYTES as usize + 3]);
        let second = read_piece(&files, &part, PIECE_BYTES + 3).unwrap();
        assert_eq!(second, content[PIECE_BYTES as usize + 3..]);
        assert_eq!(read_piece(&files, &part, u64::MAX), Ok(Vec::new()));
        let other = FilePart {
            checksum: FileDigest::of(b"other").to_string(),
            ..part.clone()
        };
        assert!(read_piece(&files, &other, 0).is_err());
        // The same sender sends another file of the same id.
        complete(&files, b"later");
        assert!(read_piece(&files, &part, 3).is_err());
    }
}
