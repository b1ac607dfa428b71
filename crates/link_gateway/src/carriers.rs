//! Accepts the carriers of one listener, and logs their peers in.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use broker::{GatewayConnection, GatewayListener, GatewaySocket};
use hooks::PeerAddress;
use link::error_code::{ErrorCode, ProtocolError};
use link::net::{CarrierError, LinkDecision, LinkListener, PendingLink};
use link::wire::handshake::{Credentials, Hello};
use link_carriers::{AcceptedCarrier, BoxedCarrier, CarrierListener, PendingCarrier};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::attached_client::AttachedClient;
use crate::broker_client::{BrokerClient, ClientEnd, LoginError};
use crate::identity::ClientIdentity;
use crate::link_logins::LinkLogin;
use crate::link_server::LinkServer;
use crate::metrics::LinkMetrics;
use crate::shared::GatewayShared;

/// Pause after the system could not accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often links are removed that have had no connection for too long.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) struct LinkCarriers {
    shared: Arc<GatewayShared>,
    listener: Arc<GatewayListener>,
    links: Arc<LinkListener>,
}

impl LinkCarriers {
    pub(crate) fn new(shared: Arc<GatewayShared>, listener: Arc<GatewayListener>) -> Arc<Self> {
        let settings = &shared.settings;
        // Links are taken from `AdmittedCarrier`.
        let (links, _) = LinkListener::new(
            settings.link_config(),
            settings.max_links as usize,
            settings.expiry(),
        );
        Arc::new(Self {
            shared,
            listener,
            links,
        })
    }

    /// Accepts carriers while the listener runs.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut tasks = JoinSet::new();
        loop {
            let socket = self.listener.wait_for_socket().await;
            if let Err(error) = self.accept(&socket, &mut tasks).await {
                let listener = self.listener.name();
                tracing::error!(listener, %error, "cannot listen");
                self.listener.wait_until_stopped().await;
            }
        }
    }

    async fn accept(
        self: &Arc<Self>,
        socket: &GatewaySocket,
        tasks: &mut JoinSet<()>,
    ) -> io::Result<()> {
        let carriers = match socket.try_clone()? {
            socket if socket.local_addr()?.is_unix() => {
                let socket =
                    std::os::unix::net::UnixListener::from(std::os::fd::OwnedFd::from(socket));
                CarrierListener::from_unix(tokio::net::UnixListener::from_std(socket)?)
            }
            socket => CarrierListener::from_tcp(tokio::net::TcpListener::from_std(socket.into())?),
        };
        let mut tls = None;
        let mut expiry = tokio::time::interval(EXPIRY_INTERVAL);
        loop {
            let current = self.listener.tls();
            if let Some(config) = &current
                && !tls.as_ref().is_some_and(|used| Arc::ptr_eq(used, config))
            {
                carriers.set_tls(config)?;
                tls = current;
            }
            let accepted = tokio::select! {
                () = self.listener.wait_until_stopped() => return Ok(()),
                accepted = carriers.accept() => accepted,
                Some(_) = tasks.join_next() => continue,
                _ = expiry.tick() => {
                    self.links.remove_expired();
                    continue;
                }
            };
            let pending = match accepted {
                Ok(pending) => pending,
                Err(error) => {
                    let listener = self.listener.name();
                    tracing::warn!(listener, %error, "cannot accept connections");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            self.listener.wait_for_rate().await;
            if let Some(connection) = self.listener.admit() {
                tasks.spawn(self.clone().serve(pending, connection));
            }
        }
    }

    async fn serve(self: Arc<Self>, pending: PendingCarrier, connection: GatewayConnection) {
        let listener = self.listener.name();
        let peer = pending.peer().map_or(PeerAddress::Unix, PeerAddress::Tcp);
        let metrics = &self.shared.metrics;
        let limit = self.listener.connect_timeout();
        let begun = tokio::time::timeout(limit, async {
            let accepted = pending.complete().await?;
            let AcceptedCarrier {
                carrier,
                certificate,
                ..
            } = accepted;
            let hello = self.links.receive_hello(carrier).await?;
            let link_id = hello.hello().link_id;
            LinkServer::wait_for_acknowledgements(&self.shared, link_id).await;
            let stream = connection.attach(peer, certificate.as_ref())?;
            let login = self.shared.logins.begin(link_id);
            let client = BrokerClient::log_in(stream, hello.hello(), &self.shared.settings).await;
            Ok::<_, CarrierError>((hello, login, client))
        });
        let (hello, login, client) = match begun.await {
            Ok(Ok(begun)) => begun,
            Ok(Err(error)) => {
                LinkMetrics::count(&metrics.carriers_rejected);
                tracing::debug!(listener, %peer, %error, "handshake of a link failed");
                return;
            }
            Err(_) => {
                LinkMetrics::count(&metrics.carriers_rejected);
                tracing::debug!(listener, %peer, "handshake of a link took too long");
                return;
            }
        };
        let ended = match client {
            Ok(client) => {
                LinkMetrics::count(&metrics.carriers);
                self.serve_client(hello, login, client).await
            }
            Err(LoginError { code, text }) => {
                LinkMetrics::count(&metrics.carriers_rejected);
                let rejection = LinkDecision::Reject { code, text };
                self.links.admit(hello, rejection).await.map(drop)
            }
        };
        if let Err(error) = ended {
            tracing::debug!(listener, %peer, %error, "connection of a link ended");
        }
    }

    /// Runs the carrier of a client until it ends.
    async fn serve_client(
        &self,
        hello: PendingLink<BoxedCarrier>,
        login: LinkLogin,
        client: BrokerClient,
    ) -> Result<(), CarrierError> {
        let link_id = hello.hello().link_id;
        let Some(identity) = self.identify(&client).await else {
            // It was disconnected meanwhile.
            return Err(CarrierError::EndOfStream);
        };
        let principal = identity.principal(username(hello.hello()));
        let admitted = self
            .links
            .admit(hello, LinkDecision::Accept { principal })
            .await;
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(error) => {
                let is_kept = client.is_resumed();
                client.leave(is_kept);
                return Err(error);
            }
        };
        let (ended, end) = oneshot::channel();
        // The server of the link notices the end of the carrier when this is dropped.
        let (_carrier, carrier_ended) = oneshot::channel();
        let attached = AttachedClient {
            client,
            identity: Arc::new(identity),
            login,
            ended,
            carrier: carrier_ended,
        };
        let (link, is_known) = (admitted.link().clone(), admitted.is_known());
        if !LinkServer::attach(&self.shared, link_id, &link, is_known, attached).await {
            // Nobody serves the link any more. The peer connects again, and gets a new one.
            admitted.end_link();
            return Err(CarrierError::EndOfStream);
        }
        let end = async {
            match end.await {
                Ok(ClientEnd::Rejected(text)) => Some(ProtocolError {
                    code: ErrorCode::NOT_PERMITTED,
                    detail: text,
                }),
                Ok(ClientEnd::Lost) | Err(_) => None,
            }
        };
        admitted.run_until(end).await
    }

    async fn identify(&self, client: &BrokerClient) -> Option<ClientIdentity> {
        let client_id = client.client_id();
        let device = self.shared.broker.connected_device(client_id).await?;
        let named = device
            .as_ref()
            .map(|device| (device.id.as_str(), device.product.as_str()));
        Some(ClientIdentity {
            owner: self.shared.workers.owner_of_client(client_id, named),
            client_id: client_id.to_owned(),
            device: device.map(|device| device.id),
        })
    }
}

fn username(hello: &Hello) -> Option<&str> {
    match &hello.credentials {
        Credentials::None => None,
        Credentials::Token(token) => Some(token),
        Credentials::UserPassword { user, .. } => Some(user),
    }
}
