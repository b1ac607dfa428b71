//! The same tests over every carrier: TCP, TLS, WebSocket with and without TLS, Unix sockets, QUIC, and memory.

// The workspace allows unwrap in `#[test]` functions; this binary is tests and what they stand on.
#![allow(clippy::unwrap_used)]

mod faulty;
mod migration;
mod nat;
mod network;
mod source_addresses;
mod suite;

/// A module for each carrier, with all tests of [`suite`].
macro_rules! carriers {
    ($($name:ident),+ $(,)?) => {
        $(mod $name {
            use crate::network::Network;
            use crate::suite;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn messages_and_streams_of_every_size_arrive() {
                let network = Network::$name().await;
                suite::messages_and_streams_of_every_size_arrive(network).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn cuts_lose_and_repeat_nothing() {
                let network = Network::$name().await;
                suite::cuts_lose_and_repeat_nothing(network).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn changed_bytes_are_noticed_and_sent_again() {
                let network = Network::$name().await;
                suite::changed_bytes_are_noticed_and_sent_again(network).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn wrong_credentials_are_rejected_with_a_reason() {
                let network = Network::$name().await;
                suite::wrong_credentials_are_rejected_with_a_reason(network).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_shutdown_delivers_what_was_sent() {
                let network = Network::$name().await;
                suite::a_shutdown_delivers_what_was_sent(network).await;
            }
        })+
    };
}

carriers! {
    tcp,
    tls,
    websocket,
    secure_websocket,
    unix_socket,
    quic,
    memory,
}
