//! `tidegate ctl endpoints`: relay endpoints, their states, connections and last messages.

use clap::Subcommand;

use outbound::url_encoding::url_encode;

use super::broker_commands::columns_with_node;
use super::http::ApiClient;
use super::limit_args::LimitArgs;
use super::objects::{ObjectKindArg, ObjectsCommand};
use super::output::{Column, CtlOutput};

const STATUS_COLUMNS: &[Column] = &[
    ("ENDPOINT", "id"),
    ("ENABLED", "is_enabled"),
    ("CONNECTIONS", "current_connections"),
    ("TOTAL", "total_connections"),
    ("REJECTED", "rejected_connections"),
    ("MESSAGES", "total_messages"),
    ("PER MINUTE", "messages_per_minute"),
    ("BYTES", "total_bytes"),
    ("DROPPED", "dropped_messages"),
    ("LAST ACTIVE", "last_active_at_ms"),
];
const CONNECTION_COLUMNS: &[Column] = &[
    ("CONNECTION", "connection_id"),
    ("ADDRESS", "peer_address"),
    ("CONNECTED", "connected_at_ms"),
];
const MESSAGE_COLUMNS: &[Column] = &[
    ("TIME", "at_ms"),
    ("SENDER", "sender"),
    ("TEXT", "text"),
    ("BINARY BYTES", "binary_bytes"),
];

#[derive(Subcommand)]
pub(super) enum RelayEndpointsCommand {
    #[command(flatten)]
    Objects(ObjectsCommand),
    /// Show connections, messages and bytes of all endpoints, or of one
    Status {
        id: Option<String>,
        #[command(flatten)]
        limit: LimitArgs,
    },
    /// List the connections of an endpoint
    Connections {
        id: String,
        #[command(flatten)]
        limit: LimitArgs,
    },
    /// Show the last messages of an endpoint, newest first
    Messages { id: String },
    /// Close a connection of an endpoint
    Disconnect { id: String, connection_id: String },
}

impl RelayEndpointsCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let of = |id: &str, what: &str| format!("/api/v1/endpoints/{}/{what}", url_encode(id));
        match self {
            Self::Objects(objects) => {
                (objects.run(ObjectKindArg::RelayEndpoints, client, output)).await
            }
            Self::Status { id: Some(id), .. } => {
                output.print_fields(&client.get(&of(&id, "status")).await?)
            }
            Self::Status { id: None, limit } => {
                let rows = client.rows("/api/v1/endpoint-status", limit.limit).await?;
                output.print_rows(rows, STATUS_COLUMNS)
            }
            Self::Connections { id, limit } => {
                let rows = client.rows(&of(&id, "connections"), limit.limit).await?;
                let columns = columns_with_node(&rows.0, CONNECTION_COLUMNS);
                output.print_rows(rows, &columns)
            }
            Self::Messages { id } => {
                let messages = client.get(&of(&id, "messages")).await?;
                let rows = messages.as_array().cloned().unwrap_or_default();
                let columns = columns_with_node(&rows, MESSAGE_COLUMNS);
                output.print_rows((rows, false), &columns)
            }
            Self::Disconnect { id, connection_id } => {
                let path = format!("connections/{}", url_encode(&connection_id));
                let answer = client.delete(&of(&id, &path)).await?;
                output.print_done(
                    &format!("connection {connection_id} of {id} was closed"),
                    &answer,
                )
            }
        }
    }
}
