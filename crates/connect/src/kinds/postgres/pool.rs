//! Pool of PostgreSQL connections: a batch uses a connection exclusively and closes it if it does not complete.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbound::postgres::PostgresServer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Statement};

use super::errors::failure;
use crate::connector::ConnectorError;

/// Maximum number of sinks with prepared statements on a connection; beyond it they are discarded.
const MAX_PREPARED_SINKS: usize = 256;

pub(super) struct ConnectionPool {
    server: PostgresServer,
    within: Duration,
    places: Arc<Semaphore>,
    idle: Mutex<Vec<IdleConnection>>,
}

/// A connection in use by one batch. Dropping it closes it.
pub(super) struct PooledConnection {
    pub(super) client: Client,
    /// Prepared statements by the key of the writer.
    pub(super) prepared: HashMap<u64, PreparedStatements>,
    driver: DriverTask,
    _place: OwnedSemaphorePermit,
}

/// The statements a connection has prepared for a sink.
#[derive(Clone)]
pub(super) struct PreparedStatements {
    pub(super) single: Statement,
    /// Variant with array parameters; `None` if the statement does not allow it.
    pub(super) arrays: Option<Statement>,
}

type IdleConnection = (Client, HashMap<u64, PreparedStatements>, DriverTask);

/// The task that drives a connection's I/O until it ends or is dropped.
struct DriverTask(JoinHandle<()>);

impl Drop for DriverTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ConnectionPool {
    pub(super) fn new(server: PostgresServer, size: usize, within: Duration) -> Self {
        Self {
            server,
            within,
            places: Arc::new(Semaphore::new(size)),
            idle: Mutex::default(),
        }
    }

    pub(super) async fn acquire(&self) -> Result<PooledConnection, ConnectorError> {
        let place = self.places.clone().acquire_owned().await;
        let place = place.map_err(ConnectorError::transient)?;
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
                return Ok(PooledConnection {
                    client,
                    prepared,
                    driver,
                    _place: place,
                });
            }
        }
        match tokio::time::timeout(self.within, self.connect()).await {
            Ok(Ok((client, driver))) => Ok(PooledConnection {
                client,
                prepared: HashMap::new(),
                driver,
                _place: place,
            }),
            Ok(Err(failure)) => Err(failure),
            Err(_) => {
                let ms = self.within.as_millis();
                Err(ConnectorError::transient(format!(
                    "no connection within {ms} ms"
                )))
            }
        }
    }

    pub(super) fn release(&self, connection: PooledConnection) {
        let PooledConnection {
            client,
            prepared,
            driver,
            _place,
        } = connection;
        if client.is_closed() || prepared.len() > MAX_PREPARED_SINKS {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push((client, prepared, driver));
    }

    async fn connect(&self) -> Result<(Client, DriverTask), ConnectorError> {
        match self.server.connect().await {
            Ok((client, moving)) => Ok((client, DriverTask(moving))),
            Err(outbound::postgres::PostgresError::Postgres(error)) => Err(failure(error)),
            Err(error) => Err(ConnectorError::transient(error)),
        }
    }
}
