//! AWS Signature Version 4, as far as putting and reading objects requires it.

use data_encoding::HEXLOWER;
use ring::{digest, hmac};
use secret::Secret;

use crate::http_servers::url_encode;

/// Credentials, region and service of signatures.
pub(super) struct RequestSigner {
    pub(super) access_key_id: String,
    pub(super) secret_access_key: Secret,
    pub(super) region: String,
}

/// Input of a signature. Header names are in lower case.
pub(super) struct SigningInput<'a> {
    pub(super) method: &'a str,
    /// Encoded path with its leading slash.
    pub(super) path: &'a str,
    /// Encoded names and values.
    pub(super) query: &'a [(&'a str, &'a str)],
    pub(super) headers: &'a [(&'a str, &'a str)],
    /// SHA-256 of the body in hexadecimal digits.
    pub(super) body_hash: &'a str,
    /// Time as `20130524T000000Z`.
    pub(super) at: &'a str,
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// The path of an object: each segment encoded, slashes kept.
pub(super) fn encoded_path(key: &str) -> String {
    let steps: Vec<_> = key.split('/').map(url_encode).collect();
    steps.join("/")
}

fn hmac_tag(key: &[u8], text: &str) -> hmac::Tag {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text.as_bytes())
}

impl RequestSigner {
    /// The value of the header `Authorization`.
    pub(super) fn authorization(&self, request: &SigningInput<'_>) -> String {
        let mut headers = request.headers.to_vec();
        headers.sort_unstable();
        let names: Vec<_> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines = headers
            .iter()
            .map(|(name, value)| format!("{name}:{}\n", value.trim()));
        let mut query = request.query.to_vec();
        query.sort_unstable();
        let query: Vec<_> = query.iter().map(|(n, v)| format!("{n}={v}")).collect();
        let canonical = format!(
            "{}\n{}\n{}\n{}\n{names}\n{}",
            request.method,
            request.path,
            query.join("&"),
            lines.collect::<String>(),
            request.body_hash
        );
        let day = &request.at[..8];
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let text = format!(
            "AWS4-HMAC-SHA256\n{}\n{scope}\n{}",
            request.at,
            sha256(canonical.as_bytes())
        );
        let secret = format!("AWS4{}", self.secret_access_key.reveal());
        let key = hmac_tag(secret.as_bytes(), day);
        let key = hmac_tag(key.as_ref(), &self.region);
        let key = hmac_tag(key.as_ref(), "s3");
        let key = hmac_tag(key.as_ref(), "aws4_request");
        let signature = HEXLOWER.encode(hmac_tag(key.as_ref(), &text).as_ref());
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={signature}",
            self.access_key_id
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const AT: &str = "20130524T000000Z";
    const HOST: (&str, &str) = ("host", "examplebucket.s3.amazonaws.com");
    const DATE: (&str, &str) = ("x-amz-date", AT);

    /// Uses the keys of Amazon's examples ("Authenticating Requests: Using the Authorization Header").
    fn signature(request: &SigningInput<'_>) -> String {
        let signer = RequestSigner {
            access_key_id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_access_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            region: "us-east-1".into(),
        };
        let header = signer.authorization(request);
        header.split("Signature=").nth(1).unwrap().to_owned()
    }

    #[test]
    fn getting_an_object() {
        let headers = [
            HOST,
            ("range", "bytes=0-9"),
            ("x-amz-content-sha256", EMPTY),
            DATE,
        ];
        let request = SigningInput {
            method: "GET",
            path: "/test.txt",
            query: &[],
            headers: &headers,
            body_hash: EMPTY,
            at: AT,
        };
        let expected = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
        assert_eq!(signature(&request), expected);
    }

    #[test]
    fn putting_an_object() {
        let body_hash = sha256(b"Welcome to Amazon S3.");
        let headers = [
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            HOST,
            ("x-amz-content-sha256", &body_hash),
            DATE,
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ];
        let request = SigningInput {
            method: "PUT",
            path: &encoded_path("/test$file.text"),
            query: &[],
            headers: &headers,
            body_hash: &body_hash,
            at: AT,
        };
        let expected = "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd";
        assert_eq!(signature(&request), expected);
    }

    #[test]
    fn asking_with_a_query() {
        let headers = [HOST, ("x-amz-content-sha256", EMPTY), DATE];
        let request = |query| SigningInput {
            method: "GET",
            path: "/",
            query,
            headers: &headers,
            body_hash: EMPTY,
            at: AT,
        };
        let lifecycle = signature(&request(&[("lifecycle", "")]));
        let expected = "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543";
        assert_eq!(lifecycle, expected);
        let list = signature(&request(&[("prefix", "J"), ("max-keys", "2")]));
        let expected = "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7";
        assert_eq!(list, expected);
    }

    #[test]
    fn paths_are_encoded() {
        assert_eq!(encoded_path("a b/ü+/x=1"), "a%20b/%C3%BC%2B/x%3D1");
        assert_eq!(sha256(b""), EMPTY);
    }
}
