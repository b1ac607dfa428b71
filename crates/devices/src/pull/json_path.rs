//! Paths in JSON documents: `data.sensors[0].temperature`, `["a.b"].c`. A leading `$` or `$.` is allowed.

use serde_json::Value;

/// Maximum number of steps of a path.
const MAX_STEPS: usize = 32;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct JsonPath(Vec<PathStep>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum PathStep {
    Key(String),
    Item(usize),
}

impl JsonPath {
    /// Parses a path; an error describes the fault. An empty path is the whole document.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?} is not a path; expected a path such as data.sensors[0].temperature")
        };
        let mut steps = Vec::new();
        let mut rest = text.strip_prefix('$').unwrap_or(text);
        let mut is_first = rest.len() == text.len();
        while !rest.is_empty() {
            if let Some(behind) = rest.strip_prefix('[') {
                let (step, behind) = match behind.chars().next() {
                    Some(quote @ ('"' | '\'')) => {
                        let (key, behind) = behind[1..].split_once(quote).ok_or_else(wrong)?;
                        let behind = behind.strip_prefix(']').ok_or_else(wrong)?;
                        (PathStep::Key(key.to_owned()), behind)
                    }
                    _ => {
                        let (number, behind) = behind.split_once(']').ok_or_else(wrong)?;
                        (PathStep::Item(number.parse().map_err(|_| wrong())?), behind)
                    }
                };
                steps.push(step);
                rest = behind;
            } else {
                let name = match (rest.strip_prefix('.'), is_first) {
                    (Some(name), _) => name,
                    (None, true) => rest,
                    (None, false) => return Err(wrong()),
                };
                let end = name.find(['.', '[']).unwrap_or(name.len());
                let (key, behind) = name.split_at(end);
                if key.is_empty() {
                    return Err(wrong());
                }
                steps.push(PathStep::Key(key.to_owned()));
                rest = behind;
            }
            is_first = false;
            if steps.len() > MAX_STEPS {
                return Err(format!("expected at most {MAX_STEPS} steps"));
            }
        }
        Ok(Self(steps))
    }

    pub(super) fn find<'v>(&self, document: &'v Value) -> Option<&'v Value> {
        self.0.iter().try_fold(document, |value, step| match step {
            PathStep::Key(key) => value.get(key),
            PathStep::Item(at) => value.get(at),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_find_what_they_name() {
        let document = json!({"a": {"b": [1, {"c.d": 2}]}, "": 3});
        let find = |path: &str| JsonPath::parse(path).unwrap().find(&document).cloned();
        for path in ["", "$"] {
            assert_eq!(find(path), Some(document.clone()));
        }
        for path in ["a.b[0]", "$.a.b[0]", "$['a'].b[0]", "[\"a\"].b[0]"] {
            assert_eq!(find(path), Some(json!(1)), "{path}");
        }
        assert_eq!(find("a.b[1]['c.d']"), Some(json!(2)));
        assert_eq!(find("a.x"), None);
        assert_eq!(find("a.b[7]"), None);
        for path in [
            "a..b", ".", "a[", "a[x]", "a[0", "a['b]", "$a", "a[0]b", "$.",
        ] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }
}
