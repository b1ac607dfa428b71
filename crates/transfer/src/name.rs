//! Names of files and of transfers.

/// Maximum length of a file name in bytes.
pub const MAX_NAME_BYTES: usize = 240;
/// Maximum length of a file id in bytes.
pub const MAX_FILE_ID_BYTES: usize = 512;

const UNSAFE: [char; 4] = ['%', ':', '\\', '/'];

fn is_printable(character: char) -> bool {
    // The special code points are invisible marks that reverse or hide text.
    let is_mark = matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}');
    !character.is_control() && !is_mark
}

/// Makes a name safe as the last part of a path in any file system: directories are removed, and unsafe characters are
/// replaced by `_`.
///
/// # Errors
/// If nothing is left, or it is too long. The text states what is expected.
pub fn sanitise(name: &str) -> Result<String, String> {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let replace = |character: char| match UNSAFE.contains(&character) || !is_printable(character) {
        true => '_',
        false => character,
    };
    let safe: String = last.chars().map(replace).collect();
    let safe = safe.trim();
    match safe {
        "" | "." | ".." => Err(format!("expected a file name, not {:?}", shortened(name))),
        _ if safe.len() > MAX_NAME_BYTES => Err(format!(
            "expected a file name of at most {MAX_NAME_BYTES} bytes, not {}",
            safe.len()
        )),
        _ => Ok(safe.to_owned()),
    }
}

/// Checks the id that a sender chose for a transfer.
///
/// # Errors
/// The text states what is expected.
pub fn check_file_id(id: &str) -> Result<(), String> {
    match (1..=MAX_FILE_ID_BYTES).contains(&id.len()) && !id.chars().any(char::is_control) {
        true => Ok(()),
        false => Err(format!(
            "expected a file id of 1 to {MAX_FILE_ID_BYTES} bytes without control characters"
        )),
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_safe() {
        for (name, safe) in [
            ("a.bin", "a.bin"),
            ("../../etc/passwd", "passwd"),
            ("C:\\logs\\x.txt", "x.txt"),
            ("a:b%2f", "a_b_2f"),
            (" tail\n", "tail_"),
            ("café ☕.txt", "café ☕.txt"),
            ("x\u{202e}gpj.exe", "x_gpj.exe"),
            (".hidden", ".hidden"),
        ] {
            assert_eq!(sanitise(name).as_deref(), Ok(safe), "{name}");
        }
        for name in ["", ".", "..", "/", "a/", "a/..", " "] {
            assert!(sanitise(name).is_err(), "{name:?}");
        }
        assert!(sanitise(&"x".repeat(240)).is_ok());
        assert!(sanitise(&"x".repeat(241)).is_err());
    }

    #[test]
    fn ids_are_bounded() {
        assert!(check_file_id("9f3a-log").is_ok() && check_file_id(&"x".repeat(512)).is_ok());
        for id in ["", "a\0", "a\nb", &"x".repeat(513)] {
            assert!(check_file_id(id).is_err(), "{id:?}");
        }
    }
}
