use insta::assert_snapshot;
use proptest::prelude::*;
use rules::value::{Arena, Value};
use serde_json::json;
use series::PointValue as Stored;

use super::*;

fn model() -> ThingModel {
    let metadata = json!({
        "properties": [
            {"id": "temperature", "name": "Temperature",
             "valueType": {"type": "float", "scale": "1", "min": -40, "max": "125", "unit": "celsiusDegrees"},
             "expands": {"source": "device", "type": ["read", "report"]}},
            {"id": "count", "name": "Count", "valueType": {"type": "int", "min": 0}},
            {"id": "on", "valueType": {"type": "boolean", "trueValue": "100", "falseValue": "0", "trueText": "open", "falseText": "shut"}},
            {"id": "label", "valueType": {"type": "string", "expands": {"maxLength": "5"}}},
            {"id": "mode", "valueType": {"type": "enum", "elements": [
                {"value": "1", "text": "auto"}, {"value": "2", "text": "manual"}]}},
            {"id": "at", "valueType": {"type": "date", "format": "yyyy-MM-dd HH:mm:ss", "tz": "Asia/Shanghai"}},
            {"id": "list", "valueType": {"type": "array", "elementType": {"type": "int", "max": 9}}},
            {"id": "part", "valueType": {"type": "object", "properties": [
                {"id": "x", "valueType": {"type": "double"}, "expands": {"required": "true"}},
                {"id": "y", "valueType": {"type": "string"}}]}},
            {"id": "place", "valueType": {"type": "geoPoint"}},
            {"id": "image", "valueType": {"type": "file", "bodyType": "url"}},
            {"id": "secret", "valueType": {"type": "password"}},
        ],
        "functions": [{"id": "open", "name": "Open", "async": true,
            "inputs": [{"id": "angle", "valueType": {"type": "int", "max": 90}, "expands": {"required": true}}],
            "output": {"type": "boolean"}}],
        "events": [{"id": "fire", "name": "Fire", "expands": {"level": "urgent"},
            "valueType": {"type": "object", "properties": [{"id": "a", "valueType": {"type": "int"}}]}}],
        "tags": [{"id": "floor", "name": "Floor", "valueType": {"type": "int"}}]
    });
    ThingModel::read(&metadata, UnknownKeys::Reject).expect("a model")
}

#[test]
fn values_are_stored_in_the_form_of_their_type() {
    let model = model();
    let arena = Arena::new();
    let stored = |key: &str, value: &str| {
        let value = rules::json::parse_lazy(value, &arena).expect("JSON");
        let checked = model.check(key, value, &arena);
        checked
            .map_err(|reason| reason.to_string())
            .map(|stored| format!("{stored:?}"))
    };
    let ok = |key: &str, value: &str| stored(key, value).expect(value);
    assert_eq!(ok("temperature", "21.26"), "Float(21.3)");
    assert_eq!(ok("temperature", "21"), "Float(21.0)");
    assert_eq!(ok("temperature", "\"-3.5\""), "Float(-3.5)");
    assert_eq!(ok("count", "7"), "Int(7)");
    assert_eq!(ok("count", "7.0"), "Int(7)");
    assert_eq!(ok("count", "\"7\""), "Int(7)");
    assert_eq!(ok("on", "100"), "Bool(true)");
    assert_eq!(ok("on", "\"shut\""), "Bool(false)");
    assert_eq!(ok("on", "true"), "Bool(true)");
    assert_eq!(ok("label", "\"Zäune\""), "Text(\"Zäune\")");
    assert_eq!(ok("label", "12"), "Text(\"12\")");
    assert_eq!(ok("mode", "2"), "Text(\"2\")");
    assert_eq!(ok("mode", "\"manual\""), "Text(\"2\")");
    assert_eq!(ok("at", "\"1970-01-01 08:00:01\""), "Int(1000)");
    assert_eq!(ok("at", "1000"), "Int(1000)");
    assert_eq!(ok("list", "[1, 2]"), "Json(\"[1, 2]\")");
    assert_eq!(ok("part", "{\"x\": 1}"), "Json(\"{\\\"x\\\": 1}\")");
    for place in ["\"8.5,47\"", "[8.5, 47]", "{\"lat\":47,\"lon\":8.5}"] {
        assert_eq!(
            ok("place", place),
            "Json(\"{\\\"lon\\\":8.5,\\\"lat\\\":47.0}\")"
        );
    }
    assert_eq!(
        ok("image", "\"http://a/b.png\""),
        "Text(\"http://a/b.png\")"
    );
    let reasons = [
        ("temperature", "126"),
        ("temperature", "\"warm\""),
        ("temperature", "null"),
        ("count", "-1"),
        ("count", "1.5"),
        ("on", "\"ajar\""),
        ("on", "50"),
        ("label", "\"too long\""),
        ("mode", "3"),
        ("at", "\"tomorrow\""),
        ("list", "[1, 10]"),
        ("list", "{}"),
        ("part", "{\"y\":\"a\"}"),
        ("part", "{\"x\":\"a\"}"),
        ("place", "\"200,0\""),
        ("image", "\"b.png\""),
        ("other", "1"),
    ];
    let reasons = reasons.map(|(key, value)| {
        let reason = stored(key, value).expect_err(value);
        format!("{key} {value}: {reason}")
    });
    assert_snapshot!(reasons.join("\n"));
}

#[test]
fn metadata_errors_are_reported_together() {
    let wrong = json!({
        "properties": [
            {"name": "no id", "valueType": {"type": "int"}},
            {"id": "a", "valueType": {"type": "int", "min": 5, "max": 1}},
            {"id": "a", "valueType": {"type": "number"}},
            {"id": "b"},
            {"id": "c", "valueType": {"type": "enum"}},
            {"id": "d", "valueType": {"type": "float", "scale": "many"}},
            {"id": "e", "valueType": {"type": "date", "format": "qq"}},
            {"id": "f", "valueType": {"type": "array", "elementType": {"type": "file", "bodyType": "disk"}}},
            7
        ],
        "functions": {"id": "x"},
        "events": [{"id": "", "valueType": {"type": "int"}}],
        "tags": null
    });
    let errors = ThingModel::read(&wrong, UnknownKeys::Keep).expect_err("it is wrong");
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert_snapshot!(errors.join("\n"));
    assert!(ThingModel::read(&json!([]), UnknownKeys::Keep).is_err());
    assert!(ThingModel::read(&json!(null), UnknownKeys::Keep).is_ok());
}

#[test]
fn functions_events_and_uses_of_properties_are_known() {
    let model = model();
    let arena = Arena::new();
    let open = model.function("open").expect("it is there");
    assert!(open.is_async && open.output.is_some());
    let check = |text: &'static str| {
        let value = rules::json::parse_lazy(text, &arena).expect("JSON");
        open.check(value, &arena)
            .map_err(|reason| reason.to_string())
    };
    assert_eq!(check("{\"angle\": 45}"), Ok(()));
    assert_eq!(
        check("{\"angle\": 91}").unwrap_err(),
        "field \"angle\" is out of range"
    );
    assert!(check("{}").is_err() && check("null").is_err());
    assert_eq!(
        model.event("fire").and_then(|event| event.level.as_deref()),
        Some("urgent")
    );
    let temperature = model.property("temperature").expect("it is there");
    assert!(temperature.may_read && temperature.may_report && !temperature.may_write);
    assert_eq!(temperature.unit.as_deref(), Some("celsiusDegrees"));
    let on = &model.property("on").expect("it is there").value_type;
    assert_eq!(on.label(Stored::Bool(true)), Some("open"));
    assert_eq!(model.tags.len(), 1);
}

fn any_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|flag| flag.to_string()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f32>()
            .prop_filter("finite", |number| number.is_finite())
            .prop_map(|number| number.to_string()),
        "[a-z0-9, .:/-]{0,20}".prop_map(|text| format!("{text:?}")),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4)
                .prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::vec(("[a-z]", inner), 0..4).prop_map(|fields| {
                let fields = fields
                    .iter()
                    .map(|(name, value)| format!("\"{name}\":{value}"));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
            }),
        ]
    })
}

proptest! {
    /// For any input, the stored value has the kind of its type and is accepted again unchanged.
    #[test]
    fn accepted_values_are_accepted_again(text in any_json()) {
        let model = model();
        let arena = Arena::new();
        let value = rules::json::parse_lazy(&text, &arena).expect("JSON");
        for property in model.properties() {
            let Ok(stored) = property.value_type.check(value, &arena) else {
                continue;
            };
            let again = match stored {
                Stored::Bool(flag) => Value::Bool(flag),
                Stored::Int(number) => Value::Int(number),
                Stored::Float(number) => Value::Float(number),
                Stored::Text(text) => Value::Str(text),
                Stored::Json(text) => Value::Json(text),
            };
            prop_assert_eq!(property.value_type.check(again, &arena), Ok(stored), "{}", &property.id);
        }
    }
}
