//! Every example in the function tables gives the listed result, in both dialects, or in one if they differ.

use rules::{
    CompileOptions, Dialect, EvaluationScratch, EventKind, RuleEvent, RuleState, Zone, compile,
    functions, json,
};

use crate::expression::{NOW_MS, evaluate, resources};

/// All functions included in this build.
fn built() -> impl Iterator<Item = &'static functions::Function> {
    functions::all().filter(|function| cfg!(feature = "jq") || function.name != "jq")
}

#[test]
fn every_example_gives_the_documented_result() {
    let mut wrong = Vec::new();
    for function in built() {
        let (expression, expected) = function.example;
        let given = |dialect| {
            evaluate(
                expression,
                dialect,
                &Zone::UTC,
                |arena, value| match value {
                    Ok(value) => json::text(&value, arena).to_owned(),
                    Err(fault) => format!("{} fault: {fault}", fault.kind()),
                },
            )
        };
        let (emqx, fluxmq) = (given(Dialect::Emqx), given(Dialect::Fluxmq));
        if emqx != expected {
            wrong.push(format!("{expression} gives {emqx}, not {expected}"));
        }
        if fluxmq != expected && function.differing.is_none() {
            wrong.push(format!(
                "{expression} gives {fluxmq} in FluxMQ, not {expected}"
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_line_is_documented() {
    for function in functions::all() {
        let name = function.name;
        assert!(function.help.ends_with('.'), "{name}: help is a sentence");
        assert!(function.min_args <= function.max_args, "{name}");
        assert!(!function.returns.is_empty(), "{name}");
        assert_eq!(
            function.parameters.is_empty(),
            function.max_args == 0,
            "{name}"
        );
        let (expression, _) = function.example;
        assert!(
            expression
                .to_lowercase()
                .replace('_', "")
                .contains(&name.to_lowercase().replace('_', "")),
            "{name}: {expression} is no example of it"
        );
    }
}

#[test]
fn null_gives_null_unless_a_function_accepts_it() {
    for function in functions::all() {
        if function.min_args == 0 || function.accepts_null {
            continue;
        }
        let nulls = vec!["null"; function.min_args].join(", ");
        let expression = format!("{}({nulls})", function.name);
        evaluate(&expression, Dialect::Emqx, &Zone::UTC, |_, value| {
            assert!(
                matches!(value, Ok(value) if value.is_null()),
                "{expression}: {value:?}"
            );
        });
    }
}

/// The result of a statement that selects the expression, or its error.
pub(crate) fn selected(expression: &str, dialect: Dialect, zone: &Zone) -> String {
    let options = CompileOptions {
        dialect: Some(dialect),
        timezone: zone.clone(),
        ..CompileOptions::default()
    };
    let statement = format!("SELECT {expression} AS v FROM \"#\"");
    let rule = match compile(&statement, &options) {
        Ok(rule) => rule,
        Err(error) => return error.report(),
    };
    let event = RuleEvent {
        client_id: "c1",
        username: Some("u1"),
        peer: Some("127.0.0.1:21950".parse().expect("an address")),
        topic: Some("sensor/7/data"),
        qos: Some(1),
        payload: Some(br#"{"temperature": 21.5, "tags": ["a", "b"]}"#),
        ..RuleEvent::new(EventKind::Publish, NOW_MS)
    };
    let scratch = EvaluationScratch::new(resources(), 1 << 20);
    let view = scratch.view(&event, NOW_MS);
    let mut printed = String::new();
    let ran = rule.run(&view, &mut RuleState::default(), &mut |output| {
        let mut json = Vec::new();
        output.write_json(&mut json);
        printed = String::from_utf8(json).expect("JSON is UTF-8");
    });
    match ran {
        Ok(_) => printed,
        Err(fault) => format!("{} fault: {fault}", fault.kind()),
    }
}

#[test]
fn every_example_works_in_a_statement() {
    let mut wrong = Vec::new();
    for function in built() {
        let (expression, expected) = function.example;
        for dialect in [Dialect::Emqx, Dialect::Fluxmq] {
            let printed = selected(expression, dialect, &Zone::UTC);
            // The id and the flags are set by the broker.
            let fits = printed == format!("{{\"v\":{expected}}}")
                || (dialect == Dialect::Fluxmq && function.differing.is_some())
                || (matches!(function.name, "msgid" | "flags") && printed.starts_with("{\"v\":"));
            if !fits {
                wrong.push(format!("{expression} gives {printed}, not {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
