//! `tidegate ctl commands`: commands to devices and their results.

use clap::{Args, Subcommand};
use outbound::url_encoding::url_encode;
use serde_json::{Map, Value, json};

use super::error::CtlError;
use super::http::{ApiClient, with_query};
use super::limit_args::LimitArgs;
use super::objects::{parse_assignment, parse_value};
use super::output::{Column, CtlOutput, format_date};

const COLUMNS: &[Column] = &[
    ("COMMAND", "id"),
    ("DEVICE", "device"),
    ("METHOD", "method"),
    ("STATE", "state"),
    ("CREATED", "created_at_ms"),
    ("ENDED", "finished_at_ms"),
    ("MESSAGE", "message"),
];

#[derive(Subcommand)]
pub(super) enum DeviceCommandsCommand {
    /// Call a method of a device and wait for the response
    Send {
        device: String,
        method: String,
        /// Parameters, as JSON or text
        params: Option<String>,
        #[command(flatten)]
        command_options: CommandOptionsArgs,
    },
    /// Call a function of a device's thing model
    Invoke {
        device: String,
        function: String,
        /// Inputs, as JSON or text
        #[arg(value_name = "INPUT=VALUE")]
        inputs: Vec<String>,
        #[command(flatten)]
        command_options: CommandOptionsArgs,
    },
    /// Read properties of a device
    Read {
        device: String,
        #[arg(required = true)]
        keys: Vec<String>,
        #[command(flatten)]
        command_options: CommandOptionsArgs,
    },
    /// Write properties of a device
    Write {
        device: String,
        /// Values, as JSON or text
        #[arg(value_name = "KEY=VALUE", required = true)]
        values: Vec<String>,
        #[command(flatten)]
        command_options: CommandOptionsArgs,
    },
    /// List commands, newest first
    List {
        /// Only commands to this device
        #[arg(long)]
        device: Option<String>,
        /// Only these states, separated by commas
        #[arg(long)]
        state: Option<String>,
        #[command(flatten)]
        limit: LimitArgs,
    },
    /// Show a command
    Show {
        #[arg(value_parser = parse_command_id)]
        id: u64,
    },
    /// Cancel a command that has not ended
    Cancel {
        #[arg(value_parser = parse_command_id)]
        id: u64,
    },
}

fn parse_command_id(text: &str) -> Result<u64, String> {
    let expected = "expected the number of a command, such as 17; `tidegate ctl commands list` shows the numbers";
    text.parse().map_err(|_| expected.to_owned())
}

#[derive(Args)]
pub(super) struct CommandOptionsArgs {
    /// Do not expect a response
    #[arg(long)]
    one_way: bool,
    /// Time limit of the response, in milliseconds
    #[arg(long, value_name = "MS")]
    timeout_ms: Option<u64>,
    /// Seconds to wait for a disconnected device; 0: do not wait
    #[arg(long, value_name = "S")]
    expires_in_s: Option<u64>,
    /// Number of retries without a response
    #[arg(long, default_value_t = 0)]
    retries: u32,
    /// Return without waiting for the response
    #[arg(long)]
    no_wait: bool,
}

impl CommandOptionsArgs {
    fn with_field(&self, field: &str, value: Value) -> Value {
        let mut body = json!({
            "one_way": self.one_way,
            "timeout_ms": self.timeout_ms,
            "expires_in_s": self.expires_in_s,
            "retries": self.retries,
            "wait": !self.no_wait,
        });
        body[field] = value;
        body
    }
}

fn parse_assignments(assignments: &[String]) -> Result<Map<String, Value>, CtlError> {
    let pairs = assignments
        .iter()
        .map(|assignment| parse_assignment(assignment));
    pairs.collect()
}

impl DeviceCommandsCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let of = |device: &str| format!("/api/v1/devices/{}", url_encode(device));
        let (path, body) = match self {
            Self::Send {
                device,
                method,
                params,
                command_options,
            } => {
                let params = params.as_deref();
                let params = params.map_or(Ok(Value::Null), |text| parse_value("params", text))?;
                let mut body = command_options.with_field("params", params);
                body["method"] = method.into();
                (format!("{}/commands", of(&device)), body)
            }
            Self::Invoke {
                device,
                function,
                inputs,
                command_options,
            } => {
                let path = format!("{}/functions/{}", of(&device), url_encode(&function));
                (
                    path,
                    command_options.with_field("params", parse_assignments(&inputs)?.into()),
                )
            }
            Self::Read {
                device,
                keys,
                command_options,
            } => {
                let path = format!("{}/properties/read", of(&device));
                (path, command_options.with_field("keys", keys.into()))
            }
            Self::Write {
                device,
                values,
                command_options,
            } => {
                let path = format!("{}/properties/write", of(&device));
                (
                    path,
                    command_options.with_field("values", parse_assignments(&values)?.into()),
                )
            }
            Self::List {
                device,
                state,
                limit,
            } => {
                let path = match device {
                    Some(device) => format!("{}/commands", of(&device)),
                    None => "/api/v1/commands".to_owned(),
                };
                let path = with_query(&path, &[("state", state)]);
                return output.print_rows(client.rows(&path, limit.limit).await?, COLUMNS);
            }
            Self::Show { id } => {
                return output.print_fields(&client.get(&format!("/api/v1/commands/{id}")).await?);
            }
            Self::Cancel { id } => {
                let path = format!("/api/v1/commands/{id}/cancel");
                let answer = client.post(&path, &json!({})).await?;
                return output.print_done(&format!("command {id} was cancelled"), &answer);
            }
        };
        let command = client.post(&path, &body).await?;
        output.print_fields(&command)?;
        if let Some(note) = pending_note(&command) {
            eprintln!("{note}");
        }
        Ok(check_success(&command)?)
    }
}

/// Why a command has no response yet: it waits for its device.
fn pending_note(command: &Value) -> Option<String> {
    if command["state"] != "pending" {
        return None;
    }
    let until = command["expires_at_ms"].as_u64().map(format_date);
    Some(format!(
        "{} is not connected; command {} waits for it until {}.",
        command["device"].as_str().unwrap_or("The device"),
        command["id"],
        until.unwrap_or_default(),
    ))
}

/// A command that ended without success sets a special exit status. A command that has not ended
/// (`--no-wait`, `--one-way`, a disconnected device) is not an error.
fn check_success(command: &Value) -> Result<(), CtlError> {
    let state = command["state"].as_str().unwrap_or_default();
    let text = |field: &str| command[field].as_str().unwrap_or_default();
    let id = &command["id"];
    match state {
        "timeout" => Err(CtlError::CommandTimedOut(format!(
            "command {id} to {}: no response within {} ms",
            text("device"),
            command["timeout_ms"],
        ))),
        "failed" | "expired" | "cancelled" => {
            let reason = match text("message") {
                "" => String::new(),
                message => format!(": {message}"),
            };
            Err(CtlError::CommandFailed(format!(
                "command {id} to {} {}{reason}",
                text("device"),
                match state {
                    "failed" => "failed",
                    "expired" => "expired before the device connected",
                    _ => "was cancelled",
                },
            )))
        }
        _ => Ok(()),
    }
}
