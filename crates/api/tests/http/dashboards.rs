//! Dashboards: versions, and share links that show one dashboard and nothing else.

use std::time::Duration;

use hooks::{HooksFactory as _, MessageOrigin, MessageView};
use serde_json::{Value, json};
use tokio::time::timeout;
use wall_clock::now_ms;

use crate::access::{bearer, local, send};
use crate::client::{HttpResponse, request};
use crate::fake::{FakeState, Server};

const JSON: &str = "Content-Type: application/json\r\n";

async fn admin(server: &Server, method: &str, path: &str, body: Value) -> HttpResponse {
    send(server, &local(), method, &format!("/api/v1/{path}"), &body).await
}

async fn created(server: &Server, path: &str, body: Value) -> Value {
    let answer = admin(server, "POST", path, body).await;
    assert_eq!(answer.status, 201, "{path}: {}", answer.body);
    answer.json()
}

fn card(id: &str, sources: Value) -> Value {
    json!({"id": id, "kind": "status", "x": 0, "y": 0, "w": 6, "h": 4, "sources": sources})
}

/// A server with a device in each of two namespaces, and a dashboard in one of them.
async fn server() -> Server {
    let server = Server::closed(&FakeState::with_clients(0)).await;
    for namespace in ["acme", "other"] {
        created(&server, "namespaces", json!({"id": namespace})).await;
        let product = json!({"namespace": namespace});
        let absent = store::ExpectedVersion::Absent;
        server
            .objects
            .put("product", &format!("{namespace}-product"), product, absent)
            .unwrap();
        let device = json!({
            "id": format!("{namespace}-pump"), "name": "Pump", "product": format!("{namespace}-product"),
        });
        created(&server, "devices", device).await;
    }
    let cards = json!([
        card(
            "own",
            json!([{"type": "devices", "device": "acme-pump"}, {"type": "alarms"}])
        ),
        card(
            "foreign",
            json!([{"type": "devices", "device": "other-pump"}])
        ),
    ]);
    let dashboard = json!({"id": "plant", "namespace": "acme", "name": "Plant", "cards": cards});
    created(&server, "dashboards", dashboard).await;
    server
}

async fn shared(server: &Server, token: &str, path: &str) -> HttpResponse {
    let path = format!("/api/v1/{path}");
    request(server.address, "GET", &path, &bearer(token), "").await
}

#[tokio::test]
async fn the_second_of_two_editors_gets_a_conflict() {
    let server = server().await;
    let read = admin(&server, "GET", "dashboards/plant", Value::Null).await;
    let mut dashboard = read.json();
    let version = dashboard["version"].as_u64().unwrap();
    dashboard["cards"][0]["config"] = json!({"unit": "bar"});
    let fields = format!("{}{JSON}If-Match: \"{version}\"\r\n", local());
    let put = |body: String| {
        let (address, fields) = (server.address, fields.clone());
        async move { request(address, "PUT", "/api/v1/dashboards/plant", &fields, &body).await }
    };
    let first = put(dashboard.to_string()).await;
    assert_eq!(first.status, 200, "{}", first.body);
    assert_eq!(first.json()["cards"][0]["config"]["unit"], "bar");
    let second = put(dashboard.to_string()).await;
    assert_eq!(second.status, 412, "{}", second.body);
}

#[tokio::test]
async fn a_share_link_shows_its_dashboard_and_nothing_else() {
    let server = server().await;
    let share = created(
        &server,
        "dashboards/plant/shares",
        json!({"description": "wall"}),
    )
    .await;
    let token = share["token"].as_str().unwrap().to_owned();
    let shown = shared(&server, &token, "kiosk/dashboard").await;
    assert_eq!(shown.status, 200, "{}", shown.body);
    assert_eq!(shown.json()["name"], "Plant");
    assert_eq!(shown.json()["cards"].as_array().unwrap().len(), 2);

    let own = shared(&server, &token, "kiosk/cards/own/data").await.json();
    assert_eq!(
        own["sources"],
        json!([
            {
                "type": "devices", "is_truncated": false,
                "devices": [{
                    "device": "acme-pump", "name": "Pump", "product": "acme-product", "state": "notActive",
                }],
            },
            {"type": "alarms", "alarms": [], "is_truncated": false},
        ])
    );
    // A dashboard of one namespace shows no device of another one, to nobody.
    let foreign = json!([{"type": "problem", "detail": "There is no device \"other-pump\"."}]);
    let seen = shared(&server, &token, "kiosk/cards/foreign/data").await;
    assert_eq!(seen.json()["sources"], foreign);
    let path = "dashboards/plant/cards/foreign/data";
    let seen = admin(&server, "GET", path, Value::Null).await;
    assert_eq!(seen.json()["sources"], foreign);

    let absent = shared(&server, &token, "kiosk/cards/none/data").await;
    assert_eq!(absent.status, 404, "{}", absent.body);
    for path in [
        "dashboards/plant",
        "devices",
        "devices/acme-pump",
        "me",
        "clients",
    ] {
        let rejected = shared(&server, &token, path).await;
        assert_eq!(rejected.status, 401, "{path}: {}", rejected.body);
    }
    // Neither the dashboard nor the audit log contains the token or its hash.
    for path in ["dashboards/plant", "dashboards/plant/shares", "audit-log"] {
        let body = admin(&server, "GET", path, Value::Null).await.body;
        assert!(
            !body.contains("token_hash") && !body.contains(&token),
            "{path}: {body}"
        );
    }
}

#[tokio::test]
async fn a_revoked_share_link_shows_nothing() {
    let server = server().await;
    let share = created(&server, "dashboards/plant/shares", json!({})).await;
    let other = created(&server, "dashboards/plant/shares", json!({})).await;
    let tokens = [&share, &other].map(|share| share["token"].as_str().unwrap().to_owned());
    // A change of the dashboard keeps the links.
    let dashboard = admin(&server, "GET", "dashboards/plant", Value::Null)
        .await
        .json();
    assert_eq!(dashboard["shares"].as_array().unwrap().len(), 2);
    let put = admin(&server, "PUT", "dashboards/plant", dashboard).await;
    assert_eq!(put.status, 200, "{}", put.body);
    let path = format!("dashboards/plant/shares/{}", share["id"].as_str().unwrap());
    assert_eq!(
        admin(&server, "DELETE", &path, Value::Null).await.status,
        204
    );
    assert_eq!(
        admin(&server, "DELETE", &path, Value::Null).await.status,
        404
    );
    assert_eq!(
        shared(&server, &tokens[0], "kiosk/dashboard").await.status,
        401
    );
    assert_eq!(
        shared(&server, &tokens[1], "kiosk/dashboard").await.status,
        200
    );

    let disabled = json!({"state": "disabled", "reason": "The contract has ended."});
    admin(&server, "PUT", "namespaces/acme", disabled).await;
    assert_eq!(
        shared(&server, &tokens[1], "kiosk/dashboard").await.status,
        401
    );
    admin(&server, "PUT", "namespaces/acme", json!({})).await;
    // A later dashboard with the same id has other links.
    let removed = admin(&server, "DELETE", "dashboards/plant", Value::Null).await;
    assert_eq!(removed.status, 204);
    created(
        &server,
        "dashboards",
        json!({"id": "plant", "namespace": "acme"}),
    )
    .await;
    assert_eq!(
        shared(&server, &tokens[1], "kiosk/dashboard").await.status,
        401
    );
    for token in ["", "kiosk", "kiosk..", "kiosk.cGxhbnQ.x"] {
        assert_eq!(
            shared(&server, token, "kiosk/dashboard").await.status,
            401,
            "{token:?}"
        );
    }
}

#[tokio::test]
async fn the_links_of_a_dashboard_are_limited() {
    let server = server().await;
    let past = json!({"expires_at_ms": 1});
    let rejected = admin(&server, "POST", "dashboards/plant/shares", past).await;
    assert_eq!(rejected.status, 422, "{}", rejected.body);
    for _ in 0..20 {
        created(&server, "dashboards/plant/shares", json!({})).await;
    }
    let full = admin(&server, "POST", "dashboards/plant/shares", json!({})).await;
    assert_eq!(full.status, 409, "{}", full.body);
}

#[tokio::test]
async fn a_share_link_shows_the_topics_and_metrics_of_its_cards_only() {
    let server = server().await;
    let cards = json!([
        card(
            "topic",
            json!([{"type": "topics", "topics": ["plant/1", "plant/2"]}])
        ),
        card(
            "metric",
            json!([{"type": "node", "metrics": ["connections"]}])
        ),
        card("unknown", json!([{"type": "node", "metrics": ["none"]}])),
    ]);
    let of_namespace = json!({"id": "acme-node", "namespace": "acme", "cards": cards});
    let rejected = admin(&server, "POST", "dashboards", of_namespace).await;
    assert_eq!(rejected.status, 422, "{}", rejected.body);
    let field = "cards[0].sources[0].type";
    assert!(rejected.body.contains(field), "{}", rejected.body);
    created(&server, "dashboards", json!({"id": "node", "cards": cards})).await;
    let share = created(&server, "dashboards/node/shares", json!({})).await;
    let token = share["token"].as_str().unwrap().to_owned();

    // The first request begins to record topics.
    let path = "kiosk/cards/topic/data";
    let before = shared(&server, &token, path).await;
    assert_eq!(before.status, 200, "{}", before.body);
    let none = json!([{"type": "topics", "topics": []}]);
    assert_eq!(before.json()["sources"], none);
    let mut hooks = server.observer.hooks_for(0);
    for (topic, payload) in [("plant/1", "20"), ("plant/1", "21"), ("office", "secret")] {
        let view = MessageView::from_client("pump-1", topic, payload.as_bytes(), now_ms());
        hooks.publish(&view, &MessageOrigin::default());
    }
    let after = shared(&server, &token, path).await;
    let topics = after.json()["sources"][0]["topics"].clone();
    assert_eq!(topics.as_array().unwrap().len(), 1, "{}", after.body);
    assert_eq!(topics[0]["topic"], "plant/1");
    assert_eq!(topics[0]["payload"], "21");
    assert_eq!(topics[0]["messages"], 2);
    assert!(topics[0]["messages_per_s"].as_f64().unwrap() > 0.0);
    // Neither other topics nor the names of clients.
    assert!(!after.body.contains("secret") && !after.body.contains("pump-1"));

    let metric = async {
        loop {
            let path = "kiosk/cards/metric/data?from_ms=1700000000000&interval_ms=86400000";
            let read = shared(&server, &token, path).await.json();
            let source = read["sources"][0].clone();
            if source["metrics"][0]["value"].is_number() {
                return source;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let metric = timeout(Duration::from_secs(20), metric).await;
    let source = metric.expect("the first sample");
    let shown = &source["metrics"][0];
    assert_eq!(shown["name"], "connections");
    let averages = shown["avg"].as_array().unwrap();
    assert_eq!(averages.len(), source["ts_ms"].as_array().unwrap().len());
    assert_eq!(averages.last(), Some(&shown["value"]));
    let latest = shared(&server, &token, "kiosk/cards/metric/data").await;
    assert_eq!(latest.json()["sources"][0]["ts_ms"], json!([]));
    let unknown = shared(&server, &token, "kiosk/cards/unknown/data").await;
    assert_eq!(unknown.json()["sources"][0]["type"], "problem");
    for path in [
        "published-topics",
        "node/metrics",
        "node/history?metrics=connections",
    ] {
        let rejected = shared(&server, &token, path).await;
        assert_eq!(rejected.status, 401, "{path}: {}", rejected.body);
    }
}

#[tokio::test]
async fn a_card_reads_sources_of_several_kinds() {
    let server = server().await;
    for (scope, value) in [("server", 7), ("shared", 8)] {
        let path = format!("devices/acme-pump/attributes/{scope}");
        let set = admin(&server, "PUT", &path, json!({"floor": value, "secret": 1})).await;
        assert_eq!(set.status, 204, "{}", set.body);
    }
    let attributes = |scope: &str| json!({"type": "attributes", "device": "acme-pump", "scope": scope, "keys": ["floor", "none"]});
    let sources = json!([
        attributes("server"),
        {"type": "devices", "device": "acme-pump"},
        attributes("shared"),
        {"type": "attributes", "device": "other-pump", "scope": "server", "keys": ["floor"]},
    ]);
    let cards = json!([card("mixed", sources)]);
    let dashboard = json!({"id": "mixed", "namespace": "acme", "cards": cards});
    created(&server, "dashboards", dashboard).await;
    let read = admin(
        &server,
        "GET",
        "dashboards/mixed/cards/mixed/data",
        Value::Null,
    )
    .await;
    assert_eq!(read.status, 200, "{}", read.body);
    let found = read.json()["sources"].clone();
    let types: Vec<_> = (0..4).map(|at| found[at]["type"].as_str()).collect();
    let expected = ["attributes", "devices", "attributes", "problem"].map(Some);
    assert_eq!(types, expected, "{}", read.body);
    for (at, value) in [(0, 7), (2, 8)] {
        let latest = &found[at]["latest"][0];
        assert_eq!(latest["device"], "acme-pump");
        assert_eq!(latest["values"]["floor"]["value"], value);
        assert_eq!(
            latest["values"].as_object().map(serde_json::Map::len),
            Some(1)
        );
    }
    let mut wrong = json!({"id": "wrong", "cards": [card("c", json!([attributes("other")]))]});
    let rejected = admin(&server, "POST", "dashboards", wrong.clone()).await;
    assert_eq!(rejected.status, 422, "{}", rejected.body);
    wrong["cards"][0]["sources"][0] = attributes("client");
    wrong["cards"][0]["sources"][0]["keys"] = json!([]);
    let rejected = admin(&server, "POST", "dashboards", wrong).await;
    assert!(
        rejected.body.contains("cards[0].sources[0].keys"),
        "{}",
        rejected.body
    );
}
