//! The published function lists of FluxMQ and EMQX: each call gives the documented output, or our own where
//! the list states why.

use rules::{Arena, Dialect, Value, Zone, functions, json};

use crate::examples::selected;
use crate::expression::evaluate;

#[test]
fn calls_give_the_output_documented_by_fluxmq() {
    let zone = Zone::parse("Asia/Shanghai").expect("a bundled zone");
    check(include_str!("fluxmq.txt"), Dialect::Fluxmq, &zone);
}

#[test]
fn calls_give_the_output_documented_by_emqx() {
    check(include_str!("emqx.txt"), Dialect::Emqx, &Zone::UTC);
}

fn check(list: &str, dialect: Dialect, zone: &Zone) {
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in list
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with(['#', '[']))
    {
        count += 1;
        let checked =
            check_line(line, dialect, zone).and_then(|()| check_statement(line, dialect, zone));
        if let Err(why) = checked {
            wrong.push(format!("{line}\n    {why}"));
        }
    }
    assert!(count > 100, "the list is there");
    assert!(
        wrong.is_empty(),
        "{} of {count}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// A call in a statement gives the same result as a direct call; statements have no objects.
fn check_statement(line: &str, dialect: Dialect, zone: &Zone) -> Result<(), String> {
    let sign = [" => ", " ~> ", " !>"]
        .iter()
        .find_map(|sign| line.split_once(sign));
    let Some((call, _)) = sign.filter(|(call, _)| !call.contains("({\"") && !call.contains("[{\""))
    else {
        return Ok(());
    };
    let alone = evaluate(call, dialect, zone, |arena, value| match value {
        Ok(value) => format!("{{\"v\":{}}}", json::text(&value, arena)),
        Err(fault) => format!("{} fault: {fault}", fault.kind()),
    });
    let selected = selected(call, dialect, zone);
    // A constant call that fails is found at compile time.
    let failed = alone.contains(" fault: ") && !selected.starts_with('{');
    if selected == alone || failed {
        Ok(())
    } else {
        Err(format!("in a statement: {selected}"))
    }
}

fn check_line(line: &str, dialect: Dialect, zone: &Zone) -> Result<(), String> {
    let (call, sign, wanted) = [" => ", " ~> ", " /> ", " !>"]
        .iter()
        .find_map(|sign| {
            line.split_once(sign)
                .map(|(call, wanted)| (call, sign.trim(), wanted))
        })
        .ok_or("a line without a sign")?;
    // The documented result, unless the line states why ours differs.
    let wanted = match wanted.split_once(" ; ours: ") {
        Some((_, ours)) => ours.rsplit_once(", ").map_or(ours, |_| first_value(ours)),
        None => wanted,
    };
    evaluate(call, dialect, zone, |arena, value| {
        let value = match (value, sign) {
            (Err(_), "!>") => return Ok(()),
            (Err(fault), _) => return Err(format!("gives a fault: {fault}")),
            (Ok(value), _) => value,
        };
        let text = json::text(&value, arena);
        let fits = match sign {
            "=>" => same(
                value,
                json::parse(wanted, arena).map_err(|error| error.to_string())?,
                arena,
            ),
            "~>" => {
                (value.as_f64().unwrap_or(f64::NAN) - wanted.parse().unwrap_or(0.0)).abs() < 1e-4
            }
            "/>" => matches_expression(text, wanted),
            _ => false,
        };
        if fits {
            Ok(())
        } else {
            Err(format!("gives {text}"))
        }
    })
}

/// The JSON value at the start of a text.
fn first_value(text: &str) -> &str {
    let end = text
        .match_indices(", ")
        .map(|(at, _)| at)
        .find(|at| json::check(&text[..*at]).is_ok());
    &text[..end.unwrap_or(text.len())]
}

/// Bytes are compared as printed.
fn same<'a>(value: Value<'a>, wanted: Value<'a>, arena: &'a Arena) -> bool {
    let printed = json::parse(json::text(&value, arena), arena).expect("JSON is written");
    match (printed, wanted) {
        // The last digit of a sine depends on the library.
        (Value::Float(float), Value::Float(wanted)) => {
            (float - wanted).abs() <= wanted.abs() * 1e-15
        }
        _ => printed.is_not_distinct(&wanted),
    }
}

fn matches_expression(text: &str, expression: &str) -> bool {
    let arena = Arena::new();
    let (text, expression) = (arena.alloc_str(text), arena.alloc_str(expression));
    let call = [Value::Str(text), Value::Str(expression)];
    let mut resources = rules::EvaluationResources::new([1; 32], 0);
    let mut kv = rules::KvStore::default();
    let mut context = rules::FunctionContext {
        arena: &arena,
        resources: &mut resources,
        kv: &mut kv,
        message: None,
        zone: &Zone::UTC,
        dialect: Dialect::Emqx,
        now_ms: 0,
        limits: rules::FunctionLimits::default(),
    };
    let function = functions::find("regex_match").expect("a function");
    function
        .call(&mut context, &call)
        .is_ok_and(|value| value.is_truthy())
}
