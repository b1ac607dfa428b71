//! What survives the end of the process: messages of a link, and the content of transfers.

mod file_journal;
mod journal;
mod partial_file;

pub use file_journal::FileJournal;
pub use journal::{Journal, JournalContent};
pub use partial_file::{FinishError, PartialFile};
