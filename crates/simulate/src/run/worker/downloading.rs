//! Files that devices download because a command names them, and verify before they answer.

use std::cmp::Reverse;

use serde_json::Value;

use super::super::fetched_image::{FetchPurpose, FetchedImage};
use super::Worker;
use super::pending_answer::PendingAnswer;
use crate::image_digest::ImageDigest;
use crate::translation::{ImageFailure, ImageRequest};

impl Worker<'_> {
    /// Downloads the file of a request; the answer follows its end after `delay_ns`.
    pub(super) fn begin_download(&mut self, device: usize, answer: PendingAnswer, delay_ns: u64) {
        let Some(file) = read_request(answer.request.view().params) else {
            let text = "a command to download has no `url`, `size` and `sha256`";
            return self.fail_download(device, answer, delay_ns, text);
        };
        self.download_number += 1;
        let number = self.download_number;
        self.downloads.insert(number, (answer, delay_ns));
        let ready = self.ready_pipes.clone();
        self.access.translators.fetch_image(file, move |result| {
            ready.push_fetched(FetchedImage {
                device,
                purpose: FetchPurpose::Answer { number },
                result,
            });
        });
    }

    /// A file has been downloaded, or not.
    pub(super) fn end_download(
        &mut self,
        device: usize,
        number: u64,
        result: Result<u64, ImageFailure>,
    ) {
        let Some((mut answer, delay_ns)) = self.downloads.remove(&number) else {
            return;
        };
        match result {
            Ok(bytes) => {
                answer.at_ns = self.now_ns + delay_ns;
                self.answers.push(Reverse(answer));
                let counts = self.counts();
                counts.downloaded_files += 1;
                counts.downloaded_bytes += bytes;
            }
            Err(ImageFailure::Damaged) => {
                self.counts().damaged_images += 1;
                let text = "the size or the digest of a file is wrong";
                self.fail_download(device, answer, delay_ns, text);
            }
            Err(ImageFailure::Unavailable(reason)) => {
                self.fail_download(device, answer, delay_ns, &reason);
            }
        }
    }

    fn fail_download(
        &mut self,
        device: usize,
        mut answer: PendingAnswer,
        delay_ns: u64,
        reason: &str,
    ) {
        answer.is_failure = true;
        answer.at_ns = self.now_ns + delay_ns;
        self.answers.push(Reverse(answer));
        let id = self.render_text(&self.fleet(device).id, device);
        let counts = self.counts();
        counts.failed_downloads += 1;
        let text = || format!("{id}: {reason}");
        counts.failures.record_other("file not downloaded", text);
    }
}

/// The file that the parameters of a command name: an object, or a list of inputs with names and values.
fn read_request(params: &str) -> Option<ImageRequest> {
    let params: Value = serde_json::from_str(params).ok()?;
    let field = |name: &str| match &params {
        Value::Array(inputs) => {
            let input = inputs.iter().find(|input| input["name"] == name)?;
            input.get("value")
        }
        params => params.get(name),
    };
    Some(ImageRequest {
        url: field("url")?.as_str()?.to_owned(),
        size: field("size")?.as_u64()?,
        digest: ImageDigest::new("SHA256")?,
        expected_digest: field("sha256")?.as_str()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_parameters_of_each_protocol() {
        for params in [
            r#"{"url": "/a", "size": 3, "sha256": "ab"}"#,
            r#"[{"name": "sha256", "value": "ab"}, {"name": "url", "value": "/a"}, {"name": "size", "value": 3}]"#,
        ] {
            let file = read_request(params).expect(params);
            assert_eq!((file.url.as_str(), file.size), ("/a", 3));
            assert_eq!(file.expected_digest, "ab");
        }
        for wrong in ["", "[]", "{}", r#"{"url": "/a", "size": 3}"#, "null"] {
            assert!(read_request(wrong).is_none(), "{wrong}");
        }
    }
}
