//! Who the peer of a link is.

use transfer::FileOwner;

/// The client that the peer of a link has logged in as.
#[derive(Debug)]
pub(crate) struct ClientIdentity {
    pub(crate) client_id: String,
    /// Id of the device, if the client is one.
    pub(crate) device: Option<String>,
    /// The owner of the files that it sends.
    pub(crate) owner: FileOwner,
}

impl ClientIdentity {
    /// Who may continue a link: a link belongs to the device or user that opened it.
    pub(crate) fn principal(&self, username: Option<&str>) -> String {
        match (&self.device, username) {
            (Some(device), _) => format!("device {device}"),
            (None, Some(user)) => format!("user {user}"),
            (None, None) => format!("client {}", self.client_id),
        }
    }
}
