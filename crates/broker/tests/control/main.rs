//! Operations of the control plane on a running broker, with clients on real sockets.

// The workspace allows unwrap in `#[test]` functions; this binary contains only tests and their helpers.
#![allow(clippy::unwrap_used)]

mod client;
mod events;
mod listeners;
mod memory;
mod messages;
mod queues;
mod relay;
mod sessions;

use std::future::Future;
use std::time::{Duration, Instant};

use broker::config::{BindAddress, BrokerConfig, ListenerConfig};
use broker::{Broker, BrokerHandle};
use hooks::HookChain;

use client::Client;
use store::Store;

const DEADLINE: Duration = Duration::from_secs(20);

/// A broker of two shards with one listener, stopped at the end.
struct Node {
    broker: Option<Broker>,
    store: Option<Store>,
}

impl Node {
    fn start() -> Self {
        Self::start_with(|_| {})
    }

    fn start_with(change: impl FnOnce(&mut BrokerConfig)) -> Self {
        Self::start_on(None, change)
    }

    /// Starts a broker with a store in a directory.
    fn start_in(directory: &std::path::Path) -> Self {
        Self::start_on_store(directory, store::StoreConfig::default())
    }

    fn start_on_store(directory: &std::path::Path, config: store::StoreConfig) -> Self {
        let (store, _) = Store::open(directory, config).unwrap();
        Self::start_on(Some(store), |_| {})
    }

    fn start_on(store: Option<Store>, change: impl FnOnce(&mut BrokerConfig)) -> Self {
        let bind = BindAddress::Tcp(([127, 0, 0, 1], 0).into());
        let mut config = BrokerConfig {
            shards: 2,
            listeners: vec![ListenerConfig::new("mqtt", bind)],
            ..BrokerConfig::default()
        };
        change(&mut config);
        let broker = Broker::start(config, HookChain::default(), store.clone());
        Self {
            broker: Some(broker.expect("a port is free")),
            store,
        }
    }

    fn handle(&self) -> BrokerHandle {
        self.broker.as_ref().expect("not stopped yet").handle()
    }

    fn address(&self) -> String {
        self.handle().listeners()[0].address.clone()
    }

    fn client(&self, client_id: &str) -> Client {
        Client::connect(&self.address(), client_id, true)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(broker) = self.broker.take() {
            broker.stop();
        }
        if let Some(store) = self.store.take() {
            store.close();
        }
    }
}

/// Blocks until an answer arrives.
fn wait<T>(answer: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(answer)
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
