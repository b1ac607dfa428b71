//! A NAT between clients and a server, which may give the client another port.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

const MAX_DATAGRAM_BYTES: usize = 65_536;

/// Forwards the datagrams of one client to a server.
pub(crate) struct Nat {
    inside: UdpSocket,
    server: SocketAddr,
    client: OnceLock<SocketAddr>,
    mapping: Mutex<Option<NatMapping>>,
}

/// The address that the server sees.
struct NatMapping {
    outside: Arc<UdpSocket>,
    answers: AbortHandle,
}

impl Nat {
    pub(crate) async fn start(server: SocketAddr) -> Arc<Self> {
        let nat = Arc::new(Self {
            inside: UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            server,
            client: OnceLock::new(),
            mapping: Mutex::default(),
        });
        nat.change_port().await;
        let forwarding = nat.clone();
        tokio::spawn(async move { forwarding.forward_requests().await });
        nat
    }

    /// Where the client finds the server.
    pub(crate) fn address(&self) -> SocketAddr {
        self.inside.local_addr().unwrap()
    }

    /// From now on the server sees the client at another port. What it sends to the former one is lost.
    pub(crate) async fn change_port(self: &Arc<Self>) {
        let outside = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        outside.connect(self.server).await.unwrap();
        let (nat, socket) = (self.clone(), outside.clone());
        let answers = tokio::spawn(async move { nat.forward_answers(&socket).await });
        let mapping = NatMapping {
            outside,
            answers: answers.abort_handle(),
        };
        let former = self.mapping.lock().unwrap().replace(mapping);
        if let Some(former) = former {
            former.answers.abort();
        }
    }

    fn outside(&self) -> Option<Arc<UdpSocket>> {
        let mapping = self.mapping.lock().unwrap();
        mapping.as_ref().map(|mapping| mapping.outside.clone())
    }

    async fn forward_requests(&self) {
        let mut datagram = vec![0; MAX_DATAGRAM_BYTES];
        while let Ok((len, client)) = self.inside.recv_from(&mut datagram).await {
            let known = self.client.get_or_init(|| client);
            assert_eq!(*known, client, "it serves one client");
            if let Some(outside) = self.outside() {
                // A datagram that cannot be sent is lost.
                let _ = outside.send(&datagram[..len]).await;
            }
        }
    }

    async fn forward_answers(&self, outside: &UdpSocket) {
        let mut datagram = vec![0; MAX_DATAGRAM_BYTES];
        while let Ok(len) = outside.recv(&mut datagram).await {
            if let Some(client) = self.client.get() {
                let _ = self.inside.send_to(&datagram[..len], client).await;
            }
        }
    }
}
