//! Downloads of files: ranges, entity tags, digests, and links that need no login.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use transfer::FileInfo;

use super::upload_body::run_on_files;
use crate::call::ApiCall;
use crate::cluster_files;
use crate::file_body::stream_file;
use crate::node_files::FilePart;
use crate::problem_details::{ApiResult, ProblemDetails};

/// The part of a file that a request selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestedRange {
    Whole,
    /// First byte, and the byte after the last.
    Part(u64, u64),
    Unsatisfiable,
}

/// Reads a Range header (RFC 9110, section 14). Several ranges, and units other than bytes, are ignored, as permitted.
fn requested_range(field: Option<&str>, size: u64) -> RequestedRange {
    let range = field.and_then(|field| field.trim().strip_prefix("bytes="));
    let Some((first, last)) = range.and_then(|range| range.trim().split_once('-')) else {
        return RequestedRange::Whole;
    };
    let number = |text: &str| -> Option<u64> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let (start, end) = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => (first, last.saturating_add(1).min(size)),
        (Some(first), None) if last.is_empty() => (first, size),
        (None, Some(suffix)) if first.is_empty() => match suffix {
            0 => return RequestedRange::Unsatisfiable,
            _ => (size.saturating_sub(suffix), size),
        },
        _ => return RequestedRange::Whole,
    };
    match start < end {
        true => RequestedRange::Part(start, end),
        false => RequestedRange::Unsatisfiable,
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &header::HeaderName) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Whether a list of entity tags contains this one, by the weak comparison.
fn contains_tag(list: &str, tag: &str) -> bool {
    let mut tags = list.split(',').map(str::trim);
    tags.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

/// The same by the strong comparison.
fn contains_strong_tag(list: &str, tag: &str) -> bool {
    let mut tags = list.split(',').map(str::trim);
    tags.any(|known| known == "*" || known == tag)
}

/// The value of Content-Disposition for a name: an ASCII form for old programs, and the exact one (RFC 6266).
fn disposition(name: &str) -> String {
    let ascii = name.chars().map(|character| match character {
        '"' | '\\' => '_',
        ' '..='~' => character,
        _ => '_',
    });
    let ascii: String = ascii.collect();
    let mut exact = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                exact.push(byte as char);
            }
            _ => exact.push_str(&format!("%{byte:02X}")),
        }
    }
    format!("attachment; filename=\"{ascii}\"; filename*=UTF-8''{exact}")
}

fn header_value(text: &str) -> Result<HeaderValue, ProblemDetails> {
    let value = HeaderValue::from_str(text);
    value.map_err(|_| ProblemDetails::unavailable("The file has a name that no header can carry."))
}

/// Sends a complete file, or the part of it that the request selects.
pub(super) async fn download(call: ApiCall, id: &str) -> ApiResult {
    let wanted = id.to_owned();
    let (info, file) = run_on_files(&call.app.files, move |files| files.read(&wanted)).await?;
    let size = info.size.unwrap_or(0);
    let checksum = info.checksum;
    let checksum =
        checksum.ok_or_else(|| ProblemDetails::unavailable("The file has no digest."))?;
    let tag = format!("\"{checksum}\"");
    let fields = call.headers();
    let if_match = text(fields, &header::IF_MATCH);
    if if_match.is_some_and(|list| !contains_strong_tag(list, &tag)) {
        let detail = "The file has another entity tag than those of If-Match; it is not the one that was read before.";
        return Err(ProblemDetails::new(StatusCode::PRECONDITION_FAILED, detail));
    }
    let if_none_match = text(fields, &header::IF_NONE_MATCH);
    if if_none_match.is_some_and(|list| contains_tag(list, &tag)) {
        let mut response = StatusCode::NOT_MODIFIED.into_response();
        response
            .headers_mut()
            .insert(header::ETAG, header_value(&tag)?);
        return Ok(response);
    }
    // With a condition that fails, the whole file is sent: it is another one.
    let is_current = text(fields, &header::IF_RANGE).is_none_or(|known| known.trim() == tag);
    let range = match is_current {
        true => requested_range(text(fields, &header::RANGE), size),
        false => RequestedRange::Whole,
    };
    let (start, end) = match range {
        RequestedRange::Whole => (0, size),
        RequestedRange::Part(start, end) => (start, end),
        RequestedRange::Unsatisfiable => {
            let detail = format!("The range is not within the {size} bytes of the file.");
            let problem = ProblemDetails::new(StatusCode::RANGE_NOT_SATISFIABLE, detail);
            let mut response = problem.into_response();
            let value = header_value(&format!("bytes */{size}"))?;
            response.headers_mut().insert(header::CONTENT_RANGE, value);
            return Ok(response);
        }
    };
    let mut response = if call.is_from_node() {
        cluster_files::head_for_node(&FilePart {
            id: info.id.clone(),
            checksum: checksum.to_string(),
            start,
            end,
        })
    } else {
        call.mark_long_lived();
        let files = call.app.files.clone();
        Response::new(stream_file(file, start..end, move |bytes| {
            files.count_sent(bytes);
        }))
    };
    if range != RequestedRange::Whole {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    add_fields(response.headers_mut(), &info, &tag, (start, end))?;
    if range != RequestedRange::Whole {
        let value = format!("bytes {start}-{}/{size}", end - 1);
        (response.headers_mut()).insert(header::CONTENT_RANGE, header_value(&value)?);
    }
    Ok(response)
}

fn add_fields(
    fields: &mut HeaderMap,
    info: &FileInfo,
    tag: &str,
    (start, end): (u64, u64),
) -> Result<(), ProblemDetails> {
    let media_type = info.content_type.as_deref();
    let media_type = media_type.unwrap_or("application/octet-stream");
    fields.insert(header::CONTENT_TYPE, header_value(media_type)?);
    fields.insert(header::CONTENT_LENGTH, (end - start).into());
    fields.insert(
        header::CONTENT_DISPOSITION,
        header_value(&disposition(&info.name))?,
    );
    fields.insert(header::ETAG, header_value(tag)?);
    fields.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some(checksum) = info.checksum {
        let base64 = checksum.to_base64();
        // Of the whole file, whatever the range (RFC 9530); and the form that it obsoletes.
        fields.insert("repr-digest", header_value(&format!("sha-256=:{base64}:"))?);
        fields.insert("digest", header_value(&format!("sha-256={base64}"))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        use RequestedRange::{Part, Unsatisfiable, Whole};
        for (field, expected) in [
            ("bytes=0-0", Part(0, 1)),
            ("bytes=5-", Part(5, 10)),
            ("bytes=-3", Part(7, 10)),
            ("bytes=-30", Part(0, 10)),
            ("bytes=2-99", Part(2, 10)),
            ("bytes=9-9", Part(9, 10)),
            ("bytes=10-", Unsatisfiable),
            ("bytes=-0", Unsatisfiable),
            ("bytes=99999999999999999999999-", Unsatisfiable),
            ("bytes=5-2", Whole),
            ("bytes=0-1,3-4", Whole),
            ("bytes=a-b", Whole),
            ("bytes=-", Whole),
            ("items=0-1", Whole),
        ] {
            assert_eq!(requested_range(Some(field), 10), expected, "{field}");
        }
        assert_eq!(requested_range(None, 10), Whole);
        assert_eq!(requested_range(Some("bytes=0-"), 0), Unsatisfiable);
    }

    #[test]
    fn names_are_encoded_for_headers() {
        assert_eq!(
            disposition("a \"b\" ☕.txt"),
            "attachment; filename=\"a _b_ _.txt\"; filename*=UTF-8''a%20%22b%22%20%E2%98%95.txt"
        );
    }

    #[test]
    fn entity_tags_are_compared() {
        assert!(contains_tag("\"a\", W/\"b\"", "\"b\"") && contains_tag("*", "\"b\""));
        assert!(!contains_tag("\"a\"", "\"b\""));
        assert!(contains_strong_tag("\"a\", \"b\"", "\"b\"") && contains_strong_tag("*", "\"b\""));
        assert!(!contains_strong_tag("W/\"b\"", "\"b\""));
    }
}
