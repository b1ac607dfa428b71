//! What translators of all protocols need of a connection.

use std::net::SocketAddr;
use std::time::Duration;

use super::local_port::{DeviceLogin, LocalWriter};

/// What a connection needs besides the credentials in CONNECT.
#[derive(Debug, Default)]
pub(crate) struct TranslatedRoute {
    pub(crate) source: Option<SocketAddr>,
    /// Relay endpoint of the device.
    pub(crate) endpoint: String,
    /// Whether a connection to a relay endpoint identifies itself as a device.
    pub(crate) identifies: bool,
}

/// A device that has begun to log in.
#[derive(Debug)]
pub(super) struct TranslatedSession {
    pub(super) login: DeviceLogin,
    pub(super) route: TranslatedRoute,
    pub(super) login_timeout: Duration,
    pub(super) writer: LocalWriter,
}
