//! Templates: texts and values of actions.

use rules::{
    CompileOptions, EvaluationResources, EvaluationScratch, RuleEvent, RuleOutput, RuleState,
    Template, TemplateFormat, Value, ValueTemplate,
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

fn evaluated(template: &str) -> String {
    let template = ValueTemplate::compile(template, &fluxmq())
        .unwrap_or_else(|error| panic!("{}", error.report()));
    let template: &'static ValueTemplate = Box::leak(Box::new(template));
    with_output(|output, view| {
        let value = template
            .evaluate(output, view, &mut RuleState::default())
            .expect("no error");
        let mut json = Vec::new();
        value.write_json(&mut json);
        String::from_utf8(json).expect("UTF-8")
    })
}

#[test]
fn a_value_keeps_its_type() {
    for (template, expected) in [
        ("${id}", "5"),
        ("${payload.x}", r#"[1, {"y": "z"}]"#),
        ("${ list }", "[1,2]"),
        ("${none}", "null"),
        ("${upper(name)}", r#""SAY \"HI\"""#),
    ] {
        assert_eq!(evaluated(template), expected, "{template}");
    }
}

#[test]
fn a_value_template_lists_the_names_it_reads() {
    let compiled = |text| ValueTemplate::compile(text, &CompileOptions::default()).unwrap();
    let template = compiled("${concat(b, payload.x, a, b)}");
    assert_eq!(template.names(), Some(vec!["a", "b", "payload"]));
    assert_eq!(compiled("${.}").names(), None);
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
    for template in ["", "text", "a ${id}", "${id}${id}", "${id +}"] {
        let error = ValueTemplate::compile(template, &CompileOptions::default())
            .err()
            .unwrap_or_else(|| panic!("accepted: {template}"));
        reports.push_str(&error.report());
        reports.push_str("\n\n");
    }
    insta::assert_snapshot!(reports);
}
