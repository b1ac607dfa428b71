//! How things stand on disk, for all that stores something there: when it is forced there, whose a directory is, numbers of
//! variable length.

mod access;
mod directory;
mod fsync;
mod marks;
pub mod varint;

pub use access::{create_private, make_private, make_private_dir, mode_for_others, share};
pub use directory::{NotTaken, replace, sync_dir, take};
pub use fsync::{Fsync, ParseFsyncError};
pub use marks::{MARKS_PER_LINE, MAX_MARK, Marks, Reading, read_marks};
