//! Stopping, starting, adding and removing listeners.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use broker::config::{BindAddress, ListenerConfig};
use broker::control::ListenerError;
use mqtt::{QoS, ReasonCode};

use crate::client::ReceivedPacket;
use crate::{Node, eventually, wait};

#[test]
fn a_stopped_listener_keeps_its_connections_and_restarts_on_its_address() {
    let node = Node::start();
    let handle = node.handle();
    let address = node.address();
    let mut client = node.client("stays");
    assert_eq!(wait(handle.stop_listener("mqtt", false)), Ok(()));
    assert!(TcpStream::connect(&address).is_err());
    assert!(!handle.listeners()[0].running);
    client.subscribe("still/works", QoS::AtMostOnce);
    assert_eq!(
        wait(handle.stop_listener("mqtt", false)),
        Err(ListenerError::AlreadyInState("stopped"))
    );
    for _ in 0..3 {
        assert_eq!(wait(handle.start_listener("mqtt")), Ok(()));
        let listener = &handle.listeners()[0];
        assert_eq!((&listener.address, listener.running), (&address, true));
        assert_eq!(
            wait(handle.start_listener("mqtt")),
            Err(ListenerError::AlreadyInState("running"))
        );
        node.client("comes back");
        assert_eq!(wait(handle.stop_listener("mqtt", false)), Ok(()));
    }
}

#[test]
fn stopping_a_listener_disconnects_only_its_own_clients() {
    let node = Node::start_with(|config| {
        let bind = BindAddress::Tcp(([127, 0, 0, 1], 0).into());
        config.listeners.push(ListenerConfig::new("second", bind));
    });
    let handle = node.handle();
    let mut clients: Vec<_> = (0..10).map(|n| node.client(&format!("c{n}"))).collect();
    let second = handle.listeners()[1].address.clone();
    let mut other = crate::client::Client::connect(&second, "other", true);
    let silent = TcpStream::connect(node.address()).unwrap();
    eventually("the silent one is there", || {
        handle.listeners()[0].connections == 11
    });
    assert_eq!(wait(handle.stop_listener("mqtt", true)), Ok(()));
    for client in &mut clients {
        assert_eq!(
            client.next(),
            ReceivedPacket::Disconnect(ReasonCode::ADMINISTRATIVE_ACTION)
        );
    }
    drop(clients);
    drop(silent);
    eventually("all connections are gone", || {
        handle.listeners()[0].connections == 0
    });
    other.subscribe("still/works", QoS::AtMostOnce);
}

#[test]
fn a_unix_listener_restarts_and_a_port_in_use_is_reported() {
    let path = std::env::temp_dir().join(format!("tidegate-control-{}.sock", std::process::id()));
    let bind = BindAddress::Unix(path.clone());
    let node = Node::start_with(|config| config.listeners.push(ListenerConfig::new("unix", bind)));
    let handle = node.handle();
    assert_eq!(wait(handle.stop_listener("unix", false)), Ok(()));
    assert!(!path.exists());
    assert_eq!(wait(handle.start_listener("unix")), Ok(()));
    UnixStream::connect(&path).unwrap();

    assert_eq!(wait(handle.stop_listener("mqtt", false)), Ok(()));
    let taken = std::net::TcpListener::bind(node.address()).unwrap();
    let rejected = wait(handle.start_listener("mqtt"));
    assert!(
        matches!(rejected, Err(ListenerError::Failed(_))),
        "{rejected:?}"
    );
    assert!(!handle.listeners()[0].running);
    drop(taken);
    assert_eq!(
        wait(handle.start_listener("none")),
        Err(ListenerError::UnknownListener("none".into()))
    );
    drop(node);
    assert!(!path.exists());
}

#[test]
fn a_listener_is_added_and_removed_with_its_clients() {
    let node = Node::start();
    let handle = node.handle();
    let address: std::net::SocketAddr = ([127, 0, 0, 1], 0).into();
    let added = ListenerConfig::new("added", BindAddress::Tcp(address));
    assert_eq!(wait(handle.add_listener(&added)), Ok(()));
    assert_eq!(
        wait(handle.add_listener(&added)),
        Err(ListenerError::NameInUse("added".into()))
    );
    let address = handle.listeners()[1].address.clone();
    let mut client = crate::client::Client::connect(&address, "c", true);
    client.subscribe("works", QoS::AtMostOnce);
    assert_eq!(handle.listeners()[1].connections, 1);

    // Stopped and started like any other.
    assert_eq!(wait(handle.stop_listener("added", false)), Ok(()));
    assert!(TcpStream::connect(&address).is_err());
    assert_eq!(wait(handle.start_listener("added")), Ok(()));
    assert_eq!(handle.listeners()[1].address, address);

    assert_eq!(wait(handle.remove_listener("added")), Ok(()));
    assert_eq!(
        client.next(),
        ReceivedPacket::Disconnect(ReasonCode::ADMINISTRATIVE_ACTION)
    );
    assert!(TcpStream::connect(&address).is_err());
    assert_eq!(handle.listeners().len(), 1);
    assert_eq!(
        wait(handle.remove_listener("added")),
        Err(ListenerError::UnknownListener("added".into()))
    );
    let configured = wait(handle.remove_listener("mqtt"));
    assert!(
        matches!(configured, Err(ListenerError::Unsupported(_))),
        "{configured:?}"
    );
}

#[test]
fn added_listeners_are_limited_and_a_port_in_use_is_reported() {
    let node = Node::start();
    let handle = node.handle();
    let listener = |n: usize, port| {
        let bind = BindAddress::Tcp(([127, 0, 0, 1], port).into());
        ListenerConfig::new(format!("added-{n}"), bind)
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let used = listener(0, taken.local_addr().unwrap().port());
    let rejected = wait(handle.add_listener(&used));
    assert!(
        matches!(&rejected, Err(ListenerError::Failed(why)) if why.contains("in use")),
        "{rejected:?}"
    );
    for n in 0..broker::config::MAX_ADDED_LISTENERS {
        assert_eq!(wait(handle.add_listener(&listener(n, 0))), Ok(()));
    }
    let most = wait(handle.add_listener(&listener(999, 0)));
    assert!(
        matches!(most, Err(ListenerError::Unsupported(_))),
        "{most:?}"
    );
    // The place of a removed listener is used again, with its own limits.
    assert_eq!(wait(handle.remove_listener("added-7")), Ok(()));
    let mut next = listener(1000, 0);
    next.max_connections = 1;
    assert_eq!(wait(handle.add_listener(&next)), Ok(()));
    let found = handle.listeners().into_iter();
    let address = found.clone().find(|it| it.name == "added-1000").unwrap();
    assert_eq!(address.max_connections, 1);
    let _first = crate::client::Client::connect(&address.address, "first", true);
    let mut second = TcpStream::connect(&address.address).unwrap();
    let read = std::io::Read::read(&mut second, &mut [0; 1]);
    assert!(matches!(read, Ok(0) | Err(_)), "closed at the limit");
}
