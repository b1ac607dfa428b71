//! The definition of a setting: key, kind of value, field, and help text. Parsing, validation,
//! defaults and the reference are based on it.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use api::TrustedProxies;
use broker::config::{BindAddress, QueuePolicy, SessionOwnerConflict, SharedSubscriptionStrategy};
use outbound::target_policy::TargetPolicy;
use scram::ScramCredential;
use store::Fsync;

use super::byte_size;

/// A setting of a section whose values are stored in a `T`.
pub(super) struct Setting<T: 'static> {
    /// For listeners and users the key within the section, otherwise the full key:
    /// `limits.max_qos`.
    pub(super) key: &'static str,
    pub(super) kind: SettingKind,
    /// One or two sentences of Markdown.
    pub(super) help: &'static str,
    /// Whether the API may change it at run time.
    pub(super) at_run_time: bool,
    pub(super) get: fn(&T) -> Option<SettingValue>,
    pub(super) set: fn(&mut T, SettingValue),
}

/// A row of the settings table: key, field, kind, help. With `at run time` in front, the value may
/// change while the node runs; `serve/program_service.rs` applies it.
macro_rules! setting {
    (at run time $key:literal, $($rest:tt)+) => {
        Setting {
            at_run_time: true,
            ..setting!($key, $($rest)+)
        }
    };
    ($key:literal, $($field:ident).+, $kind:expr, $help:literal) => {
        Setting {
            key: $key,
            kind: $kind,
            help: $help,
            at_run_time: false,
            get: |section| SettingField::to_value(&section.$($field).+),
            set: |section, value| section.$($field).+ = SettingField::from_value(value),
        }
    };
}
pub(super) use setting;

/// The kind of values that a setting accepts.
#[derive(Clone, Copy)]
pub(super) enum SettingKind {
    Flag,
    /// A whole number within bounds (both inclusive).
    Count(u64, u64),
    /// Seconds within bounds.
    Seconds(u64, u64),
    /// Bytes within bounds, also written as `16MiB`.
    Bytes(u64, u64),
    /// Any text; empty means none.
    Text,
    /// A file or folder; relative to the configuration file, otherwise to the working directory.
    Path,
    /// One of several names.
    Choice(fn() -> Vec<&'static str>),
    /// An address to listen on.
    Bind,
    /// A log filter.
    Levels,
    /// Classes of addresses and networks, separated by commas.
    Targets,
    /// Trusted proxies.
    Proxies,
    /// When a log is synced to disk.
    Fsync,
    /// The credential of a user; never shown.
    Credential,
    /// A text that contains a password; never shown.
    Secret,
}

/// A value as written, before its kind is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RawValue {
    /// From the command line or the environment: can become any kind.
    Untyped(String),
    String(String),
    /// Decimal digits after resolving the radix; may exceed 64 bits.
    Integer(String),
    Boolean(bool),
    /// Any other TOML type, by its name.
    Other(&'static str),
}

impl RawValue {
    /// A value from the command line or the environment, optionally in TOML quotes.
    pub(super) fn from_text(text: &str) -> Self {
        let inside = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
        let bare = ['"', '\''].into_iter().find_map(inside).unwrap_or(text);
        Self::Untyped(bare.to_owned())
    }

    /// A value from a request, as in `tidegate.toml`.
    pub(super) fn from_json(value: &serde_json::Value) -> Self {
        use serde_json::Value as Json;
        match value {
            Json::Bool(flag) => Self::Boolean(*flag),
            Json::Number(number) => Self::Integer(number.to_string()),
            Json::String(text) => Self::String(text.clone()),
            Json::Null => Self::Other("null"),
            Json::Array(_) => Self::Other("an array"),
            Json::Object(_) => Self::Other("an object"),
        }
    }
}

/// A value valid for its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SettingValue {
    Flag(bool),
    Number(u64),
    Text(String),
    Path(PathBuf),
    Bind(BindSetting),
}

/// The address of a listener, or off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BindSetting {
    Off,
    At(BindAddress),
}

impl fmt::Display for BindSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(BindAddress::Tcp(address)) => address.fmt(f),
            Self::At(BindAddress::Unix(path)) => path.display().fmt(f),
        }
    }
}

impl SettingKind {
    /// Parses a value; the error names the expected and the received value. Relative paths start at
    /// `folder`.
    pub(super) fn parse_value(self, raw: &RawValue, folder: &Path) -> Result<SettingValue, String> {
        let text = match raw {
            RawValue::Untyped(text) | RawValue::String(text) => Some(text.as_str()),
            _ => None,
        };
        let value = match self {
            Self::Flag => match raw {
                RawValue::Boolean(flag) => Some(SettingValue::Flag(*flag)),
                RawValue::Untyped(text) => text.parse().ok().map(SettingValue::Flag),
                _ => None,
            },
            Self::Count(min, max) | Self::Seconds(min, max) => {
                let number = match raw {
                    RawValue::Integer(text) | RawValue::Untyped(text) => {
                        byte_size::parse_number(text)
                    }
                    _ => None,
                };
                number_in_range(number, min, max)
            }
            Self::Bytes(min, max) => {
                let number = match raw {
                    RawValue::Integer(text) => byte_size::parse_number(text),
                    _ => text.and_then(byte_size::parse_size),
                };
                number_in_range(number, min, max)
            }
            Self::Text | Self::Secret => text.map(|text| SettingValue::Text(text.to_owned())),
            Self::Path => text
                .filter(|text| !text.is_empty())
                .map(|text| SettingValue::Path(folder.join(text))),
            Self::Choice(names) => text
                .filter(|text| names().contains(text))
                .map(|text| SettingValue::Text(text.to_owned())),
            Self::Bind => match text.map(parse_bind) {
                Some(Ok(bind)) => Some(SettingValue::Bind(bind)),
                Some(Err(hint)) if !hint.is_empty() => {
                    return Err(format!("{}; {hint}", self.mismatch_message(raw)));
                }
                _ => None,
            },
            Self::Levels => text
                .filter(|text| crate::logging::parse_levels(text).is_ok())
                .map(|text| SettingValue::Text(text.to_owned())),
            Self::Targets => match text.map(|text| (text, TargetPolicy::parse(text, ""))) {
                Some((text, Ok(_))) => Some(SettingValue::Text(text.to_owned())),
                Some((_, Err(error))) => return Err(error),
                None => None,
            },
            Self::Proxies => match text.map(str::parse::<TrustedProxies>) {
                Some(Ok(proxies)) => Some(SettingValue::Text(proxies.to_string())),
                Some(Err(error)) => return Err(error),
                None => None,
            },
            Self::Fsync => text
                .filter(|text| text.parse::<Fsync>().is_ok())
                .map(|text| SettingValue::Text(text.to_owned())),
            Self::Credential => match text.map(|text| (text, text.parse::<ScramCredential>())) {
                Some((text, Ok(_))) => Some(SettingValue::Text(text.trim().to_owned())),
                Some((_, Err(error))) => {
                    return Err(format!(
                        "{error}; `tidegate password` prints one (the value is not shown here)"
                    ));
                }
                None => None,
            },
        };
        value.ok_or_else(|| self.mismatch_message(raw))
    }

    fn mismatch_message(self, raw: &RawValue) -> String {
        let guess = match (self, raw) {
            (Self::Choice(names), RawValue::Untyped(text) | RawValue::String(text)) => {
                rules::nearest_name(text, names())
            }
            _ => None,
        };
        let found = match raw {
            _ if matches!(self, Self::Credential | Self::Secret) => "something else".to_owned(),
            RawValue::Untyped(text) | RawValue::String(text) => quoted(text),
            RawValue::Integer(text) => text.clone(),
            RawValue::Boolean(flag) => flag.to_string(),
            RawValue::Other(name) => (*name).to_owned(),
        };
        let guess = guess.map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"));
        format!("expected {}, found {found}{guess}", self.expected_text())
    }

    /// Description of valid values, for errors and the reference.
    pub(super) fn expected_text(self) -> String {
        match self {
            Self::Flag => "true or false".into(),
            Self::Count(min, max) => format!("a whole number from {min} to {max}"),
            Self::Seconds(min, max) => format!("seconds as a whole number from {min} to {max}"),
            Self::Bytes(min, max) => format!(
                "a size from {} to {} such as 65536, \"64KiB\" or \"1MB\"",
                byte_size::format_size(min),
                byte_size::format_size(max)
            ),
            Self::Text => "a text".into(),
            Self::Targets => "link-local, loopback, private, addresses and networks such as 10.0.0.0/8, separated by commas".into(),
            Self::Secret => "a text (not shown)".into(),
            Self::Path => "a path".into(),
            Self::Choice(names) => {
                let names: Vec<_> = names().iter().map(|name| format!("\"{name}\"")).collect();
                format!("one of {}", names.join(", "))
            }
            Self::Bind => {
                "an address such as \"127.0.0.1:1883\" or \"[::1]:1883\", the absolute path of a \
                 Unix socket, or \"off\""
                    .into()
            }
            Self::Levels => {
                "one of \"error\", \"warn\", \"info\", \"debug\", \"trace\", \"off\", optionally \
                 followed by levels of single components, such as \"info,broker=debug\""
                    .into()
            }
            Self::Proxies => {
                "addresses and networks separated by commas such as \"10.0.0.0/8, 192.0.2.1\", and \"unix\"".into()
            }
            Self::Fsync => {
                "\"always\", \"never\", or an interval from \"1ms\" to \"60s\" such as \"100ms\"".into()
            }
            Self::Credential => {
                "a credential as `tidegate password` prints it \
                 (scram-sha-256$ITERATIONS$SALT$STORED_KEY$SERVER_KEY)"
                    .into()
            }
        }
    }

    /// Formats a value of this kind as TOML.
    pub(super) fn to_toml(self, value: &SettingValue) -> String {
        match (self, value) {
            (Self::Bytes(..), SettingValue::Number(bytes)) => {
                match byte_size::format_size(*bytes) {
                    plain if plain.parse::<u64>().is_ok() => plain,
                    with_unit => quoted(&with_unit),
                }
            }
            (_, SettingValue::Flag(flag)) => flag.to_string(),
            (_, SettingValue::Number(number)) => number.to_string(),
            (_, SettingValue::Text(text)) => quoted(text),
            (_, SettingValue::Path(path)) => quoted(&path.display().to_string()),
            (_, SettingValue::Bind(bind)) => quoted(&bind.to_string()),
        }
    }
}

fn number_in_range(number: Option<u64>, min: u64, max: u64) -> Option<SettingValue> {
    number
        .filter(|number| (min..=max).contains(number))
        .map(SettingValue::Number)
}

fn quoted(text: &str) -> String {
    const SHOWN_CHARS: usize = 60;
    let mut shown: String = text.chars().take(SHOWN_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}

/// Parses a listen address; the error is a hint or empty.
fn parse_bind(text: &str) -> Result<BindSetting, String> {
    if text == "off" {
        return Ok(BindSetting::Off);
    }
    if let Ok(address) = text.parse() {
        return Ok(BindSetting::At(BindAddress::Tcp(address)));
    }
    let path = text.strip_prefix("unix:").unwrap_or(text);
    if path.starts_with('/') {
        return Ok(BindSetting::At(BindAddress::Unix(path.into())));
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let Ok(port) = port.parse::<u16>() else {
        return Err(String::new());
    };
    match host {
        "localhost" => Ok(BindSetting::At(BindAddress::Tcp(SocketAddr::from((
            Ipv4Addr::LOCALHOST,
            port,
        ))))),
        "" | "*" => Err(format!(
            "write \"0.0.0.0:{port}\" for every IPv4 address, \"[::]:{port}\" for every IPv6 address"
        )),
        host if host.contains(':') => Err(format!("write \"[{host}]:{port}\" for an IPv6 address")),
        _ => Err("a host name is not looked up; write its IP address".into()),
    }
}

/// A type that can be the field of a setting. Values have been validated against the setting's
/// [`SettingKind`], so a field that cannot contain them is an error in the table, which a test
/// detects.
pub(super) trait SettingField: Sized {
    /// `None` if the setting has no value.
    fn to_value(&self) -> Option<SettingValue>;
    fn from_value(value: SettingValue) -> Self;
}

const KIND_FITS: &str = "the table gives each field a kind that fits it";

macro_rules! number_fields {
    ($($type:ty),+) => {
        $(impl SettingField for $type {
            fn to_value(&self) -> Option<SettingValue> {
                Some(SettingValue::Number(u64::try_from(*self).expect(KIND_FITS)))
            }

            fn from_value(value: SettingValue) -> Self {
                match value {
                    SettingValue::Number(number) => Self::try_from(number).expect(KIND_FITS),
                    other => unreachable!("{KIND_FITS}, not {other:?}"),
                }
            }
        })+
    };
}
number_fields!(u8, u16, u32, u64, usize);

impl SettingField for bool {
    fn to_value(&self) -> Option<SettingValue> {
        Some(SettingValue::Flag(*self))
    }

    fn from_value(value: SettingValue) -> Self {
        match value {
            SettingValue::Flag(flag) => flag,
            other => unreachable!("{KIND_FITS}, not {other:?}"),
        }
    }
}

impl SettingField for Option<bool> {
    fn to_value(&self) -> Option<SettingValue> {
        self.map(SettingValue::Flag)
    }

    fn from_value(value: SettingValue) -> Self {
        Some(bool::from_value(value))
    }
}

impl SettingField for String {
    fn to_value(&self) -> Option<SettingValue> {
        (!self.is_empty()).then(|| SettingValue::Text(self.clone()))
    }

    fn from_value(value: SettingValue) -> Self {
        match value {
            SettingValue::Text(text) => text,
            other => unreachable!("{KIND_FITS}, not {other:?}"),
        }
    }
}

impl SettingField for TrustedProxies {
    fn to_value(&self) -> Option<SettingValue> {
        Some(self.to_string())
            .filter(|text| !text.is_empty())
            .map(SettingValue::Text)
    }

    fn from_value(value: SettingValue) -> Self {
        let SettingValue::Text(text) = &value else {
            unreachable!("{KIND_FITS}, not {value:?}");
        };
        text.parse().expect(KIND_FITS)
    }
}

impl SettingField for Fsync {
    fn to_value(&self) -> Option<SettingValue> {
        Some(SettingValue::Text(self.to_string()))
    }

    fn from_value(value: SettingValue) -> Self {
        let SettingValue::Text(text) = &value else {
            unreachable!("{KIND_FITS}, not {value:?}");
        };
        text.parse().expect(KIND_FITS)
    }
}

impl SettingField for Option<String> {
    fn to_value(&self) -> Option<SettingValue> {
        self.clone().map(SettingValue::Text)
    }

    fn from_value(value: SettingValue) -> Self {
        Some(String::from_value(value)).filter(|text| !text.is_empty())
    }
}

impl SettingField for Option<PathBuf> {
    fn to_value(&self) -> Option<SettingValue> {
        self.clone().map(SettingValue::Path)
    }

    fn from_value(value: SettingValue) -> Self {
        match value {
            SettingValue::Path(path) => Some(path),
            other => unreachable!("{KIND_FITS}, not {other:?}"),
        }
    }
}

impl SettingField for Option<BindSetting> {
    fn to_value(&self) -> Option<SettingValue> {
        self.clone().map(SettingValue::Bind)
    }

    fn from_value(value: SettingValue) -> Self {
        match value {
            SettingValue::Bind(bind) => Some(bind),
            other => unreachable!("{KIND_FITS}, not {other:?}"),
        }
    }
}

/// An enumeration whose values have names.
pub(super) trait NamedChoice: Copy + PartialEq + 'static {
    const NAMES: &'static [(&'static str, Self)];

    fn name(self) -> &'static str {
        let named = Self::NAMES.iter().find(|(_, value)| *value == self);
        named.expect("every value has a name").0
    }
}

/// `SettingKind::Choice` over the names of `T`.
pub(super) const fn choice<T: NamedChoice>() -> SettingKind {
    SettingKind::Choice(|| T::NAMES.iter().map(|(name, _)| *name).collect())
}

impl<T: NamedChoice> SettingField for T {
    fn to_value(&self) -> Option<SettingValue> {
        Some(SettingValue::Text(self.name().to_owned()))
    }

    fn from_value(value: SettingValue) -> Self {
        let SettingValue::Text(text) = &value else {
            unreachable!("{KIND_FITS}, not {value:?}");
        };
        let named = Self::NAMES.iter().find(|(name, _)| name == text);
        named.expect(KIND_FITS).1
    }
}

impl NamedChoice for SessionOwnerConflict {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("reject_client", Self::RejectClient),
        ("discard_session", Self::EndSession),
    ];
}

impl NamedChoice for QueuePolicy {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("drop_oldest", Self::DropOldest),
        ("drop_newest", Self::DropNewest),
        ("disconnect", Self::Disconnect),
    ];
}

impl NamedChoice for SharedSubscriptionStrategy {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("round_robin", Self::RoundRobin),
        ("random", Self::Random),
        ("sticky", Self::Sticky),
        ("hash_client_id", Self::HashClientId),
        ("hash_topic", Self::HashTopic),
        ("local", Self::Local),
    ];
}
