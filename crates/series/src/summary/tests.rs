//! Summaries of intervals: exact sums, first and last values, calendar intervals.

use super::*;

#[test]
fn integer_sums_are_exact_within_64_bits() {
    let mut summary = IntervalSummary::default();
    summary.add(1, PointValue::Int(9_007_199_254_740_993));
    summary.add(2, PointValue::Int(2));
    assert_eq!(
        summary.get(Aggregate::Sum),
        Some(PointValue::Int(9_007_199_254_740_995))
    );
    assert_eq!(
        summary.get(Aggregate::Max),
        Some(PointValue::Int(9_007_199_254_740_993))
    );
    summary.add(3, PointValue::Int(i64::MAX));
    let sum = 9_223_372_036_854_775_807_f64 + 9_007_199_254_740_995_f64;
    assert_eq!(summary.get(Aggregate::Sum), Some(PointValue::Float(sum)));
    assert_eq!(
        summary.get(Aggregate::Last),
        Some(PointValue::Int(i64::MAX))
    );
    summary.add(4, PointValue::Int(i64::MIN));
    assert_eq!(
        summary.get(Aggregate::Sum),
        Some(PointValue::Int(9_007_199_254_740_994))
    );
}

#[test]
fn of_equal_times_the_first_value_is_the_first_added_and_the_last_value_the_last_added() {
    let added = |values: &[(i64, i64)]| {
        let mut summary = IntervalSummary::default();
        for &(ts_ms, number) in values {
            summary.add(ts_ms, PointValue::Int(number));
        }
        summary
    };
    let summary = added(&[(7, 1), (7, 2), (7, 3)]);
    assert_eq!(summary.first(), Some((7, PointValue::Int(1))));
    assert_eq!(summary.last(), Some((7, PointValue::Int(3))));
    let mut merged = added(&[(7, 1), (7, 2)]);
    merged.merge(&added(&[(7, 3)]));
    assert_eq!(merged, summary);
    merged.merge(&added(&[(6, 4), (8, 5)]));
    assert_eq!(merged.first(), Some((6, PointValue::Int(4))));
    assert_eq!(merged.last(), Some((8, PointValue::Int(5))));
}

#[test]
fn equal_extremes_do_not_depend_on_the_order_of_the_values() {
    use NumericValue::{Float, Int};
    const LARGE: i64 = 1 << 53;
    for (numbers, min, max) in [
        (vec![Float(1.0), Int(1)], Int(1), Int(1)),
        (vec![Float(0.0), Float(-0.0)], Float(-0.0), Float(0.0)),
        (vec![Float(-0.0), Int(0)], Float(-0.0), Int(0)),
        (
            vec![Int(LARGE + 1), Float(LARGE as f64), Int(LARGE)],
            Int(LARGE),
            Int(LARGE + 1),
        ),
        (vec![Float(-1.5), Int(-1), Int(-2)], Int(-2), Int(-1)),
        (
            vec![Int(i64::MAX), Float(i64::MAX as f64), Int(i64::MIN)],
            Int(i64::MIN),
            Float(i64::MAX as f64),
        ),
        (
            vec![Float(f64::INFINITY), Int(0), Float(f64::NEG_INFINITY)],
            Float(f64::NEG_INFINITY),
            Float(f64::INFINITY),
        ),
    ] {
        for turn in 0..numbers.len() {
            let mut order = numbers.clone();
            order.rotate_left(turn);
            for order in [order.clone(), order.into_iter().rev().collect()] {
                let mut summary = IntervalSummary::default();
                for number in &order {
                    summary.add(1, number.value());
                }
                // Debug also tells 0.0 and -0.0 apart.
                let found = format!("{:?} {:?}", summary.min.unwrap(), summary.max.unwrap());
                assert_eq!(found, format!("{min:?} {max:?}"), "{order:?}");
            }
        }
    }
}

#[test]
fn names_find_their_aggregates() {
    for (name, aggregate) in Aggregate::NAMES.into_iter().zip(Aggregate::ALL) {
        assert_eq!(Aggregate::from_name(name), Some(aggregate));
    }
    assert_eq!(Aggregate::from_name("AVG"), None);
    assert_eq!(Aggregate::from_name("median"), None);
}

#[test]
fn first_and_last_are_values_of_any_kind() {
    let mut summary = IntervalSummary::default();
    summary.add(5, PointValue::Bool(true));
    summary.add(9, PointValue::Text("late"));
    summary.add(1, PointValue::Json("[1]"));
    assert_eq!(summary.get(Aggregate::First), Some(PointValue::Json("[1]")));
    assert_eq!(summary.get(Aggregate::Last), Some(PointValue::Text("late")));
    assert_eq!(summary.get(Aggregate::Avg), Some(PointValue::Float(1.0)));
    assert_eq!((summary.count, summary.numbers), (3, 1));
    let mut texts = IntervalSummary::default();
    texts.add(1, PointValue::Text("only"));
    assert_eq!(texts.get(Aggregate::Min), None);
    assert_eq!(texts.get(Aggregate::Sum), None);
}

#[test]
fn calendar_intervals_have_different_lengths() {
    let intervals = Intervals {
        from_ms: 10,
        to_ms: 100,
        starts: vec![0, 23, 48],
        ..Intervals::default()
    };
    assert!(intervals.check().is_ok());
    assert_eq!(intervals.interval_of(22), (0, 23));
    assert_eq!(intervals.interval_of(23), (23, 48));
    assert_eq!(intervals.interval_of(99), (48, i64::MAX));
    let wrong = Intervals {
        starts: vec![11],
        ..intervals
    };
    assert!(wrong.check().is_err());
}
