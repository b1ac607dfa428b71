//! The OpenAPI document and its page.

use std::collections::HashSet;

use serde_json::Value;

use crate::client::get;
use crate::fake::{FakeState, Server};

#[tokio::test]
async fn the_document_is_whole() {
    let server = Server::start(&FakeState::with_clients(0)).await;
    let answer = get(server.address, "/api/v1/openapi.json").await;
    let document = answer.json();
    assert_eq!(document["openapi"], "3.1.0");
    let mut ids = HashSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let what = format!("{method} {path}");
            assert!(ids.insert(operation["operationId"].to_string()), "{what}");
            assert!(
                operation["summary"]
                    .as_str()
                    .is_some_and(|text| !text.is_empty()),
                "{what}"
            );
            assert!(operation["security"].is_array(), "{what}");
            let parameters = operation["parameters"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let in_path = parameters.iter().filter(|one| one["in"] == "path").count();
            assert_eq!(in_path, path.matches('{').count(), "{what}");
            let responses = operation["responses"].as_object().unwrap();
            assert!(
                responses
                    .keys()
                    .any(|status| status.starts_with('2') || status == "101"),
                "{what}"
            );
        }
    }
    // Every reference resolves.
    let text = document.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(
            document["components"]["schemas"][name].is_object(),
            "{name}"
        );
    }
    assert!(!text.contains("password_hash") && !text.contains("secret_hash"));
}

#[tokio::test]
async fn the_page_needs_nothing_from_elsewhere_and_names_every_operation() {
    let server = Server::start(&FakeState::with_clients(0)).await;
    let page = get(server.address, "/api/docs").await;
    assert!(page.has("content-type: text/html; charset=utf-8"));
    assert!(
        !page.body.contains("<script") && !page.body.contains("://"),
        "nothing from elsewhere"
    );
    let document = get(server.address, "/api/v1/openapi.json").await.json();
    let operations = document["paths"].as_object().unwrap().values();
    for operation in operations.flat_map(|path| path.as_object().unwrap().values()) {
        let id = operation["operationId"].as_str().unwrap();
        assert!(page.body.contains(&format!("id=\"{id}\"")), "{id}");
    }
    assert_eq!(
        document["paths"]["/api/v1/users"]["post"]["x-required-role"],
        Value::from("operator")
    );
}
