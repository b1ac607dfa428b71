//! Files of devices and people: one engine for all ways in which they are sent.
//!
//! A transfer belongs to an owner, who names it by a file id. Its segments arrive in any order and size, and repeatedly.
//! A segment is acknowledged when it survives a kill of the node. The file becomes visible when it is complete and its
//! SHA-256 digest is verified. [`FileService`] is the engine; its methods block on the disk. [`FileHooks`] receives
//! files over MQTT, as EMQX does; it passes segments to worker threads and acknowledges them when they are stored.

mod copies;
mod digest;
mod error;
mod export_table;
mod exports;
mod file_directory;
mod file_info;
mod file_queries;
mod file_table;
mod finish;
mod free_space;
mod hold;
mod maintenance;
mod metrics;
mod mqtt_hooks;
mod mqtt_response;
mod mqtt_topic;
mod mqtt_workers;
mod name;
mod partial_file;
mod pause;
mod rate_limit;
mod record;
mod request;
mod saved_files;
mod segments;
mod service;
mod settings;
mod signed_link;
mod upload;
mod usage;

pub use copies::FileDescription;
pub use digest::{FileDigest, ParseDigestError};
pub use error::{TransferError, TransferErrorKind};
pub use export_table::{ExportDiscard, ExportState, FileExport};
pub use exports::{ActiveExport, MAX_EXPORT_ROW_BYTES, MAX_EXPORTS, OpenedExport};
pub use file_info::{FileInfo, MAX_SHOWN_RANGES, TransferStatus};
pub use finish::FinishStep;
pub use maintenance::check_files;
pub use mqtt_hooks::FileHooks;
pub use mqtt_topic::{FileCommand, FileTopic, is_file_topic};
pub use mqtt_workers::{FileWorkers, OwnerDirectory};
pub use name::{MAX_FILE_ID_BYTES, MAX_NAME_BYTES, check_file_id, sanitise};
pub use record::{FileOwner, FileState, OwnerKind};
pub use request::{MAX_USER_DATA_BYTES, TransferRequest};
pub use saved_files::{SavedFile, saved_file_path};
pub use segments::WrittenSegment;
pub use service::{CompletionObserver, FileService, FileTarget, TransferStart};
pub use settings::TransferSettings;
pub use upload::UploadGuard;
pub use usage::{NamespaceFileLimits, Usage};
