//! rumqttc, a client in Rust. Its MQTT 3.1.1 and its MQTT 5 are different types with the same names, so the tests are
//! written once and made for both.

use std::time::Duration;

/// How long a client may take for anything.
const LIMIT: Duration = Duration::from_secs(30);

/// What a client has seen, in the order it came.
#[derive(Debug)]
enum ClientEvent {
    Connected {
        session_present: bool,
    },
    Subscribed,
    /// PUBACK or PUBCOMP.
    Acknowledged,
    Message {
        topic: String,
        qos: u8,
        payload: Vec<u8>,
    },
    // Shown by a failing test.
    Ended(#[allow(dead_code)] String),
}

macro_rules! version {
    ($module:ident, $options:path, $client:path, $event:path, $packet:path, $qos:path, $last_will:path,
     $lasting:expr, $will:expr) => {
        mod $module {
            use std::sync::mpsc::{Receiver, channel};

            use rumqttc::{TlsConfiguration, Transport};
            use $client as RumqttcClient;
            use $event as Event;
            use $last_will as LastWill;
            use $options as MqttOptions;
            use $packet as Packet;
            use $qos as QoS;

            use super::super::{SharedNode, Transport as NodeTransport, own_node};
            use super::{ClientEvent, LIMIT};
            use crate::support::unique;

            struct Peer {
                client: RumqttcClient,
                seen: Receiver<ClientEvent>,
                session_present: bool,
            }

            fn options(transport: NodeTransport, id: &str) -> MqttOptions {
                let node = SharedNode::get();
                let (host, port) = node.host_and_port(transport);
                let mut options = MqttOptions::new(id, host, port);
                if transport == NodeTransport::Tls {
                    let config = node.authority.client_config(None);
                    let config = TlsConfiguration::Rustls(config);
                    options.set_transport(Transport::tls_with_config(config));
                }
                options
            }

            impl Peer {
                fn connect(options: MqttOptions) -> Peer {
                    let (client, mut connection) = RumqttcClient::new(options, 100);
                    let (sender, seen) = channel();
                    std::thread::spawn(move || {
                        for event in connection.iter() {
                            let incoming = match event {
                                Ok(Event::Incoming(packet)) => match understood(packet) {
                                    Some(incoming) => incoming,
                                    None => continue,
                                },
                                Ok(Event::Outgoing(_)) => continue,
                                Err(error) => ClientEvent::Ended(error.to_string()),
                            };
                            let ended = matches!(incoming, ClientEvent::Ended(_));
                            if sender.send(incoming).is_err() || ended {
                                break;
                            }
                        }
                    });
                    let mut peer = Peer {
                        client,
                        seen,
                        session_present: false,
                    };
                    match peer.next() {
                        ClientEvent::Connected { session_present } => {
                            peer.session_present = session_present
                        }
                        other => panic!("{other:?} instead of a CONNACK"),
                    }
                    peer
                }

                fn next(&self) -> ClientEvent {
                    self.seen
                        .recv_timeout(LIMIT)
                        .expect("something happens in time")
                }

                fn subscribe(&self, filter: &str, qos: QoS) {
                    self.client.subscribe(filter, qos).unwrap();
                    match self.next() {
                        ClientEvent::Subscribed => {}
                        other => panic!("{other:?} instead of a SUBACK"),
                    }
                }

                fn message(&self) -> (String, u8, Vec<u8>) {
                    match self.next() {
                        ClientEvent::Message {
                            topic,
                            qos,
                            payload,
                        } => (topic, qos, payload),
                        other => panic!("{other:?} instead of a message"),
                    }
                }

                /// Publishes and waits for the acknowledgement, if there is one.
                fn publish(&self, topic: &str, qos: QoS, retain: bool, payload: &str) {
                    self.client
                        .publish(topic, qos, retain, payload.as_bytes().to_vec())
                        .unwrap();
                    if qos != QoS::AtMostOnce {
                        match self.next() {
                            ClientEvent::Acknowledged => {}
                            other => panic!("{other:?} instead of an acknowledgement"),
                        }
                    }
                }

                fn disconnect(self) {
                    self.client.disconnect().unwrap();
                    loop {
                        if matches!(self.next(), ClientEvent::Ended(_)) {
                            return;
                        }
                    }
                }
            }

            fn understood(packet: Packet) -> Option<ClientEvent> {
                match packet {
                    Packet::ConnAck(connack) => Some(ClientEvent::Connected {
                        session_present: connack.session_present,
                    }),
                    Packet::SubAck(_) => Some(ClientEvent::Subscribed),
                    Packet::PubAck(_) | Packet::PubComp(_) => Some(ClientEvent::Acknowledged),
                    Packet::Publish(publish) => Some(ClientEvent::Message {
                        topic: String::from_utf8_lossy(AsRef::<[u8]>::as_ref(&publish.topic))
                            .into_owned(),
                        qos: publish.qos as u8,
                        payload: publish.payload.to_vec(),
                    }),
                    _ => None,
                }
            }

            fn exchange(transport: NodeTransport) {
                for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
                    let topic = unique("rumqttc/exchange/");
                    let receiver = Peer::connect(options(transport, &unique("rr")));
                    receiver.subscribe(&topic, qos);
                    let sender = Peer::connect(options(transport, &unique("rs")));
                    for number in 0..20 {
                        sender.publish(&topic, qos, false, &number.to_string());
                    }
                    for number in 0..20 {
                        let wanted = (topic.clone(), qos as u8, number.to_string().into_bytes());
                        assert_eq!(receiver.message(), wanted);
                    }
                    sender.disconnect();
                    receiver.disconnect();
                }
            }

            #[test]
            fn rumqttc_exchanges_messages() {
                exchange(NodeTransport::Tcp);
            }

            #[test]
            fn rumqttc_exchanges_messages_over_tls() {
                if own_node() {
                    exchange(NodeTransport::Tls);
                }
            }

            #[test]
            fn rumqttc_gets_a_retained_message() {
                let topic = unique("rumqttc/retained/");
                let sender = Peer::connect(options(NodeTransport::Tcp, &unique("rs")));
                sender.publish(&topic, QoS::AtLeastOnce, true, "kept");
                let receiver = Peer::connect(options(NodeTransport::Tcp, &unique("rr")));
                receiver.subscribe(&topic, QoS::AtLeastOnce);
                assert_eq!(receiver.message(), (topic.clone(), 1, b"kept".to_vec()));
                sender.publish(&topic, QoS::AtLeastOnce, true, "");
                sender.disconnect();
                receiver.disconnect();
            }

            #[test]
            fn rumqttc_resumes_a_session() {
                let (topic, id) = (unique("rumqttc/session/"), unique("rc"));
                let lasting = || {
                    let mut options = options(NodeTransport::Tcp, &id);
                    let lasting: fn(&mut MqttOptions) = $lasting;
                    lasting(&mut options);
                    options
                };
                let first = Peer::connect(lasting());
                assert!(!first.session_present);
                first.subscribe(&topic, QoS::ExactlyOnce);
                first.disconnect();
                let sender = Peer::connect(options(NodeTransport::Tcp, &unique("rs")));
                for number in 0..20 {
                    sender.publish(&topic, QoS::AtLeastOnce, false, &number.to_string());
                }
                let again = Peer::connect(lasting());
                assert!(again.session_present);
                for number in 0..20 {
                    assert_eq!(again.message().2, number.to_string().into_bytes());
                }
                again.disconnect();
                sender.disconnect();
            }

            #[test]
            fn rumqttc_leaves_a_will() {
                let topic = unique("rumqttc/will/");
                let watcher = Peer::connect(options(NodeTransport::Tcp, &unique("rw")));
                watcher.subscribe(&topic, QoS::AtLeastOnce);
                let id = unique("rd");
                let mut pids = options(NodeTransport::Tcp, &id);
                let will: fn(&str) -> LastWill = $will;
                pids.set_last_will(will(&topic));
                let _doomed = Peer::connect(pids);
                // Its client id comes again: the node ends the first connection, and not by the client's wish.
                let _usurper = Peer::connect(options(NodeTransport::Tcp, &id));
                assert_eq!(watcher.message(), (topic, 1, b"gone".to_vec()));
                watcher.disconnect();
            }
        }
    };
}

version!(
    v311,
    rumqttc::MqttOptions,
    rumqttc::Client,
    rumqttc::Event,
    rumqttc::Packet,
    rumqttc::QoS,
    rumqttc::LastWill,
    |options| {
        options.set_clean_session(false);
    },
    |topic| LastWill::new(topic, "gone", QoS::AtLeastOnce, false)
);

version!(
    v5,
    rumqttc::v5::MqttOptions,
    rumqttc::v5::Client,
    rumqttc::v5::Event,
    rumqttc::v5::mqttbytes::v5::Packet,
    rumqttc::v5::mqttbytes::QoS,
    rumqttc::v5::mqttbytes::v5::LastWill,
    |options| {
        options
            .set_clean_start(false)
            .set_session_expiry_interval(Some(600));
    },
    |topic| LastWill::new(topic, "gone", QoS::AtLeastOnce, false, None)
);
