//! Text templates: `${name}` is replaced by the value of that name.

/// A parsed template; `$$` is a dollar sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LabelTemplate {
    parts: Vec<TemplatePart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Fixed(String),
    Name(String),
}

impl LabelTemplate {
    /// Parses a template; an error describes the fault.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (mut parts, mut fixed, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find('$') {
            fixed.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(behind) = rest.strip_prefix('$') {
                fixed.push('$');
                rest = behind;
                continue;
            }
            let name = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
            let Some((name, behind)) = name.filter(|(name, _)| !name.is_empty()) else {
                return Err(format!(
                    "expected ${{NAME}} after each $, or $$ for a dollar sign, found {text:?}"
                ));
            };
            if !fixed.is_empty() {
                parts.push(TemplatePart::Fixed(std::mem::take(&mut fixed)));
            }
            parts.push(TemplatePart::Name(name.to_owned()));
            rest = behind;
        }
        fixed.push_str(rest);
        if !fixed.is_empty() {
            parts.push(TemplatePart::Fixed(fixed));
        }
        match parts.is_empty() {
            true => Err("expected a text".to_owned()),
            false => Ok(Self { parts }),
        }
    }

    /// Returns `None` if one of the names is unknown.
    pub(super) fn fill(&self, mut known: impl FnMut(&str) -> Option<String>) -> Option<String> {
        self.parts.iter().try_fold(String::new(), |mut out, part| {
            match part {
                TemplatePart::Fixed(text) => out.push_str(text),
                TemplatePart::Name(name) => out.push_str(&known(name)?),
            }
            Some(out)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced() {
        let fill = |text: &str| {
            LabelTemplate::parse(text)
                .unwrap()
                .fill(|name| (name == "a").then(|| "1".to_owned()))
        };
        assert_eq!(fill("x").as_deref(), Some("x"));
        assert_eq!(fill("x-${a}-${a}$$").as_deref(), Some("x-1-1$"));
        assert_eq!(fill("${b}"), None);
        for text in ["", "$", "${", "${}", "$a"] {
            assert!(LabelTemplate::parse(text).is_err(), "{text}");
        }
    }
}
