//! Conditions of the command line: `--assert steady:ack_p99<50ms`.

use std::str::FromStr;

use crate::metrics::Assertion;
use crate::plan::SimulationPlan;
use crate::suggestion::unknown_name;

/// In place of a phase: the whole run, as subscribers see it.
const VERIFICATION: &str = "verify";

/// A condition, and the part of the run that it concerns.
#[derive(Clone, Debug)]
pub(crate) struct ConditionArgument {
    /// A phase, or [`VERIFICATION`]; `None`: each phase.
    part: Option<String>,
    condition: Assertion,
}

impl FromStr for ConditionArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (part, condition) = match text.rsplit_once(':') {
            Some((part, condition)) => (Some(part.trim().to_owned()), condition),
            None => (None, text),
        };
        Ok(Self {
            part,
            condition: condition.parse()?,
        })
    }
}

impl ConditionArgument {
    /// The argument as it was given.
    pub(crate) fn text(&self) -> String {
        match &self.part {
            Some(part) => format!("{part}:{}", self.condition),
            None => self.condition.to_string(),
        }
    }

    /// Adds the condition to those of the file.
    pub(crate) fn add_to(&self, plan: &mut SimulationPlan) -> Result<(), String> {
        let mut is_known = false;
        for phase in &mut plan.phases {
            if self.part.as_ref().is_none_or(|part| *part == phase.name) {
                phase.assertions.push(self.condition.clone());
                is_known = true;
            }
        }
        if is_known {
            return Ok(());
        }
        let part = self.part.as_deref().unwrap_or_default();
        match &mut plan.verification {
            Some(verification) if part == VERIFICATION => {
                verification.assertions.push(self.condition.clone());
                Ok(())
            }
            None if part == VERIFICATION => Err("the file has no table `verify`".to_owned()),
            verification => {
                let phases = plan.phases.iter().map(|phase| phase.name.as_str());
                let verification = verification.is_some().then_some(VERIFICATION);
                Err(unknown_name("phase", part, phases.chain(verification)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::definition::SourceDocument;

    #[test]
    fn conditions_are_added_to_phases_and_the_verification() {
        let text = r#"
[fleet.meters]
count = 1
send = [{ every = "1s", topic = "t", payload = "{stamp}" }]
[[phase]]
name = "connect"
assert = ["connected==1"]
[[phase]]
name = "steady"
duration = "1s"
"#;
        let compile = |text: &str| {
            let document = SourceDocument::parse(Path::new("a.toml"), text).expect("TOML");
            let options = Default::default();
            let compiled = crate::plan_compiler::compile(&document, Path::new(""), options);
            compiled.expect("valid").1
        };
        let mut plan = compile(&format!("{text}[verify]\ntopics = [\"t\"]\n"));
        let mut add = |text: &str| -> Result<(), String> {
            let argument: ConditionArgument = text.parse()?;
            assert_eq!(argument.text(), text);
            argument.add_to(&mut plan)
        };
        add("disconnects==0").expect("each phase");
        add("steady:ack_p99<50ms").expect("one phase");
        add("verify:lost==0").expect("the verification");
        let error = add("steddy:lost==0").expect_err("no such phase");
        assert_eq!(error, "unknown phase `steddy`; did you mean `steady`?");
        assert!(add("steady:lots==0").is_err());
        let shown = |conditions: &[Assertion]| -> Vec<String> {
            conditions.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            shown(&plan.phases[0].assertions),
            ["connected==1", "disconnects==0"]
        );
        assert_eq!(
            shown(&plan.phases[1].assertions),
            ["disconnects==0", "ack_p99<50ms"]
        );
        let verification = plan.verification.expect("a table");
        assert_eq!(shown(&verification.assertions), ["lost==0"]);
        let argument: ConditionArgument = "verify:lost==0".parse().expect("well-formed");
        let error = argument.add_to(&mut compile(text)).expect_err("no table");
        assert_eq!(error, "the file has no table `verify`");
    }
}
