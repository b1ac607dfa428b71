//! The HTTP listener of the API. Connections, their lifetime and their buffers are bounded.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::http::HeaderMap;
use broker::ListenerTls;
use broker::config::BindAddress;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use crate::access::{API_KEY_KIND, AccessState, OPERATOR_KIND};
use crate::call::LongLivedFlag;
use crate::changed_settings;
use crate::client_address::{ForwardedHeader, TrustedProxies};
use crate::config::{AnonymousRole, HttpConfig, SharedHttpConfig};
use crate::connection_tracker::{CloseReason, ConnectionPermit, ConnectionTracker};
use crate::history_recorder;
use crate::jobs::Jobs;
use crate::live_sessions::LiveSessions;
use crate::node_calls::ApiCallHandler;
use crate::openapi;
use crate::peer_ip::PeerIp;
use crate::resources::node::VERSION;
use crate::resources::openapi_page;
use crate::routes;
use crate::simulation_runs::SimulationRuns;
use crate::socket::{HttpListener, HttpSocket, TimedSocket, read_proxy_header};
use crate::state::{ApiDocumentation, ApiParts, ApiState};
use crate::unwritten_entries::UnwrittenEntries;

/// Maximum size of a request head and of a connection's write buffer, in bytes.
const MAX_BUFFER_BYTES: usize = 64 * 1024;
/// Maximum age of a connection. It ends connections whose peer has stopped reading.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(600);
/// Threads that wait for the telemetry of other nodes. There are 512 threads for work that may block.
const MAX_CLUSTER_READS: usize = 128;
/// Streamed exports that read from other nodes. With the reads and the jobs, they leave most of the threads that may block to
/// the answers for other nodes.
const MAX_CLUSTER_EXPORTS: usize = 64;
/// Pieces of files that are on their way from other nodes.
const MAX_FILE_PIECES: usize = 16;
/// Pause after a failed accept, for example when no file descriptor is free.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum HttpServerError {
    #[error(
        "anonymous access to the HTTP API is for loopback addresses and Unix sockets, and other machines can reach {0}: bind it to \
         127.0.0.1, or set http.anonymous_role to \"none\""
    )]
    Exposed(BindAddress),
    #[error("cannot listen for HTTP on {address}: {source}")]
    Bind {
        address: BindAddress,
        source: io::Error,
    },
    #[error("cannot determine the address of the HTTP listener: {0}")]
    Address(io::Error),
}

/// Opens the listener described by `config`.
pub async fn bind(config: &HttpConfig) -> Result<HttpListener, HttpServerError> {
    check(config, &config.bind)?;
    HttpListener::bind(&config.bind)
        .await
        .map_err(|source| HttpServerError::Bind {
            address: config.bind.clone(),
            source,
        })
}

fn check(config: &HttpConfig, address: &BindAddress) -> Result<(), HttpServerError> {
    match config.anonymous_role != AnonymousRole::None && !address.is_local() {
        true => Err(HttpServerError::Exposed(address.clone())),
        false => Ok(()),
    }
}

/// The state shared by all connections.
struct ServerContext {
    router: Router,
    live: SharedHttpConfig,
    tls: Option<Arc<ListenerTls>>,
    connections: Arc<ConnectionTracker>,
    stopping: watch::Receiver<bool>,
    proxy_protocol: bool,
    trusted_proxies: TrustedProxies,
    forwarded_header: ForwardedHeader,
}

/// Serves requests on `listener` until `shutdown` resolves, then finishes the requests in progress.
pub async fn serve(
    listener: HttpListener,
    live: &SharedHttpConfig,
    parts: ApiParts,
    shutdown: impl Future<Output = ()>,
) -> Result<(), HttpServerError> {
    let address = listener.local_address().map_err(HttpServerError::Address)?;
    let (objects, program) = (parts.objects.clone(), parts.program.clone());
    let applied = spawn_blocking(move || changed_settings::apply_changes(&objects, &*program));
    if applied.await.is_err() {
        tracing::error!("applying the settings changed over the API panicked; this is a bug");
    }
    let config = live.get();
    check(&config, &address)?;
    let (stop, stopping) = watch::channel(false);
    let tls = parts.tls.clone();
    let connections = ConnectionTracker::new(&config);
    let router = router(live, parts, &address, stopping.clone(), &connections);
    let service = Arc::new(ServerContext {
        router,
        live: live.clone(),
        tls,
        connections,
        stopping,
        proxy_protocol: config.proxy_protocol,
        trusted_proxies: config.trusted_proxies.clone(),
        forwarded_header: config.forwarded_header,
    });
    let mut tasks = JoinSet::new();
    tokio::select! {
        () = shutdown => {}
        () = accept_loop(&listener, &service, &mut tasks) => {}
    }
    drop(listener);
    stop.send_replace(true);
    let all_done = async { while tasks.join_next().await.is_some() {} };
    if timeout(live.request_timeout(), all_done).await.is_err() {
        tracing::warn!("HTTP connections did not end within the stop time-out; aborted");
    }
    Ok(())
}

fn router(
    live: &SharedHttpConfig,
    parts: ApiParts,
    address: &BindAddress,
    stopping: watch::Receiver<bool>,
    connections: &Arc<ConnectionTracker>,
) -> Router {
    let table = routes::route_table(&parts.object_backend);
    let config = live.get();
    let backend = parts.object_backend.clone();
    let app = Arc::new(ApiState {
        node: parts.node,
        program: parts.program,
        access: AccessState::new(live, parts.local_token.as_deref(), parts.objects.clone()),
        objects: parts.objects,
        namespaces: parts.namespaces,
        object_backend: parts.object_backend,
        engine: parts.engine,
        connectors: parts.connectors,
        devices: parts.devices,
        telemetry_backend: parts.telemetry_backend,
        cluster_reads: Arc::new(Semaphore::new(MAX_CLUSTER_READS)),
        cluster_exports: Arc::new(Semaphore::new(MAX_CLUSTER_EXPORTS)),
        file_pieces: Semaphore::new(MAX_FILE_PIECES),
        live: Arc::default(),
        live_sessions: LiveSessions::default(),
        alarms: parts.alarms,
        device_http_backend: parts.device_http_backend,
        connections: connections.clone(),
        pulls: parts.pulls,
        relay: parts.relay,
        files: parts.files,
        firmware: parts.firmware,
        auth: parts.auth,
        observer: parts.observer,
        history: parts.history,
        jobs: Jobs::default(),
        simulations: SimulationRuns::default(),
        commands: parts.commands,
        console: parts.console,
        is_tls: parts.tls.is_some(),
        config: live.clone(),
        anonymous_role: config.anonymous_role,
        started: SystemTime::now(),
        is_local: address.is_local(),
        // A web page cannot reach a Unix socket.
        loopback_only: address.is_local() && matches!(address, BindAddress::Tcp(_)),
        changing: Mutex::default(),
        unwritten_audit_entries: UnwrittenEntries::default(),
        stopping,
        local_router: |app| routes::router(app, routes::route_table(&app.object_backend)),
        node_router: |app| {
            let mut table = routes::route_table(&app.object_backend);
            table.retain(|endpoint| endpoint.place.is_some());
            routes::router(app, table)
        },
        documentation: LazyLock::new(Box::new(move || {
            let document = openapi::openapi_document(VERSION, &routes::route_table(&backend));
            ApiDocumentation {
                document: format!("{document:#}"),
                page: openapi_page::render(&document),
            }
        })),
    });
    if let Some(cluster) = app.program.cluster_backend() {
        cluster.attach_api(Arc::new(ApiCallHandler::new(&app)));
    }
    if app.history.is_on() {
        // Ends with the API.
        tokio::spawn(history_recorder::run(Arc::downgrade(&app)));
    }
    let revoking = Arc::downgrade(&app);
    app.objects.observe_changes(Box::new(move |change| {
        let kinds = [OPERATOR_KIND, API_KEY_KIND, namespaces::KIND];
        let is_of_access = kinds.contains(&change.kind.as_str());
        if let Some(app) = revoking.upgrade().filter(|_| is_of_access) {
            app.access.notify_revocation();
        }
    }));
    routes::router(&app, table)
}

/// Accepts connections without end, as many as the connection limits allow.
async fn accept_loop(
    listener: &HttpListener,
    service: &Arc<ServerContext>,
    tasks: &mut JoinSet<()>,
) {
    loop {
        match listener.accept().await {
            Ok((socket, peer)) => {
                let peer = peer.map(|peer| peer.ip());
                // Behind a proxy the client's address is known only after the header has been read.
                let is_proxy = service.proxy_protocol || service.trusted_proxies.contains(peer);
                let address = peer.filter(|_| !is_proxy);
                if let Ok(place) = service.connections.open(address) {
                    tasks.spawn(service.clone().handle_connection(socket, peer, place));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "accepting an HTTP connection failed; retrying");
                sleep(ACCEPT_RETRY).await;
            }
        }
        while tasks.try_join_next().is_some() {}
    }
}

impl ServerContext {
    async fn handle_connection(
        self: Arc<Self>,
        socket: Box<dyn HttpSocket>,
        peer: Option<IpAddr>,
        place: Arc<ConnectionPermit>,
    ) {
        let evicted = place.clone();
        tokio::select! {
            result = self.serve_stream(socket, peer, place) => if let Err(error) = result {
                tracing::debug!(%error, ?peer, "HTTP connection ended with an error");
            },
            () = evicted.wait_for_eviction() => tracing::debug!(?peer, "idle HTTP connection closed to admit a new one"),
        }
    }

    async fn serve_stream(
        &self,
        mut socket: Box<dyn HttpSocket>,
        peer: Option<IpAddr>,
        place: Arc<ConnectionPermit>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let (mut peer, mut ahead) = (peer, Vec::new());
        let within = self.live.header_timeout();
        if self.proxy_protocol {
            let header = timeout(within, read_proxy_header(&mut *socket)).await;
            let header = header.map_err(io::Error::from).flatten();
            let header =
                header.inspect_err(|_| self.connections.count_close(CloseReason::ProxyHeader));
            let (client, rest) = header?;
            if let Some(client) = client {
                peer = Some(client.ip());
                if place.set_address(client.ip()).is_err() {
                    return Ok(());
                }
            }
            ahead = rest;
        }
        let written_within = self.live.write_timeout();
        let connections = self.connections.clone();
        let socket = TimedSocket::new(socket, ahead, written_within, connections);
        match &self.tls {
            None => self.handle_request(socket, peer, place).await?,
            Some(tls) => {
                let acceptor = TlsAcceptor::from(tls.server_config());
                let accepted = timeout(within, acceptor.accept(socket)).await;
                let accepted = accepted.map_err(|_| "no TLS handshake for HTTP in time")?;
                self.handle_request(accepted?, peer, place).await?;
            }
        }
        Ok(())
    }

    async fn handle_request<S>(
        &self,
        stream: S,
        peer: Option<IpAddr>,
        place: Arc<ConnectionPermit>,
    ) -> Result<(), hyper::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stays = LongLivedFlag::default();
        let marks = (stays.clone(), place.clone());
        let is_proxy = self.trusted_proxies.contains(peer);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let (stays, place) = marks.clone();
            let client = is_proxy
                .then(|| self.client_address(request.headers()))
                .flatten();
            let from = client.or(peer).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
            let extensions = request.extensions_mut();
            extensions.insert(PeerIp(from));
            extensions.insert(stays);
            extensions.insert(place);
            self.router.clone().call(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.live.header_timeout())
            .max_buf_size(MAX_BUFFER_BYTES)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let mut connection = pin!(connection);
        let mut stopping = self.stopping.clone();
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = wait_for_close(&stays, &mut stopping) => {
                connection.as_mut().graceful_shutdown();
                let within = self.live.request_timeout();
                timeout(within, connection).await.unwrap_or(Ok(()))
            }
        };
        result.inspect_err(|error| {
            if error.is_timeout() {
                self.connections.count_close(CloseReason::HeaderTimeout);
            }
        })
    }

    fn client_address(&self, headers: &HeaderMap) -> Option<IpAddr> {
        self.trusted_proxies.client(headers, self.forwarded_header)
    }
}

/// Waits until the connection must not accept further requests.
async fn wait_for_close(stays: &LongLivedFlag, stopping: &mut watch::Receiver<bool>) {
    let too_old = async {
        // A long-lived connection is checked again after each further interval.
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
