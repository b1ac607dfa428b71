//! The first start, the token file, and that nobody comes in without credentials.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::{closed, local_token, own_node, send};
use crate::support::Node;

#[test]
fn the_first_start_makes_an_admin_whose_password_is_in_no_log() {
    if !own_node() {
        return;
    }
    let node = closed();
    let path = node.data_dir().join("first-password");
    let password = std::fs::read_to_string(&path).unwrap();
    let password = password.trim();
    for name in ["first-password", "api.token"] {
        let metadata = std::fs::metadata(node.data_dir().join(name)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{name}");
    }
    assert!(!node.log().contains(password) && node.log().contains("first-password"));
    let login = json!({"username": "admin", "password": password});
    let answer = send(&node, "", "POST", "/api/v1/login", &login);
    assert_eq!(
        (answer.status, &answer.body["role"]),
        (200, &json!("admin"))
    );
    let token = answer.body["token"].as_str().unwrap();
    let me = send(&node, token, "GET", "/api/v1/me", &Value::Null);
    assert_eq!(
        (&me.body["name"], &me.body["must_change_password"]),
        (&json!("admin"), &json!(true))
    );
    let clients = send(&node, token, "GET", "/api/v1/clients", &Value::Null);
    assert_eq!(clients.status, 403, "{}", clients.body);

    let data_dir = node.data_dir().join("store");
    assert!(data_dir.exists());
    node.terminate(Duration::from_secs(20));
    assert!(
        !node.data_dir().join("api.token").exists(),
        "the token ends with the node"
    );
}

#[test]
fn without_credentials_there_is_health_and_nothing_else() {
    if !own_node() {
        return;
    }
    let node = closed();
    for path in ["/healthz", "/readyz", "/metrics", "/api/docs"] {
        assert_eq!(
            send(&node, "", "GET", path, &Value::Null).status,
            200,
            "{path}"
        );
    }
    for path in ["/api/v1/clients", "/api/v1/settings", "/api/v1/operators"] {
        assert_eq!(
            send(&node, "", "GET", path, &Value::Null).status,
            401,
            "{path}"
        );
        assert_eq!(
            send(&node, "wrong", "GET", path, &Value::Null).status,
            401,
            "{path}"
        );
        let token = local_token(&node);
        assert_eq!(
            send(&node, &token, "GET", path, &Value::Null).status,
            200,
            "{path}"
        );
    }
}

#[test]
fn settings_show_where_they_come_from_and_no_secret() {
    if !own_node() {
        return;
    }
    let credential = "scram-sha-256$4096$dGlkZWdhdGUtdGVzdC1zYWx0$mCQAdQXeF/fW4AZOl/wWyP+hv///gCZA1uZbOqJ7xBs=$\
                      a8MTESLim9v91FSXWJOzgOuosFfIyS2zJpXRF9aGkfo=";
    let config = format!("[[user]]\nusername = \"ali\"\ncredential = \"{credential}\"\n");
    let node = Node::start_with_config(&["--set", "limits.max_qos=1"], &config);
    let settings = send(&node, "", "GET", "/api/v1/settings", &Value::Null).body;
    assert!(!settings.to_string().contains("dGlkZWdhdGU"), "{settings}");
    let find = |key: &str| {
        let mut rows = settings["data"].as_array().unwrap().iter();
        rows.find(|row| row["key"] == key).unwrap().clone()
    };
    assert_eq!(find("user.ali.credential")["value"], "***");
    assert_eq!(find("limits.max_qos")["origin"], "--set limits.max_qos");
    let path = "/api/v1/settings/log.level";
    let changed = send(&node, "", "PUT", path, &json!({"value": "debug"}));
    assert_eq!(
        (changed.status, &changed.body["origin"]),
        (200, &json!("api"))
    );
    let wrong = send(&node, "", "PUT", path, &json!({"value": "loud"}));
    assert_eq!(wrong.status, 422);
}
