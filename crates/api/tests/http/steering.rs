//! Tests of changes to a running node: publish, retained messages, queues, subscriptions,
//! listeners, settings.

use broker::control::{QueuedMessage, StoredMessage};
use serde_json::{Value, json};

use crate::access::send;
use crate::client::{get, request};
use crate::fake::{FakeState, Server};
use crate::objects::etag;

fn message(topic: &str, payload: &'static [u8]) -> StoredMessage {
    StoredMessage {
        topic: topic.into(),
        payload: payload.into(),
        qos: 1,
        user_properties: vec![("a".into(), "b".into())],
        ..StoredMessage::default()
    }
}

#[tokio::test]
async fn a_message_is_published_with_everything_it_has() {
    let state = FakeState::with_clients(0);
    let server = Server::start(&state).await;
    let body = json!({
        "topic": "plant/7", "payload": "AP8=", "payload_encoding": "base64", "qos": 2, "retain": true,
        "message_expiry_s": 60, "content_type": "x", "response_topic": "r", "correlation_data": "AQ==",
        "user_properties": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}],
    });
    let answer = send(&server, "", "POST", "/api/v1/publish", &body).await;
    assert_eq!(
        (answer.status, answer.json()),
        (200, json!({"has_subscribers": true})),
        "{}",
        answer.body
    );
    {
        let published = state.published.lock().unwrap();
        let publication = &published[0];
        assert_eq!(
            (&*publication.topic, &*publication.payload),
            ("plant/7", &[0, 255][..])
        );
        assert_eq!((publication.qos, publication.retain), (2, true));
        assert_eq!(publication.correlation_data.as_deref(), Some(&[1][..]));
        assert_eq!(publication.user_properties.len(), 2);
    }
    let cases = [
        (json!({"topic": "a/#"}), 422, "topic"),
        (json!({"topic": "a", "qos": 3}), 422, "qos"),
        (
            json!({"topic": "a", "payload": "%", "payload_encoding": "base64"}),
            422,
            "base64",
        ),
        (json!({"topic": "a", "colour": 1}), 422, "colour"),
        (json!({"payload": "a"}), 422, "topic"),
        (json!({"topic": "full"}), 503, "store"),
    ];
    for (body, status, hint) in cases {
        let answer = send(&server, "", "POST", "/api/v1/publish", &body).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
        assert!(answer.problem().contains(hint), "{}", answer.body);
    }
}

#[tokio::test]
async fn of_a_batch_each_message_is_taken_or_rejected_by_itself() {
    let state = FakeState::with_clients(0);
    let server = Server::start(&state).await;
    let path = "/api/v1/publish/batch";
    let body = json!({"messages": [{"topic": "a"}, {"topic": "a/#"}, {"topic": "b"}]});
    let outcome = send(&server, "", "POST", path, &body).await.json();
    assert_eq!(outcome["published"], 2);
    let taken: Vec<_> = outcome["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["published"])
        .collect();
    assert_eq!(taken, [&json!(true), &json!(false), &json!(true)]);
    assert!(
        outcome["results"][1]["problem"]
            .as_str()
            .unwrap()
            .contains("wildcards")
    );
    let wrong = json!({"messages": [{"topic": "a"}, {"topic": "b", "qos": 3}]});
    let answer = send(&server, "", "POST", path, &wrong).await;
    assert_eq!(answer.status, 422);
    assert!(
        answer.problem().contains("messages[1]: qos"),
        "{}",
        answer.body
    );
    let many: Vec<_> = (0..1001).map(|_| json!({"topic": "a"})).collect();
    for messages in [json!([]), json!(many)] {
        let answer = send(&server, "", "POST", path, &json!({"messages": messages})).await;
        assert_eq!(answer.status, 422);
    }
}

#[tokio::test]
async fn retained_messages_are_listed_shown_and_deleted() {
    let state = FakeState::with_clients(0);
    *state.retained.lock().unwrap() = vec![message("a", b"text"), message("b/c", b"\xff\x00")];
    let server = Server::start(&state).await;
    let first = get(server.address, "/api/v1/retained-messages?limit=1")
        .await
        .json();
    assert_eq!(
        (
            &first["data"][0]["topic"],
            &first["data"][0]["payload_bytes"]
        ),
        (&json!("a"), &json!(4))
    );
    let after = first["next"].as_str().unwrap();
    let second = get(
        server.address,
        &format!("/api/v1/retained-messages?limit=1&after={after}"),
    )
    .await
    .json();
    assert_eq!(
        (&second["data"][0]["topic"], &second["next"]),
        (&json!("b/c"), &Value::Null)
    );
    let text = get(server.address, "/api/v1/retained-messages/a")
        .await
        .json();
    assert_eq!(
        (&text["payload"], &text["payload_encoding"]),
        (&json!("text"), &json!("text"))
    );
    let path = "/api/v1/retained-messages/b%2Fc";
    let bytes = get(server.address, path).await.json();
    assert_eq!(
        (&bytes["payload"], &bytes["payload_encoding"]),
        (&json!("/wA="), &json!("base64"))
    );
    assert_eq!(
        bytes["user_properties"],
        json!([{"name": "a", "value": "b"}])
    );
    assert_eq!(
        send(&server, "", "DELETE", path, &Value::Null).await.status,
        204
    );
    assert_eq!(get(server.address, path).await.status, 404);
    assert_eq!(
        send(&server, "", "DELETE", path, &Value::Null).await.status,
        404
    );
}

#[tokio::test]
async fn a_queue_is_shown_and_emptied() {
    let state = FakeState::with_clients(1);
    *state.queue.lock().unwrap() = (10..13)
        .map(|position| QueuedMessage {
            position,
            packet_id: (position == 10).then_some(7),
            message: message("a", b"text"),
        })
        .collect();
    let server = Server::start(&state).await;
    let path = "/api/v1/sessions/c000/queue";
    let first = get(server.address, &format!("{path}?limit=2")).await.json();
    assert_eq!(first["data"][0]["packet_id"], 7);
    assert_eq!(first["data"][1]["position"], 11);
    let after = first["next"].as_str().unwrap();
    let rest = get(server.address, &format!("{path}?after={after}"))
        .await
        .json();
    assert_eq!(
        (&rest["data"][0]["position"], &rest["next"]),
        (&json!(12), &Value::Null)
    );
    let one = format!("{path}/11");
    for status in [204, 404] {
        let deleted = send(&server, "", "DELETE", &one, &Value::Null).await;
        assert_eq!(deleted.status, status, "{}", deleted.body);
    }
    let wrong = send(&server, "", "DELETE", &format!("{path}/x"), &Value::Null).await;
    assert_eq!(wrong.status, 400);
    let cleared = send(&server, "", "DELETE", path, &Value::Null).await;
    assert_eq!(cleared.json(), json!({"removed": 2}));
    assert_eq!(
        get(server.address, "/api/v1/sessions/nobody/queue")
            .await
            .status,
        404
    );
}

#[tokio::test]
async fn a_client_is_subscribed_and_unsubscribed() {
    let state = FakeState::with_clients(1);
    let server = Server::start(&state).await;
    let path = "/api/v1/sessions/c000/subscriptions";
    let body = json!({"topic_filter": "plant/#", "qos": 1});
    let answer = send(&server, "", "POST", path, &body).await;
    assert_eq!(
        (answer.status, answer.json()),
        (200, json!({"granted_qos": 1}))
    );
    let rows = get(server.address, "/api/v1/subscriptions?client_id=c000")
        .await
        .json();
    assert_eq!(rows["data"][0]["topic_filter"], "plant/#");
    let one = format!("{path}/plant%2F%23");
    assert_eq!(
        send(&server, "", "DELETE", &one, &Value::Null).await.status,
        204
    );
    assert_eq!(
        send(&server, "", "DELETE", &one, &Value::Null).await.status,
        404
    );
    let wrong = send(
        &server,
        "",
        "POST",
        path,
        &json!({"topic_filter": "a", "qos": 9}),
    )
    .await;
    assert_eq!((wrong.status, wrong.problem().contains("qos")), (422, true));
    let nobody = "/api/v1/sessions/nobody/subscriptions";
    assert_eq!(send(&server, "", "POST", nobody, &body).await.status, 404);
}

#[tokio::test]
async fn a_listener_is_stopped_and_started() {
    let state = FakeState::with_clients(0);
    let server = Server::start(&state).await;
    let path = "/api/v1/listeners/mqtt";
    assert_eq!(get(server.address, path).await.json()["running"], true);
    let stop = format!("{path}/stop");
    let stopped = send(
        &server,
        "",
        "POST",
        &stop,
        &json!({"disconnect_clients": true}),
    )
    .await;
    assert_eq!(
        (stopped.status, &stopped.json()["running"]),
        (200, &json!(false))
    );
    assert_eq!(
        send(&server, "", "POST", &stop, &Value::Null).await.status,
        409
    );
    let wrong = send(&server, "", "POST", &stop, &json!({"force": true})).await;
    assert_eq!(wrong.status, 422);
    let started = send(&server, "", "POST", &format!("{path}/start"), &Value::Null).await;
    assert_eq!(
        (started.status, &started.json()["running"]),
        (200, &json!(true))
    );
    let unknown = send(
        &server,
        "",
        "POST",
        "/api/v1/listeners/x/stop",
        &Value::Null,
    )
    .await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn settings_are_shown_and_some_change() {
    let state = FakeState::with_clients(0);
    let server = Server::start(&state).await;
    let all = get(server.address, "/api/v1/settings").await.json();
    assert_eq!(all["data"].as_array().unwrap().len(), 3);
    let some = get(
        server.address,
        "/api/v1/settings?changeable=true&key_contains=qos",
    )
    .await
    .json();
    assert_eq!(some["data"][0]["key"], "limits.max_qos");
    let path = "/api/v1/settings/limits.max_qos";
    let changed = send(&server, "", "PUT", path, &json!({"value": 1})).await;
    assert_eq!((changed.status, &changed.json()["value"]), (200, &json!(1)));
    assert_eq!(
        send(&server, "", "PUT", path, &json!({"value": 7}))
            .await
            .status,
        422
    );
    let fixed = send(
        &server,
        "",
        "PUT",
        "/api/v1/settings/listener.mqtt.bind",
        &json!({"value": "x"}),
    )
    .await;
    assert_eq!(
        (fixed.status, fixed.problem().contains("restart the node")),
        (409, true)
    );
    assert_eq!(
        get(server.address, "/api/v1/settings/nothing").await.status,
        404
    );
}

#[tokio::test]
async fn a_setting_changes_only_from_the_version_that_was_read() {
    let state = FakeState::with_clients(0);
    let server = Server::start(&state).await;
    let path = "/api/v1/settings/limits.max_qos";
    let read = get(server.address, path).await;
    let seen = format!("If-Match: {}\r\n", etag(&read.head));
    let known = format!("If-None-Match: {}\r\n", etag(&read.head));
    let unchanged = request(server.address, "GET", path, &known, "").await;
    assert_eq!((unchanged.status, unchanged.body.as_str()), (304, ""));
    let changed = send(&server, &seen, "PUT", path, &json!({"value": 1})).await;
    assert_eq!((changed.status, &changed.json()["value"]), (200, &json!(1)));
    for (method, body) in [("PUT", json!({"value": 0})), ("DELETE", Value::Null)] {
        let late = send(&server, &seen, method, path, &body).await;
        assert_eq!(late.status, 412);
        assert!(
            late.problem().contains(&etag(&changed.head)),
            "{}",
            late.body
        );
    }
    assert_eq!(get(server.address, path).await.json()["value"], 1);
    let seen = format!("If-Match: {}\r\n", etag(&changed.head));
    let reset = send(&server, &seen, "DELETE", path, &Value::Null).await;
    assert_eq!((reset.status, &reset.json()["value"]), (200, &json!(2)));
}

#[tokio::test]
async fn the_rule_language_is_described_for_editors() {
    let state = FakeState::with_clients(0);
    let server = Server::start(&state).await;
    let language = get(server.address, "/api/v1/rule-language").await.json();
    let named = |list: &str, name: &str| {
        let entries = language[list].as_array().expect("a list");
        let entry = entries.iter().find(|entry| entry["name"] == name);
        entry
            .cloned()
            .unwrap_or_else(|| panic!("{list} contains {name}"))
    };
    let upper = named("functions", "upper");
    assert_eq!(upper["family"], "Text");
    assert!(upper["help"].as_str().is_some_and(|help| !help.is_empty()));
    assert!(
        upper["example"]
            .as_str()
            .is_some_and(|text| text.contains("upper"))
    );
    assert_eq!(
        named("fields", "clientId")["aliases"],
        json!(["clientid", "client_id"])
    );
    assert_eq!(
        named("sources", "$EVENT.CONNECT")["aliases"],
        json!(["$events/client/connected"])
    );
    named("aggregates", "percentile");
    named("windows", "tumbling(10s)");
}
