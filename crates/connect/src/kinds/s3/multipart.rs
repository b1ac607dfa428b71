//! The documents of multipart uploads: what is read from them, and what completes an upload.

use std::fmt::Write as _;

/// A part that the store has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartTag {
    /// From 1.
    pub(super) number: u64,
    pub(super) tag: String,
    pub(super) size: u64,
}

/// A page of the list of parts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PartPage {
    pub(super) parts: Vec<PartTag>,
    /// Where the next page begins.
    pub(super) next_marker: Option<u64>,
}

/// The text of the first element of this name. The documents of S3 have no attributes on the elements that are read.
fn xml_element<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let begin = text.find(&format!("<{name}>"))? + name.len() + 2;
    let len = text[begin..].find(&format!("</{name}>"))?;
    Some(&text[begin..begin + len])
}

fn unescape(text: &str) -> String {
    let pairs = [
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&apos;", "'"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        // Last, because its result may look like another entity.
        ("&amp;", "&"),
    ];
    let plain = text.trim().to_owned();
    pairs
        .iter()
        .fold(plain, |text, (entity, plain)| text.replace(entity, plain))
}

fn escape(text: &str) -> String {
    let pairs = [
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ("\"", "&quot;"),
    ];
    let plain = text.to_owned();
    pairs
        .iter()
        .fold(plain, |text, (plain, entity)| text.replace(plain, entity))
}

/// The id in the answer to the begin of an upload.
pub(super) fn upload_id(body: &[u8]) -> Option<String> {
    let text = str::from_utf8(body).ok()?;
    let id = unescape(xml_element(text, "UploadId")?);
    (!id.is_empty()).then_some(id)
}

/// Reads the answer to a request for the parts of an upload.
pub(super) fn read_parts(body: &[u8]) -> Result<PartPage, String> {
    let text = str::from_utf8(body).map_err(|error| error.to_string())?;
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(part) = xml_element(rest, "Part") {
        let number = |name: &str| -> Result<u64, String> {
            let value = xml_element(part, name).and_then(|value| value.trim().parse().ok());
            value.ok_or_else(|| format!("the list of parts has a part without {name}"))
        };
        let tag = xml_element(part, "ETag").ok_or("the list of parts has a part without ETag")?;
        parts.push(PartTag {
            number: number("PartNumber")?,
            tag: unescape(tag),
            size: number("Size")?,
        });
        let end = rest
            .find("</Part>")
            .map_or(rest.len(), |at| at + "</Part>".len());
        rest = &rest[end..];
    }
    let is_truncated = xml_element(text, "IsTruncated").is_some_and(|value| value.trim() == "true");
    let next = xml_element(text, "NextPartNumberMarker");
    let next = next.and_then(|value| value.trim().parse().ok());
    Ok(PartPage {
        parts,
        next_marker: next.filter(|_| is_truncated),
    })
}

/// The document that completes an upload.
pub(super) fn completion(parts: &[PartTag]) -> String {
    let mut text = String::from("<CompleteMultipartUpload>");
    for part in parts {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>",
            part.number,
            escape(&part.tag)
        );
    }
    text.push_str("</CompleteMultipartUpload>");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: u64, tag: &str, size: u64) -> PartTag {
        PartTag {
            number,
            tag: tag.to_owned(),
            size,
        }
    }

    #[test]
    fn documents_are_read() {
        let begun = b"<?xml version=\"1.0\"?>\n<InitiateMultipartUploadResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
            <Bucket>b</Bucket><Key>k</Key><UploadId>a&amp;b==</UploadId></InitiateMultipartUploadResult>";
        assert_eq!(upload_id(begun).as_deref(), Some("a&b=="));
        assert_eq!(upload_id(b"<UploadId></UploadId>"), None);
        let list = b"<ListPartsResult><PartNumberMarker>0</PartNumberMarker><NextPartNumberMarker>2</NextPartNumberMarker>\
            <IsTruncated>true</IsTruncated><Part><PartNumber>1</PartNumber><ETag>&quot;x&quot;</ETag><Size>5</Size></Part>\
            <Part><ETag>\"y\"</ETag><PartNumber>2</PartNumber><Size>7</Size></Part></ListPartsResult>";
        let page = read_parts(list).unwrap();
        assert_eq!(page.parts, [part(1, "\"x\"", 5), part(2, "\"y\"", 7)]);
        assert_eq!(page.next_marker, Some(2));
        let last = b"<ListPartsResult><NextPartNumberMarker>2</NextPartNumberMarker><IsTruncated>false</IsTruncated></ListPartsResult>";
        assert_eq!(read_parts(last).unwrap().next_marker, None);
        assert!(read_parts(b"<Part><PartNumber>1</PartNumber></Part>").is_err());
    }

    #[test]
    fn an_upload_is_completed_with_its_tags() {
        let text = completion(&[part(1, "\"x\"", 5)]);
        assert_eq!(
            text,
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>&quot;x&quot;</ETag></Part></CompleteMultipartUpload>"
        );
    }
}
