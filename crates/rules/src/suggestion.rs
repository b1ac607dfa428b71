//! Suggestions for misspelled names, by edit distance.

/// The closest of `names`, if it is close enough to be a typing error. Case and `_` are ignored.
#[must_use]
pub fn nearest_name<'n>(wanted: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let wanted = normalize(wanted);
    if wanted.is_empty() || wanted.len() > 64 {
        return None;
    }
    let allowed = (wanted.len() / 3).clamp(1, 3);
    names
        .map(|name| (edit_distance(&wanted, &normalize(name)), name))
        .filter(|&(distance, _)| distance <= allowed && distance < wanted.len())
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, name)| name)
}

/// Appends a suggestion to a serde error about an unknown field or variant, which lists the known ones.
#[must_use]
pub fn with_suggestion(error: &str) -> String {
    let mut starts = ["unknown field `", "unknown variant `"].into_iter();
    let Some(at) = starts.find_map(|start| error.find(start)) else {
        return error.to_owned();
    };
    let mut quoted = error[at..].split('`').skip(1).step_by(2);
    let found = quoted.next().unwrap_or_default();
    match nearest_name(found, quoted).filter(|_| !error.contains("did you mean")) {
        Some(near) => format!("{}; did you mean `{near}`?", error.trim_end_matches('.')),
        None => error.to_owned(),
    }
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
    }

    #[test]
    fn errors_of_serde_get_a_suggestion() {
        let error = "prodct: unknown field `prodct`, expected one of `id`, `product`, `name`.";
        let expected = "prodct: unknown field `prodct`, expected one of `id`, `product`, `name`; did you mean `product`?";
        assert_eq!(with_suggestion(error), expected);
        assert_eq!(with_suggestion(expected), expected);
        for other in [
            "missing field `id`",
            "unknown field `zebra`, expected `id` or `name`",
            "unknown variant `",
        ] {
            assert_eq!(with_suggestion(other), other);
        }
    }
}
