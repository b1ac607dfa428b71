//! Templates: texts and SQL statements of actions.

use rules::{
    CompileOptions, EvaluationResources, EvaluationScratch, PlaceholderStyle, RuleEvent,
    RuleOutput, RuleState, SqlTemplate, Template, TemplateFormat, Value,
};

use super::{NOW_MS, fluxmq, publish};

fn with_output<T>(work: impl for<'a> FnOnce(&RuleOutput<'a>, &rules::EventView<'a>) -> T) -> T {
    let scratch = EvaluationScratch::new(EvaluationResources::new([7; 32], 1), 1 << 20);
    let event: RuleEvent<'_> = publish("t/a", r#"{"x": [1, {"y": "z"}], "name": "O'Neill"}"#);
    let view = scratch.view(&event, NOW_MS);
    let columns = [
        ("id", Value::Int(5)),
        ("name", Value::Str("say \"hi\"")),
        ("raw", Value::Bytes(&[0xff, 0])),
        ("list", Value::Json("[1,2]")),
        ("none", Value::Null),
    ];
    let output = RuleOutput {
        columns: scratch.arena().alloc_slice_copy(&columns),
    };
    work(&output, &view)
}

fn text(template: &str, form: TemplateFormat) -> String {
    let template = Template::compile(template, form, &fluxmq())
        .unwrap_or_else(|error| panic!("{}", error.report()));
    let template: &'static Template = Box::leak(Box::new(template));
    with_output(|output, view| {
        let mut out = Vec::new();
        template
            .render(output, view, &mut RuleState::default(), &mut out)
            .expect("no fault");
        String::from_utf8_lossy(&out).into_owned()
    })
}

#[test]
fn placeholders_are_columns_then_fields_then_expressions() {
    for (template, expected) in [
        ("plain", "plain"),
        ("", ""),
        ("t/${id}/${name}", "t/5/say \"hi\""),
        ("${topic}-${clientId}-${clientid}", "t/a-c1-c1"),
        ("${payload.x[2].y}", "z"),
        ("${ payload.x[1] + id }", "6"),
        ("${list}${list[2]}", "[1,2]2"),
        ("${none}${nothing.at.all}", "nullnull"),
        ("${ {'a': '}'}.a }", "}"),
        ("$${id} $ {id} $", "${id} $ {id} $"),
        (
            "${.}",
            "{\"id\":5,\"name\":\"say \\\"hi\\\"\",\"raw\":\"/wA=\",\"list\":[1,2],\"none\":null}",
        ),
        ("${'a' || \"b\"}", "ab"),
    ] {
        assert_eq!(text(template, TemplateFormat::Text), expected, "{template}");
    }
}

#[test]
fn bytes_are_preserved() {
    let template = Template::compile("${raw}", TemplateFormat::Text, &CompileOptions::default())
        .expect("valid");
    let template: &'static Template = Box::leak(Box::new(template));
    with_output(|output, view| {
        let mut out = Vec::new();
        let rendered = template
            .render(output, view, &mut RuleState::default(), &mut out)
            .expect("no fault");
        assert_eq!((out.as_slice(), rendered.nulls), (&[0xff, 0][..], 0));
    });
}

#[test]
fn json_is_escaped_where_it_must_be() {
    assert_eq!(
        text(
            r#"{"n": "<${name}>", "v": ${name}, "id": ${id}, "l": "${list}", "o": ${list}, "q": "\"${id}"}"#,
            TemplateFormat::Json
        ),
        r#"{"n": "<say \"hi\">", "v": "say \"hi\"", "id": 5, "l": "[1,2]", "o": [1,2], "q": "\"5"}"#
    );
    assert_eq!(
        text(r#"{"m": "${.}"}"#, TemplateFormat::Json)
            .matches("\\\"id\\\":5")
            .count(),
        1
    );
}

#[test]
fn a_payload_that_is_json_is_embedded() {
    assert_eq!(
        text(
            r#"{"p": ${payload}, "m": ${msg}, "s": "${payload}"}"#,
            TemplateFormat::Json
        ),
        r#"{"p": {"x": [1, {"y": "z"}], "name": "O'Neill"}, "m": {"x": [1, {"y": "z"}], "name": "O'Neill"}, "s": "{\"x\": [1, {\"y\": \"z\"}], \"name\": \"O'Neill\"}"}"#
    );
}

#[test]
fn null_is_written_according_to_its_position() {
    let rendered = |template: &str, form: TemplateFormat, dialect: rules::Dialect| {
        let options = CompileOptions {
            dialect: Some(dialect),
            ..CompileOptions::default()
        };
        let template = Template::compile(template, form, &options).expect("valid");
        let template: &'static Template = Box::leak(Box::new(template));
        with_output(|output, view| {
            let mut out = Vec::new();
            let rendered = template
                .render(output, view, &mut RuleState::default(), &mut out)
                .expect("no fault");
            let first_null = rendered.first_null.map(str::to_owned);
            (String::from_utf8(out).expect("UTF-8"), first_null)
        })
    };
    let (fluxmq, emqx) = (rules::Dialect::Fluxmq, rules::Dialect::Emqx);
    // A column that is null, and one that does not exist; EMQX distinguishes them.
    let json = |name: &str| format!("{{\"a\": ${{{name}}}, \"b\": \"<${{ {name} }}>\"}}");
    for (name, dialect, word) in [
        ("none", fluxmq, "null"),
        ("none", emqx, "null"),
        ("absent", fluxmq, "null"),
        ("absent", emqx, "undefined"),
    ] {
        let in_json = rendered(&json(name), TemplateFormat::Json, dialect);
        assert_eq!(in_json.0, format!(r#"{{"a": null, "b": "<{word}>"}}"#));
        let in_text = rendered(&format!("t/${{{name}}}"), TemplateFormat::Text, dialect);
        assert_eq!(in_text.0, format!("t/{word}"));
        for first_null in [in_json.1, in_text.1] {
            assert_eq!(first_null.as_deref(), Some(name));
        }
    }
    assert_eq!(rendered("${id}", TemplateFormat::Text, emqx).1, None);
}

fn bound(template: &str, placeholders: PlaceholderStyle) -> (String, String) {
    let template = SqlTemplate::compile(template, placeholders, &fluxmq())
        .unwrap_or_else(|error| panic!("{}", error.report()));
    let template: &'static SqlTemplate = Box::leak(Box::new(template));
    with_output(|output, view| {
        let values = template
            .bind(output, view, &mut RuleState::default())
            .expect("no fault");
        assert_eq!(values.len(), template.value_count());
        let mut json = Vec::new();
        Value::Array(values).write_json(&mut json);
        (
            template.statement().to_owned(),
            String::from_utf8(json).expect("UTF-8"),
        )
    })
}

#[test]
fn a_value_is_bound_and_never_spliced() {
    let statement = "insert into t (a, b, c) values ('${id}', ${payload.name}, 'x-${id}-''y') -- ${id}\n/* '${id}' */ where d = 'it''s'";
    assert_eq!(
        bound(statement, PlaceholderStyle::Question),
        (
            "insert into t (a, b, c) values (?, ?, ?) -- ${id}\n/* '${id}' */ where d = 'it''s'"
                .to_owned(),
            r#"[5,"O'Neill","x-5-'y"]"#.to_owned()
        )
    );
    assert_eq!(
        bound(
            "insert into \"T\" values ('${id}', '${none}', ${list}) on conflict (\"a\") do nothing",
            PlaceholderStyle::Numbered
        ),
        (
            "insert into \"T\" values ($1, $2, $3) on conflict (\"a\") do nothing".to_owned(),
            "[5,null,[1,2]]".to_owned()
        )
    );
    assert_eq!(
        bound(
            r#"insert into `t` values ("${name}", 'a\'b', 'c\'${id}', '?', '$${x}')"#,
            PlaceholderStyle::Question
        ),
        (
            r#"insert into `t` values (?, 'a\'b', ?, '?', '${x}')"#.to_owned(),
            r#"["say \"hi\"","c'5"]"#.to_owned()
        )
    );
}

#[test]
fn templates_that_are_wrong() {
    let mut reports = String::new();
    for template in [
        "a ${id",
        "a ${}",
        "a\nb ${id +} c",
        "${toopic()}",
        "${payload.x[0]}",
        "${'}",
    ] {
        let error = Template::compile(template, TemplateFormat::Text, &CompileOptions::default())
            .err()
            .unwrap_or_else(|| panic!("accepted: {template}"));
        reports.push_str(&error.report());
        reports.push_str("\n\n");
    }
    for (template, placeholders) in [
        (
            "insert into `${topic}` values (1)",
            PlaceholderStyle::Question,
        ),
        (
            "insert into \"${topic}\" values (1)",
            PlaceholderStyle::Numbered,
        ),
        ("insert into t values (?)", PlaceholderStyle::Question),
        ("insert into t values ($1)", PlaceholderStyle::Numbered),
        ("insert into t values ('${id})", PlaceholderStyle::Numbered),
    ] {
        let error = SqlTemplate::compile(template, placeholders, &CompileOptions::default())
            .err()
            .unwrap_or_else(|| panic!("accepted: {template}"));
        reports.push_str(&error.report());
        reports.push_str("\n\n");
    }
    insta::assert_snapshot!(reports);
}
