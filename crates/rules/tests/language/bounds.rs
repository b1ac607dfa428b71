//! Limits of statements and evaluations.

use rules::{CompileOptions, StatementLimits, compile};

use super::{publish, rule, try_run};

fn rejected(sql: &str) -> String {
    compile(sql, &CompileOptions::default())
        .err()
        .map_or_else(|| panic!("accepted"), |error| error.to_string())
}

#[test]
fn statements_are_limited() {
    let nested = format!("SELECT {}1{} FROM \"t\"", "(".repeat(100), ")".repeat(100));
    assert!(rejected(&nested).contains("max_depth"));
    let negations = format!("SELECT {}1 FROM \"t\"", "- ".repeat(100));
    assert!(rejected(&negations).contains("max_depth"));
    let path = format!("SELECT payload{} FROM \"t\"", ".a".repeat(100));
    assert!(rejected(&path).contains("max_depth"));
    let methods = format!("SELECT topic{} FROM \"t\"", ".trim()".repeat(300));
    assert!(rejected(&methods).contains("max_depth"));
    let items = format!("SELECT 1{} FROM \"t\"", ", 1".repeat(300));
    assert!(rejected(&items).contains("max_items"));
    let long = format!("SELECT '{}' FROM \"t\"", "x".repeat(40_000));
    assert!(rejected(&long).contains("max_sql_bytes"));
    let sum = |count| format!("SELECT {} FROM \"t\"", vec!["qos"; count].join("+"));
    assert!(rejected(&sum(3000)).contains("max_depth"));
    rule(&sum(120));
    let methods = vec!["topic.trim().length()"; 100].join(", ");
    rule(&format!("SELECT {methods} FROM \"t\""));
    let list = format!(
        "SELECT {} FROM \"t\"",
        vec!["[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]"; 250].join(",")
    );
    assert!(rejected(&list).contains("max_nodes"));
}

#[test]
fn nested_aliases_are_limited_in_depth() {
    let mut sql = "SELECT payload.a as a0".to_owned();
    for at in 1..200 {
        sql.push_str(&format!(
            ", {}a{}{} as a{at}",
            "-(".repeat(10),
            at - 1,
            ")".repeat(10)
        ));
    }
    sql.push_str(" FROM \"t\"");
    assert!(rejected(&sql).contains("nested too deep"));
}

#[test]
fn evaluations_are_limited() {
    let fault = |sql: &str, bounds: StatementLimits| {
        let options = CompileOptions {
            limits: bounds,
            ..CompileOptions::default()
        };
        let rule = compile(sql, &options).unwrap_or_else(|error| panic!("{}", error.report()));
        let payload = format!("[{}]", vec!["1"; 2000].join(","));
        try_run(&rule, &publish("t", &payload))
            .expect_err(sql)
            .kind()
            .to_owned()
    };
    let steps = StatementLimits {
        max_steps: 1000,
        ..StatementLimits::default()
    };
    assert_eq!(
        fault(
            "FOREACH payload as p DO p + 1 as v INCASE p > 1 or p = 1 FROM \"t\"",
            steps
        ),
        "budget"
    );
    assert_eq!(
        fault(
            "FOREACH payload as p DO p FROM \"t\"",
            StatementLimits::default()
        ),
        "too_large"
    );
    let bytes = StatementLimits {
        max_output_bytes: 1000,
        ..StatementLimits::default()
    };
    assert_eq!(fault("SELECT payload FROM \"t\"", bytes), "too_large");
    assert_eq!(
        fault("SELECT payload || payload as p FROM \"t\"", bytes),
        "too_large"
    );
}

#[test]
fn a_rule_is_small() {
    for sql in [
        "SELECT * FROM \"$EVENT.PUBLISH\" WHERE topic = 'sensor/temperature'",
        "SELECT payload.temperature as temp, payload.humidity as humid, timestamp as record_time, clientId FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'sensor/+/data' AND payload.value > 30",
        "FOREACH payload.sensors as e DO clientid, e.name as name, e.idx as idx INCASE e.idx >= 1 FROM \"t/#\"",
        "SELECT clientId, CASE WHEN payload.pm25 > 150 THEN 'SEVERE' WHEN payload.pm25 > 100 THEN 'HEAVY' WHEN payload.pm25 > 75 THEN 'MODERATE' ELSE 'MILD' END as level FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'aqi/station/+/data' AND payload.pm25 > 75",
    ] {
        let size = rule(sql).size_bytes();
        assert!(size < 2048, "{size} bytes: {sql}");
    }
}
