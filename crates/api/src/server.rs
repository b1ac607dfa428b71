//! The listener of the API: connections are few, short of time and bounded in every way.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use crate::access::Gatekeeper;
use crate::app::{App, Parts};
use crate::call::Stays;
use crate::config::{Anonymous, HttpConfig, LiveConfig};
use crate::openapi;
use crate::resources::docs;
use crate::resources::node::VERSION;
use crate::routes::{self, From};

/// Head of a request and write buffer of a connection, in bytes.
const MAX_BUFFER_BYTES: usize = 64 * 1024;
/// Requests of devices on their own paths that are answered at once; more are told to come again.
const MAX_DEVICE_REQUESTS: usize = 128;
/// A connection ends after this long, so that one whose peer stopped reading does not stay.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(600);
/// Pause after a failed accept, for example when no file descriptor is free.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "anonymous access to the HTTP API is for loopback addresses, and other machines can reach {0}: bind it to \
         127.0.0.1, or set anonymous to \"none\""
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
    check(config, address)?;
    TcpListener::bind(address)
        .await
        .map_err(|source| Error::Bind { address, source })
}

fn check(config: &HttpConfig, address: SocketAddr) -> Result<(), Error> {
    match config.anonymous != Anonymous::None && !is_loopback(address) {
        true => Err(Error::Exposed(address)),
        false => Ok(()),
    }
}

/// Answers requests on `listener` until `shutdown` is done, then finishes those that have begun.
pub async fn serve(
    listener: TcpListener,
    live: &LiveConfig,
    parts: Parts,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let address = listener.local_addr().map_err(Error::Address)?;
    let config = live.get();
    check(&config, address)?;
    let (stop, stopping) = watch::channel(false);
    let tls = parts.tls.clone();
    let router = router(live, parts, is_loopback(address), stopping.clone());
    let mut connections = JoinSet::new();
    tokio::select! {
        () = shutdown => {}
        () = accept(&listener, config.max_connections, &mut connections, |stream, from| {
            let tls = tls.as_ref().map(|tls| TlsAcceptor::from(tls.config()));
            let (router, limit, stopping) = (router.clone(), live.request_timeout(), stopping.clone());
            async move {
                let Some(tls) = tls else {
                    return connection(stream, from, router, limit, stopping).await;
                };
                match timeout(limit, tls.accept(stream)).await {
                    Ok(Ok(stream)) => connection(stream, from, router, limit, stopping).await,
                    Ok(Err(error)) => tracing::debug!(%error, %from, "no TLS handshake for HTTP"),
                    Err(_) => tracing::debug!(%from, "no TLS handshake for HTTP in time"),
                }
            }
        }) => {}
    }
    drop(listener);
    stop.send_replace(true);
    let all_done = async { while connections.join_next().await.is_some() {} };
    if timeout(live.request_timeout(), all_done).await.is_err() {
        tracing::warn!("HTTP connections did not end in time and were cut");
    }
    Ok(())
}

fn router(
    live: &LiveConfig,
    parts: Parts,
    is_local: bool,
    stopping: watch::Receiver<bool>,
) -> Router {
    let table = routes::table(&parts.rules);
    let document = openapi::document(VERSION, &table);
    let config = live.get();
    let app = App {
        node: parts.node,
        program: parts.program,
        objects: parts.objects,
        rule_tools: parts.rule_tools,
        connector_tools: parts.connector_tools,
        device_tools: parts.device_tools,
        telemetry_tools: parts.telemetry_tools,
        alarm_tools: parts.alarm_tools,
        device_door: parts.device_door,
        device_requests: Semaphore::new(MAX_DEVICE_REQUESTS),
        fleet_tools: parts.fleet_tools,
        command_tools: parts.command_tools,
        config: live.clone(),
        anonymous: config.anonymous,
        max_event_streams: config.max_event_streams,
        gatekeeper: Gatekeeper::new(live, parts.local_token.as_deref()),
        started: SystemTime::now(),
        is_local,
        changing: Mutex::default(),
        streams: Arc::new(Semaphore::new(
            config.max_event_streams.min(Semaphore::MAX_PERMITS),
        )),
        stopping,
        document: format!("{document:#}"),
        docs_page: docs::render(&document),
    };
    routes::router(&Arc::new(app), table)
}

/// Accepts for ever, holding at most `max_connections` open.
async fn accept<F>(
    listener: &TcpListener,
    max_connections: usize,
    connections: &mut JoinSet<()>,
    connection: impl Fn(TcpStream, SocketAddr) -> F,
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
            Ok((stream, from)) => {
                let connection = connection(stream, from);
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

async fn connection<S>(
    stream: S,
    from: SocketAddr,
    router: Router,
    request_timeout: Duration,
    mut stopping: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stays = Stays::default();
    let marks = (From(from.ip()), stays.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (from, stays) = marks.clone();
        request.extensions_mut().insert(from);
        request.extensions_mut().insert(stays);
        router.clone().call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(request_timeout)
        .max_buf_size(MAX_BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = end_of_life(&stays, &mut stopping) => {
            connection.as_mut().graceful_shutdown();
            timeout(request_timeout, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "HTTP connection ended");
    }
}

/// Waits until a connection shall take no further request.
async fn end_of_life(stays: &Stays, stopping: &mut watch::Receiver<bool>) {
    let too_old = async {
        // Looked at again after each further span.
        loop {
            sleep(MAX_CONNECTION_AGE).await;
            if !stays.0.load(Ordering::Relaxed) {
                break;
            }
        }
    };
    tokio::select! {
        _ = stopping.wait_for(|stopping| *stopping) => {}
        () = too_old => {}
    }
}
