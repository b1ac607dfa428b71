//! Settings: what each is, who said so, and changing those that can change while the node runs. The log level is one of
//! them and has a route of its own too.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::access::Role;
use crate::audit;
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, get, put};
use crate::node::{SettingError, SettingInfo};
use crate::parameters::{Parameter, Shape};
use crate::problem::Problem;

const KEY_CONTAINS: Parameter = Parameter {
    name: "key_contains",
    about: "Settings whose key has this in it.",
    shape: Shape::Text,
};
const CHANGEABLE: Parameter = Parameter {
    name: "changeable",
    about: "Only those that can (`true`) or cannot (`false`) change at run time.",
    shape: Shape::Flag,
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SettingInput {
    /// As `tidegate.toml` has it.
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
    let about_key = "The whole key: `limits.max_qos`, `listener.mqtt.bind`.";
    vec![
        get("/api/v1/settings", "listSettings", list)
            .role(Role::Viewer)
            .tag("configuration")
            .summary("List settings")
            .description("All of them on one page: the value, where it comes from, whether it can change at run time.")
            .parameters(&[KEY_CONTAINS, CHANGEABLE])
            .list::<SettingInfo>(),
        get("/api/v1/settings/{key}", "getSetting", read)
            .role(Role::Viewer)
            .tag("configuration")
            .summary("Look at a setting")
            .path_parameter("key", about_key)
            .answers::<SettingInfo>(200, "The setting."),
        put("/api/v1/settings/{key}", "putSetting", write)
            .role(Role::Admin)
            .tag("configuration")
            .summary("Change a setting at run time")
            .description("It takes effect at once and lasts until the node stops.")
            .path_parameter("key", about_key)
            .body::<SettingInput>()
            .answers::<SettingInfo>(200, "The setting as it is now.")
            .problem(409, "This setting cannot change while the node runs."),
        get("/api/v1/log-level", "getLogLevel", log_level)
            .role(Role::Viewer)
            .summary("What is logged")
            .answers::<LogLevel>(200, "The level."),
        put("/api/v1/log-level", "setLogLevel", set_log_level)
            .role(Role::Admin)
            .summary("Change what is logged")
            .description("It takes effect at once and lasts until the node stops.")
            .body::<LogLevel>()
            .answers::<LogLevel>(200, "The level as it is now."),
    ]
}

async fn list(call: Call) -> Outcome {
    let part = call.query.owned(KEY_CONTAINS).unwrap_or_default();
    let changeable = call.query.flag(CHANGEABLE);
    let mut settings = call.app.program.settings();
    settings.retain(|setting| {
        setting.key.contains(&part) && changeable.is_none_or(|wanted| setting.changeable == wanted)
    });
    call::whole(settings)
}

fn find(call: &Call) -> Result<SettingInfo, Problem> {
    let key = call.path("key");
    let mut settings = call.app.program.settings().into_iter();
    settings
        .find(|setting| setting.key == key)
        .ok_or_else(|| Problem::not_found(format!("There is no setting {key:?}.")))
}

async fn read(call: Call) -> Outcome {
    call::ok(find(&call)?)
}

async fn write(mut call: Call) -> Outcome {
    let SettingInput { value } = call.json().await?;
    let before = find(&call)?;
    let changed = call.app.program.set_setting(&before.key, &value);
    changed.map_err(|error| match error {
        SettingError::Fixed => Problem::conflict(format!(
            "{} cannot change while the node runs; change the configuration and start the node again.",
            before.key
        )),
        SettingError::Invalid(expected) => {
            Problem::field("value", format!("value: {expected}."))
        }
    })?;
    let now = find(&call)?;
    let change = serde_json::json!({"before": before.value, "after": now.value});
    audit::action(&call, "setting.change", Some(&now.key), Some(change)).await;
    call::ok(now)
}

async fn log_level(call: Call) -> Outcome {
    let level = call.app.program.log_level();
    call::ok(LogLevel { level })
}

async fn set_log_level(mut call: Call) -> Outcome {
    let LogLevel { level } = call.json().await?;
    let set = call.app.program.set_log_level(&level);
    set.map_err(|expected| Problem::field("level", format!("level is {level:?}: {expected}")))?;
    let level = call.app.program.log_level();
    let after = serde_json::json!({"level": level});
    audit::action(&call, "log_level.change", None, Some(after)).await;
    call::ok(LogLevel { level })
}
