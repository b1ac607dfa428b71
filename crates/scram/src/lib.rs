//! SCRAM (RFC 5802): the server's side with SHA-256 (RFC 7677), the client's side also with SHA-512, as plain state
//! machines. They have messages in, messages out, no socket and no clock. Also the credential a server keeps instead of
//! a password.
//!
//! Channel binding is not offered (`n` and `y` headers only). User names and passwords are taken as the UTF-8 bytes
//! they are. SASLprep is not applied, so a client has to send them in the form they were set.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::{digest, hmac, pbkdf2};

/// The name of the method in MQTT's Authentication Method property.
pub const METHOD: &str = "SCRAM-SHA-256";
/// Default number of iterations for [`ScramCredential::generate`]: about 4 ms of one core per login.
pub const DEFAULT_ITERATIONS: u32 = 15_000;
/// RFC 7677, section 4: the fewest iterations a server should use.
pub const MIN_ITERATIONS: u32 = 4096;
/// Upper bound on the computation one peer can impose on the other (under half a second of one core).
pub const MAX_ITERATIONS: u32 = 1_000_000;

const KEY_BYTES: usize = 32;
const SALT_BYTES: usize = 16;
const MAX_SALT_BYTES: usize = 256;
const NONCE_BYTES: usize = 18;
const MAX_NONCE_CHARS: usize = 256;
const MAX_MESSAGE_BYTES: usize = 8192;
const SCHEME: &str = "scram-sha-256";

type ScramKey = [u8; KEY_BYTES];

/// Why an exchange or a credential is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// A message that violates the grammar of RFC 5802, section 7.
    #[error("malformed SCRAM message: {0}")]
    Malformed(&'static str),
    #[error("SCRAM channel binding is not supported; use SCRAM-SHA-256 without it")]
    ChannelBinding,
    /// The proof is wrong: an unknown user or a wrong password, deliberately not distinguished.
    #[error("unknown user or wrong password")]
    BadCredentials,
    /// A message that the exchange does not expect at this point.
    #[error("SCRAM message out of order: {0}")]
    OutOfOrder(&'static str),
    /// On the client: the server ended the exchange with `e=`.
    #[error("the server rejected the login: {0}")]
    RejectedByServer(String),
    /// On the client: the server could not prove that it knows the password.
    #[error("the server's signature is wrong: it does not know this user's credential")]
    BadServerSignature,
    /// A credential that is not `scram-sha-256$ITERATIONS$SALT$STORED_KEY$SERVER_KEY`.
    #[error("not a credential: {0}")]
    BadCredentialText(&'static str),
    #[error("the system provides no random bytes")]
    NoRandomness,
}

/// What a server stores for a user: enough to check a password or a SCRAM proof, not enough to log in.
///
/// Its text form is `scram-sha-256$ITERATIONS$SALT$STORED_KEY$SERVER_KEY`, the last three in base64.
#[derive(Clone, PartialEq, Eq)]
pub struct ScramCredential {
    iterations: NonZeroU32,
    salt: Vec<u8>,
    stored_key: ScramKey,
    server_key: ScramKey,
}

impl ScramCredential {
    /// Derives a credential from a password with a fresh random salt. `iterations` is raised or cut to
    /// [`MIN_ITERATIONS`]..=[`MAX_ITERATIONS`].
    pub fn generate(password: &[u8], iterations: u32) -> Result<Self, ScramError> {
        let mut salt = vec![0; SALT_BYTES];
        fill_random(&mut salt)?;
        let iterations = NonZeroU32::new(iterations.clamp(MIN_ITERATIONS, MAX_ITERATIONS))
            .expect("the lower bound is above zero");
        Ok(Self::derive(password, salt, iterations))
    }

    fn derive(password: &[u8], salt: Vec<u8>, iterations: NonZeroU32) -> Self {
        let salted = salted_password(password, &salt, iterations);
        Self {
            iterations,
            salt,
            stored_key: sha256(&client_key(&salted)),
            server_key: hmac_sha256(&salted, b"Server Key"),
        }
    }

    /// Whether this is the password the credential was derived from. Costs the credential's iterations
    /// (milliseconds), so not for a thread that routes messages.
    pub fn verify_password(&self, password: &[u8]) -> bool {
        let salted = salted_password(password, &self.salt, self.iterations);
        constant_time_eq(&sha256(&client_key(&salted)), &self.stored_key)
    }

    pub fn iterations(&self) -> u32 {
        self.iterations.get()
    }
}

impl FromStr for ScramCredential {
    type Err = ScramError;

    fn from_str(text: &str) -> Result<Self, ScramError> {
        const SHAPE: ScramError = ScramError::BadCredentialText(
            "expected scram-sha-256$ITERATIONS$SALT$STORED_KEY$SERVER_KEY",
        );
        let mut fields = text.trim().split('$');
        let mut field = || fields.next().ok_or(SHAPE);
        if !field()?.eq_ignore_ascii_case(SCHEME) {
            return Err(SHAPE);
        }
        let iterations = field()?
            .parse()
            .ok()
            .filter(|n| (MIN_ITERATIONS..=MAX_ITERATIONS).contains(n))
            .and_then(NonZeroU32::new)
            .ok_or(ScramError::BadCredentialText(
                "the iterations must be a number from 4096 to 1000000",
            ))?;
        let salt = BASE64
            .decode(field()?)
            .ok()
            .filter(|salt| (1..=MAX_SALT_BYTES).contains(&salt.len()))
            .ok_or(ScramError::BadCredentialText(
                "the salt must be 1 to 256 bytes in base64",
            ))?;
        let stored_key = decode_key(field()?).ok_or(ScramError::BadCredentialText(
            "the stored key must be 32 bytes in base64",
        ))?;
        let server_key = decode_key(field()?).ok_or(ScramError::BadCredentialText(
            "the server key must be 32 bytes in base64",
        ))?;
        if fields.next().is_some() {
            return Err(SHAPE);
        }
        Ok(Self {
            iterations,
            salt,
            stored_key,
            server_key,
        })
    }
}

impl fmt::Display for ScramCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{SCHEME}${}${}${}${}",
            self.iterations,
            BASE64.encode(&self.salt),
            BASE64.encode(self.stored_key),
            BASE64.encode(self.server_key)
        )
    }
}

/// Does not reveal anything that helps to guess the password.
impl fmt::Debug for ScramCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({SCHEME}, {} iterations)", self.iterations)
    }
}

/// Credentials for users that do not exist. They have the same salt for the same name each time, so that a client
/// cannot find out which users exist. The secret must survive a restart for that to hold across restarts.
#[derive(Clone)]
pub struct DecoyCredentials {
    secret: hmac::Key,
    iterations: NonZeroU32,
}

impl DecoyCredentials {
    /// `iterations` should equal those of the node's real credentials.
    pub fn new(secret: &[u8], iterations: u32) -> Self {
        Self {
            secret: hmac::Key::new(hmac::HMAC_SHA256, secret),
            iterations: NonZeroU32::new(iterations.clamp(MIN_ITERATIONS, MAX_ITERATIONS))
                .expect("the lower bound is above zero"),
        }
    }

    /// Creates a decoy with a random secret that is lost when the process ends.
    pub fn random(iterations: u32) -> Result<Self, ScramError> {
        let mut secret = [0; KEY_BYTES];
        fill_random(&mut secret)?;
        Ok(Self::new(&secret, iterations))
    }

    /// A credential that no password matches and that cannot be distinguished from a real one. Verifying a plain
    /// password against it takes as long as against a real one.
    pub fn credential(&self, username: &str) -> ScramCredential {
        let part = |label: &[u8]| -> ScramKey {
            let mut context = hmac::Context::with_key(&self.secret);
            context.update(label);
            context.update(username.as_bytes());
            tag_bytes(&context.sign())
        };
        ScramCredential {
            iterations: self.iterations,
            salt: part(b"salt:")[..SALT_BYTES].to_vec(),
            stored_key: part(b"stored:"),
            server_key: part(b"server:"),
        }
    }
}

/// The server's side of one exchange: `new`, [`first`](Self::first), [`last`](Self::last).
pub struct ServerScram {
    nonce: String,
    username: String,
    state: ServerScramState,
}

enum ServerScramState {
    Start,
    /// Boxed, because a connection rarely has an exchange in progress.
    WaitsForProof(Box<ScramChallenge>),
    Over,
}

struct ScramChallenge {
    credential: ScramCredential,
    known: bool,
    /// `client-first-message-bare "," server-first-message`, the front of the AuthMessage.
    auth_message: String,
    gs2_header: String,
    /// The client's nonce followed by the server's.
    nonce: String,
}

impl ServerScram {
    /// Starts an exchange with a fresh nonce.
    pub fn new() -> Result<Self, ScramError> {
        Ok(Self::with_nonce(random_nonce()?))
    }

    fn with_nonce(nonce: String) -> Self {
        Self {
            nonce,
            username: String::new(),
            state: ServerScramState::Start,
        }
    }

    /// Processes the client's first message and returns the challenge (salt, iterations, nonce). `lookup` is called
    /// once with the user name; for an unknown user the `decoy` provides the challenge.
    pub fn first(
        &mut self,
        client_first: &[u8],
        decoy: &DecoyCredentials,
        lookup: impl FnOnce(&str) -> Option<ScramCredential>,
    ) -> Result<Vec<u8>, ScramError> {
        let ServerScramState::Start = std::mem::replace(&mut self.state, ServerScramState::Over)
        else {
            return Err(ScramError::OutOfOrder("the exchange has already begun"));
        };
        let message = ClientFirst::parse(utf8_message(client_first)?)?;
        let found = lookup(&message.username);
        let known = found.is_some();
        let credential = found.unwrap_or_else(|| decoy.credential(&message.username));
        let nonce = format!("{}{}", message.nonce, self.nonce);
        let server_first = format!(
            "r={nonce},s={},i={}",
            BASE64.encode(&credential.salt),
            credential.iterations
        );
        self.username = message.username;
        self.state = ServerScramState::WaitsForProof(Box::new(ScramChallenge {
            credential,
            known,
            auth_message: format!("{},{server_first}", message.bare),
            gs2_header: message.gs2_header.to_owned(),
            nonce,
        }));
        Ok(server_first.into_bytes())
    }

    /// Verifies the client's proof and returns the server's signature. After an error the exchange is over and the
    /// client is not authenticated.
    pub fn last(&mut self, client_final: &[u8]) -> Result<Vec<u8>, ScramError> {
        let ServerScramState::WaitsForProof(challenge) =
            std::mem::replace(&mut self.state, ServerScramState::Over)
        else {
            return Err(ScramError::OutOfOrder("no challenge is open"));
        };
        let message = utf8_message(client_final)?;
        let (without_proof, proof) = message
            .rsplit_once(",p=")
            .ok_or(ScramError::Malformed("client-final has no proof p="))?;
        let proof = decode_key(proof).ok_or(ScramError::Malformed(
            "the proof p= must be 32 bytes in base64",
        ))?;
        let mut attributes = without_proof.split(',');
        let binding = expect_attribute(attributes.next(), "c=", "client-final must begin with c=")?;
        if BASE64.decode(binding).ok().as_deref() != Some(challenge.gs2_header.as_bytes()) {
            return Err(ScramError::Malformed(
                "c= does not repeat the header of client-first",
            ));
        }
        let nonce = expect_attribute(attributes.next(), "r=", "r= must follow c=")?;
        if nonce != challenge.nonce {
            return Err(ScramError::Malformed(
                "r= is not the nonce of the challenge",
            ));
        }

        let auth_message = format!("{},{without_proof}", challenge.auth_message);
        let credential = &challenge.credential;
        let signature = hmac_sha256(&credential.stored_key, auth_message.as_bytes());
        let fits = constant_time_eq(&sha256(&xor(&proof, &signature)), &credential.stored_key);
        let server_signature = hmac_sha256(&credential.server_key, auth_message.as_bytes());
        if !(fits & challenge.known) {
            return Err(ScramError::BadCredentials);
        }
        Ok(format!("v={}", BASE64.encode(server_signature)).into_bytes())
    }

    /// The user name the client claims; proven only after [`last`](Self::last) has succeeded. Empty before
    /// [`first`](Self::first).
    pub fn username(&self) -> &str {
        &self.username
    }
}

/// The hash function of a client's exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScramHash {
    Sha256,
    Sha512,
}

impl ScramHash {
    fn pbkdf2(self) -> pbkdf2::Algorithm {
        match self {
            Self::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
            Self::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
        }
    }

    fn hmac(self, key: &[u8], message: &[u8]) -> hmac::Tag {
        let algorithm = match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha512 => hmac::HMAC_SHA512,
        };
        hmac::sign(&hmac::Key::new(algorithm, key), message)
    }

    fn digest(self) -> &'static digest::Algorithm {
        match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha512 => &digest::SHA512,
        }
    }
}

/// The client's side of one exchange: `new`, [`first`](Self::first), [`last`](Self::last),
/// [`finish`](Self::finish).
pub struct ClientScram {
    hash: ScramHash,
    password: Vec<u8>,
    nonce: String,
    first_bare: String,
    state: ClientScramState,
}

enum ClientScramState {
    WaitsForChallenge,
    WaitsForSignature {
        /// The last message of a server that knows the password has it, in base64.
        signature: hmac::Tag,
    },
    Over,
}

const GS2_HEADER: &str = "n,,";

impl ClientScram {
    pub fn new(hash: ScramHash, username: &str, password: &[u8]) -> Result<Self, ScramError> {
        Ok(Self::with_nonce(hash, username, password, random_nonce()?))
    }

    fn with_nonce(hash: ScramHash, username: &str, password: &[u8], nonce: String) -> Self {
        let name = username.replace('=', "=3D").replace(',', "=2C");
        Self {
            hash,
            password: password.to_vec(),
            first_bare: format!("n={name},r={nonce}"),
            nonce,
            state: ClientScramState::WaitsForChallenge,
        }
    }

    /// The message that opens the exchange.
    pub fn first(&self) -> Vec<u8> {
        format!("{GS2_HEADER}{}", self.first_bare).into_bytes()
    }

    /// Processes the server's challenge and returns the proof. Costs the iterations that the server requests.
    pub fn last(&mut self, server_first: &[u8]) -> Result<Vec<u8>, ScramError> {
        let ClientScramState::WaitsForChallenge =
            std::mem::replace(&mut self.state, ClientScramState::Over)
        else {
            return Err(ScramError::OutOfOrder("the challenge was answered already"));
        };
        let server_first = utf8_message(server_first)?;
        let mut attributes = server_first.split(',');
        let nonce = expect_attribute(attributes.next(), "r=", "server-first must begin with r=")?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(ScramError::Malformed(
                "r= does not extend the client's nonce",
            ));
        }
        let salt = expect_attribute(attributes.next(), "s=", "s= must follow r=")?;
        let salt = BASE64
            .decode(salt)
            .ok()
            .filter(|salt| (1..=MAX_SALT_BYTES).contains(&salt.len()))
            .ok_or(ScramError::Malformed(
                "the salt s= must be 1 to 256 bytes in base64",
            ))?;
        let iterations = expect_attribute(attributes.next(), "i=", "i= must follow s=")?
            .parse()
            .ok()
            .filter(|n| (MIN_ITERATIONS..=MAX_ITERATIONS).contains(n))
            .and_then(NonZeroU32::new)
            .ok_or(ScramError::Malformed(
                "the iterations i= must be from 4096 to 1000000",
            ))?;

        let hash = self.hash;
        let mut salted = vec![0; hash.digest().output_len()];
        pbkdf2::derive(
            hash.pbkdf2(),
            iterations,
            &salt,
            &self.password,
            &mut salted,
        );
        let client_key = hash.hmac(&salted, b"Client Key");
        let stored_key = digest::digest(hash.digest(), client_key.as_ref());
        let server_key = hash.hmac(&salted, b"Server Key");
        let without_proof = format!("c={},r={nonce}", BASE64.encode(GS2_HEADER));
        let auth_message = format!("{},{server_first},{without_proof}", self.first_bare);
        let signature = hash.hmac(stored_key.as_ref(), auth_message.as_bytes());
        let proof: Vec<u8> = std::iter::zip(client_key.as_ref(), signature.as_ref())
            .map(|(key, signature)| key ^ signature)
            .collect();
        self.state = ClientScramState::WaitsForSignature {
            signature: hash.hmac(server_key.as_ref(), auth_message.as_bytes()),
        };
        Ok(format!("{without_proof},p={}", BASE64.encode(proof)).into_bytes())
    }

    /// Processes the server's last message; `Ok` means that the server knows the credential, too.
    pub fn finish(&mut self, server_final: &[u8]) -> Result<(), ScramError> {
        let ClientScramState::WaitsForSignature {
            signature: expected,
        } = std::mem::replace(&mut self.state, ClientScramState::Over)
        else {
            return Err(ScramError::OutOfOrder("no proof was sent"));
        };
        let message = utf8_message(server_final)?;
        let verdict = message.split(',').next().unwrap_or(message);
        if let Some(reason) = verdict.strip_prefix("e=") {
            return Err(ScramError::RejectedByServer(reason.to_owned()));
        }
        let signature =
            expect_attribute(Some(verdict), "v=", "server-final must begin with v= or e=")?;
        let signature = BASE64
            .decode(signature)
            .map_err(|_| ScramError::Malformed("the signature v= must be base64"))?;
        match constant_time_eq(&signature, expected.as_ref()) {
            true => Ok(()),
            false => Err(ScramError::BadServerSignature),
        }
    }
}

struct ClientFirst<'a> {
    /// `n,,` or another header, with both commas.
    gs2_header: &'a str,
    /// Everything after the header.
    bare: &'a str,
    username: String,
    nonce: &'a str,
}

impl<'a> ClientFirst<'a> {
    fn parse(message: &'a str) -> Result<Self, ScramError> {
        let mut parts = message.splitn(3, ',');
        match parts.next() {
            Some("n" | "y") => {}
            Some(flag) if flag.starts_with("p=") => return Err(ScramError::ChannelBinding),
            _ => {
                return Err(ScramError::Malformed(
                    "client-first must begin with n, or y,",
                ));
            }
        }
        let authzid = parts.next().unwrap_or_default();
        let bare = parts
            .next()
            .ok_or(ScramError::Malformed("client-first ends within its header"))?;
        let gs2_header = &message[..message.len() - bare.len()];

        let mut attributes = bare.split(',');
        let name = match attributes.next() {
            Some(extension) if extension.starts_with("m=") => {
                return Err(ScramError::Malformed("m= asks for an unknown extension"));
            }
            name => expect_attribute(name, "n=", "n= must follow the header")?,
        };
        let username = decode_name(name)?;
        if !authzid.is_empty() {
            let wanted =
                expect_attribute(Some(authzid), "a=", "the header's second field must be a=")?;
            if decode_name(wanted)? != username {
                return Err(ScramError::Malformed("a= must be the same user as n="));
            }
        }
        let nonce = expect_attribute(attributes.next(), "r=", "r= must follow n=")?;
        let printable = |b: u8| b.is_ascii_graphic() && b != b',';
        if nonce.is_empty() || nonce.len() > MAX_NONCE_CHARS || !nonce.bytes().all(printable) {
            return Err(ScramError::Malformed(
                "the nonce r= must be 1 to 256 printable ASCII characters",
            ));
        }
        Ok(Self {
            gs2_header,
            bare,
            username,
            nonce,
        })
    }
}

/// Decodes `=2C` and `=3D`; any other `=` is an error (RFC 5802, section 5.1).
fn decode_name(name: &str) -> Result<String, ScramError> {
    let mut parts = name.split('=');
    let mut decoded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (escape, rest) = part
            .split_at_checked(2)
            .ok_or(ScramError::Malformed("a lone = in the user name"))?;
        decoded.push(match escape {
            "2C" => ',',
            "3D" => '=',
            _ => return Err(ScramError::Malformed("a lone = in the user name")),
        });
        decoded.push_str(rest);
    }
    if decoded.is_empty() {
        return Err(ScramError::Malformed("the user name is empty"));
    }
    Ok(decoded)
}

fn expect_attribute<'a>(
    field: Option<&'a str>,
    name: &str,
    missing: &'static str,
) -> Result<&'a str, ScramError> {
    field
        .and_then(|field| field.strip_prefix(name))
        .ok_or(ScramError::Malformed(missing))
}

fn utf8_message(message: &[u8]) -> Result<&str, ScramError> {
    if message.len() > MAX_MESSAGE_BYTES {
        return Err(ScramError::Malformed("longer than 8192 bytes"));
    }
    std::str::from_utf8(message).map_err(|_| ScramError::Malformed("not UTF-8"))
}

fn decode_key(text: &str) -> Option<ScramKey> {
    BASE64.decode(text).ok()?.try_into().ok()
}

fn random_nonce() -> Result<String, ScramError> {
    let mut bytes = [0; NONCE_BYTES];
    fill_random(&mut bytes)?;
    Ok(BASE64.encode(bytes))
}

fn fill_random(bytes: &mut [u8]) -> Result<(), ScramError> {
    SystemRandom::new()
        .fill(bytes)
        .map_err(|_| ScramError::NoRandomness)
}

fn salted_password(password: &[u8], salt: &[u8], iterations: NonZeroU32) -> ScramKey {
    let mut salted = [0; KEY_BYTES];
    pbkdf2::derive(
        pbkdf2::PBKDF2_HMAC_SHA256,
        iterations,
        salt,
        password,
        &mut salted,
    );
    salted
}

fn client_key(salted_password: &ScramKey) -> ScramKey {
    hmac_sha256(salted_password, b"Client Key")
}

fn hmac_sha256(key: &ScramKey, message: &[u8]) -> ScramKey {
    tag_bytes(&hmac::sign(
        &hmac::Key::new(hmac::HMAC_SHA256, key),
        message,
    ))
}

fn tag_bytes(tag: &hmac::Tag) -> ScramKey {
    tag.as_ref()
        .try_into()
        .expect("an HMAC-SHA-256 tag is 32 bytes")
}

fn sha256(bytes: &[u8]) -> ScramKey {
    digest::digest(&digest::SHA256, bytes)
        .as_ref()
        .try_into()
        .expect("a SHA-256 digest is 32 bytes")
}

fn xor(a: &ScramKey, b: &ScramKey) -> ScramKey {
    std::array::from_fn(|i| a[i] ^ b[i])
}

/// Compares in a time that does not depend on the position of the first difference.
pub fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |sum, (x, y)| sum | (x ^ y));
    a.len() == b.len() && std::hint::black_box(differences) == 0
}

#[cfg(test)]
mod tests;
