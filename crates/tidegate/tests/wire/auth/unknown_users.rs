//! A failed login costs as much whether its user exists or not: otherwise its duration would tell which users exist. What is compared
//! is the processor time of the node, which other processes do not change.

use serde_json::json;

use super::{WRONG, login};
use crate::api::{local_token, own_node, send};
use crate::support::{Node, eventually, temporary_directory, unique};

/// Failed logins that are measured together.
const LOGINS: usize = 10;

/// The processor time that the node has used, in clock ticks, usually of 10 ms.
fn processor_ticks(node: &Node) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.pid())).unwrap();
    // The name of the program, in parentheses, may contain spaces.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = fields.split(' ').collect();
    let number = |field: usize| fields[field - 3].parse::<u64>().unwrap();
    number(14) + number(15)
}

/// Logs in as `known` and as users that do not exist.
fn assert_alike(node: &Node, what: &str, known: &str, log_in: impl Fn(&str)) {
    let ticks_of = |name: &dyn Fn() -> String| {
        let before = processor_ticks(node);
        (0..LOGINS).for_each(|_| log_in(&name()));
        processor_ticks(node) - before
    };
    let existing = ticks_of(&|| known.to_owned());
    let unknown = ticks_of(&|| unique("nobody"));
    assert!(
        existing >= 5,
        "{what}: a password check takes {existing} ticks"
    );
    assert!(
        unknown * 2 > existing && existing * 2 > unknown,
        "{what}: {existing} ticks with a user that exists, {unknown} without"
    );
}

#[test]
fn a_failed_mqtt_login_costs_the_same_without_a_user() {
    if !own_node() {
        return;
    }
    let file = temporary_directory().join("passwords");
    // With the costs of the node's own hashes.
    let hash =
        "$argon2id$v=19$m=19456,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
    std::fs::write(&file, format!("ann:{hash}\n")).unwrap();
    let config = format!(
        "[auth]\nmax_failed_logins_per_address = 0\n\
         [[auth.authenticator]]\ntype = \"password_file\"\npath = \"{}\"\n",
        file.display()
    );
    let node = Node::start_with_config(&[], &config);
    eventually("the node is ready", || {
        login(&node, "ann", "wrong") == WRONG
    });
    assert_alike(&node, "MQTT", "ann", |name| {
        assert_eq!(login(&node, name, "wrong"), WRONG);
    });
}

#[test]
fn a_failed_login_to_the_api_costs_the_same_without_an_operator() {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--set", "http.max_failed_logins=1000000"]);
    let operator = json!({"role": "viewer", "password": "Correct-horse-1"});
    let created = send(
        &node,
        &local_token(&node),
        "PUT",
        "/api/v1/operators/ann",
        &operator,
    );
    assert_eq!(created.status, 201, "{}", created.body);
    for path in ["/api/v1/login", "/api/auth/login"] {
        assert_alike(&node, path, "ann", |name| {
            let body = json!({"username": name, "password": "wrong"});
            let rejected = send(&node, "", "POST", path, &body);
            assert_eq!(rejected.status, 401, "{path}: {}", rejected.body);
        });
    }
}
