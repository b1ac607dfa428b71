//! What one setting is: a key, the kind of its value, where the value lives and a sentence of help. Reading,
//! checking, defaults and the reference all work on this.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use api::TrustedProxies;
use broker::config::{BindAddress, OtherUsersSession, QueuePolicy, SharedStrategy};
use broker::scram::Credential;
use outbound::targets::TargetPolicy;
use store::Fsync;

use super::nearest::nearest;
use super::size;

/// One setting of a section whose values live in a `T`.
pub(super) struct Setting<T: 'static> {
    /// Within its section for listeners and users, else with the section: `limits.max_qos`.
    pub(super) key: &'static str,
    pub(super) kind: Kind,
    /// One or two sentences of Markdown.
    pub(super) help: &'static str,
    /// Whether the API may change it while the node runs.
    pub(super) at_run_time: bool,
    pub(super) get: fn(&T) -> Option<Value>,
    pub(super) set: fn(&mut T, Value),
}

/// A line of the table: the key, the field behind it, the kind, the help. With `at run time` in front, the value may
/// change while the node runs: `serve/program.rs` sees to it that it holds.
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
            get: |section| Field::to_value(&section.$($field).+),
            set: |section, value| section.$($field).+ = Field::from_value(value),
        }
    };
}
pub(super) use setting;

/// Which values a setting takes.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Flag,
    /// A whole number within bounds (both included).
    Count(u64, u64),
    /// The same, in seconds.
    Seconds(u64, u64),
    /// The same, in bytes, also written as `16MiB`.
    Bytes(u64, u64),
    /// Any text; empty means none.
    Text,
    /// A file or folder; relative to the configuration file it stands in, else to the working folder.
    Path,
    /// One of a few names.
    Choice(fn() -> Vec<&'static str>),
    /// An address to listen on.
    Bind,
    /// Log levels.
    Levels,
    /// Classes of addresses and networks, with commas between.
    Targets,
    /// Proxies that are trusted.
    Proxies,
    /// When the log is forced to disk.
    Fsync,
    /// What proves a user; never shown.
    Credential,
    /// A text with a password in it; never shown.
    Secret,
}

/// A value as it was written, before anyone knows what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Raw {
    /// From the command line or the environment: may become any kind.
    Untyped(String),
    String(String),
    /// As written, any radix resolved; out of range of 64 bits included.
    Integer(String),
    Boolean(bool),
    /// Anything else TOML has, by its name.
    Other(&'static str),
}

impl Raw {
    /// A value from the command line or the environment. Quotes as TOML has them may stand around it.
    pub(super) fn untyped(text: &str) -> Self {
        let inside = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
        let bare = ['"', '\''].into_iter().find_map(inside).unwrap_or(text);
        Self::Untyped(bare.to_owned())
    }
}

/// A value that fits its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Flag(bool),
    Number(u64),
    Text(String),
    Path(PathBuf),
    Bind(Bind),
}

/// Where to listen, or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bind {
    Off,
    At(BindAddress),
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(BindAddress::Tcp(address)) => address.fmt(f),
            Self::At(BindAddress::Unix(path)) => path.display().fmt(f),
        }
    }
}

impl Kind {
    /// Reads a value, or says what was expected and found. `folder` is where relative paths start.
    pub(super) fn read(self, raw: &Raw, folder: &Path) -> Result<Value, String> {
        let text = match raw {
            Raw::Untyped(text) | Raw::String(text) => Some(text.as_str()),
            _ => None,
        };
        let value = match self {
            Self::Flag => match raw {
                Raw::Boolean(flag) => Some(Value::Flag(*flag)),
                Raw::Untyped(text) => text.parse().ok().map(Value::Flag),
                _ => None,
            },
            Self::Count(min, max) | Self::Seconds(min, max) => {
                let number = match raw {
                    Raw::Integer(text) | Raw::Untyped(text) => size::parse_number(text),
                    _ => None,
                };
                in_range(number, min, max)
            }
            Self::Bytes(min, max) => {
                let number = match raw {
                    Raw::Integer(text) => size::parse_number(text),
                    _ => text.and_then(size::parse),
                };
                in_range(number, min, max)
            }
            Self::Text | Self::Secret => text.map(|text| Value::Text(text.to_owned())),
            Self::Path => text
                .filter(|text| !text.is_empty())
                .map(|text| Value::Path(folder.join(text))),
            Self::Choice(names) => text
                .filter(|text| names().contains(text))
                .map(|text| Value::Text(text.to_owned())),
            Self::Bind => match text.map(parse_bind) {
                Some(Ok(bind)) => Some(Value::Bind(bind)),
                Some(Err(hint)) if !hint.is_empty() => {
                    return Err(format!("{}; {hint}", self.mismatch(raw)));
                }
                _ => None,
            },
            Self::Levels => text
                .filter(|text| crate::logging::parse_levels(text).is_ok())
                .map(|text| Value::Text(text.to_owned())),
            Self::Targets => match text.map(|text| (text, TargetPolicy::parse(text, ""))) {
                Some((text, Ok(_))) => Some(Value::Text(text.to_owned())),
                Some((_, Err(error))) => return Err(error),
                None => None,
            },
            Self::Proxies => match text.map(str::parse::<TrustedProxies>) {
                Some(Ok(proxies)) => Some(Value::Text(proxies.to_string())),
                Some(Err(error)) => return Err(error),
                None => None,
            },
            Self::Fsync => text
                .filter(|text| text.parse::<Fsync>().is_ok())
                .map(|text| Value::Text(text.to_owned())),
            Self::Credential => match text.map(|text| (text, text.parse::<Credential>())) {
                Some((text, Ok(_))) => Some(Value::Text(text.trim().to_owned())),
                Some((_, Err(error))) => {
                    return Err(format!(
                        "{error}; `tidegate password` prints one (the value is not shown here)"
                    ));
                }
                None => None,
            },
        };
        value.ok_or_else(|| self.mismatch(raw))
    }

    fn mismatch(self, raw: &Raw) -> String {
        let guess = match (self, raw) {
            (Self::Choice(names), Raw::Untyped(text) | Raw::String(text)) => nearest(text, names()),
            _ => None,
        };
        let found = match raw {
            _ if matches!(self, Self::Credential | Self::Secret) => "something else".to_owned(),
            Raw::Untyped(text) | Raw::String(text) => quoted(text),
            Raw::Integer(text) => text.clone(),
            Raw::Boolean(flag) => flag.to_string(),
            Raw::Other(name) => (*name).to_owned(),
        };
        let guess = guess.map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"));
        format!("expected {}, found {found}{guess}", self.expected())
    }

    /// What a fitting value is, for errors and the reference.
    pub(super) fn expected(self) -> String {
        match self {
            Self::Flag => "true or false".into(),
            Self::Count(min, max) => format!("a whole number from {min} to {max}"),
            Self::Seconds(min, max) => format!("seconds as a whole number from {min} to {max}"),
            Self::Bytes(min, max) => format!(
                "a size from {} to {} such as 65536, \"64KiB\" or \"1MB\"",
                size::format(min),
                size::format(max)
            ),
            Self::Text => "a text".into(),
            Self::Targets => "link-local, loopback, private, addresses and networks such as 10.0.0.0/8, with commas between".into(),
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
                "one of \"error\", \"warn\", \"info\", \"debug\", \"trace\", \"off\", with others for \
                 single targets behind it if wanted, as in \"info,broker=debug\""
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

    /// Writes a value of this kind as TOML.
    pub(super) fn to_toml(self, value: &Value) -> String {
        match (self, value) {
            (Self::Bytes(..), Value::Number(bytes)) => match size::format(*bytes) {
                plain if plain.parse::<u64>().is_ok() => plain,
                with_unit => quoted(&with_unit),
            },
            (_, Value::Flag(flag)) => flag.to_string(),
            (_, Value::Number(number)) => number.to_string(),
            (_, Value::Text(text)) => quoted(text),
            (_, Value::Path(path)) => quoted(&path.display().to_string()),
            (_, Value::Bind(bind)) => quoted(&bind.to_string()),
        }
    }
}

fn in_range(number: Option<u64>, min: u64, max: u64) -> Option<Value> {
    number
        .filter(|number| (min..=max).contains(number))
        .map(Value::Number)
}

fn quoted(text: &str) -> String {
    const SHOWN_CHARS: usize = 60;
    let mut shown: String = text.chars().take(SHOWN_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}

/// Reads an address to listen on; the error is a hint or empty.
fn parse_bind(text: &str) -> Result<Bind, String> {
    if text == "off" {
        return Ok(Bind::Off);
    }
    if let Ok(address) = text.parse() {
        return Ok(Bind::At(BindAddress::Tcp(address)));
    }
    let path = text.strip_prefix("unix:").unwrap_or(text);
    if path.starts_with('/') {
        return Ok(Bind::At(BindAddress::Unix(path.into())));
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let Ok(port) = port.parse::<u16>() else {
        return Err(String::new());
    };
    match host {
        "localhost" => Ok(Bind::At(BindAddress::Tcp(SocketAddr::from((
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

/// A type that can stand behind a setting. Values arrive checked against the setting's [`Kind`], so a field
/// that cannot hold them is a mistake in the table, which a test finds.
pub(super) trait Field: Sized {
    /// `None` if the setting has no value.
    fn to_value(&self) -> Option<Value>;
    fn from_value(value: Value) -> Self;
}

const KIND_FITS: &str = "the table gives each field a kind that fits it";

macro_rules! number_fields {
    ($($type:ty),+) => {
        $(impl Field for $type {
            fn to_value(&self) -> Option<Value> {
                Some(Value::Number(u64::try_from(*self).expect(KIND_FITS)))
            }

            fn from_value(value: Value) -> Self {
                match value {
                    Value::Number(number) => Self::try_from(number).expect(KIND_FITS),
                    other => unreachable!("{KIND_FITS}, not {other:?}"),
                }
            }
        })+
    };
}
number_fields!(u8, u16, u32, u64, usize);

impl Field for bool {
    fn to_value(&self) -> Option<Value> {
        Some(Value::Flag(*self))
    }

    fn from_value(value: Value) -> Self {
        match value {
            Value::Flag(flag) => flag,
            other => unreachable!("{KIND_FITS}, not {other:?}"),
        }
    }
}

impl Field for Option<bool> {
    fn to_value(&self) -> Option<Value> {
        self.map(Value::Flag)
    }

    fn from_value(value: Value) -> Self {
        Some(bool::from_value(value))
    }
}

impl Field for String {
    fn to_value(&self) -> Option<Value> {
        (!self.is_empty()).then(|| Value::Text(self.clone()))
    }

    fn from_value(value: Value) -> Self {
        match value {
            Value::Text(text) => text,
            other => unreachable!("{KIND_FITS}, not {other:?}"),
        }
    }
}

impl Field for TrustedProxies {
    fn to_value(&self) -> Option<Value> {
        Some(self.to_string())
            .filter(|text| !text.is_empty())
            .map(Value::Text)
    }

    fn from_value(value: Value) -> Self {
        let Value::Text(text) = &value else {
            unreachable!("{KIND_FITS}, not {value:?}");
        };
        text.parse().expect(KIND_FITS)
    }
}

impl Field for Fsync {
    fn to_value(&self) -> Option<Value> {
        Some(Value::Text(self.to_string()))
    }

    fn from_value(value: Value) -> Self {
        let Value::Text(text) = &value else {
            unreachable!("{KIND_FITS}, not {value:?}");
        };
        text.parse().expect(KIND_FITS)
    }
}

impl Field for Option<String> {
    fn to_value(&self) -> Option<Value> {
        self.clone().map(Value::Text)
    }

    fn from_value(value: Value) -> Self {
        Some(String::from_value(value)).filter(|text| !text.is_empty())
    }
}

impl Field for Option<PathBuf> {
    fn to_value(&self) -> Option<Value> {
        self.clone().map(Value::Path)
    }

    fn from_value(value: Value) -> Self {
        match value {
            Value::Path(path) => Some(path),
            other => unreachable!("{KIND_FITS}, not {other:?}"),
        }
    }
}

impl Field for Option<Bind> {
    fn to_value(&self) -> Option<Value> {
        self.clone().map(Value::Bind)
    }

    fn from_value(value: Value) -> Self {
        match value {
            Value::Bind(bind) => Some(bind),
            other => unreachable!("{KIND_FITS}, not {other:?}"),
        }
    }
}

/// An enumeration whose values have names.
pub(super) trait Choice: Copy + PartialEq + 'static {
    const NAMES: &'static [(&'static str, Self)];

    fn name(self) -> &'static str {
        let named = Self::NAMES.iter().find(|(_, value)| *value == self);
        named.expect("every value has a name").0
    }
}

/// [`Kind::Choice`] over the names of `T`.
pub(super) const fn choice<T: Choice>() -> Kind {
    Kind::Choice(|| T::NAMES.iter().map(|(name, _)| *name).collect())
}

impl<T: Choice> Field for T {
    fn to_value(&self) -> Option<Value> {
        Some(Value::Text(self.name().to_owned()))
    }

    fn from_value(value: Value) -> Self {
        let Value::Text(text) = &value else {
            unreachable!("{KIND_FITS}, not {value:?}");
        };
        let named = Self::NAMES.iter().find(|(name, _)| name == text);
        named.expect(KIND_FITS).1
    }
}

impl Choice for OtherUsersSession {
    const NAMES: &'static [(&'static str, Self)] = &[("refuse", Self::Refuse), ("end", Self::End)];
}

impl Choice for QueuePolicy {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("drop_oldest", Self::DropOldest),
        ("drop_newest", Self::DropNewest),
        ("disconnect", Self::Disconnect),
    ];
}

impl Choice for SharedStrategy {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("round_robin", Self::RoundRobin),
        ("random", Self::Random),
        ("sticky", Self::Sticky),
        ("hash_client_id", Self::HashClientId),
        ("hash_topic", Self::HashTopic),
        ("local", Self::Local),
    ];
}
