//! Uses of all objects with secrets, so that they may appear in answers and logs.

use super::definitions::connectors;
use super::*;
use crate::support::unique;

/// Users and authenticators of each kind, each asked with a password that is right for none of the failing ones.
pub(super) fn use_authenticators(observed: &RecordingNode, server: SocketAddr) {
    observed.put("users/ann", &json!({"password": secret("user")}));
    let ann = |password: &str| {
        observed.login(
            &Connect::new(5, unique("c"))
                .username("ann")
                .password(password),
        )
    };
    assert_eq!(ann(&secret("user")), 0);
    assert_ne!(ann(&secret("user-wrong")), 0);
    let sql = "SELECT password_hash FROM u WHERE n = ${username}";
    for (id, mut authenticator) in [
        (
            "http",
            json!({"type": "http", "url": format!("http://{server}/"), "headers": {"x-key": secret("auth-http")}}),
        ),
        (
            "mysql",
            json!({"type": "mysql", "server": "127.0.0.1:1", "username": "u", "password": secret("auth-mysql"), "query": sql}),
        ),
        (
            "postgres",
            json!({"type": "postgres", "server": "127.0.0.1:1", "username": "u", "password": secret("auth-postgres"), "query": sql}),
        ),
        (
            "redis",
            json!({"type": "redis", "server": "127.0.0.1:1", "password": secret("auth-redis"), "query": "HGET u:${username} password_hash"}),
        ),
        (
            "jwt",
            json!({"type": "jwt", "secret": secret("auth-jwt-long-enough-for-a-key"), "order": -1}),
        ),
    ] {
        let path = format!("authenticators/{id}");
        observed.put(&path, &authenticator);
        let stranger = Connect::new(5, unique("c"))
            .username("stranger")
            .password(secret("stranger"));
        assert_ne!(observed.login(&stranger), 0, "{id}");
        let token = format!("eyJhbGciOiJIUzI1NiJ9.e30.{}", secret("jwt"));
        let with_token = Connect::new(5, unique("c"))
            .username("stranger")
            .password(token);
        assert_ne!(observed.login(&with_token), 0, "{id}");
        authenticator["enabled"] = false.into();
        observed.put(&path, &authenticator);
    }
}

/// Sinks over connectors of each kind, all of which fail; sources that are posted to; pull sources that are rejected.
pub(super) fn use_connectors(observed: &RecordingNode, server: SocketAddr) {
    let all = connectors(server);
    let mut actions = Vec::new();
    for (name, connector, sink) in &all {
        observed.put(&format!("connectors/{name}"), connector);
        let mut sink = sink.clone();
        sink["connector"] = (*name).into();
        observed.put(&format!("sinks/{name}"), &sink);
        actions.push(json!({"kind": "sink", "sink": name}));
    }
    observed.put(
        "rules/all",
        &json!({"sql": "SELECT topic FROM \"t/#\"", "actions": actions}),
    );
    let message = json!({"topic": "t/1", "payload": "x", "qos": 0});
    assert_eq!(observed.api("POST", "publish", &message).0, 200);
    eventually("all sinks have failed", || {
        let (_, status) = observed.api("GET", "sink-status?limit=1000", &Value::Null);
        let rows = status["data"].as_array().unwrap();
        let failed = rows
            .iter()
            .filter(|row| !row["last_error"].is_null())
            .count();
        failed == all.len() + 1
    });
    for (name, _, _) in &all {
        observed.api("POST", &format!("connectors/{name}/test"), &json!({}));
        observed.api("POST", &format!("sinks/{name}/test"), &json!({}));
    }
    let source = json!({"connector": "http", "token": secret("source-token"), "signature": {"secret": secret("source-signature")}});
    observed.put("sources/in", &source);
    for token in [secret("source-token"), secret("source-wrong")] {
        let path = "/api/v1/sources/in/push";
        let (status, _) = observed.ask(&format!("Bearer {token}"), "POST", path, "", "{}");
        assert_eq!(status, 401, "it is not signed");
    }
    let url = format!("http://{server}/");
    let pulled = |kind: &str, settings: Value| {
        let mut source = json!({"interval_s": 1});
        source[kind] = settings;
        source
    };
    let target = json!({"url": url, "username": "u", "password": secret("pull-password"), "headers": {"x-key": secret("pull-header")}});
    let by_token = json!({"url": url, "token": secret("pull-token")});
    let ipmi = json!({"hosts": [{"address": "127.0.0.1", "device": "d"}], "username": "u", "password": secret("ipmi")});
    let queries = json!([{"query": "up", "key": "up"}]);
    for (name, source) in [
        (
            "web",
            pulled(
                "http",
                json!({"server": target, "device": "d", "values": {"t": "t"}}),
            ),
        ),
        (
            "prometheus",
            pulled(
                "prometheus",
                json!({"server": by_token, "queries": queries}),
            ),
        ),
        ("ipmi", pulled("ipmi", ipmi)),
    ] {
        observed.put(&format!("pull-sources/{name}"), &source);
        observed.api("POST", &format!("pull-sources/{name}/test"), &json!({}));
    }
    eventually("all pull sources have failed", || {
        let (_, status) = observed.api("GET", "pull-source-status", &Value::Null);
        let rows = status["data"].as_array().unwrap();
        rows.len() == 4 && rows.iter().all(|row| !row["last_error"].is_null())
    });
}

/// Devices with credentials of each kind, right and wrong ones, by MQTT and HTTP; one that registers itself; one that is claimed.
pub(super) fn use_devices(observed: &RecordingNode) {
    observed.put(
        "products/p",
        &json!({"mode": "sync", "gateway": true,
            "secure": {"secure_id": "p-shared", "secure_key": secret("shared")},
            "provisioning": {"mode": "allow_new", "key": "new-meters", "secret": secret("provision")}}),
    );
    let token = secret("token");
    let key = secret("jwt-key-long-enough");
    let device = json!({"product": "p", "credentials": [
        {"type": "token", "token": token},
        {"type": "password", "username": "pump", "password": secret("password")},
        {"type": "secure", "secure_key": secret("secure")},
        {"type": "jwt", "algorithm": "HS256", "key": key}]});
    observed.put("devices/d", &device);
    let generated = json!({"id": "g", "product": "p", "credentials": [
        {"type": "token"}, {"type": "password"}, {"type": "secure"}]});
    let target = (observed.admin.as_str(), "POST", "/api/v1/devices");
    let issued = [
        "/issued/0/token",
        "/issued/1/password",
        "/issued/2/secure_key",
    ];
    let issued = observed.issue(target, &generated, &issued);
    let new = || Connect::new(4, unique("c"));
    for (connect, is_right) in [
        (new().username(&*token), true),
        (new().username(secret("token-wrong")), false),
        (new().username(&*issued[0]), true),
        (new().username("pump").password(secret("password")), true),
        (new().username("pump").password(secret("wrong")), false),
        (new().username("g").password(&*issued[1]), true),
        (
            Connect::new(4, "d")
                .username("d|1700000000000")
                .password(secret("secure-wrong")),
            false,
        ),
        (
            Connect::new(4, "d")
                .username("x")
                .password(format!("eyJhbGciOiJIUzI1NiJ9.e30.{}", secret("signature"))),
            false,
        ),
    ] {
        assert_eq!(observed.login(&connect) == 0, is_right, "{connect:?}");
    }
    let json = "application/json";
    for (method, path, body) in [
        ("POST", "telemetry", r#"{"t": 1}"#),
        ("POST", "telemetry", r#"{"t": "#),
        ("POST", "attributes", r#"{"model": "x"}"#),
        ("GET", "attributes", ""),
        ("GET", "rpc?timeout=1", ""),
        ("GET", "attributes/updates?timeout=1", ""),
    ] {
        for token in [&token, &secret("token-wrong")] {
            let path = format!("/api/v1/{token}/{path}");
            let (status, answer) = observed.ask("", method, &path, json, body);
            assert!(status != 500, "{answer}");
            // The caller knows its own path.
            let mut answers = observed.answers.lock().unwrap();
            answers.last_mut().unwrap().0 = "a device by HTTP".to_owned();
        }
    }
    let claim = json!({"secretKey": secret("claim"), "durationMs": 60_000}).to_string();
    let mut raw = Raw::open(&observed.node, 4);
    assert_eq!(raw.hand_shake(&new().username(&*token)).reason, 0);
    raw.publish_qos1("v1/devices/me/claim", &claim, 1);
    for wanted in [secret("claim-wrong"), secret("claim")] {
        let wanted = json!({"secret": wanted, "group": "anna"});
        let (status, _) = observed.api("POST", "devices/d/claim", &wanted);
        assert!(matches!(status, 200 | 403 | 404 | 409 | 422), "{status}");
    }
    let provision = |name: &str, secret: String| json!({"deviceName": name, "provisionDeviceKey": "new-meters", "provisionDeviceSecret": secret});
    let (_, rejected) = observed.api(
        "POST",
        "provision",
        &provision("n", secret("provision-wrong")),
    );
    assert_eq!(rejected["status"], "FAILURE");
    let target = ("", "POST", "/api/v1/provision");
    let wanted = provision("n", secret("provision"));
    observed.issue(target, &wanted, &["/credentialsValue"]);
    let lines = format!(
        "{}\n{}\n",
        json!({"id": "i1", "product": "p", "credentials": [{"type": "token", "token": secret("imported")}]}),
        json!({"id": "i2", "product": "none", "credentials": [{"type": "token", "token": secret("imported-wrong")}]}),
    );
    let path = "/api/v1/device-import";
    let jsonl = "application/x-ndjson";
    let (status, answer) = observed.ask(&observed.admin, "POST", path, jsonl, &lines);
    assert_eq!(
        (status, &answer["created"], &answer["rejected"]),
        (200, &json!(1), &json!(1)),
        "{answer}"
    );
    let csv = format!("id,product,token,password\nx y,p,{0},{0}\n", secret("csv"));
    let (status, answer) = observed.ask(&observed.admin, "POST", path, "text/csv", &csv);
    assert_eq!((status, &answer["rejected"]), (200, &json!(1)), "{answer}");
    let line = json!({"id": "i3", "product": "p", "credentials": secret("line")}).to_string();
    let (status, answer) = observed.ask(&observed.admin, "POST", path, jsonl, &(line + "\n"));
    assert_eq!((status, &answer["rejected"]), (200, &json!(1)), "{answer}");
}
