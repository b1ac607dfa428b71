//! Sizes in bytes in human notation: `16MiB`, `1MB`, `4096`.

/// Longest unit first, so that `MiB` is not read as `B`.
const UNITS: [(&str, u64); 9] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("b", 1),
];

/// Parses a whole number with an optional unit (any case, optionally after a space). `None` if it
/// is invalid or exceeds 64 bits.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let (number, factor) = UNITS
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))
        .unwrap_or((&text, 1));
    parse_number(number.trim_end())?.checked_mul(factor)
}

/// Parses decimal digits, with `_` as separators as in TOML.
pub(super) fn parse_number(text: &str) -> Option<u64> {
    let digits_at_both_ends = text.starts_with(|c: char| c.is_ascii_digit())
        && text.ends_with(|c: char| c.is_ascii_digit());
    if !digits_at_both_ends || text.contains("__") {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// The shortest exact form: `1MiB`, `1500000`.
pub(super) fn format_size(bytes: u64) -> String {
    let unit = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)]
        .into_iter()
        .find(|(_, shift)| bytes != 0 && bytes.is_multiple_of(1 << shift));
    match unit {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_binary_decimal_and_no_units() {
        let cases = [
            ("16MiB", 16 << 20),
            ("16 mib", 16 << 20),
            ("1MB", 1_000_000),
            ("1kB", 1000),
            ("2GiB", 2 << 30),
            ("7b", 7),
            ("4096", 4096),
            ("1_048_576", 1 << 20),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        let bad = [
            "",
            "MiB",
            "1M",
            "1.5MiB",
            "-1",
            "+1",
            "1_",
            "1__0",
            "99999999TiB",
            "1 2",
        ];
        for text in bad {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn a_size_is_written_in_its_largest_exact_unit() {
        for (bytes, text) in [
            (0, "0"),
            (1 << 20, "1MiB"),
            (3 << 10, "3KiB"),
            (1500, "1500"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
        assert_eq!(parse_size(&format_size(3 << 30)), Some(3 << 30));
    }
}
