//! Suggests the valid name nearest to an unknown one.

use std::cmp::Reverse;

/// The candidate nearest to `wanted`, if it is near enough.
pub(crate) fn nearest<'a>(
    wanted: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let tolerance = (wanted.chars().count() / 3).clamp(1, 4);
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(wanted, candidate), candidate))
        .filter(|(distance, _)| *distance <= tolerance)
        // A missing letter is the more likely typo, so the longer of two equally near candidates wins.
        .min_by_key(|(distance, candidate)| (*distance, Reverse(candidate.len())))
        .map(|(_, candidate)| candidate)
}

/// Like [`nearest`], for dotted keys: the same last part in another section counts as near.
pub(super) fn nearest_key<'a>(
    wanted: &str,
    candidates: impl IntoIterator<Item = &'a str> + Clone,
) -> Option<&'a str> {
    nearest(wanted, candidates.clone()).or_else(|| {
        let last_part = |key: &'a str| key.rsplit('.').next().unwrap_or(key);
        let wanted_part = wanted.rsplit('.').next().unwrap_or(wanted);
        let part = nearest(wanted_part, candidates.clone().into_iter().map(last_part))?;
        candidates.into_iter().find(|key| last_part(key) == part)
    })
}

/// Number of edits (insert, delete, replace, swap of neighbours) between two texts, ignoring case.
fn edit_distance(a: &str, b: &str) -> usize {
    let lower = |text: &str| -> Vec<char> { text.to_lowercase().chars().collect() };
    let (a, b) = (lower(a), lower(b));
    // Three rows of the edit distance table: the current one and the two before it.
    let mut before_last = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    let mut row = vec![0; b.len() + 1];
    for i in 1..=a.len() {
        row[0] = i;
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        std::mem::swap(&mut before_last, &mut last);
        std::mem::swap(&mut last, &mut row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, edits) in [
            ("", "", 0),
            ("abc", "abc", 0),
            ("abc", "ABC", 0),
            ("abc", "acb", 1),
            ("abc", "ab", 1),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(edit_distance(a, b), edits, "{a} {b}");
        }
    }

    #[test]
    fn the_nearest_name_is_guessed_only_when_it_is_near() {
        let names = ["max_qos", "max_packet_size", "shards"];
        assert_eq!(nearest("max_paket_size", names), Some("max_packet_size"));
        assert_eq!(nearest("shrads", names), Some("shards"));
        assert_eq!(nearest("threads", names), None);
    }

    #[test]
    fn a_key_in_the_wrong_section_is_found() {
        let keys = ["limits.max_qos", "node.shards", "log.level"];
        assert_eq!(nearest_key("node.max_qos", keys), Some("limits.max_qos"));
        assert_eq!(nearest_key("max_qoss", keys), Some("limits.max_qos"));
        assert_eq!(nearest_key("nod.shards", keys), Some("node.shards"));
        assert_eq!(nearest_key("colour", keys), None);
    }
}
