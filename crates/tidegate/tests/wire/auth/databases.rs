//! MariaDB, PostgreSQL and Redis that know users and rules.

use testkit::{DATABASE, PASSWORD, Proxy, ProxyMode, ServerKind, TestServer, USER};

use super::{
    SUCCESS, UNAVAILABLE, WRONG, as_user, hashed, log_in_as, login, may_publish, may_subscribe,
};
use crate::certificates::Authority;
use crate::support::{Node, eventually, temporary_directory};

const USERS: &str =
    "SELECT password_hash, salt, is_superuser FROM mqtt_user WHERE username = ${username} LIMIT 1";
const RULES: &str =
    "SELECT permission, action, topic, qos FROM mqtt_acl WHERE username = ${username} ORDER BY id";

/// A database behind a network that can be cut, and a node that asks it.
struct Setup {
    server: TestServer,
    proxy: Proxy,
    node: Node,
}

fn tables(number: &str) -> String {
    let hash = hashed("pencil");
    format!(
        "CREATE TABLE mqtt_user (username VARCHAR(100) PRIMARY KEY, password_hash VARCHAR(400), salt VARCHAR(40), \
         is_superuser BOOLEAN NOT NULL DEFAULT FALSE);\
         INSERT INTO mqtt_user VALUES ('ann', '{hash}', NULL, FALSE), ('root', '{hash}', NULL, TRUE), \
         ('clear', 'pencil', NULL, FALSE), ('none', NULL, NULL, FALSE);\
         CREATE TABLE mqtt_acl (id {number} PRIMARY KEY, username VARCHAR(100), permission VARCHAR(10), \
         action VARCHAR(10), topic VARCHAR(100), qos SMALLINT);\
         INSERT INTO mqtt_acl VALUES (1, 'ann', 'deny', 'publish', 'a/secret', NULL), \
         (2, 'ann', 'allow', 'all', 'a/#', NULL), (3, 'ann', 'allow', 'publish', 'q0', 0)"
    )
}

fn setup(
    kind: ServerKind,
    name: &str,
    users: &str,
    rules: &str,
    fill: impl Fn(&TestServer),
) -> Option<Setup> {
    let server = TestServer::start_or_skip(kind)?;
    fill(&server);
    let proxy = Proxy::start(server.address());
    let (login, database) = match kind {
        ServerKind::Redis => (
            format!("password = \"{PASSWORD}\"\nusername = \"{USER}\"\n"),
            "0",
        ),
        _ => (
            format!("password = \"{PASSWORD}\"\nusername = \"{USER}\"\n"),
            DATABASE,
        ),
    };
    let table = |section: &str, query: &str| {
        format!(
            "[[auth.{section}]]\ntype = \"{name}\"\nserver = \"{}\"\ndatabase = \"{database}\"\n{login}\
             query = \"{query}\"\ntimeout_ms = 1000\ncircuit_breaker_open_ms = 200\npool_size = 2\n",
            proxy.address()
        )
    };
    let config = table("authenticator", users) + &table("rule_source", rules);
    let node = Node::start_with_config(&[], &config);
    Some(Setup {
        server,
        proxy,
        node,
    })
}

/// What holds for each of them.
fn lets_in_whom_it_knows(node: &Node) {
    let (mut ann, connack) = log_in_as(node, &as_user("ann", "pencil"));
    assert_eq!(connack.reason, SUCCESS, "{}", node.log());
    assert!(may_publish(&mut ann, "a/b"));
    assert!(!may_publish(&mut ann, "b"));
    assert!(may_subscribe(&mut ann, "a/#"));
    assert!(!may_subscribe(&mut ann, "#"));
    let (mut root, connack) = log_in_as(node, &as_user("root", "pencil"));
    assert_eq!(connack.reason, SUCCESS);
    assert!(may_publish(&mut root, "b") && may_subscribe(&mut root, "#"));
    assert_eq!(login(node, "ann", "pen"), WRONG);
    assert_eq!(login(node, "unknown", "pencil"), WRONG);
    // A name is never a part of the question.
    for name in [
        "' OR '1'='1",
        "ann' -- ",
        "ann\\",
        "a b",
        "*",
        "${clientid}",
    ] {
        assert_eq!(login(node, name, "pencil"), WRONG, "{name}");
    }
}

fn down_slow_and_back(setup: &Setup) {
    let Setup {
        server,
        proxy,
        node,
    } = setup;
    proxy.set_mode(ProxyMode::Stall);
    assert_eq!(login(node, "ann", "pencil"), UNAVAILABLE);
    proxy.set_mode(ProxyMode::Pass);
    eventually("slow no more", || login(node, "ann", "pencil") == SUCCESS);
    server.kill();
    assert_eq!(login(node, "ann", "pencil"), UNAVAILABLE);
    assert_eq!(login(node, "unknown", "x"), UNAVAILABLE);
    server.start();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while login(node, "ann", "pencil") != SUCCESS {
        assert!(
            std::time::Instant::now() < deadline,
            "it is back\n{}",
            node.log()
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // An idle connection that was cut meanwhile costs nobody a login.
    proxy.close_connections();
    eventually("it connects again", || {
        login(node, "ann", "pencil") == SUCCESS
    });
}

#[test]
fn mariadb_provides_users_and_rules() {
    let fill = |server: &TestServer| {
        server.sql(&tables("INT"));
    };
    let Some(setup) = setup(ServerKind::MariaDb, "mysql", USERS, RULES, fill) else {
        return;
    };
    lets_in_whom_it_knows(&setup.node);
    more_of_sql(&setup.node);
    down_slow_and_back(&setup);
}

#[test]
fn postgres_provides_users_and_rules() {
    let fill = |server: &TestServer| {
        server.sql(&tables("INT"));
    };
    let Some(setup) = setup(ServerKind::Postgres, "postgres", USERS, RULES, fill) else {
        return;
    };
    lets_in_whom_it_knows(&setup.node);
    more_of_sql(&setup.node);
    down_slow_and_back(&setup);
}

fn more_of_sql(node: &Node) {
    // Clear text is no hash unless the settings say so, and a user without a password has none.
    assert_eq!(login(node, "clear", "pencil"), UNAVAILABLE);
    assert_eq!(login(node, "none", ""), WRONG);
    let (mut ann, _) = log_in_as(node, &as_user("ann", "pencil"));
    assert!(!may_publish(&mut ann, "a/secret"));
    assert!(!may_publish(&mut ann, "q0"), "only with QoS 0");
}

fn fill_redis(server: &TestServer) {
    let hash = hashed("pencil");
    for (name, is_superuser) in [("ann", "0"), ("root", "1")] {
        let key = format!("mqtt_user:{name}");
        server.redis(&[
            "HSET",
            &key,
            "password_hash",
            &hash,
            "is_superuser",
            is_superuser,
        ]);
    }
    server.redis(&["HSET", "mqtt_acl:ann", "a/#", "all"]);
}

const REDIS_USERS: &str = "HMGET mqtt_user:${username} password_hash salt is_superuser";

#[test]
fn redis_provides_users_and_rules() {
    let rules = "HGETALL mqtt_acl:${username}";
    let Some(setup) = setup(ServerKind::Redis, "redis", REDIS_USERS, rules, fill_redis) else {
        return;
    };
    lets_in_whom_it_knows(&setup.node);
    // A killed server may forget what it has not written yet.
    setup.server.redis(&["SAVE"]);
    down_slow_and_back(&setup);
}

/// A node asks by TLS only whom the right authority has given the name by which it is asked.
fn trusts_the_right_authority_and_name_alone(
    kind: ServerKind,
    name: &str,
    users: &str,
    fill: impl Fn(&TestServer),
) {
    let dir = temporary_directory();
    let authority = Authority::new(dir.join("ours"));
    let strangers = Authority::new(dir.join("theirs"));
    let identity = authority.issue_server_for("server", &["127.0.0.1"]);
    let Some(server) = TestServer::start_with_tls_or_skip(kind, &identity) else {
        return;
    };
    fill(&server);
    let port = server.tls_address().port();
    let node = |host: &str, trusted: &Authority| {
        let database = if kind == ServerKind::Redis {
            "0"
        } else {
            DATABASE
        };
        let config = format!(
            "[[auth.authenticator]]\ntype = \"{name}\"\nserver = \"{host}:{port}\"\ndatabase = \"{database}\"\n\
             username = \"{USER}\"\npassword = \"{PASSWORD}\"\nquery = \"{users}\"\n\
             tls = true\ntls_ca = \"{}\"\ntimeout_ms = 5000\n",
            trusted.certificate_path().display()
        );
        Node::start_with_config(&[], &config)
    };
    let right = node("127.0.0.1", &authority);
    assert_eq!(login(&right, "ann", "pencil"), SUCCESS, "{}", right.log());
    assert_eq!(login(&right, "ann", "pen"), WRONG);
    for (wrong, expected) in [
        (node("127.0.0.1", &strangers), "certificate: UnknownIssuer"),
        (node("localhost", &authority), "not valid for name"),
    ] {
        // It is told when the node gives it up for a while.
        eventually("the log says why", || {
            assert_eq!(login(&wrong, "ann", "pencil"), UNAVAILABLE, "{expected}");
            wrong.log().contains(expected)
        });
    }
}

#[test]
fn mariadb_by_tls() {
    let fill = |server: &TestServer| drop(server.sql(&tables("INT")));
    trusts_the_right_authority_and_name_alone(ServerKind::MariaDb, "mysql", USERS, fill);
}

#[test]
fn postgres_by_tls() {
    let fill = |server: &TestServer| drop(server.sql(&tables("INT")));
    trusts_the_right_authority_and_name_alone(ServerKind::Postgres, "postgres", USERS, fill);
}

#[test]
fn redis_by_tls() {
    trusts_the_right_authority_and_name_alone(ServerKind::Redis, "redis", REDIS_USERS, fill_redis);
}
