//! The listener of the API: connections are few, short of time and bounded in every way.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::gate::Gate;
use crate::node::{Node, Program};
use crate::routes::{self, Settings};

/// Head of a request and write buffer of a connection, in bytes.
const MAX_BUFFER_BYTES: usize = 64 * 1024;
/// A connection ends after this long, so that one whose peer stopped reading does not stay.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(600);
/// Pause after a failed accept, for example when no file descriptor is free.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// Port 0 lets the system choose.
    pub bind: SocketAddr,
    /// Whether `bind` may be reachable from other machines although requests are not authenticated.
    pub allow_remote_without_authentication: bool,
    pub max_body_bytes: usize,
    /// Connections at once; more wait in the kernel.
    pub max_connections: usize,
    /// Seconds for a request's head to arrive, for its answer to be made, and for a graceful stop.
    pub request_timeout_s: u32,
}

impl HttpConfig {
    /// The defaults at the given address.
    pub fn new(bind: SocketAddr) -> Self {
        Self {
            bind,
            allow_remote_without_authentication: false,
            max_body_bytes: 64 * 1024,
            max_connections: 256,
            request_timeout_s: 10,
        }
    }

    fn check(&self, address: SocketAddr) -> Result<(), Error> {
        if !self.allow_remote_without_authentication && !is_loopback(address) {
            return Err(Error::Exposed(address));
        }
        Ok(())
    }
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "the HTTP API has no authentication yet and {0} can be reached from other machines: bind it to 127.0.0.1, \
         or set allow_remote_without_authentication if something else guards it"
    )]
    Exposed(SocketAddr),
    #[error("cannot listen for HTTP on {address}: {source}")]
    Bind {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("cannot tell the address of the HTTP listener: {0}")]
    Address(std::io::Error),
}

/// Opens the listener of `config`.
pub async fn bind(config: &HttpConfig) -> Result<TcpListener, Error> {
    let address = config.bind;
    config.check(address)?;
    TcpListener::bind(address)
        .await
        .map_err(|source| Error::Bind { address, source })
}

/// Answers requests on `listener` until `shutdown` is done, then finishes those that have begun.
pub async fn serve<N: Node>(
    listener: TcpListener,
    config: &HttpConfig,
    node: N,
    program: Arc<dyn Program>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let address = listener.local_addr().map_err(Error::Address)?;
    config.check(address)?;
    let request_timeout = Duration::from_secs(config.request_timeout_s.into());
    let settings = Settings {
        gate: Gate {
            loopback_only: is_loopback(address),
        },
        max_body_bytes: config.max_body_bytes,
        request_timeout,
    };
    let router = routes::router(node, program, &settings);
    let (stop, stopping) = watch::channel(false);
    let mut connections = JoinSet::new();
    tokio::select! {
        () = shutdown => {}
        () = accept(&listener, config.max_connections, &mut connections, |stream| {
            connection(stream, router.clone(), request_timeout, stopping.clone())
        }) => {}
    }
    drop(listener);
    stop.send_replace(true);
    let all_done = async { while connections.join_next().await.is_some() {} };
    if timeout(request_timeout, all_done).await.is_err() {
        tracing::warn!("HTTP connections did not end in time and were cut");
    }
    Ok(())
}

/// Accepts for ever, holding at most `max_connections` open.
async fn accept<F>(
    listener: &TcpListener,
    max_connections: usize,
    connections: &mut JoinSet<()>,
    connection: impl Fn(TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS)));
    loop {
        let permit = permits
            .clone()
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let connection = connection(stream);
                connections.spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                sleep(ACCEPT_RETRY).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    request_timeout: Duration,
    mut stopping: watch::Receiver<bool>,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(request_timeout)
        .max_buf_size(MAX_BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = end_of_life(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            timeout(request_timeout, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "HTTP connection ended");
    }
}

/// Waits until a connection shall take no further request.
async fn end_of_life(stopping: &mut watch::Receiver<bool>) {
    tokio::select! {
        _ = stopping.wait_for(|stopping| *stopping) => {}
        () = sleep(MAX_CONNECTION_AGE) => {}
    }
}
