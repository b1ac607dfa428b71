//! The names of the rule language, for editors.

use rules::functions::{FAMILIES, Function};
use rules::language_reference::{self, LanguageName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::access::Role;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::problem_details::ApiResult;

/// Names that rules can use, with their descriptions.
#[derive(Serialize, JsonSchema)]
struct RuleLanguage {
    functions: Vec<RuleFunction>,
    /// Functions that aggregate the events of a window.
    aggregates: Vec<RuleLanguageName>,
    /// Windows for GROUP BY.
    windows: Vec<RuleLanguageName>,
    /// Fields of events.
    fields: Vec<RuleLanguageName>,
    /// Events and other sources for FROM.
    sources: Vec<RuleLanguageName>,
}

/// A function of the rule language.
#[derive(Serialize, JsonSchema)]
struct RuleFunction {
    name: &'static str,
    aliases: &'static [&'static str],
    /// Title of the family of functions.
    family: &'static str,
    /// Names and types of the parameters; optional ones are in brackets.
    parameters: &'static str,
    /// Type of the result.
    returns: &'static str,
    help: &'static str,
    /// An example.
    example: &'static str,
    /// Result of the example, as JSON.
    example_result: &'static str,
    /// Difference between the dialects, if there is one.
    dialect_difference: Option<&'static str>,
}

/// A name of the rule language.
#[derive(Serialize, JsonSchema)]
struct RuleLanguageName {
    name: String,
    /// Other spellings.
    aliases: Vec<String>,
    help: &'static str,
}

impl RuleFunction {
    fn new(family: &'static str, function: &Function) -> Self {
        Self {
            name: function.name,
            aliases: function.aliases,
            family,
            parameters: function.parameters,
            returns: function.returns,
            help: function.help,
            example: function.example.0,
            example_result: function.example.1,
            dialect_difference: function.differing,
        }
    }
}

impl From<LanguageName> for RuleLanguageName {
    fn from(name: LanguageName) -> Self {
        Self {
            name: name.name,
            aliases: name.aliases,
            help: name.help,
        }
    }
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/rule-language", "ruleLanguage", read)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("rules")
            .summary("Describe the rule language")
            .description("Functions, fields and sources, for editors of rules.")
            .response::<RuleLanguage>(200, "All names with their descriptions."),
    ]
}

async fn read(_call: ApiCall) -> ApiResult {
    let names = |names: Vec<LanguageName>| names.into_iter().map(Into::into).collect();
    let functions = FAMILIES.iter().flat_map(|family| {
        let functions = family.functions.iter();
        functions.map(|function| RuleFunction::new(family.title, function))
    });
    call::json_response(RuleLanguage {
        functions: functions.collect(),
        aggregates: names(language_reference::aggregates()),
        windows: names(language_reference::windows()),
        fields: names(language_reference::fields()),
        sources: names(language_reference::sources()),
    })
}
