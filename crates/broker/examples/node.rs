//! A minimal node on loopback, for profiling the broker without the rest of the program.

use broker::config::{BindAddress, BrokerConfig, ListenerConfig};

fn main() {
    let mut args = std::env::args().skip(1);
    let port: u16 = args
        .next()
        .and_then(|port| port.parse().ok())
        .unwrap_or(1883);
    let shards = args
        .next()
        .and_then(|shards| shards.parse().ok())
        .unwrap_or(1);
    let bind = BindAddress::Tcp(([127, 0, 0, 1], port).into());
    let config = BrokerConfig {
        shards,
        listeners: vec![ListenerConfig::new("mqtt", bind)],
        ..BrokerConfig::default()
    };
    let broker =
        broker::Broker::start(config, hooks::HookChain::default(), None).expect("the port is free");
    println!("listening on {}", broker.listeners()[0].address);
    loop {
        std::thread::park();
    }
}
