//! The figures: what is run for each, which numbers are taken from the result, and the goals of some of them. A new
//! figure is an entry here and a line in the README.

pub(super) struct Benchmark {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// Behind `tidegate bench`.
    pub(super) scenario: &'static str,
    /// Whether a node is started for it; others start their own, or need none.
    pub(super) needs_broker: bool,
    pub(super) compared_server: Option<ComparedServer>,
    /// Whether the scenario has a `--duration`.
    pub(super) is_timed: bool,
    pub(super) metrics: &'static [BenchmarkMetric],
}

/// What is measured in turn with the node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ComparedServer {
    Mosquitto,
    /// A relay with the package `ws` for Node.
    WsPackage,
}

impl ComparedServer {
    /// What to do if it is missing.
    pub(super) fn remedy(self) -> &'static str {
        match self {
            Self::Mosquitto => "mosquitto is not installed (apt-get install mosquitto)",
            Self::WsPackage => "Node or its package ws is not installed (cargo xtask tools)",
        }
    }
}

/// A number of the generator's JSON, and its goal if it has one.
pub(super) struct BenchmarkMetric {
    /// The object it is in, `measures` (of the first broker) or `ratios`.
    section: &'static str,
    metric: &'static str,
    goal: Option<GoalBound>,
    unit: MetricUnit,
}

enum GoalBound {
    AtLeast(f64),
    AtMost(f64),
}

enum MetricUnit {
    /// Shown in millions.
    PerCpuSecond,
    ThousandsPerCpuSecond,
    TimesMosquitto,
    TimesWsPackage,
    Times,
    /// Measured in nanoseconds.
    Milliseconds,
    /// Measured in bytes.
    KibPerConnection,
    /// Shown in millions.
    PerGeneratorCpuSecond,
}

const fn per_cpu_second(at_least: f64) -> BenchmarkMetric {
    BenchmarkMetric {
        section: "measures",
        metric: "per_cpu_second",
        goal: Some(GoalBound::AtLeast(at_least)),
        unit: MetricUnit::PerCpuSecond,
    }
}

const fn times_mosquitto(at_least: f64) -> BenchmarkMetric {
    BenchmarkMetric {
        goal: Some(GoalBound::AtLeast(at_least)),
        ..TIMES_MOSQUITTO
    }
}

/// Without a goal.
const TIMES_MOSQUITTO: BenchmarkMetric = BenchmarkMetric {
    section: "ratios",
    metric: "ratio_per_cpu_second",
    goal: None,
    unit: MetricUnit::TimesMosquitto,
};

const fn times_ws_package(at_least: f64) -> BenchmarkMetric {
    BenchmarkMetric {
        unit: MetricUnit::TimesWsPackage,
        ..times_mosquitto(at_least)
    }
}

const fn kib_per_connection(at_most_bytes: f64) -> BenchmarkMetric {
    BenchmarkMetric {
        section: "measures",
        metric: "rss_per_connection",
        goal: Some(GoalBound::AtMost(at_most_bytes)),
        unit: MetricUnit::KibPerConnection,
    }
}

const fn p99_ms(at_most: f64) -> BenchmarkMetric {
    BenchmarkMetric {
        section: "measures",
        metric: "p99",
        goal: Some(GoalBound::AtMost(at_most * 1e6)),
        unit: MetricUnit::Milliseconds,
    }
}

/// A load on one broker; the others differ from it.
const BROKER_LOAD: Benchmark = Benchmark {
    name: "",
    what: "",
    scenario: "",
    needs_broker: true,
    compared_server: None,
    is_timed: true,
    metrics: &[],
};

/// A load on relay endpoints of a node that the generator starts.
const RELAY_LOAD: Benchmark = Benchmark {
    needs_broker: false,
    compared_server: Some(ComparedServer::WsPackage),
    ..BROKER_LOAD
};

pub(super) const BENCHMARKS: &[Benchmark] = &[
    Benchmark {
        name: "pairs-qos0",
        what: "100 pairs, 64 B, window 200, QoS 0",
        scenario: "mqtt p2p --pairs 100 --window 200 --qos 0",
        compared_server: Some(ComparedServer::Mosquitto),
        metrics: &[per_cpu_second(5e6), times_mosquitto(25.0)],
        ..BROKER_LOAD
    },
    Benchmark {
        name: "pairs-qos1",
        what: "100 pairs, 64 B, window 200, QoS 1",
        scenario: "mqtt p2p --pairs 100 --window 200 --qos 1",
        compared_server: Some(ComparedServer::Mosquitto),
        metrics: &[per_cpu_second(2e6), TIMES_MOSQUITTO],
        ..BROKER_LOAD
    },
    Benchmark {
        name: "pairs-qos2",
        what: "100 pairs, 64 B, window 200, QoS 2",
        scenario: "mqtt p2p --pairs 100 --window 200 --qos 2",
        metrics: &[per_cpu_second(1.2e6)],
        ..BROKER_LOAD
    },
    Benchmark {
        name: "pairs-unbatched",
        what: "100 pairs, 64 B, window 1, QoS 0",
        scenario: "mqtt p2p --pairs 100 --window 1 --qos 0",
        compared_server: Some(ComparedServer::Mosquitto),
        metrics: &[per_cpu_second(0.2e6), times_mosquitto(1.25)],
        ..BROKER_LOAD
    },
    Benchmark {
        name: "fanout",
        what: "fan-out, 1 to 500",
        scenario: "mqtt fanout --subscribers 500",
        compared_server: Some(ComparedServer::Mosquitto),
        metrics: &[per_cpu_second(3.6e6), times_mosquitto(15.0)],
        ..BROKER_LOAD
    },
    Benchmark {
        name: "fanin",
        what: "fan-in, 500 to 1 through a wildcard",
        scenario: "mqtt fanin --publishers 500",
        compared_server: Some(ComparedServer::Mosquitto),
        metrics: &[per_cpu_second(2.2e6), TIMES_MOSQUITTO],
        ..BROKER_LOAD
    },
    Benchmark {
        name: "filters",
        what: "10,000 filters, 20 % with wildcards, against one per pair",
        scenario: "mqtt filters --filters 10000 --wildcards 20%",
        metrics: &[BenchmarkMetric {
            section: "ratios",
            metric: "cost_ratio",
            goal: Some(GoalBound::AtMost(1.5)),
            unit: MetricUnit::Times,
        }],
        ..BROKER_LOAD
    },
    Benchmark {
        name: "connect",
        what: "16,000 connections, 1,000 at a time, then idle",
        scenario: "mqtt connect --connections 16000 --concurrency 1000",
        is_timed: false,
        metrics: &[
            BenchmarkMetric {
                section: "measures",
                metric: "per_cpu_second",
                goal: Some(GoalBound::AtLeast(30e3)),
                unit: MetricUnit::ThousandsPerCpuSecond,
            },
            kib_per_connection(2048.0),
        ],
        ..BROKER_LOAD
    },
    Benchmark {
        name: "latency",
        what: "20,000 messages/s, p99 from the time a message was due",
        scenario: "mqtt rate --rate 20000",
        metrics: &[p99_ms(1.0)],
        ..BROKER_LOAD
    },
    Benchmark {
        name: "generator",
        what: "the generator alone, on one core",
        scenario: "mqtt self",
        needs_broker: false,
        metrics: &[BenchmarkMetric {
            section: "measures",
            metric: "generator_per_cpu_second",
            goal: Some(GoalBound::AtLeast(8e6)),
            unit: MetricUnit::PerGeneratorCpuSecond,
        }],
        ..BROKER_LOAD
    },
    Benchmark {
        name: "relay-fanout",
        what: "relay endpoint, 1 to 200",
        scenario: "relay fanout --receivers 200",
        metrics: &[per_cpu_second(1.5e6), times_ws_package(15.0)],
        ..RELAY_LOAD
    },
    Benchmark {
        name: "relay-pairs",
        what: "100 relay endpoints with a pair each, window 20",
        scenario: "relay pairs --window 20",
        metrics: &[per_cpu_second(1.5e6), times_ws_package(15.0)],
        ..RELAY_LOAD
    },
    Benchmark {
        name: "relay-unbatched",
        what: "100 relay endpoints with a pair each, window 1",
        scenario: "relay pairs --window 1",
        metrics: &[per_cpu_second(0.1e6), times_ws_package(1.5)],
        ..RELAY_LOAD
    },
    Benchmark {
        name: "relay-connections",
        what: "10,000 relay connections, idle, then 50,000 deliveries/s",
        scenario: "relay connections",
        compared_server: None,
        metrics: &[kib_per_connection(2048.0), p99_ms(1.0)],
        ..RELAY_LOAD
    },
];

impl BenchmarkMetric {
    /// The number in the generator's result.
    pub(super) fn value_in(&self, json: &str) -> Option<f64> {
        let start = json.find(&format!("\"{}\": {{", self.section))?;
        let object = json[start..].split('}').next()?;
        let value = object.split(&format!("\"{}\": ", self.metric)).nth(1)?;
        value.split([',', '\n']).next()?.trim().parse().ok()
    }

    pub(super) fn format_value(&self, value: f64) -> String {
        match self.unit {
            MetricUnit::PerCpuSecond => format!("{:.2} M per broker CPU second", value / 1e6),
            MetricUnit::ThousandsPerCpuSecond => {
                format!("{:.0} k per broker CPU second", value / 1e3)
            }
            MetricUnit::TimesMosquitto => format!("{value:.2} x mosquitto"),
            MetricUnit::TimesWsPackage => format!("{value:.2} x ws"),
            MetricUnit::Times => format!("{value:.2} x"),
            MetricUnit::Milliseconds => format!("{:.2} ms", value / 1e6),
            MetricUnit::KibPerConnection => format!("{:.2} KiB per connection", value / 1024.0),
            MetricUnit::PerGeneratorCpuSecond => {
                format!("{:.1} M per generator CPU second", value / 1e6)
            }
        }
    }

    /// Whether it compares Tidegate with another server.
    pub(super) fn is_comparison(&self) -> bool {
        matches!(
            self.unit,
            MetricUnit::TimesMosquitto | MetricUnit::TimesWsPackage
        )
    }

    fn format_goal(&self, goal: &GoalBound) -> String {
        match goal {
            GoalBound::AtLeast(bound) => format!(">= {}", self.format_value(*bound)),
            GoalBound::AtMost(bound) => format!("<= {}", self.format_value(*bound)),
        }
    }

    /// The value, and whether it meets its goal.
    pub(super) fn verdict(&self, value: Option<f64>) -> String {
        let measured = value.map_or("not measured".to_owned(), |value| self.format_value(value));
        let Some(goal) = &self.goal else {
            return measured;
        };
        let verdict = match (value, goal) {
            (None, _) => "",
            (Some(value), GoalBound::AtLeast(bound)) if value >= *bound => ": met",
            (Some(value), GoalBound::AtMost(bound)) if value <= *bound => ": met",
            _ => ": MISSED",
        };
        format!("{measured} (goal {}{verdict})", self.format_goal(goal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{
  "brokers": [
    {
      "label": "127.0.0.1:1883",
      "measures": {
        "lost": 0.0,
        "per_cpu_second": 6150000.0
      },
      "rounds": [{ "measures": { "per_cpu_second": 1.0 } }]
    },
    { "measures": { "per_cpu_second": 190000.0 } }
  ],
  "ratios": {
    "ratio_per_cpu_second": 32.4
  }
}"#;

    #[test]
    fn numbers_are_those_of_the_first_broker() {
        assert_eq!(per_cpu_second(5e6).value_in(JSON), Some(6_150_000.0));
        assert_eq!(times_mosquitto(25.0).value_in(JSON), Some(32.4));
        assert_eq!(per_cpu_second(5e6).value_in("{}"), None);
    }

    #[test]
    fn verdicts_state_the_goal() {
        let goal = per_cpu_second(5e6);
        assert_eq!(
            goal.verdict(Some(4.2e6)),
            "4.20 M per broker CPU second (goal >= 5.00 M per broker CPU second: MISSED)"
        );
        assert_eq!(
            goal.verdict(None),
            "not measured (goal >= 5.00 M per broker CPU second)"
        );
        assert_eq!(TIMES_MOSQUITTO.verdict(Some(9.5)), "9.50 x mosquitto");
    }
}
