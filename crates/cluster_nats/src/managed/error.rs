//! Why a NATS server cannot be started.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::settings::NatsSettingsError;
use crate::version::{MIN_SERVER_VERSION, ServerVersion};

/// Why a NATS server cannot be started. Trying again does not help before something is changed.
#[derive(Debug, Error)]
pub enum ManagedNatsError {
    #[error(transparent)]
    Setting(#[from] NatsSettingsError),
    #[error(
        "nats-server was not found, neither {searched} nor in PATH; install NATS server {MIN_SERVER_VERSION} or later, for \
         example with `go install github.com/nats-io/nats-server/v2@v{MIN_SERVER_VERSION}`, or name the program in the settings"
    )]
    NotFound { searched: String },
    #[error("{} has version {version}: at least {MIN_SERVER_VERSION} is required; update it", program.display())]
    TooOld {
        program: PathBuf,
        version: ServerVersion,
    },
    #[error("{} cannot be used as nats-server: {detail}", program.display())]
    Unusable { program: PathBuf, detail: String },
    #[error("{} cannot be used for the NATS server: {error}", path.display())]
    Directory { path: PathBuf, error: io::Error },
    #[error(
        "no port between {first} and {last} of 127.0.0.1 is free for the NATS server; set a port"
    )]
    NoFreePort { first: u16, last: u16 },
    #[error("the random source of the system does not work")]
    RandomSource,
}
