//! Connections to MySQL and MariaDB that respect the target policy.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mysql_async::{Conn, Error, OptsBuilder};

use crate::target_policy;

/// Lifetime of a name resolution.
const RESOLUTION_TTL: Duration = Duration::from_secs(30);

/// A connection pool for one server. It resolves the name itself and passes addresses to the library, which would
/// otherwise bypass the target policy.
pub struct MySqlPool {
    options: OptsBuilder,
    host: String,
    port: u16,
    open: Mutex<Option<OpenPool>>,
}

struct OpenPool {
    pool: mysql_async::Pool,
    addresses: Vec<IpAddr>,
    resolved_at: Instant,
}

impl MySqlPool {
    /// `options`: everything except host and port.
    #[must_use]
    pub fn new(options: OptsBuilder, host: String, port: u16) -> Self {
        let options = options.ip_or_hostname(host.clone()).tcp_port(port);
        Self {
            options,
            host,
            port,
            open: Mutex::default(),
        }
    }

    /// Returns an idle or new connection.
    ///
    /// # Errors
    /// If the server is unreachable or denied by the target policy.
    pub async fn get_conn(&self) -> Result<Conn, Error> {
        let pool = match self.current_pool() {
            Some(pool) => pool,
            None => {
                let found = target_policy::resolve(&self.host, self.port).await;
                let found = found.map_err(|error| Error::Io(error.into()))?;
                self.pool_for_addresses(found.iter().map(std::net::SocketAddr::ip).collect())
            }
        };
        pool.get_conn().await
    }

    fn current_pool(&self) -> Option<mysql_async::Pool> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.as_ref()?;
        (open.resolved_at.elapsed() < RESOLUTION_TTL).then(|| open.pool.clone())
    }

    /// The pool for these addresses. A pool for other addresses is dropped, which closes its connections once they
    /// are returned.
    fn pool_for_addresses(&self, mut addresses: Vec<IpAddr>) -> mysql_async::Pool {
        addresses.sort_unstable();
        let mut slot = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = slot.as_mut()
            && open.addresses == addresses
        {
            open.resolved_at = Instant::now();
            return open.pool.clone();
        }
        let options = self.options.clone().resolved_ips(Some(addresses.clone()));
        let pool = mysql_async::Pool::new(options);
        *slot = Some(OpenPool {
            pool: pool.clone(),
            addresses,
            resolved_at: Instant::now(),
        });
        pool
    }
}
