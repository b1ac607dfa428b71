//! What all tasks of a gateway share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker::BrokerHandle;
use devices::Registry;
use firmware::FirmwareService;
use link::wire::handshake::LinkId;
use transfer::{FileService, FileWorkers};

use crate::attached_client::ClientMailbox;
use crate::link_logins::LinkLogins;
use crate::metrics::LinkMetrics;
use crate::settings::LinkSettings;

/// What all tasks of a gateway share.
pub(crate) struct GatewayShared {
    pub(crate) settings: LinkSettings,
    pub(crate) broker: BrokerHandle,
    pub(crate) workers: FileWorkers,
    pub(crate) files: FileService,
    pub(crate) firmware: FirmwareService,
    pub(crate) registry: Registry,
    pub(crate) metrics: LinkMetrics,
    /// Where the clients of links that exist are passed.
    pub(crate) mailboxes: Mutex<HashMap<LinkId, ClientMailbox>>,
    pub(crate) logins: Arc<LinkLogins>,
}

impl GatewayShared {
    pub(crate) fn mailboxes(&self) -> MutexGuard<'_, HashMap<LinkId, ClientMailbox>> {
        self.mailboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
