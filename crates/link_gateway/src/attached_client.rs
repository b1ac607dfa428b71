//! A client of the broker on its way to the server of its link.

use std::sync::Arc;

use mqtt::ReasonCode;
use tokio::sync::{mpsc, oneshot, watch};

use crate::broker_client::{BrokerClient, ClientEnd};
use crate::identity::ClientIdentity;
use crate::link_logins::LinkLogin;

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
    pub(crate) login: LinkLogin,
    /// Told why the broker has ended the connection.
    pub(crate) ended: oneshot::Sender<ClientEnd>,
    /// Its sender is dropped when the carrier ends.
    pub(crate) carrier: oneshot::Receiver<()>,
}

impl AttachedClient {
    /// What a DISCONNECT of the broker means for the peer.
    pub(crate) fn end_of(&self, reason: ReasonCode) -> ClientEnd {
        match reason {
            // The link has connected again.
            ReasonCode::SESSION_TAKEN_OVER if self.login.is_contested() => ClientEnd::Lost,
            ReasonCode::SESSION_TAKEN_OVER => {
                ClientEnd::Rejected("another client with this client id has connected")
            }
            ReasonCode::NOT_AUTHORIZED => ClientEnd::Rejected("the client is not authorised"),
            ReasonCode::BANNED => ClientEnd::Rejected("the client is banned"),
            _ => ClientEnd::Lost,
        }
    }
}
