//! A link over QUIC through a proxy that loses packets.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use link::config::LinkConfig;
use link::net::{ConnectOptions, Link, LinkDecision, LinkListener, connect};
use link_carriers::{CarrierAddress, CarrierConnector, CarrierListener};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::UdpSocket;

use super::peers::new_link_id;

const NAME: &str = "localhost";
/// Largest UDP packet.
const MAX_PACKET_BYTES: usize = 65_535;

/// Packets of a proxy.
#[derive(Debug, Default)]
pub(super) struct PacketCounts {
    pub(super) forwarded: AtomicU64,
    pub(super) lost: AtomicU64,
}

/// Opens a link through a proxy that loses this share of the packets of both directions. Returns both ends.
pub(super) async fn open_pair(loss: f64) -> anyhow::Result<(Link, Link, Arc<PacketCounts>)> {
    let (server, client) = tls_configs()?;
    let listen: CarrierAddress = "quic://127.0.0.1:0".parse()?;
    let carriers = CarrierListener::bind(&listen, Some(&server)).await?;
    let target = carriers.local_address().context("QUIC has an address")?;
    let counts = Arc::new(PacketCounts::default());
    let proxy = UdpSocket::bind("127.0.0.1:0").await?;
    let address: CarrierAddress = format!("quic://{}", proxy.local_addr()?).parse()?;
    tokio::spawn(forward_packets(proxy, target, loss, counts.clone()));
    let (listener, mut links) =
        LinkListener::new(LinkConfig::default(), 1, Duration::from_secs(600));
    tokio::spawn(async move {
        while let Ok(pending) = carriers.accept().await {
            let listener = listener.clone();
            tokio::spawn(async move {
                let decide = |_: &_| LinkDecision::Accept {
                    principal: String::new(),
                };
                if let Ok(accepted) = pending.complete().await {
                    // A broken connection is replaced by the peer.
                    let _ = listener.serve(accepted.carrier, decide).await;
                }
            });
        }
    });
    let connector = CarrierConnector::new(address, Some(&client), Some(NAME.to_owned()))?;
    let connector = Arc::new(connector);
    let link = connect(new_link_id(), ConnectOptions::default(), move || {
        let connector = connector.clone();
        async move { connector.open().await }
    });
    link.connected().await?;
    let accepted = links.recv().await.context("no link was accepted")?;
    Ok((link, accepted.link, counts))
}

/// A certificate of this run, and trust in it.
fn tls_configs() -> anyhow::Result<(Arc<ServerConfig>, ClientConfig)> {
    let key = rcgen::generate_simple_self_signed(vec![NAME.to_owned()])?;
    let certificate = key.cert.der().clone();
    let private = PrivatePkcs8KeyDer::from(key.signing_key.serialize_der());
    let provider = Arc::new(default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], private.into())?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok((Arc::new(server), client))
}

/// Forwards packets of clients to `target` and back, from a socket for each client.
async fn forward_packets(
    proxy: UdpSocket,
    target: SocketAddr,
    loss: f64,
    counts: Arc<PacketCounts>,
) {
    let proxy = Arc::new(proxy);
    let mut clients: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut lottery = LossLottery::new(loss, counts.clone(), 1);
    let mut packet = vec![0; MAX_PACKET_BYTES];
    while let Ok((len, client)) = proxy.recv_from(&mut packet).await {
        let socket = match clients.get(&client) {
            Some(socket) => socket.clone(),
            None => {
                let Ok(socket) = UdpSocket::bind("127.0.0.1:0").await else {
                    return;
                };
                if socket.connect(target).await.is_err() {
                    return;
                }
                let socket = Arc::new(socket);
                clients.insert(client, socket.clone());
                let back = LossLottery::new(loss, counts.clone(), 2);
                tokio::spawn(return_packets(socket.clone(), proxy.clone(), client, back));
                socket
            }
        };
        if !lottery.is_lost() {
            // A full socket loses it, as a router would.
            let _ = socket.send(&packet[..len]).await;
        }
    }
}

async fn return_packets(
    from: Arc<UdpSocket>,
    to: Arc<UdpSocket>,
    client: SocketAddr,
    mut lottery: LossLottery,
) {
    let mut packet = vec![0; MAX_PACKET_BYTES];
    while let Ok(len) = from.recv(&mut packet).await {
        if !lottery.is_lost() {
            let _ = to.send_to(&packet[..len], client).await;
        }
    }
}

/// Decides which packets are lost; the same ones in each run.
struct LossLottery {
    loss: f64,
    state: u64,
    counts: Arc<PacketCounts>,
}

impl LossLottery {
    fn new(loss: f64, counts: Arc<PacketCounts>, seed: u64) -> Self {
        Self {
            loss,
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            counts,
        }
    }

    fn is_lost(&mut self) -> bool {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let is_lost = ((self.state >> 11) as f64 / (1_u64 << 53) as f64) < self.loss;
        let count = if is_lost {
            &self.counts.lost
        } else {
            &self.counts.forwarded
        };
        count.fetch_add(1, Ordering::Relaxed);
        is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_lost_packets_is_as_configured() {
        let counts = Arc::new(PacketCounts::default());
        let mut lottery = LossLottery::new(0.01, counts.clone(), 1);
        let lost = (0..100_000).filter(|_| lottery.is_lost()).count();
        assert!((800..1200).contains(&lost), "{lost}");
        assert_eq!(counts.lost.load(Ordering::Relaxed), lost as u64);
        let mut none = LossLottery::new(0.0, counts, 1);
        assert!((0..1000).all(|_| !none.is_lost()));
    }
}
