//! Objects that the configuration declares: the API shows them with their place, and changes none of them.

use serde_json::{Value, json};

use super::{own_node, send};
use crate::support::{Node, temporary_directory};

/// In each field that is a secret; the API never shows it.
const SECRET: &str = "pencil-of-the-file";

/// Of the password `pencil`.
const CREDENTIAL: &str = "scram-sha-256$4096$dGlkZWdhdGUtdGVzdC1zYWx0$mCQAdQXeF/fW4AZOl/wWyP+hv///gCZA1uZbOqJ7xBs=$a8MTESLim9v91FSXWJOzgOuosFfIyS2zJpXRF9aGkfo=";

/// A kind: its path, the field of its id, the id, the line that begins its table, and a stored object with this id.
struct Case {
    path: &'static str,
    id_field: &'static str,
    id: &'static str,
    table: &'static str,
    stored: Value,
}

fn config() -> String {
    format!(
        r#"
[[user]]
username = "ann"
credential = "{CREDENTIAL}"

[[auth.authenticator]]
name = "tokens"
type = "jwt"
secret = "{SECRET}-that-is-long-enough-for-a-key"

[[auth.rule]]
permission = "deny"
topics = ["secret/#"]

[[connector]]
name = "hooks"
type = "http"
url = "http://127.0.0.1:9/"
headers = {{ authorization = "{SECRET}" }}

[[sink]]
name = "out"
connector = "hooks"
path = "/x"

[[source]]
name = "in"
connector = "hooks"
token = "{SECRET}-of-16-bytes"

[[rule]]
name = "hot"
sql = 'SELECT topic FROM "declared/#"'

[[namespace]]
id = "acme"
name = "ACME Ltd"

[[product]]
id = "meter"
provisioning = {{ mode = "allow_new", key = "meter-key", secret = "{SECRET}" }}

[[rule_chain]]
id = "warm"
nodes = [{{ id = "save", type = "save_telemetry" }}]

[[device_group]]
id = "second"
product = "meter"

[[notification]]
name = "night"
to = {{ mqtt = {{ topic = "night" }} }}

[[endpoint]]
id = "workshop"
namespace = "acme"
mode = "custom_header"
header = "> "
access_key = "{SECRET}"

[[pull_source]]
name = "weather"
interval_s = 3600
[pull_source.http]
server = {{ url = "http://127.0.0.1:9/", token = "{SECRET}" }}
device = "d"
values = {{ t = "t" }}
"#
    )
}

fn cases() -> Vec<Case> {
    let case = |path, id_field, id, table, stored| Case {
        path,
        id_field,
        id,
        table,
        stored,
    };
    vec![
        case(
            "users",
            "username",
            "ann",
            "[[user]]",
            json!({"password": "ink"}),
        ),
        case(
            "authenticators",
            "id",
            "tokens",
            "[[auth.authenticator]]",
            json!({"type": "certificate"}),
        ),
        case(
            "acl-rules",
            "id",
            "file-rule-1",
            "[[auth.rule]]",
            json!({"permission": "allow", "topics": ["open/#"]}),
        ),
        case(
            "namespaces",
            "id",
            "acme",
            "[[namespace]]",
            json!({"quotas": {"devices": 5}}),
        ),
        case(
            "connectors",
            "name",
            "hooks",
            "[[connector]]",
            json!({"type": "http"}),
        ),
        case(
            "sinks",
            "name",
            "out",
            "[[sink]]",
            json!({"connector": "other", "file": "rows.jsonl"}),
        ),
        case(
            "sources",
            "name",
            "in",
            "[[source]]",
            json!({"connector": "hooks", "token": "sixteen bytes or more"}),
        ),
        case(
            "rules",
            "name",
            "hot",
            "[[rule]]",
            json!({"sql": "SELECT * FROM \"t\""}),
        ),
        case("products", "id", "meter", "[[product]]", json!({})),
        case(
            "rule-chains",
            "id",
            "warm",
            "[[rule_chain]]",
            json!({"nodes": [{"id": "s", "type": "save_telemetry"}]}),
        ),
        case(
            "device-groups",
            "id",
            "second",
            "[[device_group]]",
            json!({"tags": {"a": "b"}}),
        ),
        case(
            "notifications",
            "name",
            "night",
            "[[notification]]",
            json!({"to": {"mqtt": {"topic": "day"}}}),
        ),
        case(
            "endpoints",
            "id",
            "workshop",
            "[[endpoint]]",
            json!({"mode": "direct"}),
        ),
        case(
            "pull-sources",
            "name",
            "weather",
            "[[pull_source]]",
            json!({
                "interval_s": 3600,
                "http": {"server": {"url": "http://127.0.0.1:9/"}, "device": "d", "values": {"t": "t"}},
            }),
        ),
    ]
}

/// The place of a table, as the end of what the API says.
fn place(table: &str) -> String {
    let line = config().lines().position(|line| line == table);
    format!("tidegate.toml:{}", line.unwrap() + 1)
}

fn ask(node: &Node, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let answer = send(node, "", method, &format!("/api/v1/{path}"), body);
    (answer.status, answer.body)
}

fn assert_is_shown(node: &Node, case: &Case) {
    let one = format!("{}/{}", case.path, case.id);
    let (status, shown) = ask(node, "GET", &one, &Value::Null);
    assert_eq!(status, 200, "{one}: {shown}");
    assert_eq!(shown[case.id_field], case.id, "{one}");
    assert_eq!(shown["origin"], "file", "{one}: {shown}");
    let declared_at = shown["declared_at"].as_str().unwrap();
    let place = place(case.table);
    assert!(
        declared_at.ends_with(&place),
        "{one}: {declared_at}, not {place}"
    );
    for secret in [SECRET, "scram-sha-256"] {
        assert!(!shown.to_string().contains(secret), "{one}: {shown}");
    }
    let (_, list) = ask(node, "GET", case.path, &Value::Null);
    let rows = list["data"].as_array().unwrap();
    let rows: Vec<_> = rows
        .iter()
        .filter(|row| row[case.id_field] == case.id)
        .collect();
    assert_eq!(rows, [&shown], "{one}");
}

/// Nothing over the API changes it.
fn assert_stays(node: &Node, case: &Case) {
    let one = format!("{}/{}", case.path, case.id);
    let mut named = case.stored.clone();
    named[case.id_field] = case.id.into();
    for (method, path, body) in [
        ("PUT", one.as_str(), &case.stored),
        ("POST", case.path, &named),
        ("DELETE", one.as_str(), &Value::Null),
    ] {
        let (status, answer) = ask(node, method, path, body);
        assert_eq!(status, 409, "{method} {path}: {answer}");
        let detail = answer["detail"].as_str().unwrap();
        assert!(
            detail.contains(&place(case.table)),
            "{method} {path}: {detail}"
        );
    }
}

#[test]
fn every_kind_of_declared_objects_is_shown_with_its_place_and_stays() {
    if !own_node() {
        return;
    }
    let node = Node::start_with_config(&[], &config());
    let (status, answer) = ask(&node, "PUT", "connectors/other", &json!({"type": "file"}));
    assert_eq!(status, 201, "{answer}");
    for case in cases() {
        assert_is_shown(&node, &case);
        assert_stays(&node, &case);
        assert_is_shown(&node, &case);
        // A stored one beside it has another origin, and what was read can be put back.
        let other = format!("{}/other-one", case.path);
        let (status, answer) = ask(&node, "PUT", &other, &case.stored);
        assert_eq!(status, 201, "{other}: {answer}");
        assert_eq!(answer["origin"], "api", "{other}");
        assert_eq!(answer["declared_at"], Value::Null, "{other}");
        let (status, again) = ask(&node, "PUT", &other, &answer);
        assert_eq!(status, 200, "{other}: {again}");
    }
    // Pages go over declared and stored objects in one order.
    let (_, first) = ask(&node, "GET", "rules?limit=1", &Value::Null);
    assert_eq!(first["data"][0]["name"], "hot");
    let next = first["next"].as_str().unwrap();
    let (_, second) = ask(
        &node,
        "GET",
        &format!("rules?limit=1&after={next}"),
        &Value::Null,
    );
    assert_eq!(second["data"][0]["name"], "other-one");
    assert_eq!(second["next"], Value::Null);
}

#[test]
fn a_stored_object_with_the_id_of_a_declared_one_is_warned_of_at_start() {
    if !own_node() {
        return;
    }
    let mut node = Node::spawn(temporary_directory(), &[], "");
    node.wait_until_it_listens().unwrap();
    let (status, answer) = ask(&node, "PUT", "connectors/other", &json!({"type": "file"}));
    assert_eq!(status, 201, "{answer}");
    for case in cases() {
        let one = format!("{}/{}", case.path, case.id);
        let (status, answer) = ask(&node, "PUT", &one, &case.stored);
        assert_eq!(status, 201, "{one}: {answer}");
    }
    let mut node = Node::spawn(node.kill(), &[], &config());
    node.wait_until_it_listens().unwrap();
    let log = node.log();
    for case in cases() {
        let place = place(case.table);
        let warned = log.lines().any(|line| {
            line.contains("a stored object has the id")
                && line.contains(case.id)
                && line.contains(&place)
        });
        assert!(warned, "{} {}: {log}", case.path, case.id);
        assert_is_shown(&node, &case);
        assert_stays(&node, &case);
    }
}
