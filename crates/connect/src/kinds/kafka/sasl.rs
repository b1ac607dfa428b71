//! SASL authentication with PLAIN or SCRAM in Kafka's requests.

use std::num::NonZeroU32;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::{digest, hmac, pbkdf2};
use schemars::JsonSchema;
use serde::Deserialize;

use super::connection::BrokerConnection;
use super::protocol::{DecodeError, Encode as _, ErrorCode, SASL_AUTHENTICATE, SASL_HANDSHAKE};
use crate::connector::ConnectorError;
use crate::secret::Secret;

/// Kafka allows 4096 to 16384; more would take seconds of CPU time.
const MAX_ITERATIONS: u32 = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub(super) enum SaslMechanism {
    #[serde(rename = "plain")]
    Plain,
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

impl SaslMechanism {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct SaslCredentials {
    pub(super) mechanism: SaslMechanism,
    pub(super) username: String,
    pub(super) password: Secret,
}

/// Logs in; returns the lifetime of the login if it is limited.
pub(super) async fn log_in(
    session: &BrokerConnection,
    sasl: &SaslCredentials,
) -> Result<Option<Duration>, ConnectorError> {
    let name = sasl.mechanism.name();
    let answer = session
        .request(SASL_HANDSHAKE, |_, out| out.put_text(name))
        .await?;
    let (code, known) = answer.read(|take, _| {
        let code = ErrorCode::take(take)?;
        let count = take.count()?;
        let known = (0..count).map(|_| take.text().map(str::to_owned));
        Ok((code, known.collect::<Result<Vec<_>, DecodeError>>()?))
    })?;
    if code == ErrorCode::UNSUPPORTED_MECHANISM {
        let known = known.join(", ");
        let what = format!("the broker does not have {name}; it has {known}");
        return Err(session.failure(&what));
    }
    if code.is_error() {
        return Err(session.failure(&code.to_string()));
    }
    let lifetime_ms = match sasl.mechanism {
        SaslMechanism::Plain => {
            let SaslCredentials {
                username, password, ..
            } = sasl;
            let message = format!("\0{username}\0{}", password.reveal());
            exchange_step(session, message.as_bytes()).await?.1
        }
        mechanism => {
            let mut nonce = [0; 24];
            let drawn = SystemRandom::new().fill(&mut nonce);
            drawn.map_err(|_| session.failure("the system gives no randomness"))?;
            let nonce = STANDARD.encode(nonce);
            let scram = ScramClient::new(mechanism, sasl, &nonce);
            let wrong = |why: &str| session.failure(&format!("{name}: {why}"));
            let (challenge, _) = exchange_step(session, scram.first().as_bytes()).await?;
            let (proof, signature) = scram.answer(&challenge).map_err(wrong)?;
            let (last, lifetime) = exchange_step(session, proof.as_bytes()).await?;
            if last != signature.as_bytes() {
                return Err(wrong(
                    "the broker could not prove that it knows the password",
                ));
            }
            lifetime
        }
    };
    Ok(lifetime_ms.map(Duration::from_millis))
}

/// Sends one message; returns the answer and the lifetime of the login.
async fn exchange_step(
    session: &BrokerConnection,
    message: &[u8],
) -> Result<(Vec<u8>, Option<u64>), ConnectorError> {
    let answer = session
        .request(SASL_AUTHENTICATE, |_, out| out.put_bytes(message))
        .await?;
    let (code, why, bytes, lifetime_ms) = answer.read(|take, version| {
        let code = ErrorCode::take(take)?;
        let why = take.nullable_text()?.map(str::to_owned);
        let bytes = take.bytes()?.to_vec();
        let lifetime_ms = if version >= 1 { take.i64()? } else { 0 };
        Ok((code, why, bytes, lifetime_ms))
    })?;
    if code.is_error() {
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        return Err(session.failure(&format!("{code}{why}")));
    }
    let lifetime_ms = u64::try_from(lifetime_ms).ok().filter(|ms| *ms > 0);
    Ok((bytes, lifetime_ms))
}

/// The client's side of RFC 5802, without channel binding.
struct ScramClient<'a> {
    mechanism: SaslMechanism,
    password: &'a Secret,
    /// The client-first message without its header.
    first: String,
    nonce: &'a str,
}

impl<'a> ScramClient<'a> {
    fn new(mechanism: SaslMechanism, sasl: &'a SaslCredentials, nonce: &'a str) -> Self {
        let username = sasl.username.replace('=', "=3D").replace(',', "=2C");
        Self {
            mechanism,
            password: &sasl.password,
            first: format!("n={username},r={nonce}"),
            nonce,
        }
    }

    fn first(&self) -> String {
        format!("n,,{}", self.first)
    }

    /// The proof for a challenge, and the signature expected from a broker that knows the password.
    fn answer(&self, challenge: &[u8]) -> Result<(String, String), &'static str> {
        let wrong = "the broker's challenge is invalid";
        let challenge = std::str::from_utf8(challenge).map_err(|_| wrong)?;
        let field = |name: &str| {
            let mut fields = challenge.split(',');
            fields
                .find_map(|field| field.strip_prefix(name))
                .ok_or(wrong)
        };
        let nonce = field("r=")?;
        let salt = STANDARD.decode(field("s=")?).map_err(|_| wrong)?;
        let iterations: u32 = field("i=")?.parse().map_err(|_| wrong)?;
        let iterations = NonZeroU32::new(iterations).ok_or(wrong)?;
        if !nonce.starts_with(self.nonce) || nonce.len() == self.nonce.len() {
            return Err("the broker's challenge has another nonce");
        }
        if iterations.get() > MAX_ITERATIONS {
            return Err("the broker asks for too many iterations");
        }
        let (derive, mac, hash) = match self.mechanism {
            SaslMechanism::ScramSha512 => (
                pbkdf2::PBKDF2_HMAC_SHA512,
                hmac::HMAC_SHA512,
                &digest::SHA512,
            ),
            _ => (
                pbkdf2::PBKDF2_HMAC_SHA256,
                hmac::HMAC_SHA256,
                &digest::SHA256,
            ),
        };
        let mut salted = vec![0; hash.output_len()];
        let password = self.password.reveal().as_bytes();
        pbkdf2::derive(derive, iterations, &salt, password, &mut salted);
        let salted = hmac::Key::new(mac, &salted);
        let client_key = hmac::sign(&salted, b"Client Key");
        let server_key = hmac::sign(&salted, b"Server Key");
        let stored_key = digest::digest(hash, client_key.as_ref());
        // `biws` is `n,,` in base 64.
        let without_proof = format!("c=biws,r={nonce}");
        let all = format!("{},{challenge},{without_proof}", self.first);
        let sign = |key: &[u8]| hmac::sign(&hmac::Key::new(mac, key), all.as_bytes());
        let signature = sign(stored_key.as_ref());
        let proof: Vec<u8> = client_key
            .as_ref()
            .iter()
            .zip(signature.as_ref())
            .map(|(key, signature)| key ^ signature)
            .collect();
        let proof = format!("{without_proof},p={}", STANDARD.encode(proof));
        let expected = format!("v={}", STANDARD.encode(sign(server_key.as_ref())));
        Ok((proof, expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exchange in RFC 7677.
    #[test]
    fn the_proof_is_that_of_the_specification() {
        let sasl = SaslCredentials {
            mechanism: SaslMechanism::ScramSha256,
            username: "user".into(),
            password: Secret::from("pencil"),
        };
        let scram = ScramClient::new(sasl.mechanism, &sasl, "rOprNGfwEbeRWgbNEkqO");
        assert_eq!(scram.first(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let challenge = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let (proof, signature) = scram.answer(challenge.as_bytes()).unwrap();
        assert_eq!(
            proof,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        assert_eq!(signature, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
    }

    #[test]
    fn challenges_that_make_no_sense_are_refused() {
        let sasl = SaslCredentials {
            mechanism: SaslMechanism::ScramSha512,
            username: "a,b=c".into(),
            password: Secret::from("p"),
        };
        let scram = ScramClient::new(sasl.mechanism, &sasl, "abc");
        assert_eq!(scram.first(), "n,,n=a=2Cb=3Dc,r=abc");
        for challenge in [
            "",
            "r=abcd",
            "r=abc,s=AA==,i=4096",
            "r=xbcd,s=AA==,i=4096",
            "r=abcd,s=?,i=4096",
            "r=abcd,s=AA==,i=0",
            "r=abcd,s=AA==,i=4000000000",
        ] {
            assert!(scram.answer(challenge.as_bytes()).is_err(), "{challenge}");
        }
        assert!(scram.answer(b"r=abcd,s=AA==,i=4096").is_ok());
    }
}
