//! Topics of file transfers over MQTT, as in EMQX.

use crate::digest::FileDigest;
use crate::error::{TransferError, TransferErrorKind};
use crate::name::check_file_id;

const PREFIX: &str = "$file/";
const ASYNC_PREFIX: &str = "$file-async/";

/// Whether a topic is one of file transfers; messages on it are never delivered.
#[inline]
#[must_use]
pub fn is_file_topic(topic: &str) -> bool {
    topic.starts_with(PREFIX) || topic.starts_with(ASYNC_PREFIX)
}

/// A parsed topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileTopic<'t> {
    /// Chosen by the sender.
    pub file_id: &'t str,
    /// The end of a transfer is acknowledged before the file is verified; a response contains the result.
    pub is_async: bool,
    pub command: FileCommand,
}

/// A step of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileCommand {
    Init,
    Segment {
        offset: u64,
        digest: Option<FileDigest>,
    },
    Finish {
        size: u64,
        checksum: Option<FileDigest>,
    },
    Abort,
    Status,
}

fn number(field: &str, text: &str) -> Result<u64, TransferError> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| text.parse().ok()).flatten();
    number.ok_or_else(|| {
        let detail = format!("{field}: expected a number of bytes in decimal digits");
        TransferError::invalid(detail)
    })
}

fn digest(text: Option<&&str>) -> Result<Option<FileDigest>, TransferError> {
    let digest = text.map(|text| text.parse::<FileDigest>()).transpose();
    digest.map_err(|error| TransferError::invalid(format!("checksum: {error}")))
}

impl<'t> FileTopic<'t> {
    /// Parses a topic.
    ///
    /// # Errors
    /// States what is expected.
    pub fn parse(topic: &'t str) -> Result<Self, TransferError> {
        let unknown = || {
            let detail = "expected the topic $file/FILE_ID/init, /OFFSET, /OFFSET/SHA256, /fin/SIZE, /fin/SIZE/SHA256, \
                          /abort or /status";
            TransferError::new(TransferErrorKind::InvalidFileCommand, detail)
        };
        let (rest, is_async) = match topic.strip_prefix(PREFIX) {
            Some(rest) => (rest, false),
            None => (topic.strip_prefix(ASYNC_PREFIX).ok_or_else(unknown)?, true),
        };
        let mut levels = rest.splitn(5, '/');
        let file_id = levels.next().unwrap_or_default();
        check_file_id(file_id).map_err(TransferError::invalid)?;
        let levels: Vec<&str> = levels.collect();
        let command = match &levels[..] {
            ["init"] => FileCommand::Init,
            ["abort"] => FileCommand::Abort,
            ["status"] => FileCommand::Status,
            ["fin", size, checksum @ ..] if checksum.len() <= 1 => FileCommand::Finish {
                size: number("size", size)?,
                checksum: digest(checksum.first())?,
            },
            [offset, checksum @ ..] if checksum.len() <= 1 && *offset != "fin" => {
                FileCommand::Segment {
                    offset: number("offset", offset)?,
                    digest: digest(checksum.first())?,
                }
            }
            _ => return Err(unknown()),
        };
        Ok(Self {
            file_id,
            is_async,
            command,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_topic_is_parsed_or_rejected(rest in "(\\PC{0,8}|init|fin|[0-9]{1,22}|/){0,6}") {
            let topic = format!("$file/{rest}");
            if let Ok(parsed) = FileTopic::parse(&topic) {
                let start = format!("$file/{}/", parsed.file_id);
                prop_assert!(topic.starts_with(&start) && !parsed.is_async);
            }
        }
    }

    #[test]
    fn topics_are_parsed() {
        let abc = FileDigest::of(b"abc");
        let command = |topic: &str| FileTopic::parse(topic).map(|topic| topic.command);
        let segment = |offset, digest| FileCommand::Segment { offset, digest };
        let finish = |size, checksum| FileCommand::Finish { size, checksum };
        for (topic, expected) in [
            ("$file/f/init".to_owned(), FileCommand::Init),
            ("$file/f/0".to_owned(), segment(0, None)),
            (format!("$file/f/10/{abc}"), segment(10, Some(abc))),
            ("$file/f/fin/3".to_owned(), finish(3, None)),
            (format!("$file/f/fin/3/{abc}"), finish(3, Some(abc))),
            ("$file/f/abort".to_owned(), FileCommand::Abort),
            ("$file/f/status".to_owned(), FileCommand::Status),
            ("$file/init/init".to_owned(), FileCommand::Init),
        ] {
            assert_eq!(command(&topic), Ok(expected), "{topic}");
        }
        let topic = FileTopic::parse("$file-async/f/init").expect("valid");
        assert!(topic.is_async && topic.file_id == "f");
        assert!(is_file_topic("$file/") && is_file_topic("$file-async/x"));
        assert!(!is_file_topic("$file-response/x") && !is_file_topic("$files/x"));
    }

    #[test]
    fn other_topics_are_rejected() {
        for topic in [
            "$file/",
            "$file/f",
            "$file//init",
            "$file/f/",
            "$file/f/fin",
            "$file/f/fin/",
            "$file/f/fin/x",
            "$file/f/-1",
            "$file/f/+1",
            "$file/f/99999999999999999999999",
            "$file/f/0/ab",
            "$file/f/init/x",
            "$file/f/fin/3/ab",
            "$file/f/0/1/2",
            "$file/f/fin/1/2/3/4",
            "t",
        ] {
            assert!(FileTopic::parse(topic).is_err(), "{topic}");
        }
    }
}
