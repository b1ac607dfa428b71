//! Sources in a connector service.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use connect::connector::BoxFuture;
use connect::{
    ConnectorService, ConnectorServiceOptions, SourceMessage, SourceMessageHandler, SourceState,
};
use serde_json::json;
use testkit::{PASSWORD, ServerKind, TestServer, USER};
use tokio::runtime::Runtime;

use crate::bench::until;

#[derive(Default)]
struct Rules(Mutex<Vec<(String, String)>>);

impl SourceMessageHandler for Rules {
    fn handle<'a>(
        &'a self,
        kind: &'a str,
        name: &'a str,
        message: SourceMessage,
    ) -> BoxFuture<'a, ()> {
        let seen = (format!("{kind}:{name}"), message.topic);
        self.0.lock().unwrap().push(seen);
        Box::pin(std::future::ready(()))
    }
}

#[test]
fn sources_come_and_go_with_their_connectors() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Nats) else {
        return;
    };
    let runtime = Runtime::new().unwrap();
    let options = ConnectorServiceOptions {
        directory: None,
        shards: 1,
    };
    let service = ConnectorService::new(runtime.handle().clone(), options);
    let source = json!({"connector": "c", "subjects": ["a.>"]});
    assert_eq!(
        service.check_source(&source).unwrap_err().field,
        "connector"
    );
    service.set_source("in", &source).unwrap();
    let status = || service.sources().remove(0);
    assert_eq!(status().state, SourceState::NoConnector);
    let connector = json!({
        "type": "nats", "servers": [server.address().to_string()], "username": USER, "password": PASSWORD
    });
    service.set_connector("c", &connector).unwrap();
    assert_eq!(
        (status().state, status().received),
        (SourceState::Running, 0)
    );
    service.check_source(&source).unwrap();
    let wrong = json!({"connector": "c", "subjects": ["a..b"]});
    assert_eq!(
        service.check_source(&wrong).unwrap_err().field,
        "subjects[0]"
    );
    let rules = Arc::new(Rules::default());
    service.set_source_handler(rules.clone());
    let arrives = |topic: &str| {
        let mut client = server.nats();
        until(topic, || {
            client.publish(topic, "x");
            let expected = ("nats:in".to_owned(), topic.to_owned());
            rules.0.lock().unwrap().contains(&expected).then_some(())
        })
        .unwrap_or_else(|| panic!("{:?}", status()));
    };
    arrives("a.first");
    assert!(status().received > 0);
    server.kill();
    until("it is noticed", || (status().failures > 0).then_some(())).unwrap();
    assert!(status().last_error.is_some());
    server.start();
    arrives("a.second");
    // A new connector of the same name takes over immediately.
    service.set_connector("c", &connector).unwrap();
    arrives("a.third");
    let disabled = json!({"connector": "c", "subjects": ["a.>"], "enabled": false});
    service.set_source("in", &disabled).unwrap();
    assert_eq!(status().state, SourceState::Disabled);
    // Only some connector kinds have sources.
    let kind = json!({"type": "clickhouse", "urls": ["http://127.0.0.1:1"]});
    service.set_connector("other", &kind).unwrap();
    let wrong = json!({"connector": "other"});
    assert_eq!(service.check_source(&wrong).unwrap_err().field, "connector");
    service.remove_source("in");
    assert!(service.sources().is_empty());
    runtime.block_on(service.stop(Duration::from_secs(5)));
}
