//! SCRAM-SHA-256 (RFC 5802, RFC 7677) as a client does it, for `enhanced_authentication.rs`. Written from the RFC, apart
//! from the server's code.

use std::num::NonZeroU32;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac, pbkdf2};

pub(crate) const METHOD: &str = "SCRAM-SHA-256";

fn salted_password(password: &[u8], salt: &[u8], iterations: u32) -> [u8; 32] {
    let mut out = [0; 32];
    let iterations = NonZeroU32::new(iterations).expect("a count of iterations is not 0");
    pbkdf2::derive(
        pbkdf2::PBKDF2_HMAC_SHA256,
        iterations,
        salt,
        password,
        &mut out,
    );
    out
}

fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, message).as_ref().to_vec()
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    digest::digest(&digest::SHA256, bytes).as_ref().to_vec()
}

/// A user's credential as the configuration has it.
pub(crate) fn credential(password: &[u8], salt: &[u8], iterations: u32) -> String {
    let salted = salted_password(password, salt, iterations);
    let stored_key = sha256(&hmac(&salted, b"Client Key"));
    let server_key = hmac(&salted, b"Server Key");
    format!(
        "scram-sha-256${iterations}${}${}${}",
        STANDARD.encode(salt),
        STANDARD.encode(stored_key),
        STANDARD.encode(server_key)
    )
}

/// The client's side of one exchange.
pub(crate) struct Exchange {
    password: Vec<u8>,
    client_first_bare: String,
    auth_message: String,
    salted: [u8; 32],
}

impl Exchange {
    pub(crate) fn new(user: &str, password: impl AsRef<[u8]>, nonce: &str) -> Self {
        Self {
            password: password.as_ref().to_vec(),
            client_first_bare: format!("n={user},r={nonce}"),
            auth_message: String::new(),
            salted: [0; 32],
        }
    }

    /// The first message: no channel binding.
    pub(crate) fn client_first(&self) -> String {
        format!("n,,{}", self.client_first_bare)
    }

    /// Checks the server's first message and answers it.
    pub(crate) fn client_final(&mut self, server_first: &[u8]) -> String {
        let server_first = std::str::from_utf8(server_first).expect("the server's message is text");
        let field = |name: &str| {
            server_first
                .split(',')
                .find_map(|part| part.strip_prefix(name))
                .unwrap_or_else(|| panic!("no {name} in {server_first:?}"))
        };
        let own_nonce = self.client_first_bare.rsplit_once("r=").unwrap().1;
        let nonce = field("r=");
        assert!(
            nonce.starts_with(own_nonce) && nonce.len() > own_nonce.len() + 8,
            "the server must add to the nonce: {server_first:?}"
        );
        let salt = STANDARD.decode(field("s=")).expect("the salt is base64");
        let iterations = field("i=").parse().expect("a count of iterations");
        self.salted = salted_password(&self.password, &salt, iterations);
        let without_proof = format!("c=biws,r={nonce}");
        self.auth_message = format!("{},{server_first},{without_proof}", self.client_first_bare);
        let client_key = hmac(&self.salted, b"Client Key");
        let signature = hmac(&sha256(&client_key), self.auth_message.as_bytes());
        let proof: Vec<u8> = client_key
            .iter()
            .zip(&signature)
            .map(|(key, signature)| key ^ signature)
            .collect();
        format!("{without_proof},p={}", STANDARD.encode(proof))
    }

    /// What the server must prove in its last message.
    pub(crate) fn server_final(&self) -> String {
        let server_key = hmac(&self.salted, b"Server Key");
        let signature = hmac(&server_key, self.auth_message.as_bytes());
        format!("v={}", STANDARD.encode(signature))
    }
}

/// The example of RFC 7677, section 3.
#[test]
fn the_exchange_of_rfc_7677_is_reproduced() {
    let mut exchange = Exchange::new("user", "pencil", "rOprNGfwEbeRWgbNEkqO");
    assert_eq!(exchange.client_first(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
    let server_first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
        s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    assert_eq!(
        exchange.client_final(server_first),
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
         p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    );
    assert_eq!(
        exchange.server_final(),
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    );
}
