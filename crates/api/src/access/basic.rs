//! HTTP Basic credentials (RFC 7617).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// User name and password.
pub(super) fn decode(credentials: &str) -> Option<(String, String)> {
    let text = String::from_utf8(STANDARD.decode(credentials).ok()?).ok()?;
    let (name, password) = text.split_once(':')?;
    Some((name.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_may_have_colons() {
        let pair = |name: &str, password: &str| Some((name.to_owned(), password.to_owned()));
        assert_eq!(decode(&STANDARD.encode("key:a:b")), pair("key", "a:b"));
        assert_eq!(decode(&STANDARD.encode(":")), pair("", ""));
        assert_eq!(decode(&STANDARD.encode("key")), None);
        assert_eq!(decode("not base64"), None);
    }
}
