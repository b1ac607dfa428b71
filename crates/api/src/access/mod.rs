//! Who may use the API: roles, what proves who one is, and the bound on guessing.

mod attempts;
mod basic;
mod first;
mod password;
mod secret;
mod tokens;

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub use first::{FirstOperator, FirstOperatorError, ensure_first_operator};
pub(crate) use password::{Passwords, check as check_password};
pub use secret::NoRandomness;
pub(crate) use secret::{Hashed, random_id, random_secret, readable_token};
pub(crate) use tokens::{Family, Login, Owner};

use crate::app::App;
use crate::endpoint::Access;
use crate::objects::{self, api_key, operator};
use crate::problem::Problem;
use attempts::Attempts;
use tokens::Tokens;

/// What somebody may do; each role may do what those before it may.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Looks.
    Viewer,
    /// Steers clients and messages, and says who may connect.
    Operator,
    /// Everything.
    Admin,
}

/// What proved who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Proof {
    /// A token an operator got for a password.
    Token,
    ApiKey,
    /// The node's own token file: somebody who can read the data directory.
    LocalToken,
    /// Nothing, and `http.anonymous` says that this will do.
    Anonymous,
    /// Nothing, at a route that is open to all.
    Nothing,
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The operator's name or the key's id.
    pub(crate) name: String,
    pub(crate) proof: Proof,
    pub(crate) role: Role,
}

impl Identity {
    /// Who has not said who it is, where nobody has to.
    fn nobody() -> Self {
        Self {
            name: "anonymous".to_owned(),
            proof: Proof::Nothing,
            role: Role::Viewer,
        }
    }

    /// What it may do; `None`: nothing that needs a role.
    pub(crate) fn role_or_none(&self) -> Option<Role> {
        (self.proof != Proof::Nothing).then_some(self.role)
    }
}

/// Everything the checks remember between requests.
pub(crate) struct Gatekeeper {
    pub(crate) passwords: Passwords,
    pub(crate) tokens: Tokens,
    /// For which the next token is given on ThingsBoard's paths, and nothing else.
    pub(crate) refresh_tokens: Tokens,
    pub(crate) attempts: Attempts,
    /// Counts whenever credentials may have ended, which streams follow.
    revoked: watch::Sender<u64>,
    /// Of the token file, if there is one.
    local_token: Option<Hashed>,
}

impl Gatekeeper {
    pub(crate) fn new(live: &crate::LiveConfig, local_token: Option<&str>) -> Self {
        Self {
            passwords: Passwords::default(),
            tokens: Tokens::default(),
            refresh_tokens: Tokens::default(),
            attempts: Attempts::new(live.clone()),
            revoked: watch::Sender::new(0),
            local_token: local_token.map(Hashed::of),
        }
    }

    /// Ends all that came of a login.
    pub(crate) fn end(&self, family: Family) {
        self.tokens.end(family);
        self.refresh_tokens.end(family);
        self.revoke();
    }

    /// Credentials may have ended: those who listen are looked at again.
    pub(crate) fn revoke(&self) {
        self.revoked.send_modify(|count| *count += 1);
    }

    pub(crate) fn revocations(&self) -> watch::Receiver<u64> {
        self.revoked.subscribe()
    }
}

/// ThingsBoard's clients send their token here, so that a proxy may want credentials of its own in the other field.
const X_AUTHORIZATION: HeaderName = HeaderName::from_static("x-authorization");

/// The field with the credentials for this API.
pub(crate) fn credentials(headers: &HeaderMap) -> Result<Option<&HeaderValue>, Problem> {
    for name in [X_AUTHORIZATION, header::AUTHORIZATION] {
        let mut fields = headers.get_all(&name).iter();
        let Some(field) = fields.next() else {
            continue;
        };
        if fields.next().is_some() {
            let detail = format!("There is more than one {name} field.");
            return Err(Problem::unauthorized(detail));
        }
        return Ok(Some(field));
    }
    Ok(None)
}

/// Who asks, if that is enough for a route.
pub(crate) async fn admit(
    app: &App,
    access: Access,
    headers: &HeaderMap,
    from: IpAddr,
) -> Result<Identity, Problem> {
    let needed = match access {
        Access::Open => {
            // Wrong credentials do not make an open door a closed one.
            let known = admitted(app, headers, from).await;
            return Ok(known.unwrap_or_else(|_| Identity::nobody()));
        }
        // What it proves itself by is none of an operator's credentials.
        Access::Source | Access::Device => return Ok(Identity::nobody()),
        Access::Metrics if app.is_open(app.config.get().metrics_access) => {
            return Ok(Identity::nobody());
        }
        Access::Docs if app.is_open(app.config.get().docs_access) => return Ok(Identity::nobody()),
        Access::Metrics | Access::Docs => Role::Viewer,
        Access::Role(role) => role,
    };
    let who = admitted(app, headers, from).await?;
    match who.role_or_none() >= Some(needed) {
        true => Ok(who),
        false => Err(Problem::new(
            StatusCode::FORBIDDEN,
            format!(
                "This needs the role {}; {} is {}.",
                needed.name(),
                who.name,
                who.role.name()
            ),
        )),
    }
}

/// Who sent a request, with or without a right to.
pub(crate) async fn admitted(
    app: &App,
    headers: &HeaderMap,
    from: IpAddr,
) -> Result<Identity, Problem> {
    if let Some(identity) = identify(app, headers, from).await? {
        return Ok(identity);
    }
    match app.anonymous.role() {
        Some(role) if app.is_local && from.to_canonical().is_loopback() => Ok(Identity {
            name: "anonymous".to_owned(),
            proof: Proof::Anonymous,
            role,
        }),
        _ => Err(Problem::unauthorized(
            "Credentials are needed: a token from POST /api/v1/login as `Authorization: Bearer TOKEN`, or an API key as \
             HTTP Basic.",
        )),
    }
}

/// Who sent a request, by its X-Authorization or Authorization field. `None`: it has neither.
async fn identify(
    app: &App,
    headers: &HeaderMap,
    from: IpAddr,
) -> Result<Option<Identity>, Problem> {
    let Some(field) = credentials(headers)? else {
        return Ok(None);
    };
    let unreadable = || {
        Problem::unauthorized(
            "The Authorization field must be `Bearer TOKEN`, or `Basic` with the id and the secret of an API key.",
        )
    };
    let text = field.to_str().map_err(|_| unreadable())?;
    let (scheme, credentials) = text.split_once(' ').ok_or_else(unreadable)?;
    let credentials = credentials.trim();
    let identity = if scheme.eq_ignore_ascii_case("bearer") {
        by_token(app, credentials, from).await?
    } else if scheme.eq_ignore_ascii_case("basic") {
        let (id, secret) = basic::decode(credentials).ok_or_else(unreadable)?;
        by_api_key(app, &id, &secret).await?
    } else {
        return Err(unreadable());
    };
    Ok(Some(identity))
}

async fn by_token(app: &App, token: &str, from: IpAddr) -> Result<Identity, Problem> {
    let hashed = Hashed::of(token);
    let is_local = app.gatekeeper.local_token.as_ref() == Some(&hashed);
    if is_local && from.to_canonical().is_loopback() {
        return Ok(Identity {
            name: "local".to_owned(),
            proof: Proof::LocalToken,
            role: Role::Admin,
        });
    }
    let stale = || {
        Problem::unauthorized(
            "The token is unknown or has expired; POST /api/v1/login gives a new one.",
        )
    };
    let login = app.gatekeeper.tokens.find(&hashed).ok_or_else(stale)?;
    let Some(identity) = holder(app, &login).await? else {
        app.gatekeeper.tokens.revoke(&hashed);
        return Err(stale());
    };
    Ok(identity)
}

/// Who has logged in, as they are now. `None`: they were changed, shut out or deleted since.
pub(crate) async fn holder(app: &App, login: &Login) -> Result<Option<Identity>, Problem> {
    let name = match &login.owner {
        Owner::ApiKey(id) => return key_holder(app, id, &login.password).await,
        Owner::Operator(name) => name,
    };
    let operator = objects::load::<operator::Stored>(app, operator::KIND, name).await?;
    let operator = operator.filter(|operator| {
        operator.enabled && Hashed::of(&operator.password_hash) == login.password
    });
    Ok(operator.map(|operator| Identity {
        name: name.clone(),
        proof: Proof::Token,
        role: operator.role,
    }))
}

/// The API key of this id, if this is its secret and it is good now.
pub(crate) async fn key_holder(
    app: &App,
    id: &str,
    secret: &Hashed,
) -> Result<Option<Identity>, Problem> {
    let key = objects::load::<api_key::Stored>(app, api_key::KIND, id).await?;
    let now_ms = now_ms();
    let key = key.filter(|key| {
        (key.secret_hash == *secret) & key.enabled & key.expires_at_ms.is_none_or(|at| now_ms < at)
    });
    Ok(key.map(|key| Identity {
        name: id.to_owned(),
        proof: Proof::ApiKey,
        role: key.role,
    }))
}

async fn by_api_key(app: &App, id: &str, secret: &str) -> Result<Identity, Problem> {
    let key = key_holder(app, id, &Hashed::of(secret)).await?;
    key.ok_or_else(|| {
        Problem::unauthorized(
            "There is no API key with this id and secret, or it has expired or is disabled.",
        )
    })
}

/// A token for the data directory, good until the node stops.
pub fn new_local_token() -> Result<String, NoRandomness> {
    random_secret()
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
