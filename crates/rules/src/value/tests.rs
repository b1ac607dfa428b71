//! Comparison of values: numbers without rounding, text, payloads and structures.

use super::*;

#[test]
fn numbers_and_numeric_text_compare_as_numbers() {
    assert_eq!(
        Value::Int(10).compare(&Value::Str("9")),
        Some(Ordering::Greater)
    );
    assert_eq!(
        Value::Str("10").compare(&Value::Str("9")),
        Some(Ordering::Less)
    );
    assert!(Value::Float(2.0).equals(&Value::Int(2)));
    assert!(Value::Str("2.50").equals(&Value::Float(2.5)));
    assert_eq!(Value::Int(1).compare(&Value::Str("one")), None);
    assert_eq!(Value::Null.compare(&Value::Null), None);
    assert!(Value::Null.is_not_distinct(&Value::Null));
}

#[test]
fn large_integers_are_not_rounded_to_floats() {
    let big = Value::Int(9_007_199_254_740_993);
    assert!(!big.equals(&Value::Float(9_007_199_254_740_992.0)));
    assert_eq!(
        Value::Int(i64::MAX).compare(&Value::Float(9.3e18)),
        Some(Ordering::Less)
    );
    assert_eq!(
        Value::Int(i64::MIN).compare(&Value::Float(f64::NEG_INFINITY)),
        Some(Ordering::Greater)
    );
}

#[test]
fn integers_beyond_64_bits_are_exact() {
    let (big, next) = (
        Value::Big("18446744073709551616"),
        Value::Big("18446744073709551617"),
    );
    assert_eq!(big.compare(&next), Some(Ordering::Less));
    assert!(big.equals(&big) && !big.equals(&next));
    assert!(big.equals(&Value::Str("18446744073709551616")));
    assert!(!next.equals(&Value::Str("18446744073709551616")));
    assert!(big.equals(&Value::Float(18_446_744_073_709_551_616.0)));
    assert!(!next.equals(&Value::Float(18_446_744_073_709_551_616.0)));
    assert_eq!(big.compare(&Value::Int(i64::MAX)), Some(Ordering::Greater));
    let negative = Value::Big("-9223372036854775809");
    assert_eq!(
        negative.compare(&Value::Int(i64::MIN)),
        Some(Ordering::Less)
    );
    assert_eq!(negative.compare(&Value::Float(0.5)), Some(Ordering::Less));
    assert_eq!(big.compare(&Value::Str("no number")), None);
    assert_eq!(big.as_number(), None);
}

#[test]
fn large_objects_compare_in_whatever_order() {
    let fields = |names: &mut dyn Iterator<Item = u32>| {
        let fields: Vec<_> = names.map(|n| format!("\"f{n}\":{n}")).collect();
        format!("{{{}}}", fields.join(","))
    };
    // A quadratic comparison of this many fields would take minutes.
    let forward = fields(&mut (0..60_000));
    let backward = fields(&mut (0..60_000).rev());
    assert!(Value::Json(&forward).equals(&Value::Json(&backward)));
    let other = forward.replace("\"f7\":7,", "\"f7\":8,");
    assert!(!Value::Json(&other).equals(&Value::Json(&backward)));
}

#[test]
fn text_and_payload_compare_by_bytes() {
    assert!(Value::Bytes(b"on").equals(&Value::Str("on")));
    assert!(Value::Bool(true).equals(&Value::Str("true")));
}

#[test]
fn structures_are_equal_whatever_the_order_of_fields() {
    let arena = Arena::new();
    let left = Value::Json(r#"{"a":1,"b":[1,2.0]}"#);
    let right = json::parse(r#"{"b":[1,2],"a":1}"#, &arena).expect("valid");
    assert!(left.equals(&right));
    assert!(!left.equals(&Value::Json(r#"{"a":1}"#)));
}

#[test]
fn an_owned_copy_is_the_same_value() {
    let arena = Arena::new();
    let value = json::parse(r#"{"a":[1,"x",null,true,1.5]}"#, &arena).expect("valid");
    let owned = value.into_owned();
    assert!(owned.to_value(&arena).equals(&value));
    assert!(owned.size_bytes() > 6 * size_of::<OwnedValue>());
}
