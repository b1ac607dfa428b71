//! Namespaces of a real node: what belongs to them, their quotas, and what a disabled one means.

use serde_json::{Value, json};

use super::{closed_with, local_token, own_node, send};
use crate::support::{Connect, Node, Raw, eventually};

fn ask(node: &Node, method: &str, path: &str, body: Value) -> (u16, Value) {
    let answer = send(
        node,
        &local_token(node),
        method,
        &format!("/api/v1/{path}"),
        &body,
    );
    (answer.status, answer.body)
}

fn made(node: &Node, path: &str, body: Value) -> Value {
    let (status, answer) = ask(node, "POST", path, body);
    assert_eq!(status, 201, "{path}: {answer}");
    answer
}

fn rejected(node: &Node, method: &str, path: &str, body: Value, status: u16) -> String {
    let (found, answer) = ask(node, method, path, body);
    assert_eq!(found, status, "{method} {path}: {answer}");
    answer["detail"].as_str().unwrap_or_default().to_owned()
}

fn ids(node: &Node, path: &str) -> Vec<String> {
    let (status, page) = ask(node, "GET", path, Value::Null);
    assert_eq!(status, 200, "{path}: {page}");
    let rows = page["data"].as_array().expect("rows").iter();
    let id = |row: &Value| {
        row["id"]
            .as_str()
            .or(row["name"].as_str())
            .map(str::to_owned)
    };
    rows.filter_map(id).collect()
}

#[test]
fn objects_belong_to_a_namespace_and_its_quotas_limit_them() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    assert_eq!(ids(&node, "namespaces"), ["default"]);
    let quotas = json!({"products": 1, "devices": 2, "groups": 1, "alarm_rules": 1});
    made(&node, "namespaces", json!({"id": "acme", "quotas": quotas}));

    made(&node, "products", json!({"id": "meter"}));
    let pump = made(
        &node,
        "products",
        json!({"id": "pump", "namespace": "acme"}),
    );
    assert_eq!(pump["namespace"], "acme");
    let (_, meter) = ask(&node, "GET", "products/meter", Value::Null);
    assert_eq!(meter["namespace"], "default");
    made(
        &node,
        "notifications",
        json!({"name": "night", "to": {"mqtt": {"topic": "n"}}}),
    );
    made(
        &node,
        "device-groups",
        json!({"id": "all", "namespace": "acme", "product": "pump"}),
    );
    for (id, product) in [("m1", "meter"), ("p1", "pump"), ("p2", "pump")] {
        let credentials = json!([{"type": "token", "token": format!("token-{id}")}]);
        made(
            &node,
            "devices",
            json!({"id": id, "product": product, "credentials": credentials}),
        );
    }

    assert_eq!(ids(&node, "products?namespace=acme"), ["pump"]);
    assert_eq!(ids(&node, "devices?namespace=acme"), ["p1", "p2"]);
    assert_eq!(ids(&node, "devices?namespace=default"), ["m1"]);
    assert_eq!(ids(&node, "device-groups?namespace=default"), [""; 0]);
    assert_eq!(ids(&node, "device-groups/all/devices"), ["p1", "p2"]);

    let full = |path: &str, body: Value, quota: &str| {
        let detail = rejected(&node, "POST", path, body, 409);
        assert!(
            detail.contains(&format!("The quota {quota} of the namespace \"acme\"")),
            "{detail}"
        );
    };
    full(
        "products",
        json!({"id": "valve", "namespace": "acme"}),
        "products",
    );
    full(
        "device-groups",
        json!({"id": "more", "namespace": "acme"}),
        "groups",
    );
    full("devices", json!({"id": "p3", "product": "pump"}), "devices");
    let rule = |id: &str| {
        let condition = json!({"key": "t", "is": ">", "value": 60});
        json!({"id": id, "raise": [{"severity": "MAJOR", "when": condition}]})
    };
    let with_rules = |rules: Value| ("products/pump", json!({"alarms": rules}));
    let (path, body) = with_rules(json!([rule("hot")]));
    assert_eq!(ask(&node, "PUT", path, body).0, 200);
    let (path, body) = with_rules(json!([rule("hot"), rule("hotter")]));
    let detail = rejected(&node, "PUT", path, body, 409);
    assert!(detail.contains("The quota alarm_rules"), "{detail}");
    let (_, usage) = ask(&node, "GET", "namespaces/acme/usage", Value::Null);
    let used = |quota: &str| {
        let rows = usage["data"].as_array().expect("rows");
        let row = rows
            .iter()
            .find(|row| row["quota"] == quota)
            .expect("a row");
        (row["used"].as_u64(), row["limit"].as_u64())
    };
    assert_eq!(used("devices"), (Some(2), Some(2)));
    assert_eq!(used("groups"), (Some(1), Some(1)));
    assert_eq!(used("notifications"), (Some(0), Some(20)));

    // References stay within a namespace, and the namespace of an object is fixed.
    let other = json!({"product": "meter", "namespace": "acme"});
    let detail = rejected(&node, "PUT", "device-groups/all", other, 422);
    assert!(
        detail.contains("there is no product \"meter\" in the namespace \"acme\""),
        "{detail}"
    );
    let detail = rejected(
        &node,
        "PUT",
        "products/pump",
        json!({"namespace": "default"}),
        422,
    );
    assert!(detail.contains("cannot change"), "{detail}");
    let detail = rejected(
        &node,
        "POST",
        "products",
        json!({"id": "x", "namespace": "none"}),
        422,
    );
    assert!(
        detail.contains("there is no namespace \"none\""),
        "{detail}"
    );
    let (status, _) = ask(&node, "PUT", "products/pump", json!({"name": "Pump"}));
    assert_eq!(status, 200, "an omitted namespace stays");
    assert_eq!(ids(&node, "products?namespace=acme"), ["pump"]);

    let detail = rejected(&node, "DELETE", "namespaces/acme", Value::Null, 409);
    assert!(
        detail.contains("the product \"pump\" (namespace)"),
        "{detail}"
    );
    rejected(&node, "DELETE", "namespaces/default", Value::Null, 409);
}

#[test]
fn devices_of_a_disabled_namespace_are_sent_away_until_it_is_active_again() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    made(&node, "namespaces", json!({"id": "acme"}));
    made(
        &node,
        "products",
        json!({"id": "pump", "namespace": "acme"}),
    );
    let credentials = json!([{"type": "token", "token": "token-p1"}]);
    made(
        &node,
        "devices",
        json!({"id": "p1", "product": "pump", "credentials": credentials}),
    );
    let connect = || {
        let mut raw = Raw::open(&node, 5);
        let connack = raw.hand_shake(&Connect::new(5, "p1").username("token-p1"));
        (raw, connack.reason)
    };
    let (mut raw, reason) = connect();
    assert_eq!(reason, 0);
    let set = |body: Value| {
        let (status, answer) = ask(&node, "PUT", "namespaces/acme", body);
        assert_eq!(status, 200, "{answer}");
    };
    set(json!({"state": "disabled", "reason": "unpaid"}));
    raw.packets_until_closed();
    assert_ne!(connect().1, 0);
    set(json!({}));
    assert_eq!(connect().1, 0);
}

#[test]
fn a_registered_person_reads_and_changes_the_own_namespace_only() {
    if !own_node() {
        return;
    }
    let node = closed_with(&["--set", "http.registration_enabled=true"]);
    made(&node, "products", json!({"id": "meter"}));
    made(&node, "devices", json!({"id": "m1", "product": "meter"}));
    let invite = made(&node, "invites", json!({}));
    let register = |username: &str| {
        let body = json!({
            "code": invite["code"], "username": username, "password": "Correct-horse-1",
        });
        send(&node, "", "POST", "/api/v1/register", &body)
    };
    let registered = register("Ann");
    assert_eq!(registered.status, 201, "{}", registered.body);
    assert_eq!(register("Bob").status, 403, "the invite is used up");
    let login = json!({"username": "Ann", "password": "Correct-horse-1"});
    let login = send(&node, "", "POST", "/api/v1/login", &login).body;
    let ann = login["token"].as_str().expect("a token").to_owned();
    let as_ann = |method: &str, path: &str, body: Value| {
        let answer = send(&node, &ann, method, &format!("/api/v1/{path}"), &body);
        (answer.status, answer.body)
    };

    // From a product to telemetry and an alarm, all in the own namespace.
    let rule = json!({"id": "hot", "raise": [
        {"severity": "MAJOR", "when": {"key": "t", "is": ">", "value": 60}},
    ]});
    let product = json!({"id": "pump", "alarms": [rule], "mode": "sync"});
    let (status, pump) = as_ann("POST", "products", product);
    assert_eq!((status, &pump["namespace"]), (201, &json!("ann")), "{pump}");
    let credentials = json!([{"type": "token", "token": "token-p1"}]);
    let device = json!({"id": "p1", "product": "pump", "credentials": credentials});
    assert_eq!(as_ann("POST", "devices", device).0, 201);
    let mut raw = Raw::open(&node, 5);
    let connack = raw.hand_shake(&Connect::new(5, "p1").username("token-p1"));
    assert_eq!(connack.reason, 0);
    raw.publish_qos1("v1/devices/me/telemetry", r#"{"t": 70}"#, 1);
    let (status, latest) = as_ann("GET", "devices/p1/telemetry/latest", Value::Null);
    assert_eq!(
        (status, &latest["values"]["t"]["value"]),
        (200, &json!(70)),
        "{latest}"
    );
    eventually("the alarm is listed", || {
        let (_, alarms) = as_ann("GET", "alarms", Value::Null);
        alarms["data"][0]["namespace"] == "ann"
    });
    let query = |device: &str| json!({"devices": [device], "keys": ["t"], "from_ms": 0});
    assert_eq!(as_ann("POST", "telemetry/query", query("p1")).0, 200);

    for (method, path, status) in [
        ("GET", "devices/m1", 404),
        ("GET", "devices/m1/telemetry/latest", 404),
        ("GET", "devices/m1/telemetry/live", 404),
        ("DELETE", "devices/m1", 404),
        ("GET", "products/meter", 404),
        ("GET", "namespaces/default", 404),
        ("GET", "clients", 403),
        ("GET", "rules", 403),
        ("GET", "operators", 403),
        ("GET", "backup", 403),
    ] {
        let (found, answer) = as_ann(method, path, Value::Null);
        assert_eq!(found, status, "{method} {path}: {answer}");
    }
    assert_eq!(as_ann("POST", "telemetry/query", query("m1")).0, 404);
    let (_, devices) = as_ann("GET", "devices", Value::Null);
    assert_eq!(
        devices["data"].as_array().map(Vec::len),
        Some(1),
        "{devices}"
    );
    let (_, usage) = as_ann("GET", "namespaces/ann/usage", Value::Null);
    assert_eq!(
        usage["data"][1],
        json!({"quota": "devices", "used": 1, "limit": null})
    );

    let ban = json!({"reason": "Shares the password"});
    let (status, answer) = ask(&node, "POST", "operators/Ann/ban", ban);
    assert_eq!(status, 204, "{answer}");
    assert_eq!(as_ann("GET", "devices", Value::Null).0, 401);
    raw.ping();
}

#[test]
fn references_stay_in_a_namespace() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    for namespace in ["acme", "other"] {
        made(&node, "namespaces", json!({"id": namespace}));
        let product = json!({"id": format!("product-{namespace}"), "namespace": namespace});
        made(&node, "products", product);
        let room = json!({"id": format!("room-{namespace}"), "namespace": namespace});
        made(&node, "endpoints", room);
        let to = json!({"mqtt": {"topic": "alarms"}});
        let name = format!("note-{namespace}");
        made(
            &node,
            "notifications",
            json!({"name": name, "namespace": namespace, "to": to}),
        );
    }
    made(
        &node,
        "devices",
        json!({"id": "d", "product": "product-other"}),
    );
    let rule = |notify: &str| {
        let when = json!({"key": "t", "is": ">", "value": 60});
        json!({"id": "hot", "notify": [notify], "raise": [{"severity": "MAJOR", "when": when}]})
    };
    let mqtt = json!({"mqtt": {"topic": "alarms"}});
    for (path, field, body) in [
        ("endpoints/new", "product", json!({"product": "product-NS"})),
        (
            "endpoints/room-acme",
            "product",
            json!({"product": "product-NS"}),
        ),
        (
            "notifications/new",
            "to.endpoint",
            json!({"to": {"endpoint": "room-NS"}}),
        ),
        (
            "notifications/new",
            "products[0]",
            json!({"to": mqtt, "products": ["product-NS"]}),
        ),
        (
            "products/product-acme",
            "alarms[0].notify[0]",
            json!({"alarms": [rule("note-NS")]}),
        ),
        (
            "device-groups/new",
            "product",
            json!({"product": "product-NS"}),
        ),
    ] {
        let naming = |namespace: &str| -> Value {
            let mut body: Value =
                serde_json::from_str(&body.to_string().replace("NS", namespace)).unwrap();
            body["namespace"] = "acme".into();
            body
        };
        let (status, answer) = ask(&node, "PUT", path, naming("other"));
        assert_eq!(status, 422, "{path}: {answer}");
        assert_eq!(answer["parameter"], field, "{path}: {answer}");
        let detail = answer["detail"].as_str().unwrap();
        assert!(
            detail.contains("-other\" in the namespace \"acme\""),
            "{path}: {detail}"
        );
        let (status, answer) = ask(&node, "PUT", path, naming("acme"));
        assert!(status < 300, "{path}: {answer}");
    }
    // A device moves only within its namespace, and its endpoint is of the same one.
    let (status, answer) = ask(
        &node,
        "PUT",
        "devices/d",
        json!({"product": "product-acme"}),
    );
    assert_eq!(status, 422, "{answer}");
}

/// Everything of a namespace that has a list, with the id of the namespace in its ids.
fn fill(node: &Node, namespace: &str) {
    let with_id = |kind: &str| format!("{kind}-{namespace}");
    let put = |path: &str, kind: &str, fields: Value| {
        let mut body = fields;
        body["namespace"] = namespace.into();
        let (status, answer) = ask(node, "PUT", &format!("{path}/{}", with_id(kind)), body);
        assert!(status < 300, "{path}: {answer}");
    };
    made(node, "namespaces", json!({"id": namespace}));
    let when = json!({"key": "t", "is": ">", "value": 60});
    let rule = json!({"id": "hot", "raise": [{"severity": "MAJOR", "when": when}]});
    put("products", "product", json!({"alarms": [rule]}));
    put(
        "device-groups",
        "group",
        json!({"product": with_id("product")}),
    );
    put(
        "notifications",
        "note",
        json!({"to": {"mqtt": {"topic": "alarms"}}}),
    );
    put("endpoints", "room", json!({}));
    put("dashboards", "dashboard", json!({}));
    put("api-keys", "key", json!({"role": "viewer"}));
    put("invites", "invite", json!({}));
    let token = json!([{"type": "token", "token": with_id("token")}]);
    let device =
        json!({"id": with_id("device"), "product": with_id("product"), "credentials": token});
    made(node, "devices", device);
    let upload = format!("uploads/{}?namespace={namespace}", with_id("file"));
    let (status, file) = ask(node, "PUT", &upload, json!(with_id("content")));
    assert_eq!(status, 201, "{file}");
    let firmware = json!({
        "title": with_id("title"), "firmware_version": "1", "product": with_id("product"), "file": file["id"],
    });
    put("firmware", "firmware", firmware);
    let assignment = json!({"package": with_id("firmware"), "product": with_id("product")});
    put("firmware-assignments", "assignment", assignment);
    let campaign = json!({"package": with_id("firmware"), "namespace": namespace});
    made(node, "firmware-campaigns", campaign);
    let export = format!("exports?namespace={namespace}");
    let (status, answer) = ask(node, "POST", &export, json!({"kind": "devices"}));
    assert_eq!(status, 202, "{answer}");
    let commands = format!("devices/{}/commands", with_id("device"));
    let (status, answer) = ask(
        node,
        "POST",
        &commands,
        json!({"method": "m", "wait": false}),
    );
    assert!(status < 300, "{answer}");
    let telemetry = format!("/api/v1/{}/telemetry", with_id("token"));
    assert_eq!(
        send(node, "", "POST", &telemetry, &json!({"t": 70})).status,
        200
    );
}

#[test]
fn every_list_can_be_limited_to_a_namespace() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    for namespace in ["ns-acme", "ns-other"] {
        fill(&node, namespace);
    }
    let document = send(
        &node,
        &local_token(&node),
        "GET",
        "/api/v1/openapi.json",
        &Value::Null,
    );
    let paths = document.body["paths"].as_object().expect("paths").iter();
    let is_list = |operation: &Value| {
        let mut parameters = operation["parameters"].as_array().into_iter().flatten();
        let content = &operation["responses"]["200"]["content"];
        parameters.any(|it| it["in"] == "query" && it["name"] == "namespace")
            && content["application/json"].is_object()
    };
    let lists: Vec<&str> = paths
        .filter(|(path, methods)| !path.contains('{') && is_list(&methods["get"]))
        .filter_map(|(path, _)| path.strip_prefix("/api/v1/"))
        .collect();
    assert!(lists.len() >= 15, "{lists:?}");
    for list in lists {
        let get = |query: &str| {
            let (status, answer) = ask(&node, "GET", &format!("{list}{query}"), Value::Null);
            assert_eq!(status, 200, "{list}{query}: {answer}");
            answer.to_string()
        };
        eventually(&format!("{list} contains both namespaces"), || {
            let all = get("");
            all.contains("ns-acme") && all.contains("ns-other")
        });
        for (own, foreign) in [("ns-acme", "ns-other"), ("ns-other", "ns-acme")] {
            let rows = get(&format!("?namespace={own}"));
            assert!(
                rows.contains(own) && !rows.contains(foreign),
                "{list} of {own}: {rows}"
            );
        }
        let rows = get("?namespace=default");
        assert!(!rows.contains("ns-"), "{list} of default: {rows}");
    }
}
