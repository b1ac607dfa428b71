//! Where a script failed, read from the stack of its exception.

/// The line of the topmost function of `file` in a stack such as `    at onMessage (meters.js:12:5)`.
pub(super) fn line_in(file: &str, stack: &str) -> Option<u32> {
    stack.lines().find_map(|frame| {
        let (_, rest) = frame.split_once(file)?;
        let rest = rest.strip_prefix(':')?;
        let end = rest
            .find(|letter: char| !letter.is_ascii_digit())
            .unwrap_or(rest.len());
        rest[..end].parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_line_of_the_file_counts() {
        let stack =
            "    at text (prelude.js:3:1)\n    at inner (a.js:7:12)\n    at onSend (a.js:20:3)\n";
        assert_eq!(line_in("a.js", stack), Some(7));
        assert_eq!(line_in("b.js", stack), None);
        assert_eq!(line_in("a.js", "    at a.js:4\n"), Some(4));
    }
}
