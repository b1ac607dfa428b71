//! What the tests connect over: one listener of each kind, and connections with faults.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use link::config::LinkConfig;
use link::error_code::ErrorCode;
use link::net::{
    AcceptedLink, CarrierError, ConnectOptions, Link, LinkDecision, LinkListener, MemoryNetwork,
    connect,
};
use link::wire::handshake::{Credentials, Hello, LinkId};
use link_carriers::{BoxedCarrier, CarrierAddress, CarrierConnector, CarrierListener};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::sync::mpsc;

use crate::faulty::{Fault, FaultyCarrier};
use crate::nat::Nat;

/// A listener and the way to it.
pub(crate) struct Network {
    route: Route,
    listener: Arc<LinkListener>,
    pub(crate) links: mpsc::Receiver<AcceptedLink>,
    /// Why accepted carriers ended.
    pub(crate) ends: Arc<Mutex<Vec<CarrierError>>>,
    /// Removed with the network.
    _dir: Option<tempfile::TempDir>,
}

#[derive(Clone)]
enum Route {
    Memory(MemoryNetwork),
    Connector(Arc<CarrierConnector>),
}

fn decide(hello: &Hello) -> LinkDecision {
    match &hello.credentials {
        Credentials::Token(token) if token == "right" => LinkDecision::Accept {
            principal: "device".to_owned(),
        },
        _ => LinkDecision::Reject {
            code: ErrorCode::NOT_AUTHENTICATED,
            text: "wrong token".to_owned(),
        },
    }
}

pub(crate) fn tls() -> (Arc<ServerConfig>, ClientConfig) {
    let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = key.cert.der().clone();
    let private = PrivatePkcs8KeyDer::from(key.signing_key.serialize_der());
    let server = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], private.into())
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server), client)
}

impl Network {
    pub(crate) async fn tcp() -> Self {
        Self::start("tcp://127.0.0.1:0", None).await
    }

    pub(crate) async fn tls() -> Self {
        Self::start("tls://127.0.0.1:0", None).await
    }

    pub(crate) async fn websocket() -> Self {
        Self::start("ws://127.0.0.1:0/a/link", None).await
    }

    pub(crate) async fn secure_websocket() -> Self {
        Self::start("wss://127.0.0.1:0", None).await
    }

    pub(crate) async fn quic() -> Self {
        Self::start("quic://127.0.0.1:0", None).await
    }

    /// A NAT is between the clients and the listener.
    pub(crate) async fn quic_behind_nat() -> (Self, Arc<Nat>) {
        let mut address: CarrierAddress = "quic://127.0.0.1:0".parse().unwrap();
        let (carriers, client) = bind(&address).await;
        let nat = Nat::start(carriers.local_address().unwrap()).await;
        set_port(&mut address, nat.address());
        (Self::accept(carriers, address, &client, None), nat)
    }

    pub(crate) async fn unix_socket() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = format!("unix://{}/link.sock", dir.path().display());
        Self::start(&address, Some(dir)).await
    }

    pub(crate) async fn memory() -> Self {
        Self::new(Route::Memory(MemoryNetwork::default()), None)
    }

    fn new(route: Route, dir: Option<tempfile::TempDir>) -> Self {
        let (listener, links) =
            LinkListener::new(LinkConfig::default(), 10, Duration::from_secs(600));
        Self {
            route,
            listener,
            links,
            ends: Arc::default(),
            _dir: dir,
        }
    }

    async fn start(address: &str, dir: Option<tempfile::TempDir>) -> Self {
        let mut address: CarrierAddress = address.parse().unwrap();
        let (carriers, client) = bind(&address).await;
        if let Some(bound) = carriers.local_address() {
            set_port(&mut address, bound);
        }
        Self::accept(carriers, address, &client, dir)
    }

    /// Serves the carriers of a listener, which clients find at `address`.
    fn accept(
        carriers: CarrierListener,
        address: CarrierAddress,
        client: &ClientConfig,
        dir: Option<tempfile::TempDir>,
    ) -> Self {
        let name = Some("localhost".to_owned());
        let connector = CarrierConnector::new(address, Some(client), name).unwrap();
        let network = Self::new(Route::Connector(Arc::new(connector)), dir);
        let (listener, ends) = (network.listener.clone(), network.ends.clone());
        tokio::spawn(async move {
            loop {
                let pending = carriers.accept().await.unwrap();
                let (listener, ends) = (listener.clone(), ends.clone());
                tokio::spawn(async move {
                    let accepted = pending.complete().await.unwrap();
                    serve(&listener, accepted.carrier, &ends).await;
                });
            }
        });
        network
    }

    /// Opens a link. Its carriers have the faults that `faults` returns for their numbers.
    pub(crate) fn connect(
        &self,
        token: &str,
        faults: impl Fn(usize) -> Option<(Fault, usize)> + Send + Sync + 'static,
    ) -> Link {
        static LINKS: AtomicU8 = AtomicU8::new(1);
        let id = LinkId([LINKS.fetch_add(1, Ordering::Relaxed); 16]);
        let options = ConnectOptions {
            credentials: Credentials::Token(token.to_owned()),
            reconnect_pause: Duration::from_millis(5),
            ..ConnectOptions::default()
        };
        let (route, listener, ends) =
            (self.route.clone(), self.listener.clone(), self.ends.clone());
        let opened = AtomicUsize::new(0);
        connect(id, options, move || {
            let fault = faults(opened.fetch_add(1, Ordering::Relaxed));
            let (route, listener, ends) = (route.clone(), listener.clone(), ends.clone());
            async move {
                let carrier = open(route, listener, ends).await?;
                Ok(FaultyCarrier::new(carrier, fault))
            }
        })
    }
}

/// Opens a listener; returns also the TLS configuration of its clients.
async fn bind(address: &CarrierAddress) -> (CarrierListener, ClientConfig) {
    let (server, client) = tls();
    let carriers = CarrierListener::bind(address, Some(&server)).await;
    (carriers.unwrap(), client)
}

fn set_port(address: &mut CarrierAddress, of: SocketAddr) {
    if let CarrierAddress::Network { port, .. } = address {
        *port = of.port();
    }
}

async fn open(
    route: Route,
    listener: Arc<LinkListener>,
    ends: Arc<Mutex<Vec<CarrierError>>>,
) -> io::Result<BoxedCarrier> {
    match route {
        Route::Connector(connector) => connector.open().await,
        Route::Memory(network) => {
            let (near, far) = network.open()?;
            tokio::spawn(async move { serve(&listener, Box::new(far), &ends).await });
            Ok(Box::new(near))
        }
    }
}

async fn serve(listener: &LinkListener, carrier: BoxedCarrier, ends: &Mutex<Vec<CarrierError>>) {
    if let Err(error) = listener.serve(carrier, decide).await {
        ends.lock().unwrap().push(error);
    }
}
