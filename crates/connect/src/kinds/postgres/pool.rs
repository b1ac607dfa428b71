//! Connections to PostgreSQL: a batch has one for itself, and closes it if it did not come to an end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbound::postgres::Server;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::Prepared;
use crate::connector::Failure;

/// Sinks whose statements a connection keeps prepared; one more and it starts anew.
const PREPARED: usize = 256;

pub(super) struct Pool {
    server: Server,
    within: Duration,
    places: Arc<Semaphore>,
    idle: Mutex<Vec<Idle>>,
}

/// A connection that is used by one batch. Dropping it closes it.
pub(super) struct Connection {
    pub(super) client: Client,
    /// By the writer's key.
    pub(super) prepared: HashMap<u64, Prepared>,
    driver: Driver,
    _place: OwnedSemaphorePermit,
}

type Idle = (Client, HashMap<u64, Prepared>, Driver);

/// Moves a connection's bytes until it ends or is dropped.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Pool {
    pub(super) fn new(server: Server, size: usize, within: Duration) -> Self {
        Self {
            server,
            within,
            places: Arc::new(Semaphore::new(size)),
            idle: Mutex::default(),
        }
    }

    pub(super) async fn take(&self) -> Result<Connection, Failure> {
        let place = self.places.clone().acquire_owned().await;
        let place = place.map_err(Failure::passing)?;
        loop {
            let idle = self
                .idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop();
            let Some((client, prepared, driver)) = idle else {
                break;
            };
            if !client.is_closed() {
                return Ok(Connection {
                    client,
                    prepared,
                    driver,
                    _place: place,
                });
            }
        }
        match tokio::time::timeout(self.within, self.connect()).await {
            Ok(Ok((client, driver))) => Ok(Connection {
                client,
                prepared: HashMap::new(),
                driver,
                _place: place,
            }),
            Ok(Err(failure)) => Err(failure),
            Err(_) => {
                let ms = self.within.as_millis();
                Err(Failure::passing(format!("no connection within {ms} ms")))
            }
        }
    }

    pub(super) fn give_back(&self, connection: Connection) {
        let Connection {
            client,
            prepared,
            driver,
            _place,
        } = connection;
        if client.is_closed() || prepared.len() > PREPARED {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push((client, prepared, driver));
    }

    async fn connect(&self) -> Result<(Client, Driver), Failure> {
        match self.server.connect().await {
            Ok((client, moving)) => Ok((client, Driver(moving))),
            Err(outbound::postgres::Error::Postgres(error)) => Err(super::failure(error)),
            Err(error) => Err(Failure::passing(error)),
        }
    }
}
