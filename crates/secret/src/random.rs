//! Random bytes of the operating system, for secrets and ids that cannot be guessed.

use ring::rand::{SecureRandom as _, SystemRandom};

/// The operating system provides no random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the operating system provides no random numbers")]
pub struct RandomSourceError;

/// Random bytes that cannot be guessed.
///
/// # Errors
/// [`RandomSourceError`] if the operating system provides none.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], RandomSourceError> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| RandomSourceError)?;
    Ok(bytes)
}
