//! Regular expressions of limited length and size.

use std::sync::Arc;

/// Maximum length of a regular expression.
const MAX_PATTERN_BYTES: usize = 4 << 10;
/// Maximum memory of a compiled regular expression.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// A compiled regular expression.
pub(crate) struct CompiledRegex {
    pub(crate) regex: regex::Regex,
    /// Upper bound of its memory. The time per byte of text grows with it.
    size_bytes: usize,
}

impl CompiledRegex {
    /// Cost of matching a text of this length. Most expressions take a nanosecond per byte, but in the worst
    /// case all states are visited for every byte.
    pub(crate) fn matching_cost(&self, text_bytes: usize) -> u64 {
        self.size_bytes as u64 * text_bytes as u64
    }
}

/// Size classes of compiled expressions.
const REGEX_SIZES: [usize; 5] = [8 << 10, 32 << 10, 128 << 10, 512 << 10, MAX_REGEX_BYTES];

/// Compiles an expression of limited length and size.
pub(crate) fn compile_regex(pattern: &str) -> Result<Arc<CompiledRegex>, Box<str>> {
    if pattern.len() > MAX_PATTERN_BYTES {
        let why = format!("the regular expression is longer than {MAX_PATTERN_BYTES} bytes");
        return Err(why.into());
    }
    let build = |size_bytes| {
        regex::RegexBuilder::new(pattern)
            .size_limit(size_bytes)
            .dfa_size_limit(MAX_REGEX_BYTES)
            .build()
    };
    // Uses the smallest sufficient size class. Other errors are the same in every class.
    let mut built = Err(regex::Error::CompiledTooBig(0));
    let mut size_bytes = 0;
    for size in REGEX_SIZES {
        built = build(size);
        size_bytes = size;
        if !matches!(built, Err(regex::Error::CompiledTooBig(_))) {
            break;
        }
    }
    built
        .map(|regex| Arc::new(CompiledRegex { regex, size_bytes }))
        .map_err(|error| {
            // The last line states the error; the lines before it show the position.
            let text = error.to_string();
            let why = text.lines().last().unwrap_or_default();
            let why = why.trim_start_matches("error: ");
            format!("invalid regular expression: {why}").into()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_regular_expression_is_rejected() {
        let error = |pattern: &str| match compile_regex(pattern) {
            Ok(_) => panic!("{pattern} is accepted"),
            Err(why) => why,
        };
        error(r"(\w{1000}){1000}");
        error(&"a".repeat(MAX_PATTERN_BYTES + 1));
        assert_eq!(&*error("(a"), "invalid regular expression: unclosed group");
    }
}
