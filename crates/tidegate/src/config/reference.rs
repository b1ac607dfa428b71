//! The reference of all settings, in Markdown for the documentation and as a commented `tidegate.toml`.

use std::fmt::Write as _;

use super::setting::{Kind, Setting, Value};
use super::size;
use super::table::{LISTENER, Listener, NODE, Node, SECTIONS, USER, User};

const INTRODUCTION: &str = "\
# Configuration

<!-- Written by `cargo xtask docs` from crates/tidegate/src/config/table.rs; do not edit. -->

A node reads, each winning over the ones before it:

1. the defaults below;
2. a file: `--config FILE`, else the one `TIDEGATE_CONFIG` names, else `tidegate.toml` in the working folder, \
else `/etc/tidegate/tidegate.toml`;
3. the environment: `TIDEGATE_`, then the key in capitals with `__` for each dot. `TIDEGATE_DATA_DIR` is short \
for `TIDEGATE_NODE__DATA_DIR`;
4. `--set KEY=VALUE`, as often as needed;
5. the flags of `tidegate serve`: `--data-dir`, `--mqtt`, `--mqtts`, `--ws`, `--http`, `--shards`, `--log`, \
`--log-level`.

| in the file | in the environment | on the command line |
|---|---|---|
| `max_qos = 1` under `[limits]` | `TIDEGATE_LIMITS__MAX_QOS=1` | `--set limits.max_qos=1` |
| `max_connections = 100` under the `[[listener]]` with `name = \"mqtt\"` | \
`TIDEGATE_LISTENER__MQTT__MAX_CONNECTIONS=100` | `--set listener.mqtt.max_connections=100` |
| `[[user]]` with `username = \"ann\"` and `credential = \"...\"` | `TIDEGATE_USER__ann__CREDENTIAL=...` | \
`--set user.ann.credential=...` |

Sizes are bytes: `65536`, `\"64KiB\"` (1024 bytes each) or `\"64kB\"` (1000 bytes each). Times are in seconds. \
Relative paths in a file start at that file's folder. Setting `bind` to `\"off\"` closes a listener.

Settings marked *At run time* can be changed while the node runs, with `PUT /api/v1/settings/{key}` or \
`tidegate ctl settings set`. A change holds until the node stops, for what comes from then on: no client is sent \
away because of a bound that has become lower, and a queue that is over it is cut, by its policy, with the next message.

`tidegate config check [FILE]` tells everything that is wrong with a configuration, TLS files included, without \
starting a node. `tidegate config explain KEY` prints the value of a setting and where it comes from. \
`tidegate config reference --format toml` prints this page as a file to start from.
";

/// A line of the reference, whatever section type it came from.
struct Row {
    /// Within its section.
    key: &'static str,
    kind: Kind,
    help: &'static str,
    at_run_time: bool,
    default: Option<Value>,
}

fn rows(section: &str) -> Vec<Row> {
    fn of<T>(table: &'static [Setting<T>], prefix: &str, defaults: &T) -> Vec<Row> {
        let mine = table.iter().filter_map(|setting| {
            Some(Row {
                key: setting.key.strip_prefix(prefix)?,
                kind: setting.kind,
                help: setting.help,
                at_run_time: setting.at_run_time,
                default: (setting.get)(defaults),
            })
        });
        mine.collect()
    }
    match section {
        "listener" => of(LISTENER, "", &Listener::new("")),
        "user" => {
            let nobody = User {
                username: String::new(),
                credential: String::new(),
            };
            of(USER, "", &nobody)
        }
        section => of(NODE, &format!("{section}."), &Node::default()),
    }
}

/// Defaults that are not a fixed value.
fn default_in_words(section: &str, key: &str) -> Option<&'static str> {
    match (section, key) {
        ("node", "data_dir") => Some(
            "`/var/lib/tidegate` for root, else `$XDG_DATA_HOME/tidegate`, else `~/.local/share/tidegate`",
        ),
        ("listener", "protocol") => Some("by the name"),
        ("listener", "bind") | ("user", _) => Some("required"),
        ("listener", "name") => Some("the protocol"),
        ("listener", "websocket_path") => Some("`/mqtt`"),
        ("listener" | "http", "tls.certificate" | "tls.private_key") => Some("required with TLS"),
        _ => None,
    }
}

/// The whole reference as Markdown, the same on every machine.
pub(crate) fn markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    for (section, about) in SECTIONS {
        let heading = heading(section);
        let _ = write!(
            text,
            "\n## {heading}\n\n{about}\n\n| key | values | default | meaning |\n|---|---|---|---|\n"
        );
        for row in rows(section) {
            let default = match (default_in_words(section, row.key), &row.default) {
                (Some(words), _) => words.to_owned(),
                (None, Some(value)) => format!("`{}`", row.kind.to_toml(value)),
                (None, None) => "none".to_owned(),
            };
            let Row {
                key, kind, help, ..
            } = row;
            let change = if row.at_run_time {
                " *At run time.*"
            } else {
                ""
            };
            let values = values(kind);
            let _ = writeln!(text, "| `{key}` | {values} | {default} | {help}{change} |");
        }
    }
    text
}

/// A `tidegate.toml` with every setting in it, commented out at its default.
pub(crate) fn toml_template() -> String {
    let mut text = String::from(
        "# Every setting of Tidegate at its default. Take away the # in front of what you change, and of the\n\
         # [section] above it. `tidegate config check` says what is wrong with a file.\n",
    );
    for (section, about) in SECTIONS {
        text.push('\n');
        comment(&mut text, about);
        let _ = writeln!(text, "# {}", heading(section));
        for row in rows(section) {
            text.push('\n');
            comment(&mut text, row.help);
            comment(&mut text, &format!("Values: {}.", row.kind.expected()));
            if row.at_run_time {
                comment(&mut text, "Can be changed at run time.");
            }
            if let Some(words) = default_in_words(section, row.key) {
                comment(&mut text, &format!("Default: {words}."));
            }
            let value = match &row.default {
                Some(value) => row.kind.to_toml(value),
                None => example(section, row.key, row.kind),
            };
            let _ = writeln!(text, "# {} = {value}", row.key);
        }
    }
    text
}

fn heading(section: &str) -> String {
    match section {
        "listener" | "user" => format!("[[{section}]]"),
        _ => format!("[{section}]"),
    }
}

/// Something fitting where there is no default to show.
fn example(section: &str, key: &str, kind: Kind) -> String {
    let text = match (section, key) {
        ("node", "data_dir") => "/var/lib/tidegate",
        ("node", "server_reference") => "other.example.com:1883",
        ("listener", "name") => "mqtt",
        ("listener", "bind") => "127.0.0.1:1883",
        ("listener", "websocket_path") => "/mqtt",
        ("listener" | "http", "tls.certificate") => "server.pem",
        ("listener" | "http", "tls.private_key") => "server.key",
        ("listener", "tls.client_ca") => "clients.pem",
        ("store", "queue_tls_ca") => "authorities.pem",
        ("telemetry", "directory") => "/var/lib/tidegate/telemetry",
        ("user", "username") => "ann",
        ("user", "credential") => "scram-sha-256$...",
        _ => match kind {
            Kind::Flag => return "false".into(),
            _ => "",
        },
    };
    format!("{text:?}")
}

/// As [`Kind::expected`], short enough for a table.
fn values(kind: Kind) -> String {
    match kind {
        Kind::Flag => "`true`, `false`".into(),
        Kind::Count(min, max) => format!("{min} to {max}"),
        Kind::Seconds(min, max) => format!("{min} to {max} s"),
        Kind::Bytes(min, max) => format!("{} to {}", size::format(min), size::format(max)),
        Kind::Text => "text".into(),
        Kind::Path => "path".into(),
        Kind::Choice(names) => {
            let names: Vec<_> = names().iter().map(|name| format!("`\"{name}\"`")).collect();
            names.join(", ")
        }
        Kind::Bind => "`IP:PORT`, path of a Unix socket, `\"off\"`".into(),
        Kind::Levels => {
            "`error`, `warn`, `info`, `debug`, `trace`, `off`, also per target: `\"info,broker=debug\"`"
                .into()
        }
        Kind::Targets => {
            "`link-local`, `loopback`, `private`, addresses, networks such as `10.0.0.0/8`; with commas between".into()
        }
        Kind::Proxies => "addresses and networks separated by commas, `unix`".into(),
        Kind::Fsync => "`\"always\"`, `\"never\"`, `\"1ms\"` to `\"60s\"`".into(),
        Kind::Credential => "from `tidegate password`".into(),
        Kind::Secret => "text, never shown".into(),
    }
}

fn comment(text: &mut String, words: &str) {
    const WIDTH: usize = 100;
    let mut line = String::from("#");
    for word in words.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(text, "{line}");
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
}
