//! Every example of the tables gives what the table says, in both dialects or in one if they differ.

use rules::{Dialect, Zone, functions, json};

use crate::expression::evaluate;

#[test]
fn every_example_gives_what_it_says() {
    let mut wrong = Vec::new();
    for function in functions::all() {
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
        if fluxmq != expected && function.differs.is_none() {
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
fn null_in_is_null_out_unless_a_function_asks_for_it() {
    for function in functions::all() {
        if function.min_args == 0 || function.takes_null {
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
