//! What the node would answer to a client: a login, and what it may publish and subscribe to, with
//! what decides; and the actions that were denied.

use std::net::{IpAddr, SocketAddr};

use auth::{DeniedAction, DeniedActionQuery, LoginTrial, TrialCredentials};
use hooks::{AccessDecision, Client, ClientAction, ConnectionInfo, PeerAddress};
use mqtt::{QoS, SubscriptionOptions, TopicLimits, Version};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::access::Role;
use crate::audit;
use crate::blocking::run_blocking;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get, post};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{CLIENT_ID, Parameter, ParameterType, USERNAME, text_parameter};

const MAX_ACTIONS: usize = 100;
const MAX_TEXT_BYTES: usize = 65_535;
const DEFAULT_LIMIT: u64 = 100;
const TOPIC_CONTAINS: Parameter = text_parameter("topic_contains", "Part of the topic or filter.");
const LIMIT: Parameter = Parameter {
    name: "limit",
    description: "Maximum number of rows; default 100.",
    shape: ParameterType::Number(1, 1000),
};

/// A client and the actions to check.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AccessCheckInput {
    #[schemars(length(max = 65_535))]
    client_id: String,
    #[serde(default)]
    #[schemars(length(max = 65_535))]
    username: Option<String>,
    #[serde(default)]
    #[schemars(length(max = 65_535))]
    password: Option<String>,
    /// Source address of the client.
    #[serde(default)]
    address: Option<IpAddr>,
    /// Name of the listener, which decides whether clients without credentials may connect; default: the first one.
    #[serde(default)]
    listener: Option<String>,
    /// Whether to try a login with these credentials. Otherwise the actions are checked for the client as it is
    /// connected now, or for its names alone.
    #[serde(default)]
    login: bool,
    #[serde(default)]
    #[schemars(length(max = 100))]
    actions: Vec<AccessActionInput>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ActionKind {
    Publish,
    Subscribe,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AccessActionInput {
    action: ActionKind,
    /// Topic, or filter of the subscription.
    topic: String,
    #[serde(default)]
    #[schemars(range(max = 2))]
    qos: u8,
    /// For publications only.
    #[serde(default)]
    retain: bool,
}

#[derive(Serialize, JsonSchema)]
struct AccessCheck {
    basis: AccessBasis,
    /// Only if a login was tried.
    login: Option<LoginOutcome>,
    /// In the order of the request. Empty if the login is rejected.
    actions: Vec<ActionOutcome>,
}

/// What the answers are based on.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum AccessBasis {
    /// The tried login.
    Login,
    /// The session of the client, with the permissions of its last login.
    Session,
    /// The rules of the node for these names alone, because there is no such session.
    Rules,
}

#[derive(Serialize, JsonSchema)]
struct LoginOutcome {
    accepted: bool,
    /// The step that rejects the client: `ban`, `limit`, `authentication` or `availability`.
    step: Option<&'static str>,
    /// MQTT 5 reason code.
    reason_code: Option<u8>,
    reason: Option<&'static str>,
    /// Names that the client gets.
    client_id: Option<String>,
    username: Option<String>,
    is_anonymous: bool,
    is_superuser: bool,
    /// Id of the registered device that the client is.
    device: Option<String>,
    /// Authenticators in the order of evaluation.
    authenticators: Vec<AuthenticatorOutcome>,
}

#[derive(Serialize, JsonSchema)]
struct AuthenticatorOutcome {
    id: String,
    r#type: String,
    /// `accepted`, `rejected`, `ignored`, `failed`, or `not_responsible` for such credentials.
    answer: &'static str,
    error: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct ActionOutcome {
    action: ActionKind,
    topic: String,
    allowed: bool,
    /// What decides: `superuser`; `device`, the permissions of a device; a rule of the `client` (from its authenticator), `external`
    /// (from a rule source), of the `file` or of the `store`; or `default`: no rule matches.
    source: &'static str,
    /// Id of the deciding rule of the node.
    rule: Option<String>,
}

/// Equal denials.
#[derive(Serialize, JsonSchema)]
struct DeniedActionView {
    /// Time of the last denial.
    at_ms: u64,
    first_at_ms: u64,
    count: u64,
    client_id: Box<str>,
    username: Option<Box<str>>,
    /// `publish` or `subscribe`.
    action: &'static str,
    /// Topic, or filter of the subscription.
    topic: Box<str>,
    /// What decided, as in access checks.
    source: &'static str,
    /// Id of the deciding rule of the node.
    rule: Option<String>,
    /// `false`: the action was allowed, because `auth.deny_action` is `observe`.
    enforced: bool,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/v1/access-check", "checkAccess", check)
            .role(Role::Operator, EndpointScope::Node)
            .tag("rules")
            .summary("Check what a client may do")
            .description(
                "Whether a client could log in, and what it may publish and subscribe to, with the rule that decides. Nothing is counted, and no client is locked out. Clients with certificates and enhanced authentication \
                 cannot be tried.",
            )
            .request_body::<AccessCheckInput>()
            .response::<AccessCheck>(200, "The answers."),
        get("/api/v1/denied-actions", "listDeniedActions", denied)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("rules")
            .summary("List denied publications and subscriptions")
            .description(
                "Since the node started, those with the newest denials first. Equal denials are one row with a `count`. The node \
                 keeps 1000 rows and adds at most 10 per second. With `auth.deny_action = \"observe\"`, rows that are not `enforced` \
                 show what the ACL rules would deny.",
            )
            .parameters(&[CLIENT_ID, USERNAME, TOPIC_CONTAINS, LIMIT])
            .unpaged::<DeniedActionView>(),
    ]
}

impl AccessActionInput {
    fn check(&self, at: usize) -> Result<(), ProblemDetails> {
        let limits = TopicLimits::NONE;
        let checked = match self.action {
            ActionKind::Publish => mqtt::validate_topic_name(&self.topic, &limits),
            ActionKind::Subscribe => mqtt::validate_topic_filter(&self.topic, &limits),
        };
        checked.map_err(|error| {
            let path = format!("actions[{at}].topic");
            ProblemDetails::invalid_field(&path, format!("{path} is {:?}: {error}.", self.topic))
        })?;
        match self.qos {
            0..=2 => Ok(()),
            _ => {
                let path = format!("actions[{at}].qos");
                let detail = format!("{path}: expected 0, 1 or 2.");
                Err(ProblemDetails::invalid_field(&path, detail))
            }
        }
    }

    fn client_action(&self) -> ClientAction<'_> {
        let qos = match self.qos {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            _ => QoS::ExactlyOnce,
        };
        match self.action {
            ActionKind::Publish => ClientAction::Publish {
                topic: &self.topic,
                qos,
                retain: self.retain,
            },
            ActionKind::Subscribe => ClientAction::Subscribe {
                filter: &self.topic,
                options: SubscriptionOptions::new(qos),
            },
        }
    }

    fn outcome(&self, decision: AccessDecision) -> ActionOutcome {
        ActionOutcome {
            action: self.action,
            topic: self.topic.clone(),
            allowed: decision.is_allowed,
            source: decision.source,
            rule: decision.rule.map(|rule| (*rule).to_owned()),
        }
    }
}

impl From<&LoginTrial> for LoginOutcome {
    fn from(trial: &LoginTrial) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let answers = trial.answers.iter().cloned();
        Self {
            accepted: trial.rejection.is_none(),
            step: trial.rejection.map(|rejection| rejection.step),
            reason_code: trial.rejection.map(|rejection| rejection.code.0),
            reason: trial.rejection.map(|rejection| rejection.reason),
            client_id: owned(trial.client_id()),
            username: owned(trial.username()),
            is_anonymous: trial.is_anonymous(),
            is_superuser: trial.is_superuser(),
            device: owned(trial.device()),
            authenticators: answers
                .map(|answer| AuthenticatorOutcome {
                    id: answer.id,
                    r#type: answer.kind,
                    answer: answer.answer,
                    error: answer.error,
                })
                .collect(),
        }
    }
}

impl AccessCheckInput {
    fn validate(&self) -> Result<(), ProblemDetails> {
        let texts = [
            ("client_id", Some(&self.client_id)),
            ("username", self.username.as_ref()),
            ("password", self.password.as_ref()),
        ];
        for (field, text) in texts {
            if text.is_some_and(|text| text.len() > MAX_TEXT_BYTES) {
                let detail = format!("{field}: expected at most {MAX_TEXT_BYTES} bytes.");
                return Err(ProblemDetails::invalid_field(field, detail));
            }
        }
        if self.actions.len() > MAX_ACTIONS {
            let detail = format!("actions: expected at most {MAX_ACTIONS}.");
            return Err(ProblemDetails::invalid_field("actions", detail));
        }
        if self.password.is_some() && !self.login {
            let detail = "password: has an effect only with \"login\": true.";
            return Err(ProblemDetails::invalid_field("password", detail));
        }
        let mut actions = self.actions.iter().enumerate();
        actions.try_for_each(|(at, action)| action.check(at))
    }
}

async fn check(mut call: ApiCall) -> ApiResult {
    let input: AccessCheckInput = call.body_json().await?;
    input.validate()?;
    let answer = match input.login {
        true => check_by_login(&call, input).await?,
        false => check_by_session(&call, input).await?,
    };
    call::json_response(answer)
}

async fn check_by_login(
    call: &ApiCall,
    input: AccessCheckInput,
) -> Result<AccessCheck, ProblemDetails> {
    let listeners = call.app.node.listeners();
    let listener = match &input.listener {
        None => listeners.first(),
        Some(name) => {
            let found = listeners.iter().find(|listener| listener.name == *name);
            Some(found.ok_or_else(|| {
                let names: Vec<_> = listeners.iter().map(|listener| &*listener.name).collect();
                let detail = format!("listener: expected one of {}.", names.join(", "));
                ProblemDetails::invalid_field("listener", detail)
            })?)
        }
    };
    let credentials = TrialCredentials {
        client_id: input.client_id.clone(),
        username: input.username,
        password: input.password.map(String::into_bytes),
        address: input.address,
        listener: listener.map_or_else(String::new, |listener| listener.name.clone()),
        allows_anonymous: listener.is_some_and(|listener| listener.allows_anonymous),
    };
    let trial = call.app.auth.try_login(credentials).await;
    let login = LoginOutcome::from(&trial);
    let tried = serde_json::json!({"accepted": login.accepted});
    audit::record_action(
        call,
        "access.try_login",
        Some(&input.client_id),
        Some(tried),
    )
    .await;
    let explain = move || {
        let decided = input.actions.iter();
        let decided = decided.filter_map(|action| {
            let decision = trial.explain(&action.client_action())?;
            Some(action.outcome(decision))
        });
        decided.collect()
    };
    Ok(AccessCheck {
        basis: AccessBasis::Login,
        login: Some(login),
        actions: run_blocking(explain, "The rules cannot be evaluated now.").await?,
    })
}

async fn check_by_session(
    call: &ApiCall,
    input: AccessCheckInput,
) -> Result<AccessCheck, ProblemDetails> {
    let found = call.app.node.client_permissions(&input.client_id).await;
    // Another user or address is another client.
    let session = found.filter(|found| {
        let client = found.client();
        let username = input.username.as_deref();
        username.is_none_or(|username| client.username == Some(username)) && input.address.is_none()
    });
    let auth = call.app.auth.clone();
    let basis = match session {
        Some(_) => AccessBasis::Session,
        None => AccessBasis::Rules,
    };
    let explain = move || {
        let described = Client {
            client_id: &input.client_id,
            username: input.username.as_deref(),
            peer: input
                .address
                .map(|address| PeerAddress::Tcp(SocketAddr::new(address, 0))),
            last_address: None,
            local_address: None,
            version: Version::V5,
            connection: ConnectionInfo::default(),
        };
        let client = session
            .as_ref()
            .map_or(described, |session| session.client());
        let decided = input.actions.iter().map(|action| {
            let wanted = action.client_action();
            let of_session = session
                .as_ref()
                .and_then(|session| session.explain(&wanted));
            action.outcome(of_session.unwrap_or_else(|| auth.explain_node_rules(&client, &wanted)))
        });
        decided.collect()
    };
    Ok(AccessCheck {
        basis,
        login: None,
        actions: run_blocking(explain, "The rules cannot be evaluated now.").await?,
    })
}

impl From<DeniedAction> for DeniedActionView {
    fn from(denied: DeniedAction) -> Self {
        Self {
            at_ms: denied.last_ms,
            first_at_ms: denied.first_ms,
            count: denied.count,
            client_id: denied.client_id,
            username: denied.username,
            action: denied.action,
            topic: denied.topic,
            source: denied.source,
            rule: denied.rule.map(|rule| (*rule).to_owned()),
            enforced: denied.is_enforced,
        }
    }
}

async fn denied(call: ApiCall) -> ApiResult {
    let query = DeniedActionQuery {
        client_id: call.query.owned_text(CLIENT_ID),
        username: call.query.owned_text(USERNAME),
        topic_contains: call.query.owned_text(TOPIC_CONTAINS),
        limit: call.query.number_value(LIMIT).unwrap_or(DEFAULT_LIMIT) as usize,
    };
    let rows = call.app.auth.denied_actions(&query).into_iter();
    call::unpaged_list(rows.map(DeniedActionView::from).collect())
}
