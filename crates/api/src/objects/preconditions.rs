//! If-Match and If-None-Match (RFC 9110): conditions on the version of an object.

use axum::http::{HeaderMap, HeaderName, StatusCode, header};

use crate::problem_details::ProblemDetails;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Preconditions {
    if_match: Option<EntityTags>,
    if_none_match: Option<EntityTags>,
}

#[derive(Debug, PartialEq, Eq)]
enum EntityTags {
    /// `*`: any version.
    Any,
    Versions(Vec<u64>),
}

impl EntityTags {
    fn matches(&self, version: Option<u64>) -> bool {
        match (self, version) {
            (_, None) => false,
            (Self::Any, Some(_)) => true,
            (Self::Versions(versions), Some(version)) => versions.contains(&version),
        }
    }
}

impl Preconditions {
    pub(crate) fn read(headers: &HeaderMap) -> Result<Self, ProblemDetails> {
        Ok(Self {
            if_match: read_tags(headers, &header::IF_MATCH)?,
            if_none_match: read_tags(headers, &header::IF_NONE_MATCH)?,
        })
    }

    /// For a GET: whether the client already has this version.
    pub(crate) fn is_not_modified(&self, version: u64) -> bool {
        self.if_none_match
            .as_ref()
            .is_some_and(|tags| tags.matches(Some(version)))
    }

    /// For a change: whether the object has the version that the client expects.
    pub(crate) fn check(&self, version: Option<u64>) -> Result<(), ProblemDetails> {
        let now = match version {
            Some(version) => format!("its current version is \"{version}\" now"),
            None => "it does not exist".to_owned(),
        };
        let fails = |what: String| {
            let detail = format!("{what}: {now}. Read it again before changing it.");
            Err(ProblemDetails::new(StatusCode::PRECONDITION_FAILED, detail))
        };
        if self
            .if_match
            .as_ref()
            .is_some_and(|tags| !tags.matches(version))
        {
            return fails("The object does not have the version of If-Match".to_owned());
        }
        if self
            .if_none_match
            .as_ref()
            .is_some_and(|tags| tags.matches(version))
        {
            return fails("If-None-Match requires that the object does not exist".to_owned());
        }
        Ok(())
    }
}

fn read_tags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<EntityTags>, ProblemDetails> {
    let mut versions = Vec::new();
    let mut is_there = false;
    for value in headers.get_all(name) {
        is_there = true;
        let text = value.to_str().unwrap_or_default().trim();
        if text == "*" {
            return Ok(Some(EntityTags::Any));
        }
        for tag in text.split(',') {
            // A compressing proxy may have made the tag weak; it is still the same version.
            let tag = tag.trim();
            let tag = tag.strip_prefix("W/").unwrap_or(tag);
            let version = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
            let Some(version) = version else {
                let detail = format!("{name} is {text:?}; expected * or an ETag in quotes.");
                return Err(ProblemDetails::invalid_parameter(name.as_str(), detail));
            };
            // A tag that this API never issued matches nothing.
            versions.extend(version.parse::<u64>());
        }
    }
    Ok(is_there.then_some(EntityTags::Versions(versions)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preconditions(name: HeaderName, value: &'static str) -> Preconditions {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        Preconditions::read(&headers).unwrap()
    }

    #[test]
    fn changes_happen_to_the_version_that_was_seen() {
        let seen = preconditions(header::IF_MATCH, "\"7\", W/\"9\"");
        assert!(seen.check(Some(7)).is_ok() && seen.check(Some(9)).is_ok());
        assert_eq!(seen.check(Some(8)).unwrap_err().status, 412);
        assert_eq!(seen.check(None).unwrap_err().status, 412);
        let any = preconditions(header::IF_MATCH, "*");
        assert!(any.check(Some(1)).is_ok() && any.check(None).is_err());
        let absent = preconditions(header::IF_NONE_MATCH, "*");
        assert!(absent.check(None).is_ok() && absent.check(Some(1)).is_err());
        assert!(Preconditions::default().check(None).is_ok());
    }

    #[test]
    fn a_tag_we_never_gave_fits_nothing_and_one_without_quotes_is_an_error() {
        assert!(
            preconditions(header::IF_MATCH, "\"abc\"")
                .check(Some(1))
                .is_err()
        );
        assert!(preconditions(header::IF_NONE_MATCH, "\"3\"").is_not_modified(3));
        assert!(!preconditions(header::IF_NONE_MATCH, "\"4\"").is_not_modified(3));
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_MATCH, "7".parse().unwrap());
        assert_eq!(Preconditions::read(&headers).unwrap_err().status, 400);
    }
}
