//! The table of settings, and what is generated from it: reference, template and the settings of the API.

use broker::config::BrokerConfig;

use super::*;
use crate::config::setting_kind::{RawValue, Setting, SettingKind, SettingValue};
use crate::config::settings_table::{
    LISTENER, ListenerDraft, NODE, NodeSettings, SECTIONS, USER, UserDraft,
};

/// Every bound of every setting fits into its field, so a validated value never panics.
#[test]
fn each_kind_fits_its_field() {
    fn try_all<T>(table: &[Setting<T>], mut section: T) {
        for setting in table {
            let texts: Vec<String> = match setting.kind {
                SettingKind::Flag => vec!["true".into(), "false".into()],
                SettingKind::Count(min, max)
                | SettingKind::Seconds(min, max)
                | SettingKind::Bytes(min, max) => {
                    vec![min.to_string(), max.to_string()]
                }
                SettingKind::Text | SettingKind::Path | SettingKind::Secret => vec!["text".into()],
                SettingKind::Choice(names) => names().iter().map(|name| name.to_string()).collect(),
                SettingKind::Bind => vec!["127.0.0.1:1".into(), "off".into(), "/x".into()],
                SettingKind::Levels => vec!["info".into()],
                SettingKind::Proxies => vec!["unix,10.0.0.0/8".into()],
                SettingKind::Targets => vec!["link-local, 10.0.0.0/8".into()],
                SettingKind::Fsync => vec!["always".into(), "5ms".into()],
                SettingKind::Credential => vec![credential()],
            };
            for text in texts {
                let value = setting
                    .kind
                    .parse_value(&RawValue::Untyped(text), Path::new(""))
                    .unwrap();
                (setting.set)(&mut section, value.clone());
                assert_eq!((setting.get)(&section), Some(value), "{}", setting.key);
            }
        }
    }
    try_all(NODE, NodeSettings::default());
    try_all(LISTENER, ListenerDraft::new(""));
    let nobody = UserDraft {
        username: String::new(),
        credential: String::new(),
    };
    try_all(USER, nobody);
}

/// Every default is valid for its own setting.
#[test]
fn each_default_is_a_valid_value() {
    for setting in NODE {
        if let Some(value) = (setting.get)(&NodeSettings::default()) {
            let raw = match &value {
                SettingValue::Number(number) => RawValue::Integer(number.to_string()),
                value => {
                    RawValue::Untyped(setting.kind.to_toml(value).trim_matches('"').to_owned())
                }
            };
            assert_eq!(
                setting.kind.parse_value(&raw, Path::new("")),
                Ok(value),
                "{}",
                setting.key
            );
        }
    }
}

/// Every field of the broker's configuration has a row in the table.
#[test]
fn every_field_of_the_broker_has_a_setting() {
    let fields = |debug: String| -> Vec<String> {
        let lines = debug.lines().filter_map(|line| {
            let line = line.strip_prefix("    ")?;
            let (name, _) = line.split_once(": ")?;
            (!name.starts_with(' ')).then(|| name.to_owned())
        });
        lines.collect()
    };
    let limits = fields(format!("{:#?}", BrokerLimits::default()));
    assert!(limits.len() > 30, "{limits:?}");
    for field in limits {
        let key = format!("limits.{field}");
        assert!(NODE.iter().any(|setting| setting.key == key), "{key}");
    }
    for field in fields(format!("{:#?}", BrokerConfig::default())) {
        let key = format!("node.{field}");
        let is_section = matches!(field.as_str(), "limits" | "listeners" | "users");
        assert!(
            is_section || NODE.iter().any(|setting| setting.key == key),
            "{key}"
        );
    }
    let listener = broker::config::ListenerConfig::new("x", tcp("127.0.0.1:1"));
    for field in fields(format!("{listener:#?}")) {
        let known =
            |setting: &Setting<ListenerDraft>| setting.key.split('.').next() == Some(&field);
        // QUIC and links are values of `protocol`. Listeners in memory exist in simulations only.
        let has_no_key = matches!(field.as_str(), "quic" | "link" | "in_memory");
        assert!(has_no_key || LISTENER.iter().any(known), "{field}");
    }
}

#[test]
fn the_reference_covers_every_setting_with_range_default_and_help() {
    let markdown = markdown();
    for (section, _) in SECTIONS {
        assert!(markdown.contains(&format!("[{section}]")), "{section}");
    }
    let in_section = NODE
        .iter()
        .map(|setting| setting.key.split_once('.').unwrap().1);
    let repeated = LISTENER.iter().map(|setting| setting.key);
    for key in in_section
        .chain(repeated)
        .chain(USER.iter().map(|setting| setting.key))
    {
        assert!(markdown.contains(&format!("\n| `{key}` | ")), "{key}");
    }
    assert!(markdown.contains(
        "\n| `max_packet_size` | 128 to 268435460 | `\"1MiB\"` | Largest packet accepted, fixed header \
         included. A listener may set a smaller one. |\n"
    ));
    let sections: Vec<_> = NODE
        .iter()
        .map(|setting| setting.key.split('.').next())
        .collect();
    for section in sections {
        assert!(SECTIONS.iter().any(|(known, _)| Some(*known) == section));
    }
}

/// The template without its # is a configuration that loads (except the credential and the TLS
/// files).
#[test]
fn the_template_is_a_configuration() {
    let is_setting = |line: &str| {
        let key = line.split(" = ").next().unwrap_or_default();
        let is_key = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._".contains(&b);
        line.contains(" = ") && key.bytes().all(is_key)
    };
    let mut text = String::new();
    for line in toml_template().lines() {
        let line = line.strip_prefix("# ").unwrap_or(line);
        let is_heading = line.starts_with('[') && line.ends_with(']') && !line.contains(' ');
        let of_websocket = [
            "websocket_path",
            "relay_path",
            "allowed_origins",
            "compression",
        ];
        let out_of_place =
            line.starts_with("tls.") || of_websocket.iter().any(|it| line.starts_with(it));
        if is_heading || (is_setting(line) && !out_of_place) {
            text.push_str(&line.replace("scram-sha-256$...", &credential()));
            text.push('\n');
        }
    }
    assert!(text.lines().count() > 60, "{text}");
    let config = test_file(&text).config();
    assert_eq!(config.broker.limits, BrokerLimits::default());
    assert_eq!(config.broker.users[0].username, "ann");
}

#[test]
fn the_api_shows_every_setting_without_secrets() {
    let credential = credential();
    let config = TestInput {
        sets: &[
            "limits.max_qos=1",
            &format!("user.ann.credential={credential}"),
        ],
        ..TestInput::default()
    }
    .config();
    let find = |key: &str| {
        let mut settings = config.settings.iter();
        let setting = settings.find(|setting| setting.key == key);
        setting.unwrap_or_else(|| panic!("no {key}"))
    };
    let max_qos = find("limits.max_qos");
    assert_eq!(
        (&max_qos.value, &*max_qos.origin),
        (&serde_json::json!(1), "--set limits.max_qos")
    );
    assert_eq!(find("user.ann.credential").value, "***");
    assert_eq!(find("listener.mqtt.bind").value, "127.0.0.1:1883");
    assert_eq!(find("listener.mqtt.bind").origin, "default");
    assert!(find("log.level").changeable && !max_qos.changeable);
    assert!(find("node.data_dir").value.is_string());
    assert!(!format!("{:?}", config.settings).contains(&credential));
}

#[test]
fn settings_of_a_running_node_are_checked_as_those_of_the_start_are() {
    use serde_json::json;
    let mut running = TestInput::default().config().running;
    let size = running.change_setting("limits.max_queued_bytes", &json!("1MiB"));
    assert_eq!(size, Ok(json!(1 << 20)));
    assert_eq!(running.limits().max_queued_bytes, 1 << 20);
    let policy = running.change_setting("limits.queue_policy", &json!("drop_newest"));
    assert_eq!(policy, Ok(json!("drop_newest")));
    assert!(
        running
            .change_setting("auth.timeout_ms", &json!(200))
            .is_ok()
    );
    assert_eq!(running.auth().timeout_ms, 200);
    let error =
        |running: &mut RuntimeSettings, key, value| match running.change_setting(key, &value) {
            Err(api::SettingChangeError::Invalid(why)) => why,
            other => panic!("{other:?}"),
        };
    assert_eq!(
        error(&mut running, "limits.max_sessions", json!(0)),
        "expected a whole number from 1 to 100000000, found 0"
    );
    assert_eq!(
        error(&mut running, "limits.queue_qos0_messages", json!("true")),
        "expected true or false, found \"true\""
    );
    assert_eq!(running.limits().max_queued_bytes, 1 << 20);
    for fixed in [
        "limits.max_qos",
        "listener.mqtt.max_connections",
        "nonsense",
    ] {
        let changed = running.change_setting(fixed, &json!(1));
        assert_eq!(changed, Err(api::SettingChangeError::Fixed), "{fixed}");
    }
}
