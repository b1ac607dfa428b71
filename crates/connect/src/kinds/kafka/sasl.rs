//! SASL authentication with PLAIN or SCRAM in Kafka's requests.

use std::time::Duration;

use schemars::JsonSchema;
use scram::{ClientScram, ScramHash};
use serde::Deserialize;

use super::connection::BrokerConnection;
use super::protocol::{DecodeError, Encode as _, ErrorCode, SASL_AUTHENTICATE, SASL_HANDSHAKE};
use crate::connector::ConnectorError;
use crate::secret::Secret;

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
    let SaslCredentials {
        username, password, ..
    } = sasl;
    let hash = match sasl.mechanism {
        SaslMechanism::Plain => {
            let message = format!("\0{username}\0{}", password.reveal());
            let (_, lifetime_ms) = exchange_step(session, message.as_bytes()).await?;
            return Ok(lifetime_ms.map(Duration::from_millis));
        }
        SaslMechanism::ScramSha256 => ScramHash::Sha256,
        SaslMechanism::ScramSha512 => ScramHash::Sha512,
    };
    let failure = |error: scram::ScramError| session.failure(&format!("{name}: {error}"));
    let password = password.reveal().as_bytes();
    let mut exchange = ClientScram::new(hash, username, password).map_err(failure)?;
    let (challenge, _) = exchange_step(session, &exchange.first()).await?;
    let proof = exchange.last(&challenge).map_err(failure)?;
    let (signature, lifetime_ms) = exchange_step(session, &proof).await?;
    exchange.finish(&signature).map_err(failure)?;
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
