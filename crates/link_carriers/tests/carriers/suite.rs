//! What a link guarantees over any carrier.

use std::time::Duration;

use bytes::Bytes;
use content::{ContentHasher, DigestAlgorithm};
use link::core::NewStream;
use link::error_code::ErrorCode;
use link::net::{CarrierError, LinkError};
use link::priority::Priority;
use link::wire::control::TransferId;

use crate::faulty::Fault;
use crate::network::Network;

const SIZES: [usize; 16] = [
    0, 1, 2, 1023, 1024, 16_383, 16_384, 65_521, 65_535, 65_536, 65_537, 131_071, 131_072, 262_147,
    999_983, 1_048_575,
];
const STREAM_SIZES: [usize; 7] = [0, 1, 65_535, 65_536, 65_537, 1_048_576, 5_000_011];

/// Content that differs at every position and between seeds.
pub(crate) fn content(len: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// A test that waits for something that never comes must not wait for ever.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, future)
        .await
        .expect("it ends within a minute")
}

pub(crate) async fn messages_and_streams_of_every_size_arrive(mut network: Network) {
    let client = network.connect("right", |_| None);
    in_time(async {
        let server = network.links.recv().await.unwrap().link;
        for (index, size) in SIZES.into_iter().enumerate() {
            let payload = content(size, index as u64);
            client
                .send(Priority::Normal, payload.clone())
                .await
                .unwrap();
            let message = server.receive().await.unwrap();
            assert!(message.payload.into_bytes() == payload, "{size}");
            server.send(Priority::High, payload.clone()).await.unwrap();
            let message = client.receive().await.unwrap();
            assert!(message.payload.into_bytes() == payload, "{size}");
        }
        for (index, size) in STREAM_SIZES.into_iter().enumerate() {
            let all = content(size, 1000 + index as u64);
            for (from, to) in [(&client, &server), (&server, &client)] {
                let new = new_stream(all.len(), index as u8);
                let (sent, received) = tokio::join!(
                    async {
                        let stream = from.send_stream(new).await?;
                        for (at, piece) in all.chunks(100_003).enumerate() {
                            let piece = Bytes::copy_from_slice(piece);
                            stream.write(at as u64 * 100_003, piece).await?;
                        }
                        let digest = digest(&all);
                        stream.finish(all.len() as u64, Some(digest)).await
                    },
                    async { to.receive_stream().await?.read_to_end(6_000_000).await }
                );
                sent.unwrap();
                assert!(received.unwrap() == all, "{size}");
            }
        }
        client.flush().await.unwrap();
    })
    .await;
}

pub(crate) fn new_stream(size: usize, id: u8) -> NewStream {
    NewStream {
        priority: Priority::Bulk,
        transfer_id: TransferId([id; 16]),
        size: Some(size as u64),
        digest: Some(DigestAlgorithm::Blake3),
        metadata: b"name".to_vec(),
        is_resume: false,
    }
}

pub(crate) fn digest(content: &[u8]) -> content::ContentDigest {
    let mut hasher = ContentHasher::new(DigestAlgorithm::Blake3);
    hasher.update(content);
    hasher.finish()
}

/// Sends messages and a stream over carriers with faults, and checks that everything arrives once.
async fn send_over_faults(network: &mut Network, fault: Fault) -> u64 {
    // The first carriers break after 300 kB to 1 MB.
    let client = network.connect("right", move |number| {
        (number < 8).then_some((fault, 300_000 + number * 104_729))
    });
    let server = network.links.recv().await.unwrap().link;
    let all = content(3_000_017, 7);
    let messages = tokio::spawn({
        let client = client.clone();
        async move {
            for number in 0..400_usize {
                let payload = content(number * 7919 % 40_000, number as u64);
                client.send(Priority::Normal, payload).await.unwrap();
            }
        }
    });
    let stream = tokio::spawn({
        let (client, all) = (client.clone(), all.clone());
        async move {
            let stream = client.send_stream(new_stream(all.len(), 1)).await.unwrap();
            for (at, piece) in all.chunks(100_000).enumerate() {
                let piece = Bytes::copy_from_slice(piece);
                stream.write(at as u64 * 100_000, piece).await.unwrap();
            }
            let size = all.len() as u64;
            stream.finish(size, Some(digest(&all))).await.unwrap();
        }
    });
    let received = tokio::spawn({
        let server = server.clone();
        async move {
            let stream = server.receive_stream().await.unwrap();
            stream.read_to_end(4_000_000).await.unwrap()
        }
    });
    for number in 0..400_usize {
        let message = server.receive().await.unwrap();
        let expected = content(number * 7919 % 40_000, number as u64);
        assert!(message.payload.into_bytes() == expected, "{number}");
    }
    messages.await.unwrap();
    stream.await.unwrap();
    assert!(received.await.unwrap() == all);
    client.flush().await.unwrap();
    server.statistics().carriers
}

pub(crate) async fn cuts_lose_and_repeat_nothing(mut network: Network) {
    let carriers = in_time(send_over_faults(&mut network, Fault::Cut)).await;
    assert!(carriers > 8, "{carriers}");
}

pub(crate) async fn changed_bytes_are_noticed_and_sent_again(mut network: Network) {
    in_time(send_over_faults(&mut network, Fault::ChangedByte)).await;
    let ends = network.ends.lock().unwrap();
    let corrupted = ends.iter().filter(|end| match end {
        CarrierError::Protocol(error) => error.code == ErrorCode::CORRUPTED,
        _ => false,
    });
    assert_eq!(corrupted.count(), 8, "{ends:?}");
}

pub(crate) async fn wrong_credentials_are_rejected_with_a_reason(network: Network) {
    let client = network.connect("wrong", |_| None);
    let error = in_time(client.receive()).await.unwrap_err();
    let expected = LinkError::Rejected {
        code: ErrorCode::NOT_AUTHENTICATED,
        text: "wrong token".to_owned(),
    };
    assert_eq!(error, expected);
}

pub(crate) async fn a_shutdown_delivers_what_was_sent(mut network: Network) {
    let client = network.connect("right", |_| None);
    in_time(async {
        let server = network.links.recv().await.unwrap().link;
        for number in 0..100 {
            let payload = content(50_000, number);
            client.send(Priority::Normal, payload).await.unwrap();
        }
        let receiving = tokio::spawn(async move {
            let mut count = 0;
            while server.receive().await.is_ok() {
                count += 1;
            }
            count
        });
        client.shut_down(ErrorCode::NONE, "").await;
        assert_eq!(receiving.await.unwrap(), 100);
        let error = client.send(Priority::Normal, Bytes::new()).await;
        assert_eq!(error.unwrap_err(), LinkError::ShutDown);
    })
    .await;
}
