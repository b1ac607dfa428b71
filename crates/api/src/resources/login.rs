//! Logging in and out, and who one is.

use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use store::Expected;

use crate::access::{
    self, Family, Hashed, Owner, Proof, Role, check_password, now_ms, random_secret,
};
use crate::audit;
use crate::call::{self, Call};
use crate::endpoint::{Access, Endpoint, Outcome, get, post, put};
use crate::objects::{self, operator};
use crate::problem::Problem;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LoginInput {
    username: String,
    password: String,
}

#[derive(Serialize, JsonSchema)]
struct Login {
    /// To be sent as `Authorization: Bearer TOKEN`.
    token: String,
    expires_at_ms: u64,
    expires_in_s: u32,
    username: String,
    role: Role,
}

#[derive(Serialize, JsonSchema)]
struct Me {
    /// The operator's name, the API key's id, `local` or `anonymous`.
    name: String,
    role: Role,
    proof: Proof,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewPassword {
    current_password: String,
    #[schemars(length(min = 8, max = 256))]
    password: String,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/v1/login", "login", login)
            .access(Access::Open)
            .tag("access")
            .summary("Get a token for an operator's name and password")
            .description(
                "After some failed logins for a name from one address the answer to these is 429 for a while, whatever the password.",
            )
            .body::<LoginInput>()
            .answers::<Login>(200, "The token; it is not shown again.")
            .problem(401, "There is no such operator with this password.")
            .problem(
                429,
                "Too many failed logins for this name from this address, from this address, or for this name.",
            ),
        post("/api/v1/logout", "logout", logout)
            .role(Role::Viewer)
            .tag("access")
            .summary("End the token this is asked with")
            .answers_nothing(204, "It is of no use any more.")
            .problem(409, "This request was not made with a token of a login."),
        get("/api/v1/me", "getMe", me)
            .role(Role::Viewer)
            .tag("access")
            .summary("Who asks")
            .answers::<Me>(200, "As whom this request was made."),
        put("/api/v1/me/password", "setMyPassword", set_password)
            .role(Role::Viewer)
            .tag("access")
            .summary("Change one's own password")
            .description("For operators. All their tokens end.")
            .body::<NewPassword>()
            .answers_nothing(204, "Log in again with the new one.")
            .problem(409, "Whoever asks is no operator and has no password.")
            .problem(429, "Too many wrong passwords."),
    ]
}

/// Who has proved to be somebody.
pub(super) struct Proved {
    pub(super) login: access::Login,
    pub(super) role: Role,
}

/// The operator, or the API key of this id, if the password is right; the attempt counts.
pub(super) async fn prove_any(
    call: &Call,
    name: &str,
    password: String,
) -> Result<Option<Proved>, Problem> {
    // The secret of a key cannot be guessed: it is looked up whatever failed before.
    let secret = Hashed::of(&password);
    let (owner, password, role) = match access::key_holder(&call.app, name, &secret).await? {
        Some(key) => (Owner::ApiKey(key.name), secret, key.role),
        None => {
            let Some(operator) = prove(call, name, password).await? else {
                return Ok(None);
            };
            let password = Hashed::of(&operator.password_hash);
            (Owner::Operator(name.to_owned()), password, operator.role)
        }
    };
    let login = access::Login {
        owner,
        password,
        family: Family::new(),
    };
    Ok(Some(Proved { login, role }))
}

fn check_blocked(call: &Call, username: &str) -> Result<(), Problem> {
    let attempts = &call.app.gatekeeper.attempts;
    let Some(left) = attempts.blocked_for(call.from, username, Instant::now()) else {
        return Ok(());
    };
    let left_s = left.as_secs() + 1;
    let detail = format!("Too many failed logins; try again in {left_s} s.");
    Err(Problem::too_many_requests(left_s, detail))
}

/// The operator, if the password is right; the attempt counts.
async fn prove(
    call: &Call,
    username: &str,
    password: String,
) -> Result<Option<operator::Stored>, Problem> {
    let gatekeeper = &call.app.gatekeeper;
    check_blocked(call, username)?;
    let operator = objects::load::<operator::Stored>(&call.app, operator::KIND, username).await?;
    let operator = operator.filter(|operator| operator.enabled);
    let hash = operator
        .as_ref()
        .map(|operator| operator.password_hash.clone());
    if gatekeeper.passwords.verify(password, hash).await? {
        gatekeeper.attempts.succeeded(call.from, username);
        return Ok(operator);
    }
    gatekeeper
        .attempts
        .failed(call.from, username, Instant::now());
    Ok(None)
}

async fn login(mut call: Call) -> Outcome {
    let LoginInput { username, password } = call.json().await?;
    let Some(operator) = prove(&call, &username, password).await? else {
        audit::login(&call, &username, None).await;
        return Err(Problem::unauthorized(
            "There is no operator with this name and password, or it is disabled.",
        ));
    };
    let expires_in_s = call.app.config.get().token_ttl_s;
    let lives = Duration::from_secs(expires_in_s.into());
    let token = random_secret().map_err(|error| Problem::unavailable(format!("{error}.")))?;
    let login = access::Login {
        owner: Owner::Operator(username.clone()),
        password: Hashed::of(&operator.password_hash),
        family: Family::new(),
    };
    call.app.gatekeeper.tokens.add(&token, login, lives);
    audit::login(&call, &username, Some(operator.role)).await;
    call::ok(Login {
        token,
        expires_at_ms: now_ms() + u64::from(expires_in_s) * 1000,
        expires_in_s,
        username,
        role: operator.role,
    })
}

async fn logout(call: Call) -> Outcome {
    if call.who.proof != Proof::Token {
        return Err(Problem::conflict(
            "This request was not made with a token of a login, so there is nothing to end.",
        ));
    }
    let gatekeeper = &call.app.gatekeeper;
    let login = (call.bearer()).and_then(|token| gatekeeper.tokens.revoke(&Hashed::of(token)));
    if let Some(login) = login {
        gatekeeper.end(login.family);
    }
    audit::action(&call, "logout", None, None).await;
    call::done()
}

async fn me(call: Call) -> Outcome {
    call::ok(Me {
        name: call.who.name.clone(),
        role: call.who.role,
        proof: call.who.proof,
    })
}

async fn set_password(mut call: Call) -> Outcome {
    let NewPassword {
        current_password,
        password,
    } = call.json().await?;
    if call.who.proof != Proof::Token {
        return Err(Problem::conflict(
            "Only operators who have logged in have a password.",
        ));
    }
    check_password(&password)?;
    let username = call.who.name.clone();
    let Some(operator) = prove(&call, &username, current_password).await? else {
        let detail = "current_password: this is not the password.";
        return Err(Problem::field("current_password", detail));
    };
    let password_hash = call.app.gatekeeper.passwords.hash(password).await?;
    let changed = operator::Stored {
        password_hash,
        ..operator
    };
    let value = serde_json::to_value(changed).expect("its fields are plain");
    {
        let _changing = call.app.changing.lock().await;
        let name = username.clone();
        objects::blocking(&call.app, move |objects| {
            let current = objects.get(operator::KIND, &name)?;
            let Some(current) = current else {
                return Ok(false);
            };
            let expected = Expected::Version(current.version);
            let put = objects.put(operator::KIND, &name, value, expected);
            Ok(put.is_ok())
        })
        .await?
        .map_err(|error| objects::store_problem(&error))?
        .then_some(())
        .ok_or_else(|| Problem::conflict("The operator was changed meanwhile; try again."))?;
    }
    audit::action(&call, "operator.password", Some(&username), None).await;
    call::done()
}
