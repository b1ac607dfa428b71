//! Errors about unknown names, with the one that was probably meant.

/// An error about `name`, which is none of `known`; `what` says what is named.
pub(crate) fn unknown_name<'n>(
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'n str> + Clone,
) -> String {
    let error = format!("unknown {what} `{name}`");
    if let Some(near) = rules::nearest_name(name, known.clone()) {
        return format!("{error}; did you mean `{near}`?");
    }
    match known.collect::<Vec<_>>().join(", ") {
        known if known.is_empty() => error,
        known => format!("{error}; expected one of {known}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_similar_name_is_suggested_and_others_are_listed() {
        let error = |name| unknown_name("value", name, ["level", "power"].into_iter());
        assert_eq!(
            error("levle"),
            "unknown value `levle`; did you mean `level`?"
        );
        assert_eq!(
            error("temperature"),
            "unknown value `temperature`; expected one of level, power"
        );
        let none = unknown_name("fleet", "a", std::iter::empty());
        assert_eq!(none, "unknown fleet `a`");
    }
}
