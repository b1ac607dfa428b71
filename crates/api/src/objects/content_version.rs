//! Versions of values that the store does not number: digests of their content, as ETags.

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ring::digest;
use serde::Serialize;

use super::object_routes::etag;
use super::preconditions::Preconditions;
use crate::problem_details::{ApiResult, ProblemDetails};

/// The version of a value: equal for equal content.
pub(crate) fn content_version(value: &impl Serialize) -> u64 {
    let json = serde_json::to_vec(value).expect("values of the API are JSON");
    let digest = digest::digest(&digest::SHA256, &json);
    let start = digest.as_ref().first_chunk().expect("it has 32 bytes");
    u64::from_be_bytes(*start)
}

/// The response to a GET of a value, or 304 if the client has it.
pub(crate) fn content_response(headers: &HeaderMap, value: &impl Serialize) -> ApiResult {
    let version = content_version(value);
    if Preconditions::read(headers)?.is_not_modified(version) {
        return Ok(with_version(version, StatusCode::NOT_MODIFIED));
    }
    Ok(with_version(version, axum::Json(value)))
}

/// The response to a change of a value.
pub(crate) fn changed_content_response(value: &impl Serialize) -> Response {
    with_version(content_version(value), axum::Json(value))
}

/// Checks whether a value that is about to change has the version that the client expects.
pub(crate) fn check_content(
    headers: &HeaderMap,
    value: &impl Serialize,
) -> Result<(), ProblemDetails> {
    Preconditions::read(headers)?.check(Some(content_version(value)))
}

fn with_version(version: u64, response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    response.headers_mut().insert(header::ETAG, etag(version));
    response
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn headers(name: header::HeaderName, version: u64) -> HeaderMap {
        HeaderMap::from_iter([(name, etag(version))])
    }

    #[test]
    fn equal_content_has_the_same_version_and_a_change_another_one() {
        let (one, other) = (json!({"a": 1, "b": [2]}), json!({"a": 1, "b": [3]}));
        let version = content_version(&one);
        assert_eq!(content_version(&json!({"b": [2], "a": 1})), version);
        assert_ne!(content_version(&other), version);
        let known = headers(header::IF_NONE_MATCH, version);
        let status = |value| content_response(&known, value).unwrap().status();
        assert_eq!(
            (status(&one), status(&other)),
            (StatusCode::NOT_MODIFIED, StatusCode::OK)
        );
        let expected = headers(header::IF_MATCH, version);
        assert!(check_content(&expected, &one).is_ok());
        let problem = check_content(&expected, &other).unwrap_err();
        assert_eq!(problem.status, StatusCode::PRECONDITION_FAILED);
        assert!(check_content(&HeaderMap::new(), &other).is_ok());
    }
}
