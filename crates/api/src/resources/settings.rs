//! Settings: values, origins, and changes at run time. The log level is a setting and also has a
//! route of its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::changed_settings;
use crate::endpoint::{Endpoint, EndpointScope, delete, get, put};
use crate::node_backend::{SettingChangeError, SettingInfo};
use crate::object_store::run_on_store;
use crate::objects::{changed_content_response, check_content, content_response};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{Parameter, ParameterType};

/// The setting with the log level.
const LOG_LEVEL: &str = "log.level";
const KEY_CONTAINS: Parameter = Parameter {
    name: "key_contains",
    description: "Part of the key.",
    shape: ParameterType::Text,
};
const CHANGEABLE: Parameter = Parameter {
    name: "changeable",
    description: "Whether the settings can change at run time.",
    shape: ParameterType::Flag,
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SettingInput {
    /// New value, as in `tidegate.toml`.
    #[schemars(with = "SettingValue")]
    value: Value,
}

#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
enum SettingValue {
    Text(String),
    Number(u64),
    Flag(bool),
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LogLevel {
    /// `debug`, or `info,broker=debug`.
    level: String,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let about_key = "Full key: `limits.max_qos`, `listener.mqtt.bind`.";
    vec![
        get("/api/v1/settings", "listSettings", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("configuration")
            .summary("List settings")
            .description(
                "All settings on one page: value, origin, and whether it can change at run time.",
            )
            .parameters(&[KEY_CONTAINS, CHANGEABLE])
            .unpaged::<SettingInfo>(),
        get("/api/v1/settings/{key}", "getSetting", read)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("configuration")
            .summary("Read a setting")
            .path_parameter("key", about_key)
            .response::<SettingInfo>(200, "The setting.")
            .with_etag(),
        put("/api/v1/settings/{key}", "putSetting", write)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Change a setting at run time")
            .description(
                "It takes effect at once, stays after restarts, and overrides the configuration until it is reverted.",
            )
            .path_parameter("key", about_key)
            .request_body::<SettingInput>()
            .response::<SettingInfo>(200, "The setting after the change.")
            .with_etag()
            .problem_response(409, "This setting cannot change while the node runs."),
        delete("/api/v1/settings/{key}", "resetSetting", reset)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Revert a setting to its configured value")
            .description("The value of the configuration applies at once. Without an earlier change nothing happens.")
            .path_parameter("key", about_key)
            .response::<SettingInfo>(200, "The setting after the change.")
            .with_etag()
            .problem_response(409, "This setting cannot change while the node runs."),
        get("/api/v1/log-level", "getLogLevel", log_level)
            .role(Role::Viewer, EndpointScope::Node)
            .summary("Read the log level")
            .response::<LogLevel>(200, "The level."),
        put("/api/v1/log-level", "setLogLevel", set_log_level)
            .role(Role::Admin, EndpointScope::Node)
            .summary("Change the log level")
            .description("The same as the setting `log.level`, with which it can be reverted.")
            .request_body::<LogLevel>()
            .response::<LogLevel>(200, "The new level."),
    ]
}

async fn list(call: ApiCall) -> ApiResult {
    let part = call.query.owned_text(KEY_CONTAINS).unwrap_or_default();
    let changeable = call.query.flag_value(CHANGEABLE);
    let mut settings = call.app.program.settings();
    settings.retain(|setting| {
        setting.key.contains(&part) && changeable.is_none_or(|wanted| setting.changeable == wanted)
    });
    call::unpaged_list(settings)
}

fn find(call: &ApiCall) -> Result<SettingInfo, ProblemDetails> {
    let key = call.path("key");
    let mut settings = call.app.program.settings();
    if let Some(at) = settings.iter().position(|setting| setting.key == key) {
        return Ok(settings.swap_remove(at));
    }
    let near = rules::nearest_key(key, settings.iter().map(|setting| &*setting.key));
    let detail = match near {
        Some(near) => format!("There is no setting {key:?}; did you mean {near}?"),
        None => format!("There is no setting {key:?}."),
    };
    Err(ProblemDetails::not_found(detail))
}

async fn read(call: ApiCall) -> ApiResult {
    content_response(call.headers(), &find(&call)?)
}

fn change_problem(key: &str, error: SettingChangeError) -> ProblemDetails {
    match error {
        SettingChangeError::Fixed => ProblemDetails::conflict(format!(
            "{key} cannot change while the node runs; change the configuration and restart the node."
        )),
        SettingChangeError::Invalid(expected) => {
            let end = if expected.ends_with('?') { "" } else { "." };
            ProblemDetails::invalid_field("value", format!("value: {expected}{end}"))
        }
    }
}

/// Stores a change, or the absence of one.
async fn store(call: &ApiCall, key: &str, value: Option<Value>) -> Result<(), ProblemDetails> {
    let key = key.to_owned();
    let stored = run_on_store(&call.app, move |objects| match value {
        Some(value) => changed_settings::store_change(objects, &key, &value),
        None => changed_settings::forget_change(objects, &key),
    });
    stored.await?.map_err(|error| {
        ProblemDetails::unavailable(format!(
            "The setting has changed until the node stops, but the change cannot be stored: {error}."
        ))
    })
}

async fn write(mut call: ApiCall) -> ApiResult {
    let SettingInput { value } = call.body_json().await?;
    let before;
    {
        let _changing = call.app.changing.lock().await;
        before = find(&call)?;
        check_content(call.headers(), &before)?;
        let changed = call.app.program.set_setting(&before.key, &value);
        changed.map_err(|error| change_problem(&before.key, error))?;
        store(&call, &before.key, Some(value)).await?;
    }
    let now = find(&call)?;
    let change = serde_json::json!({"before": before.value, "after": now.value});
    audit::record_action(&call, "setting.change", Some(&now.key), Some(change)).await;
    Ok(changed_content_response(&now))
}

async fn reset(call: ApiCall) -> ApiResult {
    let before;
    {
        let _changing = call.app.changing.lock().await;
        before = find(&call)?;
        check_content(call.headers(), &before)?;
        let reset = call.app.program.reset_setting(&before.key);
        reset.map_err(|error| change_problem(&before.key, error))?;
        store(&call, &before.key, None).await?;
    }
    let now = find(&call)?;
    let change = serde_json::json!({"before": before.value, "after": now.value});
    audit::record_action(&call, "setting.reset", Some(&now.key), Some(change)).await;
    Ok(changed_content_response(&now))
}

async fn log_level(call: ApiCall) -> ApiResult {
    let level = call.app.program.log_level();
    call::json_response(LogLevel { level })
}

async fn set_log_level(mut call: ApiCall) -> ApiResult {
    let LogLevel { level } = call.body_json().await?;
    {
        let _changing = call.app.changing.lock().await;
        let set = call.app.program.set_log_level(&level);
        set.map_err(|expected| {
            ProblemDetails::invalid_field("level", format!("level is {level:?}: {expected}"))
        })?;
        store(&call, LOG_LEVEL, Some(Value::from(level))).await?;
    }
    let level = call.app.program.log_level();
    let after = serde_json::json!({"level": level});
    audit::record_action(&call, "log_level.change", None, Some(after)).await;
    call::json_response(LogLevel { level })
}
