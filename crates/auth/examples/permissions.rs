//! Measures the cost of one authorisation check: `cargo run --release -p tidegate-auth --example
//! permissions`.

use std::hint::black_box;
use std::time::Instant;

use auth::{AuthService, AuthSettings};
use hooks::{
    Authentication, Client, ClientAction, Credentials, HooksFactory as _, PeerAddress, Permissions,
};
use mqtt::{QoS, Version};
use serde_json::{Value, json};

const ROUNDS: u32 = 5_000_000;
const TOPIC: &str = "devices/device-0000017/up/temperature";
const CLIENT: Client<'_> = Client {
    last_address: None,
    local_address: None,
    client_id: "device-0000017",
    username: None,
    peer: Some(PeerAddress::Unix),
    version: Version::V5,
    connection: hooks::ConnectionInfo {
        connected_ms: 0,
        keep_alive_s: 0,
        clean_start: false,
        session_expiry_s: 0,
    },
};

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime can be made");
    let runtime = runtime.handle();
    let typical = vec![
        json!({"permission": "deny", "action": "publish", "topics": ["firmware/#", "commands/#"]}),
        json!({"permission": "allow", "action": "publish", "topics": "devices/${clientid}/up/#"}),
        json!({"permission": "allow", "action": "subscribe", "topics": "devices/${clientid}/down/#"}),
        json!({"permission": "allow", "topics": "users/${username}/#"}),
        json!({"permission": "deny"}),
    ];
    let mut many = Vec::new();
    for n in 0..200 {
        many.push(json!({"permission": "allow", "topics": format!("site-{n}/+/up")}));
        many.push(json!({"permission": "deny", "username": format!("user-{n}")}));
    }
    many.push(json!({"permission": "allow", "topics": "devices/${clientid}/up/#"}));
    let elsewhere = "devices/device-0000018/up/temperature";
    measure("5 rules, the second allows", &typical, TOPIC, runtime);
    measure("5 rules, the last denies", &typical, elsewhere, runtime);
    measure("401 rules, the last allows", &many, TOPIC, runtime);
    measure("401 rules, none matches", &many, "elsewhere/x", runtime);
    measure("no rules", &[], TOPIC, runtime);
}

fn measure(what: &str, rules: &[Value], topic: &str, runtime: &tokio::runtime::Handle) {
    let settings = AuthSettings {
        rules: rules.to_vec(),
        ..AuthSettings::default()
    };
    let auth = AuthService::new(&settings, runtime.clone()).expect("the rules are written here");
    let credentials = Credentials {
        client: CLIENT,
        password: None,
        certificate: None,
        method: None,
        listener: "mqtt",
        allows_anonymous: true,
        common_name_as_username: false,
        keep_alive_s: 60,
        clean_start: true,
    };
    let Authentication::Allow(grant) = auth.hooks_for(0).authenticate(&credentials) else {
        panic!("an anonymous client is accepted");
    };
    let permissions = grant.permissions.expect("every client has some");
    let permissions: &dyn Permissions = black_box(&*permissions);
    let action = ClientAction::Publish {
        topic: black_box(topic),
        qos: QoS::AtMostOnce,
        retain: false,
    };
    let started = Instant::now();
    for _ in 0..ROUNDS {
        black_box(permissions.check(black_box(&|| CLIENT), black_box(&action)));
    }
    let each = started.elapsed() / ROUNDS;
    println!(
        "{what}: {each:?}, {:?}",
        permissions.check(&|| CLIENT, &action)
    );
}
