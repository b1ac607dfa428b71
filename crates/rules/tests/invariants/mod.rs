//! Invariants of all statements and all messages, for tests and for the fuzzer.

use rules::{
    CompileOptions, EvaluationResources, EvaluationScratch, EventKind, IndexKeys, Rule, RuleEvent,
    RuleOutput, RuleSource, RuleState, RunOutcome, StatementLimits, Template, TemplateFormat,
    TopicKey, Value, ValueTemplate, compile, json,
};

const NOW_MS: u64 = 1_690_599_987_495;

fn options() -> CompileOptions {
    CompileOptions {
        limits: StatementLimits {
            max_steps: 5_000,
            max_output_bytes: 64 << 10,
            max_outputs: 20,
            ..StatementLimits::default()
        },
        ..CompileOptions::default()
    }
}

/// The input is a statement, a topic and a payload, separated by zero bytes.
#[allow(dead_code, reason = "the fuzzer has a target for each")]
pub(crate) fn check_statement(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let Some(sql) = parts.next().and_then(|part| str::from_utf8(part).ok()) else {
        return;
    };
    let topic = parts
        .next()
        .and_then(|part| str::from_utf8(part).ok())
        .unwrap_or("t");
    let payload = parts.next().unwrap_or_default();
    let rule = match compile(sql, &options()) {
        Ok(rule) => rule,
        Err(error) => {
            assert!(error.line >= 1 && error.column >= 1);
            let report = error.report();
            assert!(report.lines().count() >= 4, "{report}");
            return;
        }
    };
    assert!(!rule.explain().is_empty());
    let event = event(topic, payload);
    evaluate(&rule, &event);
}

fn event<'m>(topic: &'m str, payload: &'m [u8]) -> RuleEvent<'m> {
    RuleEvent {
        client_id: "c",
        username: Some("u"),
        topic: Some(topic),
        qos: Some((payload.len() % 3) as u8),
        payload: Some(payload),
        ..RuleEvent::new(EventKind::Publish, NOW_MS)
    }
}

fn evaluate(rule: &Rule, event: &RuleEvent<'_>) {
    let scratch = EvaluationScratch::new(EvaluationResources::new([7; 32], 1), 1 << 20);
    let view = scratch.view(event, NOW_MS);
    let mut outputs = 0;
    let ran = rule.run(&view, &mut RuleState::default(), &mut |output| {
        outputs += 1;
        let mut text = Vec::new();
        output.write_json(&mut text);
        let text = str::from_utf8(&text).expect("JSON is UTF-8");
        assert_eq!(json::check(text), Ok(()), "{text}");
    });
    let passed = match ran {
        Ok(RunOutcome::NoResult) => 0,
        Ok(RunOutcome::Passed(count)) => count,
        Err(_) => 0,
    };
    assert_eq!(outputs, passed, "a failed evaluation gives no output");
    let sampled = rule.sample_event(&view, &mut RuleState::default());
    let passed = passed > 0 || sampled.is_ok_and(|sample| sample.is_some());
    // An index may check the keys instead of the rule.
    assert!(
        !passed || may_pass(rule.index_keys(), event),
        "{}",
        rule.explain()
    );
    if let [RuleSource::Event(kind)] = rule.sources() {
        assert_eq!(rule.accepts_event(event), *kind == EventKind::Publish);
    }
}

fn may_pass(keys: &IndexKeys, event: &RuleEvent<'_>) -> bool {
    let topic = event.topic.unwrap_or_default();
    let topics = keys.topics.as_ref().is_none_or(|keys| {
        keys.iter().any(|key| match key {
            TopicKey::Exact(text) => **text == *topic,
            TopicKey::Filter(filter) => mqtt::filter_matches(filter, topic),
        })
    });
    let clients = keys
        .client_ids
        .as_ref()
        .is_none_or(|ids| ids.iter().any(|id| **id == *event.client_id));
    let qos = keys
        .qos
        .is_none_or(|bits| bits >> event.qos.unwrap_or_default() & 1 == 1);
    topics && clients && qos
}

/// The input is a template and a payload, separated by a zero byte.
#[allow(dead_code, reason = "the fuzzer has a target for each")]
pub(crate) fn check_template(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let Some(text) = parts.next().and_then(|part| str::from_utf8(part).ok()) else {
        return;
    };
    let payload = parts.next().unwrap_or_default();
    let event = event("t/a", payload);
    let scratch = EvaluationScratch::new(EvaluationResources::new([7; 32], 1), 1 << 20);
    let payload_text = String::from_utf8_lossy(payload);
    let columns = [
        ("a", Value::Str(&payload_text)),
        ("b", Value::Json("[1]")),
        ("c", Value::Null),
    ];
    let options = options();
    for form in [TemplateFormat::Text, TemplateFormat::Json] {
        let Ok(template) = Template::compile(text, form, &options) else {
            continue;
        };
        let view = scratch.view(&event, NOW_MS);
        let output = RuleOutput { columns: &columns };
        let mut out = Vec::new();
        if template
            .render(&output, &view, &mut RuleState::default(), &mut out)
            .is_ok()
        {
            assert!(out.len() <= options.limits.max_output_bytes);
        }
    }
    if let Ok(template) = ValueTemplate::compile(text, &options) {
        let view = scratch.view(&event, NOW_MS);
        let output = RuleOutput { columns: &columns };
        if let Ok(value) = template.evaluate(&output, &view, &mut RuleState::default()) {
            let bytes = value.as_bytes().map_or(0, <[u8]>::len);
            assert!(bytes <= options.limits.max_output_bytes);
        }
    }
}
