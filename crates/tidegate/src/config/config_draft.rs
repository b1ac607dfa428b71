//! The configuration under construction: defaults first, then assignments, of which the last one
//! wins. Errors are collected and reported together.

use std::collections::HashMap;
use std::path::Path;

use super::config_error::{ConfigError, ValueOrigin};
use super::config_table::{AuthTables, ConfigTable};
use super::setting_kind::{RawValue, Setting};
use super::settings_table::{LISTENER, ListenerDraft, NODE, NodeSettings, USER, UserDraft};

const MAX_LISTENER_NAME_CHARS: usize = 32;

pub(super) struct ConfigDraft {
    pub(super) node: NodeSettings,
    pub(super) listeners: Vec<ListenerDraft>,
    pub(super) users: Vec<UserDraft>,
    pub(super) auth_tables: AuthTables,
    /// `[[rule]]`
    pub(super) rules: Vec<ConfigTable>,
    /// `[[product]]`
    pub(super) products: Vec<ConfigTable>,
    /// `[[connector]]`
    pub(super) connectors: Vec<ConfigTable>,
    /// `[[sink]]`
    pub(super) sinks: Vec<ConfigTable>,
    /// `[[source]]`
    pub(super) sources: Vec<ConfigTable>,
    /// Tables of `object_tables`, with their sections.
    pub(super) objects: Vec<(&'static str, ConfigTable)>,
    pub(super) errors: Vec<ConfigError>,
    /// The origin of each key's value; keys include their section, `listener.NAME.bind` for those
    /// of a listener.
    pub(super) origins: HashMap<String, ValueOrigin>,
    /// The place of each declared object, by kind and id.
    pub(super) declared_at: HashMap<(&'static str, String), ValueOrigin>,
}

/// The repeated table that a key belongs to.
enum KeyOwner<'a> {
    Node,
    Listener(&'a str),
    User(&'a str),
}

impl ConfigDraft {
    /// The defaults.
    pub(super) fn defaults() -> Self {
        Self {
            node: NodeSettings::default(),
            listeners: ListenerDraft::default_listeners(),
            users: Vec::new(),
            auth_tables: AuthTables::default(),
            rules: Vec::new(),
            products: Vec::new(),
            connectors: Vec::new(),
            sinks: Vec::new(),
            sources: Vec::new(),
            objects: Vec::new(),
            errors: Vec::new(),
            origins: HashMap::new(),
            declared_at: HashMap::new(),
        }
    }

    pub(super) fn add_error(
        &mut self,
        origin: ValueOrigin,
        key: impl Into<String>,
        message: impl Into<String>,
    ) {
        self.errors.push(ConfigError::new(origin, key, message));
    }

    /// Adds an error about a key without a value, unless the key already has an error.
    pub(super) fn add_missing(
        &mut self,
        origin: ValueOrigin,
        key: String,
        message: impl Into<String>,
    ) {
        if !self.errors.iter().any(|problem| problem.key == key) {
            self.add_error(origin, key, message);
        }
    }

    /// The origin of a key's value.
    pub(super) fn origin(&self, key: &str) -> ValueOrigin {
        self.origins
            .get(key)
            .cloned()
            .unwrap_or(ValueOrigin::Default)
    }

    /// Adds a listener without an address. Returns `false` and adds an error if the name is invalid
    /// or in use.
    pub(super) fn declare_listener(&mut self, name: &str, origin: &ValueOrigin) -> bool {
        let key = format!("listener.{name}");
        let valid = (1..=MAX_LISTENER_NAME_CHARS).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_');
        if !valid {
            let message = "a listener's name must be 1 to 32 lower-case letters, digits, - and _";
            self.add_error(origin.clone(), key, message);
            return false;
        }
        if self.listeners.iter().any(|known| known.rest.name == name) {
            let earlier = self.origin(&key);
            let message =
                format!("the name is taken by the listener at {earlier}; names are unique");
            self.add_error(origin.clone(), key, message);
            return false;
        }
        self.listeners.push(ListenerDraft::new(name));
        self.origins.insert(key, origin.clone());
        true
    }

    /// Adds a user without a credential. Returns `false` and adds an error if the name is empty or
    /// in use.
    pub(super) fn declare_user(&mut self, username: &str, origin: &ValueOrigin) -> bool {
        let key = format!("user.{username}");
        if username.is_empty() {
            let message = "a user needs a username that is not empty";
            self.add_error(origin.clone(), "user.username", message);
            return false;
        }
        if self.users.iter().any(|known| known.username == username) {
            let earlier = self.origin(&key);
            let message = format!("the name is taken by the user at {earlier}; names are unique");
            self.add_error(origin.clone(), key, message);
            return false;
        }
        self.users.push(UserDraft {
            username: username.to_owned(),
            credential: String::new(),
        });
        self.origins.insert(key, origin.clone());
        true
    }

    /// Assigns a value to a full key: `limits.max_qos`, `listener.mqtt.bind`,
    /// `user.ann.credential`. An unknown listener or user is added.
    pub(super) fn assign(
        &mut self,
        key: &str,
        raw: &RawValue,
        origin: &ValueOrigin,
        folder: &Path,
    ) {
        let (owner, rest) = match split_key(key) {
            Ok(split) => split,
            Err(shape) => return self.add_error(origin.clone(), key, format!("expected {shape}")),
        };
        let outcome = match owner {
            KeyOwner::Node => set(NODE, &mut self.node, rest, raw, folder),
            KeyOwner::Listener(name) => {
                let known = |draft: &Self| {
                    let mut names = draft.listeners.iter().map(|known| &known.rest.name);
                    names.position(|known| known == name)
                };
                if known(self).is_none() && !self.declare_listener(name, origin) {
                    return;
                }
                let at = known(self).expect("it was there or has just been declared");
                set(LISTENER, &mut self.listeners[at], rest, raw, folder)
            }
            KeyOwner::User(name) => {
                let known = |draft: &Self| {
                    let mut users = draft.users.iter();
                    users.position(|known| known.username == name)
                };
                if known(self).is_none() && !self.declare_user(name, origin) {
                    return;
                }
                let at = known(self).expect("it was there or has just been declared");
                set(USER, &mut self.users[at], rest, raw, folder)
            }
        };
        match outcome {
            Ok(()) => {
                self.origins.insert(key.to_owned(), origin.clone());
            }
            Err(message) => self.add_error(origin.clone(), key, message),
        }
    }
}

/// Splits a full key into its owner and the key in the owner's table; the error is the expected
/// form.
fn split_key(key: &str) -> Result<(KeyOwner<'_>, &str), &'static str> {
    const LISTENER_SHAPE: &str = "listener.NAME.KEY, such as listener.mqtt.bind";
    const USER_SHAPE: &str = "user.NAME.credential";
    if let Some(rest) = key.strip_prefix("listener.") {
        let (name, rest) = rest.split_once('.').ok_or(LISTENER_SHAPE)?;
        if rest == "name" {
            return Err("another key: the name of a listener stands in its key");
        }
        Ok((KeyOwner::Listener(name), rest))
    } else if let Some(rest) = key.strip_prefix("user.") {
        // A user name may contain dots, the keys of a user do not.
        let (name, rest) = rest.rsplit_once('.').ok_or(USER_SHAPE)?;
        if rest == "username" {
            return Err("another key: the name of a user stands in its key");
        }
        Ok((KeyOwner::User(name), rest))
    } else {
        match key {
            "listener" => Err(LISTENER_SHAPE),
            "user" => Err(USER_SHAPE),
            _ => Ok((KeyOwner::Node, key)),
        }
    }
}

fn set<T>(
    table: &'static [Setting<T>],
    section: &mut T,
    key: &str,
    raw: &RawValue,
    folder: &Path,
) -> Result<(), String> {
    let Some(setting) = table.iter().find(|setting| setting.key == key) else {
        let guess = rules::nearest_key(key, table.iter().map(|setting| setting.key));
        return Err(match guess {
            Some(guess) => format!("unknown key; did you mean `{guess}`?"),
            None => "unknown key".to_owned(),
        });
    };
    let value = setting.kind.parse_value(raw, folder)?;
    (setting.set)(section, value);
    Ok(())
}
