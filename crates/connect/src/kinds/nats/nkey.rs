//! NKeys: an Ed25519 seed in base 32 with a checksum, which signs the server's nonce.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use data_encoding::BASE32_NOPAD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

/// The first five bits of every seed's prefix: `S`.
const SEED: u8 = 18 << 3;

/// A key for authentication to a server.
pub(super) struct NKey {
    pair: Ed25519KeyPair,
    /// The public key in its text form: `U...` for a user.
    public: String,
}

impl NKey {
    /// Parses a seed, such as `SUA...`. The error does not reveal it.
    pub(super) fn from_seed(seed: &str) -> Result<Self, String> {
        let wrong = "expected a seed, which is 58 letters and digits that begin with SU";
        let bytes = BASE32_NOPAD.decode(seed.trim().as_bytes());
        let bytes = bytes.map_err(|_| wrong)?;
        // Two bytes of prefix, the seed, the checksum.
        let [first, second, seed @ .., low, high] = &bytes[..] else {
            return Err(wrong.into());
        };
        let sum = u16::from_le_bytes([*low, *high]);
        if first & 0xf8 != SEED || sum != crc16(&bytes[..bytes.len() - 2]) {
            return Err(wrong.into());
        }
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| wrong)?;
        let kind = (first & 7) << 5 | (second & 0xf8) >> 3;
        let mut public = vec![kind];
        public.extend_from_slice(pair.public_key().as_ref());
        let sum = crc16(&public);
        public.extend_from_slice(&sum.to_le_bytes());
        Ok(Self {
            public: BASE32_NOPAD.encode(&public),
            pair,
        })
    }

    pub(super) fn public(&self) -> &str {
        &self.public
    }

    /// The encoded signature of the server's nonce.
    pub(super) fn sign(&self, nonce: &str) -> String {
        URL_SAFE_NO_PAD.encode(self.pair.sign(nonce.as_bytes()))
    }
}

/// Extracts token and seed from a `.creds` file of the NATS tools: each is between two lines of dashes.
pub(super) fn read_credentials(text: &str) -> Option<(String, String)> {
    let is_line = |line: &&str| !line.is_empty();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(is_line).collect();
    let is_fence = |line: &str, word| line.starts_with("---") && line.contains(word);
    let mut inside = lines
        .windows(3)
        .filter(|lines| is_fence(lines[0], "BEGIN") && is_fence(lines[2], "END"))
        .map(|lines| lines[1].to_owned());
    Some((inside.next()?, inside.next()?))
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ u16::from(*byte) << 8, |sum, _| match sum & 0x8000 {
            0 => sum << 1,
            _ => sum << 1 ^ 0x1021,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key pair from the documentation of NATS.
    const USER_SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
    const USER: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

    #[test]
    fn a_seed_gives_the_key_the_server_knows() {
        let key = NKey::from_seed(USER_SEED).unwrap();
        assert_eq!(key.public(), USER);
        let signature = URL_SAFE_NO_PAD.decode(key.sign("nonce")).unwrap();
        let public = ring::signature::UnparsedPublicKey::new(
            &ring::signature::ED25519,
            key.pair.public_key().as_ref(),
        );
        assert!(public.verify(b"nonce", &signature).is_ok());
    }

    #[test]
    fn other_texts_are_no_seeds() {
        let mut broken = USER_SEED.to_owned();
        broken.replace_range(10..11, "Z");
        for text in ["", "SU", "x", USER, &broken, "SUAC1"] {
            let error = NKey::from_seed(text).err().unwrap();
            assert!(text.len() < 3 || !error.contains(text), "{error}");
        }
    }

    #[test]
    fn a_file_of_credentials_is_read() {
        let text = format!(
            "-----BEGIN NATS USER JWT-----\neyJ0.a-b_c.x\n------END NATS USER JWT------\n\n\
             ************************* IMPORTANT *************************\n\n\
             -----BEGIN USER NKEY SEED-----\r\n{USER_SEED}\r\n------END USER NKEY SEED------\n"
        );
        let read = read_credentials(&text);
        assert_eq!(read, Some(("eyJ0.a-b_c.x".into(), USER_SEED.into())));
        assert_eq!(read_credentials("nothing"), None);
    }
}
