//! Tokens, made here.

use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use testkit::{Proxy, ProxyMode};

use super::web_server::serve;
use super::{
    NOT_AUTHORIZED, SUCCESS, UNAVAILABLE, WRONG, as_user, log_in_as, login, may_publish,
    may_subscribe,
};
use crate::support::{Connect, Node, eventually, unique};

const SECRET: &str = "a secret of some length";

fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_secs()
}

fn token(head: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", part(head), part(claims));
    let signature = URL_SAFE_NO_PAD.encode(sign(message.as_bytes()));
    format!("{message}.{signature}")
}

fn hs256(claims: &Value) -> String {
    token(&json!({"alg": "HS256"}), claims, |message| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
        hmac::sign(&key, message).as_ref().to_vec()
    })
}

fn by_secret(more: &str) -> Node {
    let config = format!("[[auth.authenticator]]\ntype = \"jwt\"\nsecret = \"{SECRET}\"\n{more}");
    Node::start_with_config(&[], &config)
}

#[test]
fn a_token_lets_in_with_its_rules_and_ends_with_its_time() {
    let node = by_secret("required_claims = { sub = \"${username}\" }\n");
    let claims = json!({"sub": "ann", "exp": now_s() + 2,
        "acl": {"pub": ["up/${clientid}"], "sub": ["down/#"]}});
    let (mut ann, connack) = log_in_as(&node, &as_user("ann", &hs256(&claims)));
    assert_eq!(connack.reason, SUCCESS);
    assert!(!may_publish(&mut ann, "up/other"));
    assert!(may_subscribe(&mut ann, "down/x"));
    assert!(!may_subscribe(&mut ann, "up/#"));
    ann.expect_disconnect(NOT_AUTHORIZED);
    assert_eq!(login(&node, "bob", &hs256(&claims)), WRONG);
    assert_eq!(
        login(
            &node,
            "ann",
            &hs256(&json!({"sub": "ann", "exp": now_s() - 1}))
        ),
        WRONG
    );
    assert_eq!(
        login(&node, "ann", &format!("{}x", hs256(&json!({"sub": "ann"})))),
        WRONG
    );
    assert_eq!(login(&node, "ann", "pencil"), WRONG);
}

#[test]
fn a_token_as_username_provides_the_name() {
    let node = by_secret(
        "from = \"username\"\n[[auth.rule]]\npermission = \"allow\"\ntopic = \"u/${username}\"\n",
    );
    let connect = Connect::new(5, unique("c")).username(hs256(&json!({"sub": "eve"})));
    let (mut eve, connack) = log_in_as(&node, &connect);
    assert_eq!(connack.reason, SUCCESS);
    assert!(may_publish(&mut eve, "u/eve") && !may_publish(&mut eve, "u/ann"));
}

fn edwards(seed: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap()
}

fn signed_by(seed: u8) -> String {
    let head = json!({"alg": "EdDSA", "kid": format!("k{seed}")});
    token(&head, &json!({}), |message| {
        edwards(seed).sign(message).as_ref().to_vec()
    })
}

fn key_set(seeds: &[u8]) -> String {
    let keys = seeds.iter().map(|seed| {
        let x = URL_SAFE_NO_PAD.encode(edwards(*seed).public_key());
        json!({"kty": "OKP", "crv": "Ed25519", "kid": format!("k{seed}"), "x": x})
    });
    json!({"keys": keys.collect::<Vec<_>>()}).to_string()
}

#[test]
fn keys_at_a_url_are_replaced_while_clients_come_in() {
    let current = Arc::new(Mutex::new(key_set(&[1])));
    let served = current.clone();
    let proxy = Proxy::start(serve(move |_| (200, served.lock().unwrap().clone())));
    proxy.set_mode(ProxyMode::Refuse);
    let config = format!(
        // The test asks until the keys are new, which is a failed login each time.
        "[auth]\nmax_failed_logins_per_address = 0\n\
         [[auth.authenticator]]\ntype = \"jwt\"\njwks_url = \"http://{}/keys\"\njwks_refresh_s = 1\n\
         circuit_breaker_open_ms = 100\n",
        proxy.address()
    );
    let node = Node::start_with_config(&[], &config);
    // Nobody knows the keys yet.
    assert_eq!(login(&node, "ann", &signed_by(1)), UNAVAILABLE);
    proxy.set_mode(ProxyMode::Pass);
    eventually("the keys are fetched", || {
        login(&node, "ann", &signed_by(1)) == SUCCESS
    });
    assert_eq!(login(&node, "ann", &signed_by(2)), WRONG);
    *current.lock().unwrap() = key_set(&[2]);
    eventually("the new key counts", || {
        login(&node, "ann", &signed_by(2)) == SUCCESS
    });
    assert_eq!(login(&node, "ann", &signed_by(1)), WRONG);
    // The keys of before serve while theirs cannot be reached.
    proxy.set_mode(ProxyMode::Refuse);
    assert_eq!(login(&node, "ann", &signed_by(2)), SUCCESS);
}
