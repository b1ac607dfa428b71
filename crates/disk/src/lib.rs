//! Durability primitives for everything that stores files: fsync policy, directory locks, high-water marks, lines with a
//! checksum, file permissions and varints.

mod checked_line;
mod directory;
mod fsync;
mod high_water_marks;
mod permissions;
pub mod varint;

pub use checked_line::{CheckedLineState, read_checked_line, write_checked_line};
pub use directory::{DirectoryLockError, lock_directory, replace_file, sync_dir};
pub use fsync::{Fsync, ParseFsyncError};
pub use high_water_marks::{
    HighWaterMarks, MARKS_PER_CACHE_LINE_PAIR, MAX_HIGH_WATER_MARK, MarksFileState,
    read_high_water_marks,
};
pub use permissions::{
    apply_original_umask, create_private_dir, others_mode, restrict_umask, revoke_others_access,
};
