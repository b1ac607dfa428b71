//! Devices and commands of a real registry, and whether responses have the fields of their schemas.

use serde_json::{Value, json};
use store::ExpectedVersion;

use crate::access::send;
use crate::client::{get, request};
use crate::fake::{FakeState, Server};

const JSON: &str = "Content-Type: application/json\r\n";

async fn server_with_product() -> Server {
    let server = Server::start(&FakeState::with_clients(0)).await;
    let product = json!({"storage": {"retention_days": 7}});
    server
        .objects
        .put(
            ::devices::PRODUCT_KIND,
            "meter",
            product,
            ExpectedVersion::Any,
        )
        .unwrap();
    server
}

/// Fails if a row has a field that its schema does not have, or lacks a required one.
fn assert_fits(document: &Value, schema: &str, row: &Value) {
    let schema = &document["components"]["schemas"][schema];
    let row = row.as_object().unwrap();
    for field in row.keys() {
        assert!(schema["properties"][field].is_object(), "{field}: {schema}");
    }
    for field in schema["required"].as_array().unwrap() {
        assert!(row.contains_key(field.as_str().unwrap()), "{field}");
    }
}

#[tokio::test]
async fn devices_and_commands_have_the_fields_of_their_schemas() {
    let server = server_with_product().await;
    let document = get(server.address, "/api/v1/openapi.json").await.json();
    let device = json!({"id": "m1", "product": "meter", "tags": {"floor": "2"}});
    let made = request(
        server.address,
        "POST",
        "/api/v1/devices",
        JSON,
        &device.to_string(),
    )
    .await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert!(made.has("location: /api/v1/devices/m1"));
    assert!(made.json()["issued"][0]["token"].is_string());
    assert_fits(&document, "Device", &made.json());
    let rows = get(server.address, "/api/v1/devices?tag=floor=2")
        .await
        .json();
    assert_eq!(rows["data"][0]["state"], "notActive");
    assert!(rows["data"][0].get("issued").is_none());
    assert_fits(&document, "Device", &rows["data"][0]);
    let counts = get(server.address, "/api/v1/device-counts").await.json();
    assert_eq!(
        (&counts["devices"], &counts["products"]["meter"]),
        (&json!(1), &json!(1))
    );
    assert_fits(&document, "DeviceCounts", &counts);

    let call = json!({"method": "reboot"}).to_string();
    let sent = request(
        server.address,
        "POST",
        "/api/v1/devices/m1/commands",
        JSON,
        &call,
    )
    .await;
    assert_eq!(sent.status, 202, "{}", sent.body);
    assert_fits(&document, "Command", &sent.json());
    let listed = get(server.address, "/api/v1/devices/m1/commands")
        .await
        .json();
    assert_eq!(listed["data"][0]["id"], sent.json()["id"]);
}

#[tokio::test]
async fn a_new_device_needs_an_id_and_a_known_product() {
    let server = server_with_product().await;
    let post = |body: Value| request_body(&server, body);
    assert_eq!(post(json!({"product": "meter"})).await, 422);
    assert_eq!(post(json!({"id": "m1", "product": "none"})).await, 422);
    assert_eq!(
        post(json!({"id": "m1", "product": "meter", "colour": 1})).await,
        422
    );
    let document = get(server.address, "/api/v1/openapi.json").await.json();
    let body = &document["paths"]["/api/v1/devices"]["post"]["requestBody"];
    let required = &body["content"]["application/json"]["schema"]["required"];
    assert_eq!(required, &json!(["id", "product"]));
    let unknown = get(server.address, "/api/v1/devices/m1/attributes/other").await;
    assert_eq!(unknown.status, 404);
}

async fn request_body(server: &Server, body: Value) -> u16 {
    let body = body.to_string();
    let made = request(server.address, "POST", "/api/v1/devices", JSON, &body).await;
    made.status
}

#[tokio::test]
async fn states_have_the_schemas_of_their_own_types() {
    let server = Server::start(&FakeState::with_clients(0)).await;
    let document = get(server.address, "/api/v1/openapi.json").await.json();
    let schemas = &document["components"]["schemas"];
    for (schema, fields) in [
        ("SinkStatus", ["state", "circuit", "metrics", "is_declared"]),
        ("ConnectorStatus", ["name", "type", "sinks", "is_declared"]),
        ("RuleStatus", ["state", "counters", "p50_ns", "last_error"]),
        ("PullSourceStatus", ["state", "is_ok", "runs", "last_error"]),
        ("Alarm", ["severity", "state", "deviceId", "raised_at_ms"]),
    ] {
        for field in fields {
            let property = &schemas[schema]["properties"][field];
            assert!(property.is_object(), "{schema}.{field}");
        }
    }
}

#[tokio::test]
async fn a_command_goes_to_all_devices_of_a_group_as_a_job() {
    let server = Server::start(&FakeState::with_clients(0)).await;
    let absent = ExpectedVersion::Absent;
    server
        .objects
        .put("product", "pump", json!({}), absent)
        .unwrap();
    let group = json!({"product": "pump"});
    server
        .objects
        .put("device_group", "pumps", group, absent)
        .unwrap();
    for id in ["p1", "p2", "p3"] {
        let device = json!({"id": id, "product": "pump"});
        let made = send(&server, "", "POST", "/api/v1/devices", &device).await;
        assert_eq!(made.status, 201, "{}", made.body);
    }
    let path = "/api/v1/device-groups/pumps/commands";
    for wrong in [
        json!({}),
        json!({"method": "m", "values": {"a": 1}}),
        json!({"method": "m", "retries": 11}),
    ] {
        let rejected = send(&server, "", "POST", path, &wrong).await;
        assert_eq!(rejected.status, 422, "{wrong}: {}", rejected.body);
    }
    let begun = send(&server, "", "POST", path, &json!({"method": "reboot"})).await;
    assert_eq!(begun.status, 202, "{}", begun.body);
    let id = begun.json()["id"].as_str().unwrap().to_owned();
    assert!(
        begun.has(&format!("location: /api/v1/jobs/{}", id.to_lowercase())),
        "{}",
        begun.head
    );
    let job_path = format!("/api/v1/jobs/{id}");
    let mut job = Value::Null;
    for _ in 0..500 {
        job = get(server.address, &job_path).await.json();
        if job["state"] != "running" {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(
        (&job["state"], &job["done"], &job["total"]),
        (&json!("done"), &json!(3), &json!(3)),
        "{job}"
    );
    let commands = get(server.address, &format!("/api/v1/commands?batch={id}"))
        .await
        .json();
    assert_eq!(commands["data"].as_array().unwrap().len(), 3, "{commands}");
    let none = get(server.address, "/api/v1/commands?batch=none")
        .await
        .json();
    assert_eq!(none["data"], json!([]));
    let cancelled = send(
        &server,
        "",
        "POST",
        &format!("{job_path}/cancel"),
        &Value::Null,
    )
    .await;
    assert_eq!(cancelled.json()["state"], "done", "it has ended");
    assert_eq!(
        get(server.address, "/api/v1/jobs").await.json()["data"][0]["id"],
        id.as_str()
    );
    assert_eq!(get(server.address, "/api/v1/jobs/none").await.status, 404);
}
