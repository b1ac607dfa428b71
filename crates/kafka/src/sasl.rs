//! SASL authentication with PLAIN or SCRAM in Kafka's requests.

use std::time::Duration;

use scram::{ClientScram, ScramHash};

use crate::connection::BrokerConnection;
use crate::error::KafkaError;
use crate::options::{SaslCredentials, SaslMechanism};
use crate::protocol::{DecodeError, Encode as _, ErrorCode, SASL_AUTHENTICATE, SASL_HANDSHAKE};

/// Logs in; returns the lifetime of the login if it is limited.
pub(crate) async fn log_in(
    session: &BrokerConnection,
    sasl: &SaslCredentials,
) -> Result<Option<Duration>, KafkaError> {
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
            let message = format!("\0{username}\0{}", password);
            let (_, lifetime_ms) = exchange_step(session, message.as_bytes()).await?;
            return Ok(lifetime_ms.map(Duration::from_millis));
        }
        SaslMechanism::ScramSha256 => ScramHash::Sha256,
        SaslMechanism::ScramSha512 => ScramHash::Sha512,
    };
    let failure = |error: scram::ScramError| session.failure(&format!("{name}: {error}"));
    let password = password.as_bytes();
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
) -> Result<(Vec<u8>, Option<u64>), KafkaError> {
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
