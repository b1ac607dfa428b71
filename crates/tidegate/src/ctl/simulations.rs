//! `tidegate ctl simulations`: simulated fleets that a node runs against itself.

use anyhow::bail;
use clap::Subcommand;
use outbound::url_encoding::url_encode;
use serde_json::{Value, json};

use super::broker_commands::take_rows;
use super::http::ApiClient;
use super::jobs::wait_for_success;
use super::output::CtlOutput;

#[derive(Subcommand)]
pub(super) enum SimulationsCommand {
    /// List ready-made simulations
    List,
    /// Show a simulation with its phases, rates and failures
    Show { name: String },
    /// Start a simulation in the node
    Start {
        name: String,
        /// Maximum number of devices [default: simulations.max_devices]
        #[arg(long, value_name = "N")]
        devices: Option<u32>,
        /// Wait for its end; the exit status is 1 if a condition does not hold
        #[arg(long)]
        wait: bool,
    },
    /// Stop a simulation; its devices are removed
    Stop { name: String },
    /// Remove what an interrupted run or `tidegate demo` has left
    Clean { name: String },
}

fn path(name: &str) -> String {
    format!("/api/v1/simulations/{}", url_encode(name))
}

/// A row of the list with the state of the last run.
fn row(mut simulation: Value) -> Value {
    let run = simulation["run"].take();
    simulation["state"] = run["state"].clone();
    simulation["connected"] = run["progress"]["connected"].clone();
    simulation["sent"] = run["progress"]["sent"].clone();
    simulation
}

/// The fields that a person looks for.
fn details(simulation: &Value) -> Value {
    let (run, progress) = (&simulation["run"], &simulation["run"]["progress"]);
    let mut fields = json!({
        "name": simulation["name"], "description": simulation["description"], "devices": simulation["devices"],
        "messages_per_s": simulation["messages_per_s"],
    });
    if run.is_null() {
        return fields;
    }
    for field in ["state", "job", "started_at_ms", "ended_at_ms", "error"] {
        fields[field] = run[field].clone();
    }
    for field in [
        "stage",
        "connected",
        "sent",
        "sent_per_s",
        "acknowledged",
        "received",
        "answers",
        "failures",
        "ack_p99_ms",
    ] {
        fields[field] = progress[field].clone();
    }
    let phases = progress["phases"].as_array().cloned().unwrap_or_default();
    let phases = phases.iter().map(|phase| {
        let text = |field: &str| phase[field].as_str().unwrap_or_default().to_owned();
        format!("{} ({})", text("name"), text("state"))
    });
    fields["phases"] = json!(phases.collect::<Vec<_>>().join(", "));
    fields["failures_by_kind"] = progress["failures_by_kind"].clone();
    fields["conditions"] = run["conditions"].clone();
    fields
}

impl SimulationsCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::List => {
                let columns = [
                    ("NAME", "name"),
                    ("DEVICES", "devices"),
                    ("MESSAGES/S", "messages_per_s"),
                    ("STATE", "state"),
                    ("CONNECTED", "connected"),
                    ("SENT", "sent"),
                    ("DESCRIPTION", "description"),
                ];
                let mut answer = client.get("/api/v1/simulations").await?;
                let rows = take_rows(&mut answer).into_iter().map(row).collect();
                output.print_rows((rows, false), &columns)
            }
            Self::Show { name } => output.print_fields(&details(&client.get(&path(&name)).await?)),
            Self::Start {
                name,
                devices,
                wait,
            } => {
                let input = json!({"devices": devices});
                let job = client
                    .post(&format!("{}/start", path(&name)), &input)
                    .await?;
                if !wait {
                    let text = format!(
                        "{name} has started; `tidegate ctl simulations show {name}` shows its progress"
                    );
                    return output.print_done(&text, &job);
                }
                wait_for_success(client, job).await?;
                let simulation = client.get(&path(&name)).await?;
                output.print_fields(&details(&simulation))?;
                let conditions = simulation["run"]["conditions"].as_array();
                let mut conditions = conditions.into_iter().flatten();
                match conditions.find(|condition| condition["holds"] == false) {
                    Some(condition) => {
                        bail!("a condition does not hold: {}", condition["condition"])
                    }
                    None => Ok(()),
                }
            }
            Self::Stop { name } => {
                let answer = client.post_empty(&format!("{}/stop", path(&name))).await?;
                output.print_done(&format!("{name} is to end"), &answer)
            }
            Self::Clean { name } => {
                let job = client.post_empty(&format!("{}/clean", path(&name))).await?;
                let job = wait_for_success(client, job).await?;
                output.print_done(&format!("what {name} has left is removed"), &job)
            }
        }
    }
}
