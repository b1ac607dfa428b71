//! A carrier over QUIC continues when the address of the client changes (RFC 9000 section 9).

use std::sync::Arc;

use bytes::Bytes;
use content::RangeSet;
use link::net::{Link, LinkError};
use link::priority::Priority;

use crate::nat::Nat;
use crate::network::Network;
use crate::suite::{content, digest, in_time, new_stream};

/// Several windows of the carrier, so that both ends have to reach each other after each change.
const STREAM_BYTES: usize = 25_000_003;
const BYTES_BETWEEN_CHANGES: usize = 6_000_000;
const PIECE_BYTES: usize = 100_003;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_continues_on_its_carrier_when_the_address_of_the_client_changes() {
    let (mut network, nat) = Network::quic_behind_nat().await;
    let client = network.connect("right", |_| None);
    in_time(async {
        let server = network.links.recv().await.unwrap().link;
        let all = content(STREAM_BYTES, 1);
        let (sent, received) = tokio::join!(send(&client, &all), receive(&server, &nat));
        sent.unwrap();
        assert!(received.unwrap() == all);
        nat.change_port().await;
        let text = Bytes::from_static(b"text");
        for (from, to) in [(&client, &server), (&server, &client)] {
            from.send(Priority::Normal, text.clone()).await.unwrap();
            let message = to.receive().await.unwrap();
            assert_eq!(message.payload.into_bytes(), text);
        }
        for link in [&client, &server] {
            assert_eq!(link.statistics().carriers, 1, "it connects again");
        }
    })
    .await;
    let ends = network.ends.lock().unwrap();
    assert!(ends.is_empty(), "{ends:?}");
}

async fn send(link: &Link, all: &Bytes) -> Result<(), LinkError> {
    let stream = link.send_stream(new_stream(all.len(), 1)).await?;
    for (at, piece) in all.chunks(PIECE_BYTES).enumerate() {
        let piece = Bytes::copy_from_slice(piece);
        stream.write((at * PIECE_BYTES) as u64, piece).await?;
    }
    stream.finish(all.len() as u64, Some(digest(all))).await
}

/// Receives a stream, and changes the address of the client again and again while content is under way.
async fn receive(link: &Link, nat: &Arc<Nat>) -> Result<Vec<u8>, LinkError> {
    let mut stream = link.receive_stream().await?;
    stream.accept(&RangeSet::new());
    let mut received = Vec::new();
    let mut changes = 0;
    while let Ok(chunk) = stream.read().await? {
        received.extend_from_slice(&chunk.bytes);
        stream.acknowledge(chunk.range());
        if received.len() / BYTES_BETWEEN_CHANGES > changes {
            changes += 1;
            nat.change_port().await;
        }
    }
    stream.complete();
    Ok(received)
}
