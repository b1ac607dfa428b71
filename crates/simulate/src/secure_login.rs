//! JetLinks' secure credentials: a user name with the time, and a password that proves the key.

use std::fmt::Write as _;

use md5::{Digest as _, Md5};

/// User name and password of a device at a time in milliseconds since 1970.
pub(crate) fn secure_login(secure_id: &str, secure_key: &str, now_ms: u64) -> (String, String) {
    let username = format!("{secure_id}|{now_ms}");
    let digest = Md5::digest(format!("{username}|{secure_key}"));
    let mut password = String::with_capacity(32);
    for byte in digest {
        write!(password, "{byte:02x}").expect("a text takes all");
    }
    (username, password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_the_digest_of_user_name_and_key() {
        // printf 'test|1600000000000|key' | md5sum
        let (username, password) = secure_login("test", "key", 1_600_000_000_000);
        assert_eq!(username, "test|1600000000000");
        assert_eq!(password, "6b11f2a80e96ac811c0740ee71322407");
    }
}
