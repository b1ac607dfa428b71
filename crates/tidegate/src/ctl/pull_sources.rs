//! `tidegate ctl pull-sources`: pull source objects, states and tests.

use clap::Subcommand;

use outbound::url_encoding::url_encode;

use super::connectors;
use super::http::ApiClient;
use super::limit_args::LimitArgs;
use super::objects::{ObjectKindArg, ObjectsCommand};
use super::output::CtlOutput;

#[derive(Subcommand)]
pub(super) enum PullSourcesCommand {
    #[command(flatten)]
    Objects(ObjectsCommand),
    /// Query a pull source now; nothing is stored
    Test { name: String },
    /// Show the states of pull sources, or of one
    Status {
        name: Option<String>,
        #[command(flatten)]
        limit: LimitArgs,
    },
}

impl PullSourcesCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::Objects(objects) => {
                objects
                    .run(ObjectKindArg::PullSources, client, output)
                    .await
            }
            Self::Test { name } => {
                let path = format!("/api/v1/pull-sources/{}/test", url_encode(&name));
                let outcome = client.post_empty(&path).await?;
                if outcome["is_ok"] == false {
                    let error = outcome["error"].as_str().unwrap_or_default();
                    anyhow::bail!("{name} does not respond: {error}");
                }
                if let Some(problem) = outcome["problem"].as_str() {
                    eprintln!("Part of the query failed: {problem}");
                }
                let rows = outcome["data"].as_array().cloned().unwrap_or_default();
                let has_more = outcome["rows"].as_u64() > Some(rows.len() as u64);
                let columns = [
                    ("DEVICE", "device"),
                    ("TIME", "ts_ms"),
                    ("VALUES", "values"),
                ];
                output.print_rows((rows, has_more), &columns)
            }
            Self::Status {
                name: Some(name), ..
            } => {
                let path = format!("/api/v1/pull-sources/{}/status", url_encode(&name));
                output.print_fields(&client.get(&path).await?)
            }
            Self::Status { name: None, limit } => {
                let columns = [
                    ("SOURCE", "name"),
                    ("TYPE", "type"),
                    ("STATE", "state"),
                    ("OK", "is_ok"),
                    ("RUNS", "runs"),
                    ("ROWS", "rows"),
                    ("LAST SUCCESS", "last_success_at_ms"),
                    ("LAST ERROR", "last_error"),
                ];
                connectors::list_statuses(
                    "pull-source-status",
                    &columns,
                    limit.limit,
                    client,
                    output,
                )
                .await
            }
        }
    }
}
