//! `tidegate ctl rules`: the rules of a node, their states and switches. `tidegate rule`: tests and
//! traces of rules.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use engine::{Engine, RuleJson, RuleTestOutcome, TestEvent, TestEventInput, WindowTimeSource};
use outbound::url_encoding::url_encode;
use serde_json::{Map, Value, json};

use super::error::CtlError;
use super::events;
use super::http::ApiClient;
use super::limit_args::LimitArgs;
use super::objects::{ObjectKindArg, ObjectsCommand};
use super::output::{CtlOutput, OutputFormat, print_text};
use super::target::TargetArgs;
use crate::exit_status::ExitStatus;
use crate::serve::NoopDevicePort;

#[derive(Subcommand)]
pub(super) enum RulesCommand {
    #[command(flatten)]
    Objects(ObjectsCommand),
    /// Enable a rule
    Enable { name: String },
    /// Disable a rule
    Disable { name: String },
    /// Show the states of rules, or of one
    Status {
        name: Option<String>,
        #[command(flatten)]
        limit: LimitArgs,
    },
}

impl RulesCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::Objects(objects) => objects.run(ObjectKindArg::Rules, client, output).await,
            Self::Enable { name } => set_enabled(&name, true, client, output).await,
            Self::Disable { name } => set_enabled(&name, false, client, output).await,
            Self::Status {
                name: Some(name), ..
            } => {
                let path = format!("/api/v1/rules/{}/status", url_encode(&name));
                output.print_fields(&flatten_counters(client.get(&path).await?))
            }
            Self::Status { name: None, limit } => {
                let (rows, has_more) = client.rows("/api/v1/rule-status", limit.limit).await?;
                let rows = rows.into_iter().map(flatten_for_table).collect();
                let columns = [
                    ("RULE", "name"),
                    ("STATE", "state"),
                    ("MATCHED", "matched"),
                    ("PASSED", "passed"),
                    ("NO RESULT", "no_result"),
                    ("FAILED", "failed"),
                    ("ACTIONS FAILED", "actions_failed"),
                    ("P99 NS", "p99_ns"),
                    ("LAST ERROR", "last_error"),
                ];
                output.print_rows((rows, has_more), &columns)
            }
        }
    }
}

/// Moves the counters to the level of the fields around them.
fn flatten_counters(mut row: Value) -> Value {
    if let (Value::Object(counters), Some(fields)) = (row["counters"].take(), row.as_object_mut()) {
        fields.remove("counters");
        fields.extend(counters);
    }
    row
}

/// The same for a table, with only the text of the last error.
fn flatten_for_table(row: Value) -> Value {
    let mut row = flatten_counters(row);
    row["last_error"] = row["last_error"]["text"].take();
    row
}

async fn set_enabled(
    name: &str,
    enabled: bool,
    client: &ApiClient,
    output: &CtlOutput,
) -> anyhow::Result<()> {
    let path = format!("/api/v1/rules/{}", url_encode(name));
    let current = client.get_versioned(&path).await?;
    let mut rule = current.value;
    rule["enabled"] = enabled.into();
    let changed = client.put(&path, &rule, current.etag.as_deref()).await?;
    let word = if enabled { "is enabled" } else { "is disabled" };
    output.print_done(&format!("{name} {word}"), &changed)
}

#[derive(Args)]
pub(crate) struct RuleArgs {
    /// Print JSON instead of text
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(subcommand)]
    command: RuleTestCommand,
}

#[derive(Subcommand)]
enum RuleTestCommand {
    /// Test a rule on an event; needs a node only for a rule of the node
    Test(TestArgs),
    /// Trace the events of a node's rule and their results
    Trace {
        /// Name of the rule
        name: String,
        /// End after this many items
        #[arg(short = 'n', long, value_name = "N")]
        count: Option<u64>,
    },
}

#[derive(Args)]
struct TestArgs {
    /// SQL statement
    #[arg(long, value_name = "STATEMENT", allow_hyphen_values = true, required_unless_present_any = ["file", "name"])]
    sql: Option<String>,
    /// File with a statement, or JSON with a rule and its actions
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sql", "name"])]
    file: Option<PathBuf>,
    /// Rule of the node
    #[arg(long, value_name = "NAME", conflicts_with = "sql")]
    name: Option<String>,
    #[arg(long)]
    topic: Option<String>,
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    payload: Option<String>,
    /// Client id of the publisher
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// User name of the publisher
    #[arg(long, value_name = "NAME")]
    username: Option<String>,
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// The message is retained
    #[arg(long)]
    retain: bool,
    /// Dialect of functions [default: derived from FROM]
    #[arg(long, value_parser = ["fluxmq", "emqx"])]
    dialect: Option<String>,
    /// Time zone of functions that print local time
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// Additional field of the event, such as of the output of another rule
    #[arg(long = "field", value_name = "NAME=VALUE")]
    fields: Vec<String>,
}

impl RuleArgs {
    /// Runs the command. `Failure`: the tested rule failed, as the output shows.
    pub(crate) fn run(self) -> anyhow::Result<Result<(), ExitStatus>> {
        let output = CtlOutput {
            format: match self.json {
                true => OutputFormat::Json,
                false => OutputFormat::Table,
            },
        };
        let needs_node = match &self.command {
            RuleTestCommand::Trace { .. } => true,
            RuleTestCommand::Test(arguments) => arguments.name.is_some(),
        };
        // Reading the configuration starts runtimes of its own, which must not end inside another runtime.
        let target = needs_node.then(|| self.target.resolve()).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let client = async || {
                let target = target.ok_or_else(|| anyhow::anyhow!("this command needs no node"))?;
                let mut client = ApiClient::new(target);
                client.log_in().await?;
                anyhow::Ok(client)
            };
            match self.command {
                RuleTestCommand::Trace { name, count } => {
                    let path = format!("/api/v1/rules/{}/trace", url_encode(&name));
                    let client = client().await?;
                    events::print_stream(&client, &path, count, |json| format!("{json}\n")).await?;
                    Ok(Ok(()))
                }
                RuleTestCommand::Test(arguments) => match &arguments.name {
                    Some(name) => {
                        let client = client().await?;
                        let path = format!("/api/v1/rules/{}", url_encode(name));
                        let mut rule = client.get(&path).await?;
                        for field in ["name", "version", "created_at_ms", "updated_at_ms"] {
                            rule.as_object_mut().and_then(|rule| rule.remove(field));
                        }
                        let body = json!({"rule": rule, "event": arguments.event()?});
                        let outcome = client.post_typed("/api/v1/rules/test", &body).await?;
                        print_outcome(&outcome, &output)
                    }
                    None => {
                        let engine = Engine::new(engine::RuleEngineSettings::default(), 1);
                        engine.set_device_port(Arc::new(NoopDevicePort));
                        let trial = TestEvent::try_from(arguments.event()?);
                        let trial =
                            trial.map_err(|problem| CtlError::Usage(problem.to_string()))?;
                        let outcome = engine.test_rule(&arguments.rule()?, &trial);
                        let outcome =
                            outcome.map_err(|problem| CtlError::Usage(problem.to_string()))?;
                        print_outcome(&outcome, &output)
                    }
                },
            }
        })
    }
}

impl TestArgs {
    fn rule(&self) -> anyhow::Result<Value> {
        let text = match &self.file {
            Some(file) => std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?,
            None => self.sql.clone().unwrap_or_default(),
        };
        let mut rule = match serde_json::from_str(&text) {
            Ok(Value::Object(mut rule)) => {
                rule.remove("name");
                Value::Object(rule)
            }
            _ => json!({"sql": text}),
        };
        for (name, value) in [("dialect", &self.dialect), ("timezone", &self.timezone)] {
            if let Some(value) = value {
                rule[name] = json!(value);
            }
        }
        Ok(rule)
    }

    fn event(&self) -> anyhow::Result<TestEventInput> {
        let mut fields = Map::new();
        for field in &self.fields {
            let (name, value) = super::objects::parse_assignment(field)?;
            fields.insert(name, value);
        }
        Ok(TestEventInput {
            topic: self.topic.clone(),
            payload: self.payload.as_deref().map(RuleJson::from_text),
            payload_base64: None,
            client_id: self.client_id.clone(),
            username: self.username.clone(),
            qos: self.qos,
            retain: self.retain,
            fields,
        })
    }
}

/// Prints the result of a test. A rule that fails is a failure of the command, so that scripts can test their rules. An
/// event that WHERE or FROM does not select is a result like others.
fn print_outcome(
    outcome: &RuleTestOutcome,
    output: &CtlOutput,
) -> anyhow::Result<Result<(), ExitStatus>> {
    print_text(&match output.format {
        OutputFormat::Json => format!("{}\n", serde_json::to_string_pretty(outcome)?),
        OutputFormat::Table => outcome_text(outcome)?,
    })?;
    Ok(match outcome.failed {
        true => Err(ExitStatus::Failure),
        false => Ok(()),
    })
}

fn outcome_text(outcome: &RuleTestOutcome) -> anyhow::Result<String> {
    let mut text = outcome.plan.clone();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    if let Some(window) = &outcome.window {
        text.push_str(&format!(
            "the window uses {}, open {} ms after its end",
            match window.time_source {
                WindowTimeSource::EventTime => "the time that event_time yields",
                WindowTimeSource::Arrival => "the arrival time of the event",
            },
            window.lateness_ms.unwrap_or(0)
        ));
        if let Some(idle_ms) = window.idle_ms {
            text.push_str(&format!(
                ", or after {idle_ms} ms without events; the event is of {}",
                match window.at_ms {
                    Some(at_ms) => at_ms.to_string(),
                    None => "no time".to_owned(),
                }
            ));
        }
        text.push('\n');
    }
    if let Some(counted) = &outcome.counted {
        let counted = serde_json::to_string(counted)?;
        text.push_str(&format!("the window counts: {counted}\n"));
    }
    for row in &outcome.outputs {
        text.push_str(&format!("output: {}\n", row.get()));
    }
    if let Some(reason) = &outcome.reason {
        text.push_str(&format!("no output: {reason}\n"));
    }
    for operand in outcome.compared.iter().flatten() {
        text.push_str(&format!(
            "compared value: {} = {}\n",
            operand.expression, operand.value
        ));
    }
    if let Some(problem) = &outcome.payload_problem {
        text.push_str(&format!("payload: {problem}\n"));
    }
    for warning in &outcome.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    for action in &outcome.actions {
        text.push_str(&format!("action: {action}\n"));
    }
    text.push_str(&format!(
        "compiled in {} us, evaluated in {} ns\n",
        outcome.compile_duration_us, outcome.duration_ns
    ));
    Ok(text)
}
