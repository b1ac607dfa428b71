//! A web server that is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use serde_json::json;
use testkit::{Proxy, ProxyMode};

use super::web_server::{WebRequest, serve};
use super::{
    NOT_AUTHORIZED, SUCCESS, UNAVAILABLE, WRONG, as_user, log_in_as, login, may_publish,
    may_subscribe,
};
use crate::support::{Connect, Node, eventually};

fn judge(request: &WebRequest) -> (u16, String) {
    assert_eq!(request.line, "POST /login");
    assert!(request.head.contains("authorization: bearer t0ken"));
    let answer = match (
        request.body["username"].as_str(),
        request.body["password"].as_str(),
    ) {
        (Some("ann"), Some("pencil")) => json!({"result": "allow", "client_attrs": {"site": "s1"},
            "acl": [{"permission": "allow", "action": "publish", "topic": "own/${client_attrs.site}"}]}),
        (Some("root"), _) => json!({"result": "allow", "is_superuser": true}),
        // In whole seconds: one more than now could end before the CONNECT is answered.
        (Some("late"), _) => json!({"result": "allow", "expire_at": now_s() + 2}),
        (Some("bob"), _) => json!({"result": "deny"}),
        (Some("broken"), _) => return (500, "{}".into()),
        (Some("odd"), _) => json!({"result": "sure"}),
        (Some("quiet"), _) => return (204, String::new()),
        _ => json!({"result": "ignore"}),
    };
    (200, answer.to_string())
}

fn now_s() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap().as_secs()
}

fn config(address: std::net::SocketAddr, more: &str) -> String {
    format!(
        "[[auth.authenticator]]\ntype = \"http\"\nurl = \"http://{address}/login\"\n\
         headers = {{ authorization = \"Bearer t0ken\" }}\ntimeout_ms = 500\ncircuit_breaker_open_ms = 200\n{more}\n\
         [[auth.rule]]\npermission = \"allow\"\naction = \"subscribe\"\ntopic = \"news/#\"\n"
    )
}

#[test]
fn a_web_server_authenticates_and_authorizes() {
    let node = Node::start_with_config(&[], &config(serve(judge), ""));
    let (mut ann, connack) = log_in_as(&node, &as_user("ann", "pencil"));
    assert_eq!(connack.reason, SUCCESS);
    assert!(may_publish(&mut ann, "own/s1"));
    assert!(!may_publish(&mut ann, "own/s2"));
    assert!(may_subscribe(&mut ann, "news/#"));
    assert!(!may_subscribe(&mut ann, "#"));
    let (mut root, _) = log_in_as(&node, &as_user("root", "x"));
    assert!(may_publish(&mut root, "own/s2") && may_subscribe(&mut root, "#"));
    assert_eq!(login(&node, "quiet", "x"), SUCCESS);
    assert_eq!(login(&node, "bob", "pencil"), WRONG);
    assert_eq!(login(&node, "unknown", "x"), WRONG);
    // What it cannot say lets nobody in.
    assert_eq!(login(&node, "broken", "x"), UNAVAILABLE);
    assert_eq!(login(&node, "odd", "x"), UNAVAILABLE);
    let (mut late, _) = log_in_as(&node, &as_user("late", "x"));
    late.expect_disconnect(NOT_AUTHORIZED);
}

#[test]
fn a_web_server_that_is_down_or_slow_lets_nobody_in_until_it_is_back() {
    let proxy = Proxy::start(serve(judge));
    let node = Node::start_with_config(&[], &config(proxy.address(), ""));
    assert_eq!(login(&node, "ann", "pencil"), SUCCESS);
    proxy.set_mode(ProxyMode::Refuse);
    assert_eq!(login(&node, "ann", "pencil"), UNAVAILABLE);
    proxy.set_mode(ProxyMode::Stall);
    assert_eq!(login(&node, "ann", "pencil"), UNAVAILABLE);
    proxy.set_mode(ProxyMode::Pass);
    eventually("it is asked again", || {
        login(&node, "ann", "pencil") == SUCCESS
    });
}

#[test]
fn an_answer_is_kept_for_its_time_only_for_the_same_question() {
    let requests = Arc::new(AtomicU64::new(0));
    let count = requests.clone();
    let address = serve(move |request| {
        count.fetch_add(1, SeqCst);
        judge(request)
    });
    let node = Node::start_with_config(&[], &config(address, "cache_ttl_s = 600"));
    let connect = as_user("ann", "pencil");
    assert_eq!(log_in_as(&node, &connect).1.reason, SUCCESS);
    assert_eq!(log_in_as(&node, &connect).1.reason, SUCCESS);
    assert_eq!(requests.load(SeqCst), 1);
    assert_eq!(log_in_as(&node, &connect.password("pen")).1.reason, WRONG);
    assert_eq!(requests.load(SeqCst), 2);
}

#[test]
fn rules_from_a_web_server_are_asked_for_again() {
    let allowed = Arc::new(AtomicU64::new(1));
    let current = allowed.clone();
    let address = serve(move |request| {
        let topic = format!(
            "t{}/{}",
            current.load(SeqCst),
            request.body["clientid"].as_str().unwrap()
        );
        let rule = json!([{"permission": "allow", "topic": topic}]);
        (200, rule.to_string())
    });
    let proxy = Proxy::start(address);
    let url = format!("http://{}/rules", proxy.address());
    let config = format!(
        "[auth]\nrules_refresh_s = 1\nrules_max_age_s = 3\n[[auth.rule_source]]\ntype = \"http\"\nurl = \"{url}\"\n\
         timeout_ms = 500\n"
    );
    let node = Node::start_with_config(&[], &config);
    let connect = Connect::new(5, "c1");
    let (mut client, connack) = log_in_as(&node, &connect);
    assert_eq!(connack.reason, SUCCESS);
    assert!(may_publish(&mut client, "t1/c1") && !may_publish(&mut client, "t2/c1"));
    allowed.store(2, SeqCst);
    eventually("the new rules hold", || may_publish(&mut client, "t2/c1"));
    assert!(!may_publish(&mut client, "t1/c1"));
    // Nobody comes in without rules, and those that are there lose theirs in time.
    proxy.set_mode(ProxyMode::Refuse);
    let other = Connect::new(5, "c2");
    assert_eq!(log_in_as(&node, &other).1.reason, UNAVAILABLE);
    eventually("old rules do not hold", || {
        !may_publish(&mut client, "t2/c1")
    });
    proxy.set_mode(ProxyMode::Pass);
    eventually("rules come back", || may_publish(&mut client, "t2/c1"));
}
