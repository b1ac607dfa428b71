//! Commands for users, authenticators, ACL rules, bans, rules, connectors, operators and API keys.
//! All kinds have the same commands, with fields as NAME=VALUE.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use outbound::url_encoding::url_encode;
use serde_json::{Map, Value, json};

use super::error::CtlError;
use super::http::{ApiClient, VersionedObject, with_query};
use super::limit_args::LimitArgs;
use super::object_fields::{field_rows, input_schema};
use super::output::{Column, CtlOutput};
use crate::password_command;

#[derive(Debug, Clone, Copy)]
pub(super) enum ObjectKindArg {
    Users,
    Authenticators,
    AclRules,
    Bans,
    Rules,
    Connectors,
    Sinks,
    Sources,
    Products,
    Notifications,
    RuleChains,
    DeviceGroups,
    PullSources,
    RelayEndpoints,
    Operators,
    ApiKeys,
    Namespaces,
    Invites,
    Firmware,
    FirmwareAssignments,
    Dashboards,
}

impl ObjectKindArg {
    fn path(self) -> &'static str {
        match self {
            Self::Users => "/api/v1/users",
            Self::Authenticators => "/api/v1/authenticators",
            Self::AclRules => "/api/v1/acl-rules",
            Self::Bans => "/api/v1/bans",
            Self::Rules => "/api/v1/rules",
            Self::Connectors => "/api/v1/connectors",
            Self::Sinks => "/api/v1/sinks",
            Self::Sources => "/api/v1/sources",
            Self::Products => "/api/v1/products",
            Self::Notifications => "/api/v1/notifications",
            Self::RuleChains => "/api/v1/rule-chains",
            Self::DeviceGroups => "/api/v1/device-groups",
            Self::PullSources => "/api/v1/pull-sources",
            Self::RelayEndpoints => "/api/v1/endpoints",
            Self::Operators => "/api/v1/operators",
            Self::ApiKeys => "/api/v1/api-keys",
            Self::Namespaces => "/api/v1/namespaces",
            Self::Invites => "/api/v1/invites",
            Self::Firmware => "/api/v1/firmware",
            Self::FirmwareAssignments => "/api/v1/firmware-assignments",
            Self::Dashboards => "/api/v1/dashboards",
        }
    }

    fn id_field(self) -> &'static str {
        match self {
            Self::Users | Self::Operators => "username",
            Self::Rules
            | Self::Connectors
            | Self::Sinks
            | Self::Sources
            | Self::Notifications
            | Self::PullSources => "name",
            _ => "id",
        }
    }

    fn columns(self) -> &'static [Column] {
        match self {
            Self::Users => &[
                ("USER", "username"),
                ("SUPERUSER", "is_superuser"),
                ("PASSWORD", "has_password"),
                ("DESCRIPTION", "description"),
                ("CHANGED", "updated_at_ms"),
                ("DECLARED AT", "declared_at"),
            ],
            Self::Authenticators => &[
                ("ID", "id"),
                ("TYPE", "type"),
                ("ENABLED", "enabled"),
                ("CHANGED", "updated_at_ms"),
                ("DECLARED AT", "declared_at"),
            ],
            Self::AclRules => &[
                ("ID", "id"),
                ("ORDER", "order"),
                ("PERMISSION", "permission"),
                ("ACTION", "action"),
                ("TOPICS", "topics"),
                ("USER", "username"),
                ("CLIENT ID", "client_id"),
                ("ADDRESS", "address"),
                ("DECLARED AT", "declared_at"),
            ],
            Self::Bans => &[
                ("ID", "id"),
                ("CLIENT ID", "client_id"),
                ("USER", "username"),
                ("ADDRESS", "address"),
                ("UNTIL", "until_ms"),
                ("REASON", "reason"),
            ],
            Self::Rules => &[
                ("RULE", "name"),
                ("ENABLED", "enabled"),
                ("SQL", "sql"),
                ("DESCRIPTION", "description"),
                ("CHANGED", "updated_at_ms"),
                ("DECLARED AT", "declared_at"),
            ],
            Self::Connectors => &[
                ("CONNECTOR", "name"),
                ("TYPE", "type"),
                ("DESCRIPTION", "description"),
                ("CHANGED", "updated_at_ms"),
                ("DECLARED AT", "declared_at"),
            ],
            Self::Sinks | Self::Sources => &[
                ("NAME", "name"),
                ("CONNECTOR", "connector"),
                ("ENABLED", "enabled"),
                ("DESCRIPTION", "description"),
                ("CHANGED", "updated_at_ms"),
                ("DECLARED AT", "declared_at"),
            ],
            Self::Products => &[
                ("PRODUCT", "id"),
                ("NAMESPACE", "namespace"),
                ("NAME", "name"),
                ("ENABLED", "enabled"),
                ("DESCRIPTION", "description"),
                ("CHANGED", "updated_at_ms"),
                ("DECLARED AT", "declared_at"),
            ],
            Self::Notifications => &[
                ("NOTIFICATION", "name"),
                ("NAMESPACE", "namespace"),
                ("ENABLED", "enabled"),
                ("ALL", "all"),
                ("SEVERITIES", "severities"),
                ("TO", "to"),
                ("DESCRIPTION", "description"),
                ("DECLARED AT", "declared_at"),
            ],
            Self::RuleChains => &[
                ("CHAIN", "id"),
                ("DESCRIPTION", "description"),
                ("CHANGED", "updated_at_ms"),
                ("DECLARED AT", "declared_at"),
            ],
            Self::DeviceGroups => &[
                ("GROUP", "id"),
                ("NAMESPACE", "namespace"),
                ("NAME", "name"),
                ("PRODUCT", "product"),
                ("TAGS", "tags"),
                ("DESCRIPTION", "description"),
                ("CHANGED", "updated_at_ms"),
                ("DECLARED AT", "declared_at"),
            ],
            Self::PullSources => &[
                ("SOURCE", "name"),
                ("ENABLED", "enabled"),
                ("EVERY", "interval_s"),
                ("DESCRIPTION", "description"),
                ("CHANGED", "updated_at_ms"),
                ("DECLARED AT", "declared_at"),
            ],
            Self::RelayEndpoints => &[
                ("ENDPOINT", "id"),
                ("NAMESPACE", "namespace"),
                ("NAME", "name"),
                ("MODE", "mode"),
                ("KEY", "has_access_key"),
                ("DISABLED", "disabled_reason"),
                ("CHANGED", "updated_at_ms"),
                ("DECLARED AT", "declared_at"),
            ],
            Self::Operators => &[
                ("OPERATOR", "username"),
                ("ROLE", "role"),
                ("NAMESPACES", "namespaces"),
                ("ENABLED", "enabled"),
                ("DESCRIPTION", "description"),
                ("CHANGED", "updated_at_ms"),
            ],
            Self::ApiKeys => &[
                ("ID", "id"),
                ("NAMESPACE", "namespace"),
                ("ROLE", "role"),
                ("ENABLED", "enabled"),
                ("EXPIRES", "expires_at_ms"),
                ("DESCRIPTION", "description"),
            ],
            Self::Invites => &[
                ("ID", "id"),
                ("NAMESPACE", "namespace"),
                ("ROLE", "role"),
                ("ENABLED", "enabled"),
                ("USES", "max_uses"),
                ("USED BY", "used_by"),
                ("EXPIRES", "expires_at_ms"),
                ("DESCRIPTION", "description"),
            ],
            Self::Firmware => &[
                ("PACKAGE", "id"),
                ("NAMESPACE", "namespace"),
                ("PRODUCT", "product"),
                ("TYPE", "type"),
                ("TITLE", "title"),
                ("VERSION", "firmware_version"),
                ("SIZE", "size"),
                ("SIGNED BY", "signed_by"),
                ("CHANGED", "updated_at_ms"),
            ],
            Self::FirmwareAssignments => &[
                ("ID", "id"),
                ("NAMESPACE", "namespace"),
                ("PACKAGE", "package"),
                ("PRODUCT", "product"),
                ("GROUP", "group"),
                ("DEVICE", "device"),
                ("CHANGED", "updated_at_ms"),
            ],
            Self::Dashboards => &[
                ("ID", "id"),
                ("NAMESPACE", "namespace"),
                ("NAME", "name"),
                ("DESCRIPTION", "description"),
                ("CHANGED", "updated_at_ms"),
            ],
            Self::Namespaces => &[
                ("NAMESPACE", "id"),
                ("NAME", "name"),
                ("STATE", "state"),
                ("REASON", "reason"),
                ("DESCRIPTION", "description"),
                ("DECLARED AT", "declared_at"),
            ],
        }
    }

    /// Checks that a new object whose kind has a password has one, because the node does not know the options that
    /// give it.
    fn check_password(self, fields: &Map<String, Value>) -> Result<(), CtlError> {
        let (name, accepted): (_, &[&str]) = match self {
            Self::Users => ("user", &["password", "password_hash", "scram"]),
            Self::Operators => ("operator", &["password"]),
            _ => return Ok(()),
        };
        let is_given = |field: &&str| fields.get(*field).is_some_and(|value| !value.is_null());
        if accepted.iter().any(is_given) {
            return Ok(());
        }
        Err(CtlError::Usage(format!(
            "a new {name} needs a password: give --ask-password, or --password-file FILE"
        )))
    }

    /// Whether its list can be limited to one namespace.
    fn has_namespace(self) -> bool {
        matches!(
            self,
            Self::Products
                | Self::Notifications
                | Self::DeviceGroups
                | Self::ApiKeys
                | Self::RelayEndpoints
                | Self::Invites
                | Self::Firmware
                | Self::FirmwareAssignments
                | Self::Dashboards
        )
    }

    /// The fields of these objects; those of one type of connector, if it is given.
    async fn field_rows(
        self,
        variant: Option<&str>,
        client: &ApiClient,
    ) -> Result<Vec<Value>, CtlError> {
        let Some(variant) = variant else {
            let document = client.get("/api/v1/openapi.json").await?;
            return Ok(field_rows(&document, input_schema(&document, self.path())));
        };
        let schema_field = match self {
            Self::Connectors => "connector_schema",
            Self::Sinks => "sink_schema",
            Self::Sources => "source_schema",
            _ => {
                let detail = format!("{variant:?}: only connectors, sinks and sources have types");
                return Err(CtlError::Usage(detail));
            }
        };
        let answer = client.get("/api/v1/connector-types").await?;
        let types = answer["data"].as_array().map_or(&[][..], Vec::as_slice);
        let fitting = types.iter().filter(|each| each[schema_field].is_object());
        match fitting.clone().find(|each| each["type"] == variant) {
            Some(found) => Ok(field_rows(&found[schema_field], &found[schema_field])),
            None => {
                let names: Vec<_> = fitting.filter_map(|each| each["type"].as_str()).collect();
                let detail = format!(
                    "there is no type {variant:?}; there are {}",
                    names.join(", ")
                );
                Err(CtlError::Usage(detail))
            }
        }
    }
}

#[derive(Subcommand)]
pub(super) enum ObjectsCommand {
    /// List objects
    List {
        /// Only objects with this in their name or id
        #[arg(long, value_name = "PART")]
        contains: Option<String>,
        /// Only objects of this namespace; for products, groups, notifications, relay endpoints, firmware, API keys, invites and
        /// dashboards
        #[arg(long, value_name = "ID")]
        namespace: Option<String>,
        #[command(flatten)]
        limit: LimitArgs,
    },
    /// Show an object
    Show { id: String },
    /// List the fields that an object has, with their types and meaning
    Fields {
        /// Type of a connector, sink or source, such as redis: adds the fields that depend on it
        #[arg(value_name = "TYPE")]
        variant: Option<String>,
    },
    /// Create an object; `fields` lists what it may have
    ///
    /// Examples: `users add ann --ask-password`, `acl add permission=deny 'topics=["secret/#"]'`,
    /// `products add thermometer name=Thermometer`
    Add {
        /// Name or id, then fields; the id is optional if the node can generate one
        #[arg(value_name = "ID] [NAME=VALUE")]
        words: Vec<String>,
        #[command(flatten)]
        fields: FieldsArgs,
    },
    /// Change fields of an object; other fields are kept
    Set {
        id: String,
        #[arg(value_name = "NAME=VALUE")]
        assignments: Vec<String>,
        #[command(flatten)]
        fields: FieldsArgs,
    },
    /// Delete an object
    Delete { id: String },
}

#[derive(Args)]
pub(super) struct FieldsArgs {
    /// File with a JSON object that contains the fields
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Prompt for the password on the terminal
    #[arg(long, conflicts_with = "password_file")]
    ask_password: bool,
    /// Read the password from a file
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

impl FieldsArgs {
    /// All fields of the arguments; NAME=VALUE overrides the file.
    pub(super) fn fields(&self, assignments: &[String]) -> anyhow::Result<Map<String, Value>> {
        let mut fields = match &self.from {
            None => Map::new(),
            Some(file) => {
                let shown = file.display();
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("cannot read {shown}"))?;
                let read: Value =
                    serde_json::from_str(&text).with_context(|| format!("{shown} is not JSON"))?;
                match read {
                    Value::Object(fields) => fields,
                    _ => {
                        return Err(
                            CtlError::Usage(format!("{shown}: expected a JSON object")).into()
                        );
                    }
                }
            }
        };
        let password = match &self.password_file {
            Some(file) => Some(password_command::from_file(file)?),
            None if self.ask_password => {
                let password = password_command::prompt("New password: ")?;
                if password_command::prompt("Once more: ")? != password {
                    anyhow::bail!("the two passwords differ; nothing was changed");
                }
                Some(password)
            }
            None => None,
        };
        if let Some(password) = password {
            let password = String::from_utf8(password).context("the password is not UTF-8")?;
            fields.insert("password".to_owned(), json!(password));
        }
        for assignment in assignments {
            let (name, value) = parse_assignment(assignment)?;
            fields.insert(name, value);
        }
        Ok(fields)
    }
}

/// Parses a `NAME=VALUE` of the command line.
pub(super) fn parse_assignment(assignment: &str) -> Result<(String, Value), CtlError> {
    let (name, value) = assignment.split_once('=').ok_or_else(|| {
        CtlError::Usage(format!(
            "{assignment:?}: expected NAME=VALUE, such as role=viewer"
        ))
    })?;
    Ok((name.to_owned(), parse_value(name, value)?))
}

/// Parses a value of the command line: JSON if it is valid JSON, text otherwise. A text that starts
/// like a JSON object, array or string is rejected: it is probably invalid JSON, and would be
/// stored as text.
pub(super) fn parse_value(name: &str, text: &str) -> Result<Value, CtlError> {
    match serde_json::from_str(text) {
        Ok(value) => Ok(value),
        Err(error) if text.trim_start().starts_with(['{', '[', '"']) => {
            let as_text = json!(text);
            Err(CtlError::Usage(format!(
                "{name}: {text} is not valid JSON ({error}). Names and texts in JSON stand in double quotes, such as \
                 {{\"delay_s\": 3}}; to send it as a text, write {as_text}"
            )))
        }
        Err(_) => Ok(json!(text)),
    }
}

/// Reads the object at `path` and writes it back with changed fields, unless it has changed
/// meanwhile.
pub(super) async fn update_object(
    client: &ApiClient,
    path: &str,
    changes: Map<String, Value>,
) -> Result<Value, CtlError> {
    let current = client.get_versioned(path).await?;
    put_object(client, path, current, changes).await
}

/// Writes back an object with changed fields. `null` removes a field.
pub(super) async fn put_object(
    client: &ApiClient,
    path: &str,
    current: VersionedObject,
    changes: Map<String, Value>,
) -> Result<Value, CtlError> {
    let mut body = current.value;
    if let Some(body) = body.as_object_mut() {
        apply_changes(body, changes);
    }
    client.put(path, &body, current.etag.as_deref()).await
}

/// Applies changes to an object as the node has shown it. A removed field is omitted if the node shows its value. An omitted secret
/// keeps its value, so a secret is removed by `null`, and so is everything that the node does not show.
fn apply_changes(shown: &mut Map<String, Value>, changes: Map<String, Value>) {
    shown.retain(|_, value| !value.is_null());
    for (name, value) in changes {
        let is_shown = shown.get(&name).is_some_and(|value| !is_masked(value));
        match value.is_null() && is_shown {
            true => drop(shown.remove(&name)),
            false => drop(shown.insert(name, value)),
        }
    }
}

/// Whether a shown value is a secret, or an object of secrets such as HTTP headers.
fn is_masked(shown: &Value) -> bool {
    match shown {
        Value::Object(secrets) => !secrets.is_empty() && secrets.values().all(is_masked),
        shown => *shown == secret::MASK,
    }
}

impl ObjectsCommand {
    pub(super) async fn run(
        self,
        kind: ObjectKindArg,
        client: &ApiClient,
        output: &CtlOutput,
    ) -> anyhow::Result<()> {
        let one = |id: &str| format!("{}/{}", kind.path(), url_encode(id));
        match self {
            Self::List {
                contains,
                namespace,
                limit,
            } => {
                if namespace.is_some() && !kind.has_namespace() {
                    let detail = "--namespace: these objects belong to no namespace".to_owned();
                    return Err(CtlError::Usage(detail).into());
                }
                let filters = [("id_contains", contains), ("namespace", namespace)];
                let path = with_query(kind.path(), &filters);
                output.print_rows(client.rows(&path, limit.limit).await?, kind.columns())
            }
            Self::Show { id } => output.print_fields(&client.get(&one(&id)).await?),
            Self::Fields { variant } => {
                let rows = kind.field_rows(variant.as_deref(), client).await?;
                let columns = [
                    ("FIELD", "field"),
                    ("TYPE", "type"),
                    ("REQUIRED", "required"),
                    ("DESCRIPTION", "description"),
                ];
                output.print_rows((rows, false), &columns)
            }
            Self::Add { words, fields } => {
                let (id, assignments) = match words.split_first() {
                    Some((id, rest)) if !id.contains('=') => (Some(id), rest),
                    _ => (None, &words[..]),
                };
                let mut body = fields.fields(assignments)?;
                if let Some(id) = id {
                    body.insert(kind.id_field().to_owned(), json!(id));
                }
                kind.check_password(&body)?;
                let made = client.post(kind.path(), &Value::Object(body)).await?;
                let id = made[kind.id_field()].as_str().unwrap_or_default();
                if let Some(code) = made["code"].as_str() {
                    let text = format!("{id} was created. Its code is not shown again:\n{code}");
                    return output.print_done(&text, &made);
                }
                match made["secret"].as_str() {
                    Some(secret) => output.print_done(
                        &format!("{id} was created. Its secret is not shown again; for --key-file:\n{id}:{secret}"),
                        &made,
                    ),
                    None => output.print_done(&format!("{id} was created"), &made),
                }
            }
            Self::Set {
                id,
                assignments,
                fields,
            } => {
                let changes = fields.fields(&assignments)?;
                let changed = update_object(client, &one(&id), changes).await?;
                output.print_done(&format!("{id} was changed"), &changed)
            }
            Self::Delete { id } => {
                let answer = client.delete(&one(&id)).await?;
                output.print_done(&format!("{id} was deleted"), &answer)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn null_removes_shown_fields_and_secrets() {
        let mut shown = fields(
            json!({"name": "n", "reason": null, "password": "***", "headers": {"a": "***"},
            "tags": {}, "has_access_key": true}),
        );
        let changes = json!({"name": null, "password": null, "headers": null, "access_key": null, "tags": null, "mode": "direct"});
        apply_changes(&mut shown, fields(changes));
        let expected = json!({"password": null, "headers": null, "access_key": null, "has_access_key": true, "mode": "direct"});
        assert_eq!(Value::Object(shown), expected);
    }

    #[test]
    fn a_new_user_needs_a_password_that_is_not_null() {
        let check = |value| ObjectKindArg::Users.check_password(&fields(value)).is_ok();
        assert!(check(json!({"password": "pencil"})));
        assert!(!check(json!({"password": null})));
    }
}
