//! The families of functions, and the search for a function by its name.

use std::sync::LazyLock;

use super::function::Function;
use super::{
    arrays, bits, compress, convert, encoding, ids, jq, json_documents, maps, math, message,
    search, state_and_environment, strings, time, types,
};
use crate::suggestion::nearest_name;

/// A group of related functions.
pub struct FunctionFamily {
    pub title: &'static str,
    pub functions: &'static [Function],
}

#[rustfmt::skip]
pub const FAMILIES: &[FunctionFamily] = &[
    FunctionFamily { title: "Conversion", functions: convert::TABLE },
    FunctionFamily { title: "Text", functions: strings::TABLE },
    FunctionFamily { title: "Searching text", functions: search::TABLE },
    FunctionFamily { title: "Dates and times", functions: time::TABLE },
    FunctionFamily { title: "Mathematics", functions: math::TABLE },
    FunctionFamily { title: "Bits and bytes", functions: bits::TABLE },
    FunctionFamily { title: "Hashes and codes", functions: encoding::TABLE },
    FunctionFamily { title: "Compression", functions: compress::TABLE },
    FunctionFamily { title: "JSON", functions: json_documents::TABLE },
    FunctionFamily { title: "jq", functions: jq::TABLE },
    FunctionFamily { title: "Arrays", functions: arrays::TABLE },
    FunctionFamily { title: "Maps", functions: maps::TABLE },
    FunctionFamily { title: "Types and conditions", functions: types::TABLE },
    FunctionFamily { title: "Ids", functions: ids::TABLE },
    FunctionFamily { title: "The message", functions: message::TABLE },
    FunctionFamily { title: "Memory", functions: state_and_environment::TABLE },
];

pub fn all() -> impl Iterator<Item = &'static Function> {
    FAMILIES.iter().flat_map(|family| family.functions)
}

/// Finds a function by its name or alias. Ignores case and underscores: `isNull`, `is_null` and `ISNULL` are
/// the same.
#[must_use]
pub fn find(name: &str) -> Option<&'static Function> {
    static BY_NAME: LazyLock<Vec<(String, &'static Function)>> = LazyLock::new(|| {
        let mut names: Vec<_> = all()
            .flat_map(|function| {
                let names = std::iter::once(&function.name).chain(function.aliases);
                names.map(move |name| (normalize_name(name), function))
            })
            .collect();
        names.sort_by(|(left, _), (right, _)| left.cmp(right));
        names
    });
    let wanted = normalize_name(name);
    let at = BY_NAME
        .binary_search_by(|(name, _)| name.as_str().cmp(&wanted))
        .ok()?;
    Some(BY_NAME[at].1)
}

fn normalize_name(name: &str) -> String {
    name.chars()
        .filter(|letter| *letter != '_')
        .flat_map(char::to_lowercase)
        .collect()
}

/// The closest existing name to an unknown one, if any is close enough.
#[must_use]
pub fn nearest(name: &str) -> Option<&'static str> {
    let names = all().flat_map(|function| std::iter::once(&function.name).chain(function.aliases));
    nearest_name(name, names.copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_does_not_matter() {
        for name in ["randomInt", "random_int", "RANDOMINT", "RandomInt"] {
            assert_eq!(
                find(name).map(|function| function.name),
                Some("randomInt"),
                "{name}"
            );
        }
        assert!(find("no_such_function").is_none());
    }

    #[test]
    fn no_two_functions_share_a_name() {
        let mut names: Vec<_> = all()
            .flat_map(|function| std::iter::once(&function.name).chain(function.aliases))
            .map(|name| normalize_name(name))
            .collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn the_nearest_name_is_suggested() {
        assert_eq!(nearest("flor"), Some("floor"));
        assert_eq!(nearest("sqart"), Some("sqrt"));
        assert_eq!(nearest("completely_different"), None);
    }
}
