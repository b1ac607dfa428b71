//! `tidegate ctl pull-sources`: their objects, how they do, and asking one now.

use clap::Subcommand;

use super::commands::Limit;
use super::connectors;
use super::http::{Client, encoded};
use super::objects::{Kind, Objects};
use super::show::Output;

#[derive(Subcommand)]
pub(super) enum PullSources {
    #[command(flatten)]
    Objects(Objects),
    /// Ask one now; nothing of what it says is stored
    Test { name: String },
    /// How they do, or one does
    Status {
        name: Option<String>,
        #[command(flatten)]
        limit: Limit,
    },
}

impl PullSources {
    pub(super) async fn run(self, client: &Client, output: &Output) -> anyhow::Result<()> {
        match self {
            Self::Objects(objects) => objects.run(Kind::PullSources, client, output).await,
            Self::Test { name } => {
                let path = format!("/api/v1/pull-sources/{}/test", encoded(&name));
                let outcome = client.ask(&path).await?;
                if outcome["is_ok"] == false {
                    let error = outcome["error"].as_str().unwrap_or_default();
                    anyhow::bail!("{name} does not answer: {error}");
                }
                if let Some(problem) = outcome["problem"].as_str() {
                    eprintln!("A part of it went wrong: {problem}");
                }
                let rows = outcome["data"].as_array().cloned().unwrap_or_default();
                let has_more = outcome["rows"].as_u64() > Some(rows.len() as u64);
                let columns = [
                    ("DEVICE", "device"),
                    ("TIME", "ts_ms"),
                    ("VALUES", "values"),
                ];
                output.rows((rows, has_more), &columns)
            }
            Self::Status {
                name: Some(name), ..
            } => {
                let path = format!("/api/v1/pull-sources/{}/status", encoded(&name));
                output.one(&client.get(&path).await?)
            }
            Self::Status { name: None, limit } => {
                let columns = [
                    ("SOURCE", "name"),
                    ("TYPE", "type"),
                    ("CONDITION", "condition"),
                    ("OK", "is_ok"),
                    ("RUNS", "runs"),
                    ("ROWS", "rows"),
                    ("LAST SUCCESS", "last_success_at_ms"),
                    ("LAST ERROR", "last_error"),
                ];
                connectors::list("pull-source-status", &columns, limit.limit, client, output).await
            }
        }
    }
}
