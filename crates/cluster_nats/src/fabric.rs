//! All that a node uses of NATS.

use std::sync::Arc;

use cluster::NodeName;
use tokio::task::AbortHandle;

use crate::connection::Connection;
use crate::links::NatsLinks;
use crate::members::NatsMembers;
use crate::objects::NatsObjects;
use crate::settings::{NatsSettings, NatsSettingsError};
use crate::status::NatsStatus;

/// The connections of a node to NATS servers: one for objects and members, and one for links, whose bulk would delay the
/// others. They are restored as long as this exists.
#[derive(Debug)]
pub struct NatsFabric {
    connection: Arc<Connection>,
    members: Arc<NatsMembers>,
    objects: Arc<NatsObjects>,
    links: Arc<NatsLinks>,
    follower: AbortHandle,
}

impl NatsFabric {
    /// Returns at once and connects in the background. To be called in a tokio runtime.
    ///
    /// # Errors
    /// If a setting cannot be used, or a file that it names cannot be read. That no server can be reached is no error.
    pub async fn connect(
        settings: NatsSettings,
        node: &NodeName,
    ) -> Result<Self, NatsSettingsError> {
        let connection = Connection::start(settings.clone(), format!("tidegate {node}")).await?;
        let links = NatsLinks::start(&settings, node, &connection).await?;
        let follower = tokio::spawn(Arc::clone(&connection).follow()).abort_handle();
        Ok(Self {
            members: Arc::new(NatsMembers::new(&connection)),
            objects: Arc::new(NatsObjects::new(&connection)),
            links: Arc::new(links),
            connection,
            follower,
        })
    }

    pub fn members(&self) -> Arc<NatsMembers> {
        Arc::clone(&self.members)
    }

    pub fn objects(&self) -> Arc<NatsObjects> {
        Arc::clone(&self.objects)
    }

    pub fn links(&self) -> Arc<NatsLinks> {
        Arc::clone(&self.links)
    }

    /// Copies that the servers are asked to keep of members and objects: 3 with three or more known servers.
    pub fn copies(&self) -> usize {
        self.connection.replicas()
    }

    pub fn status(&self) -> NatsStatus {
        let mut status = self.connection.status();
        self.links.add_to_status(&mut status);
        status
    }
}

impl Drop for NatsFabric {
    fn drop(&mut self) {
        self.follower.abort();
        self.connection.close();
        self.links.close();
    }
}
