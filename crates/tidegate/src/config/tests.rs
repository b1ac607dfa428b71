//! Tests of the configuration from the user's view: files, variables and flags in, values or
//! messages out.

mod cluster_section;
mod declared_objects;
mod table_of_settings;

use std::path::{Path, PathBuf};

use api::HttpConfig;
use broker::config::{BindAddress, BrokerLimits, QueuePolicy};
use scram::{MIN_ITERATIONS, ScramCredential};

use super::sources::finish_with;
use super::*;
use crate::logging::LogFormat;

#[derive(Default)]
struct TestInput<'a> {
    file: &'a str,
    environment: &'a [(&'a str, &'a str)],
    sets: &'a [&'a str],
    flags: &'a [(&'static str, &'static str, &'a str)],
}

impl TestInput<'_> {
    fn load(&self) -> Result<Config, ConfigErrors> {
        let mut draft = config_draft::ConfigDraft::defaults();
        if !self.file.is_empty() {
            file::read_text(Path::new("conf/tidegate.toml"), self.file, &mut draft);
        }
        let pairs = self.environment.iter();
        let sources = ConfigSources {
            file: None,
            environment: pairs.map(|(k, v)| (k.to_string(), v.to_string())).collect(),
            sets: self.sets.iter().map(|set| set.to_string()).collect(),
            flags: self
                .flags
                .iter()
                .map(|(flag, key, value)| FlagValue {
                    flag,
                    key,
                    value: value.to_string(),
                })
                .collect(),
        };
        finish_with(draft, &sources)
    }

    fn config(&self) -> Config {
        self.load().unwrap_or_else(|problems| panic!("{problems}"))
    }

    /// The errors, one per line.
    fn problems(&self) -> String {
        let problems = self.load().expect_err("a configuration with problems").0;
        let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
        lines.join("\n")
    }
}

fn test_file(text: &str) -> TestInput<'_> {
    TestInput {
        file: text,
        ..TestInput::default()
    }
}

fn listener<'a>(config: &'a Config, name: &str) -> &'a broker::config::ListenerConfig {
    let mut listeners = config.broker.listeners.iter();
    listeners.find(|listener| listener.name == name).unwrap()
}

fn tcp(address: &str) -> BindAddress {
    BindAddress::Tcp(address.parse().unwrap())
}

fn credential() -> String {
    ScramCredential::generate(b"secret", MIN_ITERATIONS)
        .unwrap()
        .to_string()
}

#[test]
fn without_settings_the_defaults_apply() {
    let config = TestInput::default().config();
    assert_eq!(config.broker.limits, BrokerLimits::default());
    assert_eq!(config.broker.listeners.len(), 2);
    assert_eq!(listener(&config, "mqtt").bind, tcp("127.0.0.1:1883"));
    let ws = listener(&config, "ws");
    assert_eq!(ws.bind, tcp("127.0.0.1:8083"));
    assert_eq!(ws.websocket_path.as_deref(), Some("/mqtt"));
    let http = config.http.unwrap();
    assert_eq!(http, HttpConfig::new("127.0.0.1:8080".parse().unwrap()));
    assert_eq!(config.log_level, "info");
    assert_eq!(config.warnings, [""; 0]);
}

#[test]
fn a_file_sets_every_kind_of_value() {
    let credential = credential();
    let text = format!(
        r#"
        [node]
        shards = 2
        server_reference = "other:1883"
        [limits]
        max_packet_size = "2MiB"
        max_queued_bytes = 1_000_000
        max_connections = 0x10
        queue_policy = "disconnect"
        queue_qos0_messages = true
        [http]
        bind = "off"
        [log]
        level = "warn,broker=debug"
        format = "json"
        [[listener]]
        bind = "localhost:1"
        allow_anonymous = true
        [[listener]]
        name = "local"
        protocol = "unix"
        bind = "/run/tidegate.sock"
        [[user]]
        username = "ann.b"
        credential = "{credential}"
        "#
    );
    let config = test_file(&text).config();
    assert_eq!(config.broker.shards, 2);
    assert_eq!(
        config.broker.server_reference.as_deref(),
        Some("other:1883")
    );
    assert_eq!(config.broker.limits.max_packet_size, 2 << 20);
    assert_eq!(config.broker.limits.max_queued_bytes, 1_000_000);
    assert_eq!(config.broker.limits.max_connections, 16);
    assert_eq!(config.broker.limits.queue_policy, QueuePolicy::Disconnect);
    assert!(config.broker.limits.queue_qos0_messages);
    assert!(config.http.is_none());
    assert_eq!(config.log_format, LogFormat::Json);
    assert_eq!(config.broker.listeners.len(), 2, "the listed ones only");
    assert_eq!(listener(&config, "mqtt").bind, tcp("127.0.0.1:1"));
    assert_eq!(listener(&config, "mqtt").allow_anonymous, Some(true));
    assert_eq!(
        listener(&config, "local").bind,
        BindAddress::Unix("/run/tidegate.sock".into())
    );
    assert_eq!(config.broker.users[0].username, "ann.b");
    assert_eq!(config.broker.users[0].credential, credential);
}

#[test]
fn wrong_values_of_objects_get_a_suggestion() {
    let text = r#"[[auth.rule]]
permission = "alow"
topics = "a"
[[product]]
id = "p"
mode = "sunc"
"#;
    let found = test_file(text).problems();
    for expected in [
        "expected \"allow\" or \"deny\", found \"alow\"; did you mean \"allow\"?",
        "unknown value `sunc`, expected `sync` or `actor`; did you mean `sync`?",
    ] {
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn all_problems_of_a_file_are_reported_at_once_with_line_key_expectation_and_nearest_name() {
    let text = r#"max_qos = 1
colour = "red"
[node]
shards = "two"
sharts = 1
[limits]
max_qos = 3
max_packet_size = "1XB"
max_paket_size = 1
queue_policy = "drop_oldst"
queue_qos0_messages = 1
retained_expiry_s = -1
max_publish_delay_s = 1.5
[limit]
x = 1
[[listener]]
bind = "1883"
max_conections = 1
[[listener]]
bind = "127.0.0.1:2"
[[listener]]
name = "tls"
protocol = "mqts"
bind = "example.com:1"
tls.certifcate = "x"
[[listener]]
name = "My Listener"
[user]
[http]
bind = []
[log]
level = "loud"
"#;
    let expected = r#"conf/tidegate.toml:1:1: max_qos: unknown key; did you mean `limits.max_qos`?
conf/tidegate.toml:2:1: colour: unknown key
conf/tidegate.toml:4:1: node.shards: expected a whole number from 0 to 64, found "two"
conf/tidegate.toml:5:1: node.sharts: unknown key; did you mean `node.shards`?
conf/tidegate.toml:7:1: limits.max_qos: expected a whole number from 0 to 2, found 3
conf/tidegate.toml:8:1: limits.max_packet_size: expected a size from 128 to 268435460 such as 65536, "64KiB" or "1MB", found "1XB"
conf/tidegate.toml:9:1: limits.max_paket_size: unknown key; did you mean `limits.max_packet_size`?
conf/tidegate.toml:10:1: limits.queue_policy: expected one of "drop_oldest", "drop_newest", "disconnect", found "drop_oldst"; did you mean "drop_oldest"?
conf/tidegate.toml:11:1: limits.queue_qos0_messages: expected true or false, found 1
conf/tidegate.toml:12:1: limits.retained_expiry_s: expected seconds as a whole number from 0 to 4294967295, found -1
conf/tidegate.toml:13:1: limits.max_publish_delay_s: expected seconds as a whole number from 0 to 4294967295, found a number with a fraction
conf/tidegate.toml:14:2: limit: unknown section; did you mean `limits`?
conf/tidegate.toml:17:1: listener.mqtt.bind: expected an address such as "127.0.0.1:1883" or "[::1]:1883", the absolute path of a Unix socket, or "off", found "1883"; write "0.0.0.0:1883" for every IPv4 address, "[::]:1883" for every IPv6 address
conf/tidegate.toml:18:1: listener.mqtt.max_conections: unknown key; did you mean `max_connections`?
conf/tidegate.toml:19:1: listener.mqtt: the name is taken by the listener at conf/tidegate.toml:16:1; names are unique
conf/tidegate.toml:23:1: listener.tls.protocol: expected one of "mqtt", "mqtts", "ws", "wss", "unix", "quic", "link", "links", found "mqts"; did you mean "mqtts"?
conf/tidegate.toml:24:1: listener.tls.bind: expected an address such as "127.0.0.1:1883" or "[::1]:1883", the absolute path of a Unix socket, or "off", found "example.com:1"; a host name is not looked up; write its IP address
conf/tidegate.toml:25:5: listener.tls.tls.certifcate: unknown key; did you mean `tls.certificate`?
conf/tidegate.toml:26:1: listener.My Listener: a listener's name must be 1 to 32 lower-case letters, digits, - and _
conf/tidegate.toml:28:2: user: write it as [[user]]
conf/tidegate.toml:30:1: http.bind: expected an address such as "127.0.0.1:1883" or "[::1]:1883", the absolute path of a Unix socket, or "off", found a list
conf/tidegate.toml:32:1: log.level: expected one of "error", "warn", "info", "debug", "trace", "off", optionally followed by levels of single components, such as "info,broker=debug", found "loud""#;
    pretty_eq(&test_file(text).problems(), expected);
}

/// Like `assert_eq`, but shows the first line that differs.
fn pretty_eq(found: &str, expected: &str) {
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{found}");
}

#[test]
fn the_report_counts_the_problems_and_links_to_the_documentation() {
    let problems = test_file("[limits]\nmax_qos = 3").load().unwrap_err();
    assert_eq!(
        problems.to_string(),
        "the configuration has a problem\n  conf/tidegate.toml:2:1: limits.max_qos: expected a whole number \
         from 0 to 2, found 3\n`tidegate config reference` lists every key with its values and its default."
    );
}

#[test]
fn text_that_is_not_toml_is_an_error_with_its_line() {
    let problems = test_file("[limits]\nmax_qos = \n").problems();
    assert!(
        problems.starts_with("conf/tidegate.toml:2:11: not TOML: "),
        "{problems}"
    );
    let problems = test_file("[log]\nlevel = 'info'\nlevel = 'warn'\n").problems();
    assert!(
        problems.starts_with("conf/tidegate.toml:3:1: not TOML: duplicate key"),
        "{problems}"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_a_problem() {
    let load = |path: &Path| {
        let sources = ConfigSources {
            file: Some(path.to_owned()),
            ..ConfigSources::default()
        };
        load(&sources).unwrap_err().0[0].to_string()
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.toml");
    assert_eq!(
        load(&path),
        format!(
            "{}: cannot be read: No such file or directory (os error 2)",
            path.display()
        )
    );
    std::fs::write(&path, b"\xff\xfe").unwrap();
    assert_eq!(
        load(&path),
        format!(
            "{}: not UTF-8 text; is it a configuration file?",
            path.display()
        )
    );
}

#[test]
fn flags_win_over_sets_over_the_environment_over_the_file_over_the_defaults() {
    let text =
        "[limits]\nmax_inflight = 1\nmax_sessions = 1\nmax_connections = 1\n[node]\nshards = 1";
    let mut input = test_file(text);
    input.environment = &[
        ("TIDEGATE_LIMITS__MAX_SESSIONS", "2"),
        ("TIDEGATE_LIMITS__MAX_CONNECTIONS", "2"),
        ("TIDEGATE_NODE__SHARDS", "2"),
    ];
    input.sets = &[
        "limits.max_connections=3",
        "node.shards=3",
        "node.shards=33",
    ];
    input.flags = &[("--shards", "node.shards", "4")];
    let config = input.config();
    let limits = &config.broker.limits;
    assert_eq!(limits.max_qos, 2);
    assert_eq!(limits.max_inflight, 1);
    assert_eq!(limits.max_sessions, 2);
    assert_eq!(limits.max_connections, 3);
    assert_eq!(config.broker.shards, 4);
    assert_eq!(*config.origin("node.shards"), ValueOrigin::Flag("--shards"));
    assert_eq!(*config.origin("limits.max_qos"), ValueOrigin::Default);
}

#[test]
fn listeners_and_users_are_reached_by_name_from_the_environment_and_sets() {
    let credential = credential();
    let set = format!("user.ann.b.credential={credential}");
    let config = TestInput {
        environment: &[
            ("TIDEGATE_LISTENER__MQTT__MAX_CONNECTIONS", "5"),
            ("TIDEGATE_USER__Bob__CREDENTIAL", &credential),
        ],
        sets: &["listener.second.bind=[::1]:5", "listener.ws.bind=off", &set],
        flags: &[("--mqtt", "listener.mqtt.bind", "0.0.0.0:0")],
        ..TestInput::default()
    }
    .config();
    assert_eq!(config.broker.listeners.len(), 2);
    assert_eq!(listener(&config, "mqtt").bind, tcp("0.0.0.0:0"));
    assert_eq!(listener(&config, "mqtt").max_connections, 5);
    assert_eq!(listener(&config, "second").bind, tcp("[::1]:5"));
    let users: Vec<_> = config
        .broker
        .users
        .iter()
        .map(|user| &user.username)
        .collect();
    assert_eq!(users, ["Bob", "ann.b"]);
}

#[test]
fn values_may_be_quoted_as_in_the_file() {
    let config = TestInput {
        environment: &[("TIDEGATE_LIMITS__MAX_PACKET_SIZE", "'2MiB'")],
        sets: &["limits.queue_policy=\"drop_newest\""],
        ..TestInput::default()
    }
    .config();
    assert_eq!(config.broker.limits.max_packet_size, 2 << 20);
    assert_eq!(config.broker.limits.queue_policy, QueuePolicy::DropNewest);
}

#[test]
fn problems_of_the_environment_and_of_flags_name_them() {
    let input = TestInput {
        environment: &[
            ("TIDEGATE_LIMITS__MAX_QOSS", "1"),
            ("TIDEGATE_LIMITS__MAX_QOS", "many"),
            ("TIDEGATE_LIMITS_MAX_INFLIGHT", "1"),
            ("TIDEGATE_CONFGI", "x"),
            // Set by container platforms for a service called tidegate; not settings.
            ("TIDEGATE_PORT", "tcp://10.0.0.1:1883"),
            ("TIDEGATE_PORT_1883_TCP_ADDR", "10.0.0.1"),
            ("TIDEGATE_SERVICE_HOST", "10.0.0.1"),
            ("TIDEGATE_PASSWORD", "x"),
        ],
        sets: &[
            "limits.max_qos",
            "limits.maxqos=1",
            "listener.mqtt=1",
            "listener.mqtt.name=x",
        ],
        flags: &[("--shards", "node.shards", "all")],
        ..TestInput::default()
    };
    pretty_eq(
        &input.problems(),
        "environment variable TIDEGATE_CONFGI: unknown variable; did you mean TIDEGATE_CONFIG?
environment variable TIDEGATE_LIMITS_MAX_INFLIGHT: unknown variable; did you mean TIDEGATE_LIMITS__MAX_INFLIGHT?
environment variable TIDEGATE_LIMITS__MAX_QOS: limits.max_qos: expected a whole number from 0 to 2, found \"many\"
environment variable TIDEGATE_LIMITS__MAX_QOSS: limits.max_qoss: unknown key; did you mean `limits.max_qos`?
--set limits.max_qos: expected KEY=VALUE, such as --set limits.max_qos=1
--set limits.maxqos: unknown key; did you mean `limits.max_qos`?
--set listener.mqtt: expected listener.NAME.KEY, such as listener.mqtt.bind
--set listener.mqtt.name: expected another key: the name of a listener stands in its key
--shards: node.shards: expected a whole number from 0 to 64, found \"all\"",
    );
}

#[test]
fn contradictions_are_reported() {
    let text = r#"[limits]
max_packet_size = "64KiB"
[http]
bind = "127.0.0.1:7"
[[listener]]
bind = "127.0.0.1:7"
max_packet_size = "1MiB"
min_keep_alive_s = 60
max_keep_alive_s = 30
websocket_path = "/x"
tls.certificate = "server.pem"
[[listener]]
protocol = "mqtts"
bind = "/tmp/socket"
tls.require_client_certificate = true
[[listener]]
protocol = "ws"
bind = "127.0.0.1:0"
websocket_path = "mqtt"
[[listener]]
protocol = "unix"
bind = "127.0.0.1:9"
[[listener]]
name = "mqqt"
[[user]]
username = "ann"
[[user]]
"#;
    pretty_eq(
        &test_file(text).problems(),
        r#"conf/tidegate.toml:4:1: http.bind: 127.0.0.1:7 is the address of `listener.mqtt.bind` too; choose another port
conf/tidegate.toml:7:1: listener.mqtt.max_packet_size: more than limits.max_packet_size, which is 65536
conf/tidegate.toml:8:1: listener.mqtt.min_keep_alive_s: more than max_keep_alive_s, which is 30
conf/tidegate.toml:10:1: listener.mqtt.websocket_path: not for protocol "mqtt"; use "ws" or "wss"
conf/tidegate.toml:11:5: listener.mqtt.tls.certificate: not for protocol "mqtt", which has no TLS; set protocol = "mqtts", "wss", "quic" or "links"
conf/tidegate.toml:12:1: listener.mqtts.tls.certificate: missing; protocol "mqtts" needs a PEM file here (or --set listener.mqtts.tls.certificate=FILE)
conf/tidegate.toml:12:1: listener.mqtts.tls.private_key: missing; protocol "mqtts" needs a PEM file here (or --set listener.mqtts.tls.private_key=FILE)
conf/tidegate.toml:14:1: listener.mqtts.bind: a path, but the protocol is "mqtts"; set protocol = "unix", or "ws" for WebSocket
conf/tidegate.toml:15:5: listener.mqtts.tls.require_client_certificate: needs tls.client_ca, the authorities that sign client certificates
conf/tidegate.toml:19:1: listener.ws.websocket_path: expected a path such as "/mqtt", found "mqtt"
conf/tidegate.toml:22:1: listener.unix.bind: protocol "unix" expects the absolute path of a socket
conf/tidegate.toml:23:1: listener.mqqt.bind: missing; a listener needs an address such as "0.0.0.0:1883"; did you mean the listener `mqtt`?
conf/tidegate.toml:25:1: user.ann.credential: missing; `tidegate password` prints one
conf/tidegate.toml:27:1: user.username: a user needs a username that is not empty"#,
    );
    let exposed = TestInput {
        sets: &["http.bind=0.0.0.0:80", "http.anonymous_role=viewer"],
        ..TestInput::default()
    };
    assert_eq!(
        exposed.problems(),
        "--set http.anonymous_role: only with http.bind on a loopback address such as 127.0.0.1, and other machines can \
         reach 0.0.0.0:80"
    );
    let none_left = TestInput {
        sets: &["listener.mqtt.bind=off", "listener.ws.bind=off"],
        ..TestInput::default()
    };
    assert_eq!(
        none_left.problems(),
        "configuration: listener: no listener is left, so no client could connect; give one a bind address"
    );
}

#[test]
fn a_secret_is_never_shown() {
    let text = "[[user]]\nusername = 'ann'\ncredential = 'hunter2'\n[[user]]\nusername = 'bob'\ncredential = 12345";
    let mut input = test_file(text);
    let bad = credential().replace("$4096$", "$40$");
    let set = format!("user.eve.credential={bad}");
    let sets = [set.as_str()];
    input.sets = &sets;
    let problems = input.problems();
    pretty_eq(
        &problems,
        "conf/tidegate.toml:3:1: user.ann.credential: not a credential: expected scram-sha-256$ITERATIONS$SALT$STORED_KEY$SERVER_KEY; `tidegate password` prints one (the value is not shown here)
conf/tidegate.toml:6:1: user.bob.credential: expected a credential as `tidegate password` prints it (scram-sha-256$ITERATIONS$SALT$STORED_KEY$SERVER_KEY), found something else
--set user.eve.credential: not a credential: the iterations must be a number from 4096 to 1000000; `tidegate password` prints one (the value is not shown here)",
    );
    let text = format!(
        "[[user]]\nusername = 'ann'\ncredential = '{}'",
        credential()
    );
    let config = format!("{:?}", test_file(&text).config());
    assert!(!config.contains(&credential()), "{config}");
    assert!(!config.contains("scram-sha-256$4"), "{config}");
}

#[test]
fn tls_files_are_tried() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let issue = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (one, other) = (issue(), issue());
    write("server.pem", &one.cert.pem());
    write("server.key", &one.signing_key.serialize_pem());
    write("other.key", &other.signing_key.serialize_pem());
    write("text.pem", "hello");

    let load = |certificate: &str, key: &str, authority: &str| {
        let mut draft = config_draft::ConfigDraft::defaults();
        let text = format!(
            "[[listener]]\nprotocol='mqtts'\nbind='127.0.0.1:0'\n[listener.tls]\n\
             certificate='{certificate}'\nprivate_key='{key}'\nclient_ca='{authority}'"
        );
        // Relative paths start at the folder of the file.
        file::read_text(&folder.path().join("tidegate.toml"), &text, &mut draft);
        finish_with(draft, &ConfigSources::default()).map_err(|problems| {
            let lines = problems.0.iter().map(ToString::to_string);
            let text = lines.collect::<Vec<_>>().join("\n");
            text.replace(&format!("{}/", folder.path().display()), "")
        })
    };
    let config = load("server.pem", "server.key", "server.pem").unwrap();
    let tls = listener(&config, "mqtts").tls.clone().unwrap();
    assert_eq!(tls.certificate, folder.path().join("server.pem"));
    pretty_eq(
        &load("server.pem", "other.key", "text.pem").unwrap_err(),
        "tidegate.toml:6:1: listener.mqtts.tls.private_key: other.key is not the key of the first certificate in server.pem
tidegate.toml:7:1: listener.mqtts.tls.client_ca: text.pem holds no PEM section with a certificate",
    );
    let http = |lines: &str| {
        let mut draft = config_draft::ConfigDraft::defaults();
        let text = format!("[http]\nbind='0.0.0.0:80'\n[http.tls]\n{lines}");
        file::read_text(&folder.path().join("tidegate.toml"), &text, &mut draft);
        finish_with(draft, &ConfigSources::default()).map_err(|problems| {
            let text = problems.0[0].to_string();
            text.replace(&format!("{}/", folder.path().display()), "")
        })
    };
    let config = http("certificate='server.pem'\nprivate_key='server.key'").unwrap();
    assert!(config.http_tls.is_some() && config.warnings.is_empty());
    pretty_eq(
        &http("certificate='server.pem'").unwrap_err(),
        "tidegate.toml:4:1: http.tls.private_key: missing; http.tls.certificate is set, and TLS needs both files",
    );
    pretty_eq(
        &http("certificate='server.pem'\nprivate_key='other.key'").unwrap_err(),
        "tidegate.toml:5:1: http.tls.private_key: other.key is not the key of the first certificate in server.pem",
    );
    pretty_eq(
        &load("missing.pem", "text.pem", "server.pem").unwrap_err(),
        "tidegate.toml:5:1: listener.mqtts.tls.certificate: missing.pem cannot be read: No such file or directory (os error 2)
tidegate.toml:6:1: listener.mqtts.tls.private_key: text.pem holds no PEM section with a private key",
    );
}

#[test]
fn what_is_probably_not_meant_is_a_warning() {
    let config = TestInput {
        sets: &[
            "listener.mqtt.bind=0.0.0.0:1883",
            "listener.ws.bind=0.0.0.0:8083",
            "listener.ws.allow_anonymous=true",
            "http.bind=0.0.0.0:8080",
        ],
        ..TestInput::default()
    }
    .config();
    let starts: Vec<_> = config
        .warnings
        .iter()
        .map(|warning| &warning[..45])
        .collect();
    assert_eq!(
        starts,
        [
            "listener `mqtt` accepts only users and device",
            "listener `ws` accepts every client that can r",
            "the HTTP API on 0.0.0.0:8080 is not encrypted",
        ]
    );
}

#[test]
fn the_data_folder_is_where_users_expect_it() {
    let home = |is_root, xdg: Option<&str>, home: Option<&str>| {
        let home = validation::DefaultDataDirs {
            is_root,
            xdg_data_home: xdg.map(PathBuf::from),
            home: home.map(PathBuf::from),
        };
        let (config, _) = validation::finish(config_draft::ConfigDraft::defaults(), None, &home);
        config.data_dir.display().to_string()
    };
    assert_eq!(home(true, Some("/x"), Some("/root")), "/var/lib/tidegate");
    assert_eq!(home(false, Some("/x"), Some("/home/ann")), "/x/tidegate");
    assert_eq!(
        home(false, Some("relative"), Some("/home/ann")),
        "/home/ann/.local/share/tidegate"
    );
    let config = TestInput {
        environment: &[("TIDEGATE_DATA_DIR", "/srv/tidegate")],
        ..TestInput::default()
    }
    .config();
    assert_eq!(config.data_dir, Path::new("/srv/tidegate"));
}

#[test]
fn queues_in_another_server_need_its_address_which_is_never_shown() {
    fn test_input<'a>(sets: &'a [&'a str]) -> TestInput<'a> {
        TestInput {
            sets,
            ..TestInput::default()
        }
    }
    let problems = test_input(&["store.queue_backend=redis"]).problems();
    assert!(problems.contains("store.queue_url"), "{problems}");
    let problems = test_input(&[
        "store.queue_backend=mysql",
        "store.queue_url=mysql://u:geheim@h",
    ])
    .problems();
    assert!(problems.contains("names no database"), "{problems}");
    assert!(!problems.contains("geheim"), "{problems}");
    let url = "store.queue_url=redis://u:geheim@127.0.0.1:6379/1";
    let config = test_input(&["store.queue_backend=redis", url]).config();
    assert!(config.queue.is_some());
    let shown = serde_json::to_string(&config.settings).unwrap();
    assert!(!shown.contains("geheim") && !format!("{config:?}").contains("geheim"));
    let problems =
        test_input(&["store.queue_backend=redis", url, "store.queue_prefix=a:b"]).problems();
    assert!(problems.contains("store.queue_prefix"), "{problems}");
}
