//! Tests of statements, including those in the manuals of both products.

mod bounds;
mod emqx;
mod errors;
mod fluxmq;
mod manual;
mod operators;
mod paths;
mod plans;
mod sql_cases;
mod templates;
mod windows;

use rules::{
    CompileOptions, Dialect, EvaluationError, EvaluationResources, EvaluationScratch, EventKind,
    Rule, RuleEvent, RuleState, RunOutcome, compile,
};

/// 2023-07-29T03:06:27.495Z
pub const NOW_MS: u64 = 1_690_599_987_495;

pub fn rule(sql: &str) -> Rule {
    compile(sql, &CompileOptions::default()).unwrap_or_else(|error| panic!("{}", error.report()))
}

pub fn publish<'m>(topic: &'m str, payload: &'m str) -> RuleEvent<'m> {
    RuleEvent {
        node: "tidegate@10.0.0.1",
        node_ip: "10.0.0.1",
        id: Some(0x8ace_2bba_b65b_4fb1_a0af_c7c7_7419_e6b5),
        client_id: "c1",
        username: Some("u1"),
        peer: Some("192.168.0.100:21950".parse().expect("an address")),
        topic: Some(topic),
        qos: Some(1),
        payload: Some(payload.as_bytes()),
        message_id: Some(7),
        received_at_ms: Some(NOW_MS - 1),
        ..RuleEvent::new(EventKind::Publish, NOW_MS)
    }
}

pub fn try_run(rule: &Rule, event: &RuleEvent<'_>) -> Result<Vec<String>, EvaluationError> {
    let scratch = EvaluationScratch::new(EvaluationResources::new([7; 32], 1), 1 << 20);
    let view = scratch.view(event, NOW_MS);
    let mut outputs = Vec::new();
    let ran = rule.run(&view, &mut RuleState::default(), &mut |output| {
        let mut json = Vec::new();
        output.write_json(&mut json);
        outputs.push(String::from_utf8(json).expect("UTF-8"));
    })?;
    let expected = if outputs.is_empty() {
        RunOutcome::NoResult
    } else {
        RunOutcome::Passed(outputs.len() as u32)
    };
    assert_eq!(ran, expected);
    Ok(outputs)
}

pub fn run(sql: &str, event: &RuleEvent<'_>) -> Vec<String> {
    try_run(&rule(sql), event).unwrap_or_else(|fault| panic!("{sql}: {fault}"))
}

/// The only output of a statement.
pub fn one(sql: &str, event: &RuleEvent<'_>) -> String {
    let mut outputs = run(sql, event);
    assert_eq!(outputs.len(), 1, "{sql}: {outputs:?}");
    outputs.remove(0)
}

/// The value of an expression as JSON.
pub fn value(expression: &str, payload: &str) -> String {
    let json = one(
        &format!("SELECT {expression} AS v FROM \"#\""),
        &publish("t/a", payload),
    );
    json.strip_prefix("{\"v\":")
        .and_then(|rest| rest.strip_suffix('}'))
        .expect("one column")
        .to_owned()
}

/// Whether WHERE is true.
pub fn passes(condition: &str, payload: &str) -> bool {
    !run(
        &format!("SELECT 1 AS v FROM \"#\" WHERE {condition}"),
        &publish("t/a", payload),
    )
    .is_empty()
}

pub fn fluxmq() -> CompileOptions {
    CompileOptions {
        dialect: Some(Dialect::Fluxmq),
        ..CompileOptions::default()
    }
}
