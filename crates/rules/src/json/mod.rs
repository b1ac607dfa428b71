//! JSON parser and writer for values in the arena. Own code because it borrows from the payload, preserves
//! 64-bit integers and the order of fields, and can leave parts unparsed.

mod error;
mod reader;
mod skipping;
mod writer;

pub use error::JsonError;
pub(crate) use reader::Reader;
pub use reader::{MAX_DEPTH, check, parse, parse_lazy, parse_one_level, unescape};
pub use skipping::unescaped_prefix_length;
pub use writer::{JsonOutput, text, write, write_string};

#[cfg(test)]
mod round_trip {
    use proptest::prelude::*;

    use super::{check, parse, parse_lazy, text};
    use crate::value::{Arena, OwnedValue};

    fn any_value() -> impl Strategy<Value = OwnedValue> {
        let leaf = prop_oneof![
            Just(OwnedValue::Null),
            any::<bool>().prop_map(OwnedValue::Bool),
            any::<i64>().prop_map(OwnedValue::Int),
            prop::num::f64::NORMAL.prop_map(OwnedValue::Float),
            ".*".prop_map(|text| OwnedValue::Str(text.into())),
        ];
        leaf.prop_recursive(5, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8)
                    .prop_map(|items| OwnedValue::Array(items.into())),
                prop::collection::btree_map(".{0,6}", inner, 0..8).prop_map(|fields| {
                    let fields = fields.into_iter().map(|(name, value)| (name.into(), value));
                    OwnedValue::Map(fields.collect())
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_the_same(value in any_value()) {
            let arena = Arena::new();
            let value = value.to_value(&arena);
            let written = text(&value, &arena);
            prop_assert!(check(written).is_ok());
            let read = parse(written, &arena).expect("it was checked");
            prop_assert!(read.is_not_distinct(&value), "{written}");
            prop_assert_eq!(text(&read, &arena), written);
            let lazy = parse_lazy(written, &arena).expect("it was checked");
            prop_assert!(lazy.is_not_distinct(&value));
        }

        #[test]
        fn no_text_upsets_the_reader(text in "[\\[\\]{}:,\"\\\\ua-f0-9.eE+-tnrl \u{1}é]{0,40}") {
            let arena = Arena::new();
            // The reverse does not hold: some numbers do not fit a float.
            if parse(&text, &arena).is_ok() {
                prop_assert!(check(&text).is_ok());
                prop_assert!(parse_lazy(&text, &arena).is_ok());
            }
        }
    }
}
