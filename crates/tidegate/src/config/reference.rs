//! The reference of all settings, as Markdown for the documentation and as a commented
//! `tidegate.toml`.

use std::fmt::Write as _;

use super::byte_size;
use super::setting_kind::{Setting, SettingKind, SettingValue};
use super::settings_table::{
    LISTENER, ListenerDraft, NODE, NodeSettings, SECTIONS, USER, UserDraft,
};

const INTRODUCTION: &str = "\
# Configuration

<!-- Written by `cargo xtask docs` from crates/tidegate/src/config/settings_table.rs and crates/connect/src/kinds; do not edit. -->

A node reads these sources; each overrides the ones before it:

1. the defaults below;
2. a file: that of `--config FILE`, or else of `TIDEGATE_CONFIG`, or else `tidegate.toml` in the working directory, \
or else `/etc/tidegate/tidegate.toml`;
3. environment variables: `TIDEGATE_`, followed by the key in capitals with `__` for each dot. `TIDEGATE_DATA_DIR` is the \
same as `TIDEGATE_NODE__DATA_DIR`;
4. `--set KEY=VALUE`, which may be repeated;
5. the flags of `tidegate serve`: `--data-dir`, `--mqtt`, `--mqtts`, `--ws`, `--http`, `--shards`, `--log-format`, \
`--log-level`.

| in the file | in the environment | on the command line |
|---|---|---|
| `max_qos = 1` under `[limits]` | `TIDEGATE_LIMITS__MAX_QOS=1` | `--set limits.max_qos=1` |
| `max_connections = 100` under the `[[listener]]` with `name = \"mqtt\"` | \
`TIDEGATE_LISTENER__MQTT__MAX_CONNECTIONS=100` | `--set listener.mqtt.max_connections=100` |
| `[[user]]` with `username = \"ann\"` and `credential = \"...\"` | `TIDEGATE_USER__ann__CREDENTIAL=...` | \
`--set user.ann.credential=...` |

Sizes are bytes: `65536`, `\"64KiB\"` (1024 bytes each) or `\"64kB\"` (1000 bytes each). Times are in seconds. \
Relative paths in a file are relative to the directory of that file. Setting `bind` to `\"off\"` closes a listener.

Settings marked *At run time* can be changed while the node runs, with `PUT /api/v1/settings/{key}` or \
`tidegate ctl settings set`. A change is stored and overrides the configuration also after a restart, until \
`tidegate ctl settings reset` reverts it. It applies to later events: a lower limit disconnects no client, and a queue \
that exceeds it is reduced by its policy with the next message.

`tidegate config check [FILE]` reports all errors of a configuration, including TLS files, without \
starting a node. `tidegate config explain KEY` prints the value and the origin of a setting. \
`tidegate config reference --format toml` prints this page as a configuration file with all settings.
";

const CONNECTOR_TYPES: &str = "
## Connector types

Values of `type` in `[[connector]]`, with the page that describes their sinks and sources; see \
[Connectors](../guides/connectors.md).

| type | system | sources |
|---|---|---|
";

/// A row of the reference, independent of the type of its section.
struct ReferenceRow {
    /// Key within its section.
    key: &'static str,
    kind: SettingKind,
    help: &'static str,
    at_run_time: bool,
    default: Option<SettingValue>,
}

fn reference_rows(section: &str) -> Vec<ReferenceRow> {
    fn section_rows<T>(
        table: &'static [Setting<T>],
        prefix: &str,
        defaults: &T,
    ) -> Vec<ReferenceRow> {
        let mine = table.iter().filter_map(|setting| {
            Some(ReferenceRow {
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
        "listener" => section_rows(LISTENER, "", &ListenerDraft::new("")),
        "user" => {
            let nobody = UserDraft {
                username: String::new(),
                credential: String::new(),
            };
            section_rows(USER, "", &nobody)
        }
        section => section_rows(NODE, &format!("{section}."), &NodeSettings::default()),
    }
}

/// Defaults that are not fixed values.
fn default_text(section: &str, key: &str) -> Option<&'static str> {
    match (section, key) {
        ("node", "data_dir") => Some(
            "`/var/lib/tidegate` for root, else `$XDG_DATA_HOME/tidegate`, else `~/.local/share/tidegate`",
        ),
        ("listener", "protocol") => Some("by the name"),
        ("listener", "bind") | ("user", _) => Some("required"),
        ("listener", "name") => Some("the protocol"),
        ("listener", "websocket_path") => Some("`/mqtt`"),
        ("listener", "relay_path") => Some("`/ws/`"),
        ("listener", "allowed_origins") => Some("all"),
        ("listener" | "http", "tls.certificate" | "tls.private_key") => Some("required with TLS"),
        _ => None,
    }
}

/// The whole reference as Markdown; independent of the machine.
pub(crate) fn markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    for (section, about) in SECTIONS {
        let heading = section_heading(section);
        let _ = write!(
            text,
            "\n## {heading}\n\n{about}\n\n| key | values | default | meaning |\n|---|---|---|---|\n"
        );
        for row in reference_rows(section) {
            let default = match (default_text(section, row.key), &row.default) {
                (Some(words), _) => words.to_owned(),
                (None, Some(value)) => format!("`{}`", row.kind.to_toml(value)),
                (None, None) => "none".to_owned(),
            };
            let ReferenceRow {
                key, kind, help, ..
            } = row;
            let change = if row.at_run_time {
                " *At run time.*"
            } else {
                ""
            };
            let values = value_range_text(kind);
            let _ = writeln!(text, "| `{key}` | {values} | {default} | {help}{change} |");
        }
    }
    text.push_str(CONNECTOR_TYPES);
    for kind in connect::CONNECTOR_KINDS {
        let source = kind.source_schema.map_or("", |_| "yes");
        let (name, page, title) = (kind.name, kind.page, kind.title);
        let _ = writeln!(
            text,
            "| [`{name}`](../guides/{page}) | {title} | {source} |"
        );
    }
    text
}

/// A `tidegate.toml` with every setting commented out at its default.
pub(crate) fn toml_template() -> String {
    let mut text = String::from(
        "# Every setting of Tidegate at its default. Remove the # in front of each setting you change, and of the\n\
         # [section] above it. `tidegate config check` reports the errors of a file.\n",
    );
    for (section, about) in SECTIONS {
        text.push('\n');
        write_comment(&mut text, about);
        let _ = writeln!(text, "# {}", section_heading(section));
        for row in reference_rows(section) {
            text.push('\n');
            write_comment(&mut text, row.help);
            write_comment(&mut text, &format!("Values: {}.", row.kind.expected_text()));
            if row.at_run_time {
                write_comment(&mut text, "Can be changed at run time.");
            }
            if let Some(words) = default_text(section, row.key) {
                write_comment(&mut text, &format!("Default: {words}."));
            }
            let value = match &row.default {
                Some(value) => row.kind.to_toml(value),
                None => example_value(section, row.key, row.kind),
            };
            let _ = writeln!(text, "# {} = {value}", row.key);
        }
    }
    text
}

fn section_heading(section: &str) -> String {
    match section {
        "listener" | "user" => format!("[[{section}]]"),
        _ => format!("[{section}]"),
    }
}

/// An example value for settings without a default.
fn example_value(section: &str, key: &str, kind: SettingKind) -> String {
    let text = match (section, key) {
        ("node", "data_dir") => "/var/lib/tidegate",
        ("node", "server_reference") => "other.example.com:1883",
        ("listener", "name") => "mqtt",
        ("listener", "bind") => "127.0.0.1:1883",
        ("listener", "websocket_path") => "/mqtt",
        ("listener", "relay_path") => "/ws/",
        ("listener", "allowed_origins") => "https://example.org",
        ("listener" | "http", "tls.certificate") => "server.pem",
        ("listener" | "http", "tls.private_key") => "server.key",
        ("listener", "tls.client_ca") => "clients.pem",
        ("store", "queue_tls_ca") => "authorities.pem",
        ("firmware", "ca_file") => "signers.pem",
        ("telemetry", "directory") => "/var/lib/tidegate/telemetry",
        ("backup", "directory") => "/var/backups/tidegate",
        ("cluster", "password_file") => "nats.password",
        ("cluster", "token_file") => "nats.token",
        ("cluster", "credentials_file") => "tidegate.creds",
        ("cluster", "authorities") => "authorities.pem",
        ("cluster", "certificate") => "node.pem",
        ("cluster", "private_key") => "node.key",
        ("cluster", "program") => "/usr/local/bin/nats-server",
        ("cluster", "secret_file") => "cluster.secret",
        ("user", "username") => "ann",
        ("user", "credential") => "scram-sha-256$...",
        _ => match kind {
            SettingKind::Flag => return "false".into(),
            _ => "",
        },
    };
    format!("{text:?}")
}

/// Like `SettingKind::expected_text`, short enough for a table.
fn value_range_text(kind: SettingKind) -> String {
    match kind {
        SettingKind::Flag => "`true`, `false`".into(),
        SettingKind::Count(min, max) => format!("{min} to {max}"),
        SettingKind::Seconds(min, max) => format!("{min} to {max} s"),
        SettingKind::Bytes(min, max) => format!("{} to {}", byte_size::format_size(min), byte_size::format_size(max)),
        SettingKind::Text => "text".into(),
        SettingKind::Path => "path".into(),
        SettingKind::Choice(names) => {
            let names: Vec<_> = names().iter().map(|name| format!("`\"{name}\"`")).collect();
            names.join(", ")
        }
        SettingKind::Bind => "`IP:PORT`, path of a Unix socket, `\"off\"`".into(),
        SettingKind::Levels => {
            "`error`, `warn`, `info`, `debug`, `trace`, `off`, also per target: `\"info,broker=debug\"`"
                .into()
        }
        SettingKind::Targets => {
            "`link-local`, `loopback`, `private`, addresses, networks such as `10.0.0.0/8`; separated by commas".into()
        }
        SettingKind::Proxies => "addresses and networks separated by commas, `unix`".into(),
        SettingKind::Fsync => "`\"always\"`, `\"never\"`, `\"1ms\"` to `\"60s\"`".into(),
        SettingKind::Credential => "from `tidegate password`".into(),
        SettingKind::Secret => "text, never shown".into(),
    }
}

fn write_comment(text: &mut String, words: &str) {
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
