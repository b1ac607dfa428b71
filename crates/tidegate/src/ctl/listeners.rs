//! `tidegate ctl listeners` and `certificates`.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use outbound::url_encoding::url_encode;
use serde_json::{Map, Value, json};

use super::broker_commands::take_rows;
use super::http::ApiClient;
use super::objects::FieldsArgs;
use super::output::CtlOutput;

#[derive(Subcommand)]
pub(super) enum ListenersCommand {
    /// List listeners
    List,
    /// Show a listener with its settings
    Show { name: String },
    /// Create or replace a listener, which is opened again after restarts
    Set {
        /// Name of the listener
        name: String,
        /// Settings, such as protocol=mqtts bind=0.0.0.0:8883 tls.certificate=ID
        #[arg(value_name = "NAME=VALUE")]
        assignments: Vec<String>,
        #[command(flatten)]
        fields: FieldsArgs,
    },
    /// Delete a listener that was created over the API, and disconnect its clients
    Delete { name: String },
    /// Start a stopped listener
    Start { name: String },
    /// Stop a listener until it or the node is started again
    Stop {
        name: String,
        /// Also disconnect its clients
        #[arg(long)]
        disconnect_clients: bool,
    },
}

/// `tls.certificate=ID` as in the configuration, where the API has an object `tls`.
fn with_nested_tls(fields: Map<String, Value>) -> Value {
    let mut definition = Map::new();
    for (name, value) in fields {
        match name.strip_prefix("tls.") {
            Some(name) => definition
                .entry("tls")
                .or_insert_with(|| json!({}))
                .as_object_mut()
                .map(|tls| tls.insert(name.to_owned(), value)),
            None => definition.insert(name, value).map(Some),
        };
    }
    Value::Object(definition)
}

fn listener_path(name: &str) -> String {
    format!("/api/v1/listeners/{}", url_encode(name))
}

impl ListenersCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::List => {
                let mut answer = client.get("/api/v1/listeners").await?;
                let columns = [
                    ("NAME", "name"),
                    ("PROTOCOL", "protocol"),
                    ("ADDRESS", "address"),
                    ("RUNNING", "running"),
                    ("CONNECTIONS", "connections"),
                    ("MAX", "max_connections"),
                    ("ORIGIN", "origin"),
                    ("PROBLEM", "problem"),
                ];
                output.print_rows((take_rows(&mut answer), false), &columns)
            }
            Self::Show { name } => output.print_fields(&client.get(&listener_path(&name)).await?),
            Self::Set {
                name,
                assignments,
                fields,
            } => {
                let definition = with_nested_tls(fields.fields(&assignments)?);
                let answer = client.put(&listener_path(&name), &definition, None).await?;
                let address = answer["address"].as_str().unwrap_or_default();
                output.print_done(&format!("{name} listens on {address}"), &answer)
            }
            Self::Delete { name } => {
                let answer = client.delete(&listener_path(&name)).await?;
                output.print_done(&format!("{name} was deleted"), &answer)
            }
            Self::Start { name } => {
                let path = format!("{}/start", listener_path(&name));
                let answer = client.post_empty(&path).await?;
                output.print_done(&format!("{name} listens"), &answer)
            }
            Self::Stop {
                name,
                disconnect_clients,
            } => {
                let path = format!("{}/stop", listener_path(&name));
                let body = json!({"disconnect_clients": disconnect_clients});
                let answer = client.post(&path, &body).await?;
                output.print_done(&format!("{name} has stopped"), &answer)
            }
        }
    }
}

#[derive(Subcommand)]
pub(super) enum CertificatesCommand {
    /// List uploaded certificates with their listeners
    List,
    /// Show an uploaded certificate without its key
    Show { id: String },
    /// Upload or replace a certificate; listeners use it for their next connections
    Set {
        /// Id of the certificate
        id: String,
        /// PEM file with the certificate and its chain
        #[arg(long, value_name = "FILE")]
        certificate: PathBuf,
        /// PEM file with its private key; omit it for authorities of clients
        #[arg(long, value_name = "FILE")]
        private_key: Option<PathBuf>,
    },
    /// Delete an uploaded certificate that no listener uses
    Delete { id: String },
}

impl CertificatesCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let path_of = |id: &str| format!("/api/v1/certificates/{}", url_encode(id));
        match self {
            Self::List => {
                let mut answer = client.get("/api/v1/certificates").await?;
                let columns = [
                    ("ID", "id"),
                    ("SUBJECT", "subject"),
                    ("NAMES", "names"),
                    ("EXPIRES", "not_after_ms"),
                    ("KEY", "has_private_key"),
                    ("USED BY", "used_by"),
                ];
                output.print_rows((take_rows(&mut answer), false), &columns)
            }
            Self::Show { id } => output.print_fields(&client.get(&path_of(&id)).await?),
            Self::Set {
                id,
                certificate,
                private_key,
            } => {
                let read = |file: PathBuf| {
                    fs::read_to_string(&file)
                        .with_context(|| format!("cannot read {}", file.display()))
                };
                let body = json!({
                    "certificate": read(certificate)?,
                    "private_key": private_key.map(read).transpose()?,
                });
                let answer = client.put(&path_of(&id), &body, None).await?;
                output.print_done(&format!("{id} was stored"), &answer)
            }
            Self::Delete { id } => {
                let answer = client.delete(&path_of(&id)).await?;
                output.print_done(&format!("{id} was deleted"), &answer)
            }
        }
    }
}
