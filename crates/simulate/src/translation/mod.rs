//! Devices that do not speak MQTT over TCP, TLS or WebSocket.
//!
//! Each connection of such a device is a pipe in memory. Its other end is a task that acts as the device's broker: it logs the
//! device in at a server by another protocol, and translates messages in both directions. So schedules, answers and
//! measurements are the same for all protocols.
//!
//! [`http`] is the HTTP API of devices, [`relay`] the WebSocket of relay endpoints, [`link`] the link of a node. [`quic`]
//! passes the bytes of MQTT through unchanged.

mod http;
mod http_connection;
mod image_fetch;
mod link;
mod local_port;
mod quic;
mod relay;
mod server_target;
mod translated_session;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use load_client::endpoint::SourceAddresses;
use tokio::io::DuplexStream;
use tokio::runtime::Runtime;

use crate::definition::{FleetTransport, TargetDefinition};
use image_fetch::ImageServers;
pub(crate) use image_fetch::{ImageFailure, ImageRequest};
use link::LinkTarget;
pub(crate) use local_port::LOCAL_VERSION;
pub(crate) use quic::QuicTarget;
pub(crate) use server_target::ServerTarget;
pub(crate) use translated_session::TranslatedRoute;
use translated_session::TranslatedSession;

/// Bytes that a pipe holds in each direction. A device or server that sends faster waits.
const PIPE_BYTES: usize = 64 * 1024;

/// The servers of devices that do not speak MQTT, and the threads that translate for them.
#[derive(Debug, Clone)]
pub(crate) struct Translators {
    runtime: Arc<Runtime>,
    servers: Vec<(FleetTransport, TranslatedServer)>,
    images: Arc<ImageServers>,
    login_timeout: Duration,
    /// Connections that have not ended.
    active: Arc<AtomicUsize>,
}

/// A server, and the protocol that it speaks.
#[derive(Debug, Clone)]
enum TranslatedServer {
    Http(Arc<ServerTarget>),
    Relay(Arc<ServerTarget>),
    Link(Arc<LinkTarget>),
    Quic(Arc<QuicTarget>),
}

/// The device side of a pipe.
#[derive(Debug)]
pub(crate) struct TranslatedPipe {
    pub(crate) stream: DuplexStream,
    /// Why the translator has ended, if the server is the reason.
    pub(crate) failure: Arc<OnceLock<String>>,
}

impl Translators {
    /// The servers that fleets with these transports use; `quic` is set if the broker is reached by QUIC.
    pub(crate) fn new(
        target: &TargetDefinition,
        folder: &Path,
        transports: &[FleetTransport],
        quic: Option<(SocketAddr, String)>,
    ) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(usize::from(target.threads).max(1))
            .thread_name("translators")
            .enable_all()
            .build()
            .context("cannot start the threads of translators")?;
        let mut servers = Vec::new();
        for &transport in transports {
            let server = |url: &str| ServerTarget::new(url, target, folder).map(Arc::new);
            let server = match transport {
                FleetTransport::Mqtt => continue,
                FleetTransport::Http => {
                    TranslatedServer::Http(server(&target.http).context("target.http")?)
                }
                FleetTransport::Relay => {
                    TranslatedServer::Relay(server(&target.relay).context("target.relay")?)
                }
                FleetTransport::Link => {
                    let link = LinkTarget::new(target, folder).context("target.link")?;
                    TranslatedServer::Link(Arc::new(link))
                }
            };
            servers.push((transport, server));
        }
        if let Some((address, name)) = quic {
            let quic = QuicTarget::new(address, name, target, folder).context("target.broker")?;
            servers.push((FleetTransport::Mqtt, TranslatedServer::Quic(Arc::new(quic))));
        }
        Ok(Self {
            runtime: Arc::new(runtime),
            servers,
            images: Arc::new(ImageServers::new(target, folder.to_owned())),
            login_timeout: Duration::from_nanos(target.connect_timeout.ns),
            active: Arc::default(),
        })
    }

    /// Where so many connections with this transport come from; `None`: they are not translated.
    pub(crate) fn sources_for(
        &self,
        transport: FleetTransport,
        connections: usize,
    ) -> Option<SourceAddresses> {
        let mut servers = self.servers.iter();
        let (_, server) = servers.find(|(known, _)| *known == transport)?;
        Some(match server {
            TranslatedServer::Http(server) | TranslatedServer::Relay(server) => {
                server.sources_for(connections)
            }
            TranslatedServer::Link(server) => server.sources().clone(),
            TranslatedServer::Quic(server) => server.sources().clone(),
        })
    }

    /// Whether connections of this transport are translated.
    pub(crate) fn includes(&self, transport: FleetTransport) -> bool {
        self.servers.iter().any(|(known, _)| *known == transport)
    }

    /// Waits until all connections have ended, so that servers get the last messages of their devices.
    pub(crate) fn wait_until_idle(&self, timeout: Duration) {
        let until = std::time::Instant::now() + timeout;
        while self.active.load(Ordering::Relaxed) > 0 && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Downloads and verifies an image, and reports its size or a failure.
    pub(crate) fn fetch_image(
        &self,
        image: ImageRequest,
        report: impl FnOnce(Result<u64, ImageFailure>) + Send + 'static,
    ) {
        let images = self.images.clone();
        self.runtime
            .spawn(async move { report(images.fetch(image).await) });
    }

    /// Begins a connection. Dropping the pipe ends it.
    pub(crate) fn open(&self, transport: FleetTransport, route: TranslatedRoute) -> TranslatedPipe {
        let (stream, mut pipe) = tokio::io::duplex(PIPE_BYTES);
        let failure = Arc::new(OnceLock::new());
        let mut servers = self.servers.iter();
        let server = servers.find(|(known, _)| *known == transport);
        let server = server.expect("each transport of a fleet has its server");
        let (server, result) = (server.1.clone(), failure.clone());
        let timeout = self.login_timeout;
        let active = ActiveConnection::new(&self.active);
        self.runtime.spawn(async move {
            let _active = active;
            // The reason is set before the pipe is closed, since the device looks for it then.
            let report = |reason: String| drop(result.set(reason));
            if let TranslatedServer::Quic(target) = &server {
                let source = route.source.map(|source| source.ip());
                let ended = target.carry(&mut pipe, source, timeout).await;
                ended.unwrap_or_else(report);
                return;
            }
            let (mut reader, writer) = local_port::split(pipe);
            let Some(login) = reader.login().await else {
                return;
            };
            let session = TranslatedSession {
                login,
                route,
                login_timeout: timeout,
                writer: writer.clone(),
            };
            let ended = match server {
                TranslatedServer::Http(target) => {
                    http::translate(session, &mut reader, target).await
                }
                TranslatedServer::Relay(target) => {
                    relay::translate(session, &mut reader, &target).await
                }
                TranslatedServer::Link(target) => {
                    link::translate(session, &mut reader, target).await
                }
                TranslatedServer::Quic(_) => Ok(()),
            };
            ended.unwrap_or_else(report);
            writer.close().await;
        });
        TranslatedPipe { stream, failure }
    }
}

/// Counts a connection while it exists.
struct ActiveConnection(Arc<AtomicUsize>);

impl ActiveConnection {
    fn new(active: &Arc<AtomicUsize>) -> Self {
        active.fetch_add(1, Ordering::Relaxed);
        Self(active.clone())
    }
}

impl Drop for ActiveConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
