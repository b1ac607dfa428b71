//! Suggestions for misspelled names, by edit distance.

use std::cmp::Reverse;

/// The closest of `names`, if it is close enough to be a typing error. Case and `_` are ignored.
#[must_use]
pub fn nearest_name<'n>(wanted: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let wanted = normalize(wanted);
    if wanted.is_empty() || wanted.len() > 64 {
        return None;
    }
    let allowed = (wanted.len() / 3).clamp(1, 3);
    names
        .into_iter()
        .map(|name| (edit_distance(&wanted, &normalize(name)), name))
        .filter(|&(distance, _)| distance <= allowed && distance < wanted.len())
        // A missing letter is the more frequent error, so the longer of two equally near names is suggested.
        .min_by_key(|&(distance, name)| (distance, Reverse(name.len())))
        .map(|(_, name)| name)
}

/// Like [`nearest_name`], for dotted keys: a key of another section with the same last part counts as near.
#[must_use]
pub fn nearest_key<'k>(
    wanted: &str,
    keys: impl IntoIterator<Item = &'k str> + Clone,
) -> Option<&'k str> {
    nearest_name(wanted, keys.clone()).or_else(|| {
        let last_part = |key: &'k str| key.rsplit('.').next().unwrap_or(key);
        let wanted_part = wanted.rsplit('.').next().unwrap_or(wanted);
        let part = nearest_name(wanted_part, keys.clone().into_iter().map(last_part))?;
        keys.into_iter().find(|key| last_part(key) == part)
    })
}

/// Appends a suggestion to an error that lists the known names: one of serde about an unknown field or value in
/// backticks, or `expected "a" or "b", found "x"`.
#[must_use]
pub fn with_suggestion(error: &str) -> String {
    if error.contains("did you mean") {
        return error.to_owned();
    }
    let near = unknown_name(error)
        .or_else(|| unexpected_value(error))
        .and_then(|(found, known, quote)| Some((nearest_name(found, known)?, quote)));
    match near {
        Some((near, quote)) => {
            let error = error.trim_end_matches('.');
            format!("{error}; did you mean {quote}{near}{quote}?")
        }
        None => error.to_owned(),
    }
}

/// The unknown name, the known names, and the character around each name.
type QuotedNames<'e> = (&'e str, Vec<&'e str>, char);

fn unknown_name(error: &str) -> Option<QuotedNames<'_>> {
    let mut starts = ["unknown field `", "unknown value `", "unknown variant `"].into_iter();
    let at = starts.find_map(|start| error.find(start))?;
    let mut names = error[at..].split('`').skip(1).step_by(2);
    Some((names.next()?, names.collect(), '`'))
}

fn unexpected_value(error: &str) -> Option<QuotedNames<'_>> {
    let (before, found) = error.rsplit_once(", found \"")?;
    let (_, expected) = before.rsplit_once("expected ")?;
    let found = found.split('"').next()?;
    // Other quoted texts are examples.
    let mut between = expected.split('"').step_by(2);
    let is_list = between.all(|text| ["", "one of ", ", ", " or "].contains(&text));
    let known = expected.split('"').skip(1).step_by(2).collect();
    is_list.then_some((found, known, '"'))
}

fn normalize(name: &str) -> Vec<char> {
    name.chars()
        .filter(|&c| c != '_')
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

/// Counts insertions, deletions, substitutions and transpositions of neighbours.
fn edit_distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    let mut row = vec![0; b.len() + 1];
    for i in 1..=a.len() {
        row[0] = i;
        for j in 1..=b.len() {
            let same = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (last[j - 1] + same).min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        std::mem::swap(&mut before, &mut last);
        std::mem::swap(&mut last, &mut row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_suggested_and_others_are_not() {
        let names = || ["datetime", "date", "split", "substring"].into_iter();
        assert_eq!(nearest_name("datatime", names()), Some("datetime"));
        assert_eq!(nearest_name("splti", names()), Some("split"));
        assert_eq!(nearest_name("sub_String", names()), Some("substring"));
        assert_eq!(nearest_name("zebra", names()), None);
        assert_eq!(nearest_name("clien", ["clie", "client"]), Some("client"));
    }

    #[test]
    fn a_key_in_the_wrong_section_is_found() {
        let keys = ["limits.max_qos", "node.shards", "log.level"];
        assert_eq!(nearest_key("node.max_qos", keys), Some("limits.max_qos"));
        assert_eq!(nearest_key("max_qoss", keys), Some("limits.max_qos"));
        assert_eq!(nearest_key("nod.shards", keys), Some("node.shards"));
        assert_eq!(nearest_key("colour", keys), None);
    }

    #[test]
    fn errors_of_serde_get_a_suggestion() {
        let error = "prodct: unknown field `prodct`, expected one of `id`, `product`, `name`.";
        let expected = "prodct: unknown field `prodct`, expected one of `id`, `product`, `name`; did you mean `product`?";
        assert_eq!(with_suggestion(error), expected);
        assert_eq!(with_suggestion(expected), expected);
        assert_eq!(
            with_suggestion("mode: unknown value `sunc`, expected `sync` or `actor`"),
            "mode: unknown value `sunc`, expected `sync` or `actor`; did you mean `sync`?"
        );
        let permission = "permission: expected \"allow\" or \"deny\", found \"alow\"";
        assert_eq!(
            with_suggestion(permission),
            format!("{permission}; did you mean \"allow\"?")
        );
        for other in [
            "permission: expected \"allow\" or \"deny\", found \"yes\"",
            "expected a text, found 5",
            "expected a path such as \"/mqtt\", found \"mqtt\"",
            "missing field `id`",
            "unknown field `zebra`, expected `id` or `name`",
            "unknown variant `",
        ] {
            assert_eq!(with_suggestion(other), other);
        }
    }
}
