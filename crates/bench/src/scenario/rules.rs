//! `rules`: messages that rules of a node look at and publish anew; what comes out of the rules is what counts.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use clap::ValueEnum;
use serde_json::{Value, json};

use super::load_run::{
    BrokerTarget, load_plan, measure_load, parse_clients, report_load, round_count,
};
use crate::alternation::run_alternating;
use crate::args::LoadScenarioArgs;
use crate::broker_access::OUTPUT_TOPICS;
use crate::load_shape::{LoadShape, RuleTopics, TopicLayout};
use crate::metrics::MetricValues;
use crate::node_api::NodeApi;
use crate::packets::PayloadTemplate;
use crate::report::ReportSide;
use crate::round_outcome::RoundOutcome;
use crate::rule_api;
use crate::worker::{LoadPace, LoadPlan, RuleCounts};

/// Most rules; each is put in by a request of its own.
const MAX_RULES: usize = 10_000;

/// Which statement the rules have: those of the report that FluxMQ publishes about its rule engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RuleStatement {
    /// All fields of messages on one topic
    Simple,
    /// A uuid, the payload as JSON, the date and a hash, if the topic matches and the payload's value is above 30
    Complex,
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RulesScenario {
    /// The rules' statement
    #[arg(value_enum, default_value = "simple")]
    statement: RuleStatement,
    /// Number of rules, each with its own topics; a message matches one of them, and publishers cycle through all
    #[arg(long = "rules", value_name = "N", default_value = "1", value_parser = parse_clients)]
    count: usize,
    /// Pairs of a publisher and a subscriber to the outputs of rules for its messages
    #[arg(long, value_name = "N", default_value = "100", value_parser = parse_clients)]
    pairs: usize,
    /// The node's HTTP API, to create the rules and to remove them afterwards; without it, the rules must exist
    #[arg(long, value_name = "URL")]
    api: Option<String>,
    /// File with a token for --api, such as `api.token` in the node's data directory
    #[arg(long, value_name = "FILE", requires = "api")]
    token_file: Option<PathBuf>,
    /// Print the rules as a node's configuration has them, and end
    #[arg(long)]
    print_rules: bool,
    /// Template of payloads; `${stamp}` is replaced by the header with publisher, sequence number and time
    #[arg(
        long,
        value_name = "TEXT",
        default_value = r#"{"value": 31.5, "unit": "C", "at": 1690599987, "ok": true, "stamp": "${stamp}"}"#
    )]
    payload_template: String,
    /// Template of the payload that rules publish, which must contain the header [default: the output as JSON]
    #[arg(long, value_name = "TEXT")]
    republish: Option<String>,
    /// Measure latency in a second run with half of the rate of messages received in the first
    #[arg(long, conflicts_with = "rate")]
    half_load: bool,
    #[command(flatten)]
    args: LoadScenarioArgs,
}

/// Rules that are taken away again, whatever happens.
struct InstalledRules<'a> {
    node: &'a NodeApi,
    names: Vec<String>,
}

impl Drop for InstalledRules<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            if let Err(error) = rule_api::delete_rule(self.node, name) {
                eprintln!("warning: the rule {name} is still there: {error:#}");
                return;
            }
        }
    }
}

impl InstalledRules<'_> {
    fn counts(&self) -> anyhow::Result<RuleCounts> {
        let mut sum = RuleCounts::default();
        for name in &self.names {
            let counts = rule_api::rule_counts(self.node, name)?;
            sum.evaluated += counts.evaluated;
            sum.failures += counts.failures;
        }
        Ok(sum)
    }
}

impl RulesScenario {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        ensure!(
            self.args.target.versus.is_none(),
            "`rules` measures the rules of one node; it takes no --versus"
        );
        ensure!(
            self.count <= MAX_RULES,
            "--rules {} is more than {MAX_RULES}",
            self.count
        );
        let rules = self.rules();
        if self.print_rules {
            print!("{}", to_configuration(&rules));
            return Ok(ExitCode::SUCCESS);
        }
        let mut plan = self.plan()?;
        let node = match &self.api {
            Some(url) => Some(NodeApi::new(url, self.token_file.as_deref())?),
            None => None,
        };
        let installed = node
            .as_ref()
            .map(|node| install_rules(node, &rules))
            .transpose()?;
        let target = BrokerTarget::new(&self.args.clients, &self.args.target)?;
        let mut sides = self.measure(&target, &plan, "full load", installed.as_ref())?;
        let full = sides.first().map(|side| side.total.measures());
        let rate = full.and_then(|full| full.get("throughput")).unwrap_or(0.0);
        ensure!(
            rate > 0.0,
            "no message was received from the rules, so there is nothing to report. The node needs the rules of this run: \
             let them be created with --api URL, or add those that --print-rules prints to its configuration"
        );
        let mut half = MetricValues::default();
        if self.half_load {
            let full_pace = std::mem::replace(
                &mut plan.pace,
                LoadPace::Rate {
                    per_second: rate / 2.0,
                    tick_ns: 0,
                },
            );
            sides.extend(self.measure(&target, &plan, "half load", installed.as_ref())?);
            plan.pace = full_pace;
            half = sides.last().map(half_load_measures).unwrap_or_default();
        }
        drop(installed);
        let mut report = report_load("rules", &plan, &self.args.clients, sides);
        report.settings[0].1 = target.label;
        let statement = match self.statement {
            RuleStatement::Simple => "simple",
            RuleStatement::Complex => "complex",
        };
        let own = [
            ("statement".to_owned(), statement.to_owned()),
            ("rules".to_owned(), self.count.to_string()),
        ];
        report.settings.splice(1..1, own);
        // What full load has more than half of it is no comparison of anything.
        report.ratios = half;
        report.write_and_finish(&self.args.output)
    }

    fn plan(&self) -> anyhow::Result<LoadPlan> {
        let shape = LoadShape {
            groups: self.pairs,
            publishers: 1,
            subscribers: 1,
            topics: TopicLayout::RuleTopics(self.rule_topics()),
        };
        let mut plan = load_plan(&self.args.load, shape, self.args.pace.pace(200))?;
        plan.body = PayloadTemplate::text_template(&self.payload_template, self.args.load.payload)?;
        Ok(plan)
    }

    fn rule_topics(&self) -> RuleTopics {
        RuleTopics {
            rules: self.count,
            is_exact: self.statement == RuleStatement::Simple,
        }
    }

    /// Names and definitions.
    fn rules(&self) -> Vec<(String, Value)> {
        let ruled = self.rule_topics();
        let rule = |n: usize| {
            let filter = ruled.filter(n);
            let sql = match self.statement {
                RuleStatement::Simple => {
                    format!("SELECT * FROM \"$EVENT.PUBLISH\" WHERE topic = '{filter}'")
                }
                RuleStatement::Complex => format!(
                    "SELECT uuid() as id, json(payload) as data, datetime(timestamp) as time, md5(clientId) as hash \
                     FROM \"$EVENT.PUBLISH\" WHERE topic =~ '{filter}' AND payload.value > 30"
                ),
            };
            let mut action = json!({
                "kind": "republish",
                "topic": format!("{OUTPUT_TOPICS}/${{clientid}}"),
                "qos": self.args.load.qos,
            });
            if let Some(template) = &self.republish {
                action["payload"] = json!(template);
            }
            let rule = json!({"sql": sql, "actions": [action]});
            (format!("bench-{n:05}"), rule)
        };
        (0..self.count).map(rule).collect()
    }

    /// All rounds of one load.
    fn measure(
        &self,
        target: &BrokerTarget,
        plan: &LoadPlan,
        label: &str,
        installed: Option<&InstalledRules<'_>>,
    ) -> anyhow::Result<Vec<ReportSide>> {
        let labels = [label.to_owned()];
        run_alternating(&labels, round_count(&self.args.target, 1), |_, title| {
            let before = installed.map(InstalledRules::counts).transpose()?;
            let mut outcome: RoundOutcome =
                measure_load(target, title, plan, self.args.output.quiet)?;
            if let (Some(installed), Some(before)) = (installed, before) {
                let after = installed.counts()?;
                outcome.tally.rules = Some(RuleCounts {
                    evaluated: after.evaluated.saturating_sub(before.evaluated),
                    failures: after.failures.saturating_sub(before.failures),
                });
            }
            Ok(outcome)
        })
    }
}

fn install_rules<'a>(
    node: &'a NodeApi,
    rules: &[(String, Value)],
) -> anyhow::Result<InstalledRules<'a>> {
    let mut installed = InstalledRules {
        node,
        names: Vec::with_capacity(rules.len()),
    };
    for (name, rule) in rules {
        rule_api::put_rule(node, name, rule)?;
        installed.names.push(name.clone());
    }
    Ok(installed)
}

/// The metrics of the run at half load, with the prefix `half_`.
fn half_load_measures(side: &ReportSide) -> MetricValues {
    let measured = side.total.measures();
    let mut half = MetricValues::default();
    for (name, of) in [
        ("half_rate", "throughput"),
        ("half_p50", "p50"),
        ("half_p95", "p95"),
        ("half_p99", "p99"),
    ] {
        if let Some(value) = measured.get(of) {
            half.set(name, value);
        }
    }
    half
}

/// The rules as `[[rule]]` tables. A text in JSON is one in TOML as well.
fn to_configuration(rules: &[(String, Value)]) -> String {
    let mut text = String::new();
    for (name, rule) in rules {
        text += &format!("[[rule]]\nname = {}\nsql = {}\n", json!(name), rule["sql"]);
        for action in rule["actions"].as_array().into_iter().flatten() {
            text += "[[rule.actions]]\n";
            for (field, value) in action.as_object().into_iter().flatten() {
                text += &format!("{field} = {value}\n");
            }
        }
        text += "\n";
    }
    text
}
