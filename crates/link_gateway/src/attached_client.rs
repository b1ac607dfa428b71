//! A client of the broker on its way to the server of its link.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use crate::broker_client::{BrokerClient, ClientEnd};
use crate::identity::ClientIdentity;

/// Where the clients of a link are passed.
#[derive(Clone)]
pub(crate) struct ClientMailbox {
    pub(crate) clients: mpsc::Sender<AttachedClient>,
    /// Messages of the link that the broker has not acknowledged on the current connection.
    pub(crate) in_flight: watch::Receiver<usize>,
}

/// The client of a link's current carrier.
pub(crate) struct AttachedClient {
    pub(crate) client: BrokerClient,
    pub(crate) identity: Arc<ClientIdentity>,
    /// Told why the broker has ended the connection.
    pub(crate) ended: oneshot::Sender<ClientEnd>,
    /// Its sender is dropped when the carrier ends.
    pub(crate) carrier: oneshot::Receiver<()>,
}

impl AttachedClient {
    pub(crate) fn new(
        client: BrokerClient,
        identity: ClientIdentity,
        ended: oneshot::Sender<ClientEnd>,
        carrier: oneshot::Receiver<()>,
    ) -> Self {
        Self {
            client,
            identity: Arc::new(identity),
            ended,
            carrier,
        }
    }
}
