//! Carriers come from the local address that the caller names.

use std::net::IpAddr;

use link_carriers::{CarrierAddress, CarrierConnector, CarrierListener};
use tokio::io::AsyncWriteExt as _;

use crate::network::tls;

/// Linux answers on all of 127.0.0.0/8.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn carriers_come_from_their_source_addresses() {
    for scheme in ["tcp", "tls", "ws", "quic"] {
        let (listener, connector) = pair(scheme).await;
        for source in ["127.0.0.2", "127.0.0.3", "127.0.0.2"] {
            let source: IpAddr = source.parse().unwrap();
            let accept = async {
                let pending = listener.accept().await.unwrap();
                let accepted = pending.complete().await.unwrap();
                accepted.peer.unwrap().ip()
            };
            // Over QUIC, the stream exists when its first bytes arrive.
            let open = async {
                let mut carrier = connector.open_from(Some(source)).await.unwrap();
                carrier.write_all(b"x").await.unwrap();
                carrier
            };
            let (peer, _carrier) = tokio::join!(accept, open);
            assert_eq!(peer, source, "{scheme}");
        }
    }
}

#[tokio::test]
async fn a_source_address_of_another_family_is_an_error() {
    for scheme in ["tcp", "quic"] {
        let (_listener, connector) = pair(scheme).await;
        let source = "::1".parse().unwrap();
        let error = connector.open_from(Some(source)).await.err().unwrap();
        assert_eq!(
            error.to_string(),
            "127.0.0.1 has no IPv6 address, which the source address ::1 needs",
            "{scheme}"
        );
    }
}

async fn pair(scheme: &str) -> (CarrierListener, CarrierConnector) {
    let (server, client) = tls();
    let mut address: CarrierAddress = format!("{scheme}://127.0.0.1:0").parse().unwrap();
    let listener = CarrierListener::bind(&address, Some(&server))
        .await
        .unwrap();
    if let CarrierAddress::Network { port, .. } = &mut address {
        *port = listener.local_address().unwrap().port();
    }
    let name = Some("localhost".to_owned());
    let connector = CarrierConnector::new(address, Some(&client), name).unwrap();
    (listener, connector)
}
