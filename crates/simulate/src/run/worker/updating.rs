//! Firmware and software of devices: announced by the node, downloaded, verified, installed for a while, and reported.
//!
//! A device of ThingsBoard's protocol learns of an image by shared attributes and downloads it in chunks; one of JetLinks'
//! protocol gets a message with a URL. A download continues after an interruption of the connection.

use std::cmp::Reverse;

use load_client::client_error::ClientError;
use serde_json::{Value, json};

use super::super::fetched_image::{FetchPurpose, FetchedImage};
use super::Worker;
use super::chunked_download::{AnnouncedImage, ChunkOutcome, ChunkedDownload};
use super::device::ConnectionStage;
use super::device_update::{DeviceUpdate, UpdateResult, UpdateStage};
use crate::definition::{DeviceProtocol, FaultKind};
use crate::image_digest::ImageDigest;
use crate::plan::UpdatePlan;
use crate::translation::{ImageFailure, ImageRequest};

/// Time for a chunk before it is asked for again, and how often it is.
const CHUNK_TIMEOUT_NS: u64 = 10_000_000_000;
const MAX_CHUNK_ATTEMPTS: u8 = 5;
/// How often a device without a connection looks whether it can continue.
const RETRY_NS: u64 = 1_000_000_000;
/// Purpose of a device's random key from which results are drawn; each kind of image has its own.
const UPDATE_PURPOSE: u64 = 5 << 32;

const ATTRIBUTES: &str = "v1/devices/me/attributes";
const ATTRIBUTE_RESPONSES: &str = "v1/devices/me/attributes/response/";
const TELEMETRY: &str = "v1/devices/me/telemetry";
const SIMULATED_FAILURE: &str = "simulated failure";

impl Worker<'_> {
    /// A device has connected: it asks for what it is to install, and continues what it has begun.
    pub(super) fn resume_updates(&mut self, device: usize) -> Result<(), ClientError> {
        for (number, plan) in self.fleet(device).updates.iter().enumerate() {
            if plan.protocol == DeviceProtocol::Jetlinks {
                // The node sends what is to be installed.
                continue;
            }
            self.request_attributes(device, number, plan)?;
            if matches!(
                self.update(device, number),
                Some(DeviceUpdate {
                    stage: UpdateStage::Downloading { .. },
                    ..
                })
            ) {
                self.request_chunk(device, number, plan)?;
            }
        }
        Ok(())
    }

    /// Handles a message about images; `false`: it is none, or also concerns other parts of the device.
    pub(super) fn handle_update_message(
        &mut self,
        device: usize,
        topic: &str,
        payload: &[u8],
    ) -> Result<bool, ClientError> {
        let plans = &self.fleet(device).updates;
        if plans.is_empty() || self.has_fault(device, FaultKind::Silence) {
            return Ok(false);
        }
        for (number, plan) in plans.iter().enumerate() {
            if plan.protocol == DeviceProtocol::Jetlinks {
                let topics = self.render_text(&plan.topics, device);
                let Some(step) = topic.strip_prefix(&topics) else {
                    continue;
                };
                let message: Value = serde_json::from_slice(payload).unwrap_or_default();
                match step {
                    "upgrade" => self.begin_fetch(device, number, plan, &message)?,
                    "read" => self.report_version(device, number, plan, &message)?,
                    _ => {}
                }
                return Ok(true);
            }
            let prefix = plan.kind.prefix();
            if topic == ATTRIBUTES || topic.starts_with(ATTRIBUTE_RESPONSES) {
                let attributes: Value = serde_json::from_slice(payload).unwrap_or_default();
                let is_notified = topic == ATTRIBUTES;
                let attributes = match is_notified {
                    true => &attributes,
                    false => &attributes["shared"],
                };
                self.announce(device, number, plan, attributes, is_notified)?;
            } else if let Some(chunk) = topic.strip_prefix(&format!("v2/{prefix}/response/")) {
                self.receive_chunk(device, number, plan, chunk, payload)?;
                return Ok(true);
            } else if topic == format!("v2/{prefix}/error") {
                let reason = String::from_utf8_lossy(payload).into_owned();
                self.fail_update(device, number, plan, &reason)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends installations and repeats requests that are due.
    pub(super) fn continue_updates(&mut self) {
        while let Some(&Reverse((at_ns, device, number))) = self.update_timers.peek() {
            if at_ns > self.now_ns {
                return;
            }
            self.update_timers.pop();
            let (device, number) = (device as usize, usize::from(number));
            if let Err(failure) = self.continue_update(device, number) {
                self.fail(device, &failure);
            }
        }
    }

    fn continue_update(&mut self, device: usize, number: usize) -> Result<(), ClientError> {
        let is_waiting = self.devices[device].stage != ConnectionStage::Ready
            || self.has_fault(device, FaultKind::Silence);
        let now_ns = self.now_ns;
        let Some(update) = self.update(device, number) else {
            return Ok(());
        };
        if update.stage.is_ended() {
            return Ok(());
        }
        if is_waiting {
            update.due_ns = update.due_ns.max(now_ns + RETRY_NS);
        }
        if update.due_ns > now_ns {
            let timer = (update.due_ns, device as u32, number as u8);
            self.update_timers.push(Reverse(timer));
            return Ok(());
        }
        let plan = &self.fleet(device).updates[number];
        let Some(update) = self.update(device, number) else {
            return Ok(());
        };
        match &mut update.stage {
            UpdateStage::Installing => self.end_installation(device, number, plan),
            UpdateStage::Downloading { attempts, .. } => {
                *attempts += 1;
                if *attempts > MAX_CHUNK_ATTEMPTS {
                    return self.fail_update(
                        device,
                        number,
                        plan,
                        "no answer to requests for a chunk",
                    );
                }
                self.request_chunk(device, number, plan)?;
                self.start_timer(device, number);
                Ok(())
            }
            // Their ends are reported.
            UpdateStage::Fetching | UpdateStage::Ended { .. } => Ok(()),
        }
    }

    /// Images that were downloaded by URL.
    pub(super) fn handle_fetched(&mut self, fetched: FetchedImage) {
        let FetchedImage {
            device,
            purpose,
            result,
        } = fetched;
        let (number, begun_ns) = match purpose {
            FetchPurpose::Update { number, begun_ns } => (number, begun_ns),
            FetchPurpose::Answer { number } => return self.end_download(device, number, result),
        };
        let plan = &self.fleet(device).updates[number];
        let is_current = self.update(device, number).is_some_and(|update| {
            update.begun_ns == begun_ns && matches!(update.stage, UpdateStage::Fetching)
        });
        if !is_current {
            return;
        }
        let handled = match result {
            Ok(bytes) => {
                self.counts().downloaded_bytes += bytes;
                self.install(device, number, plan)
            }
            Err(ImageFailure::Damaged) => self.reject_image(device, number, plan),
            Err(ImageFailure::Unavailable(reason)) => {
                self.fail_update(device, number, plan, &reason)
            }
        };
        if let Err(failure) = handled {
            self.fail(device, &failure);
        }
    }

    fn update(&mut self, device: usize, number: usize) -> Option<&mut DeviceUpdate> {
        self.devices[device].updates.as_mut()?[number].as_mut()
    }

    fn start_timer(&mut self, device: usize, number: usize) {
        if let Some(update) = self.update(device, number) {
            let timer = (update.due_ns, device as u32, number as u8);
            self.update_timers.push(Reverse(timer));
        }
    }

    /// Asks for the shared attributes that describe an image.
    fn request_attributes(
        &mut self,
        device: usize,
        number: usize,
        plan: &UpdatePlan,
    ) -> Result<(), ClientError> {
        let prefix = plan.kind.prefix();
        let keys = ["title", "version", "size", "checksum", "checksum_algorithm"];
        let keys = keys.map(|key| format!("{prefix}_{key}")).join(",");
        let request = json!({"sharedKeys": keys}).to_string();
        let topic = format!("{ATTRIBUTES}/request/{}", number + 1);
        self.publish_text(device, &topic, &request)
    }

    /// Attributes may name an image to install, or withdraw it.
    fn announce(
        &mut self,
        device: usize,
        number: usize,
        plan: &UpdatePlan,
        attributes: &Value,
        is_notified: bool,
    ) -> Result<(), ClientError> {
        let prefix = plan.kind.prefix();
        let deleted = attributes["deleted"].as_array();
        let title = format!("{prefix}_title");
        if deleted.is_some_and(|deleted| deleted.iter().any(|key| *key == title)) {
            let update = self.devices[device].updates.as_mut();
            if let Some(updates) = update
                && updates[number]
                    .as_ref()
                    .is_some_and(|update| !update.stage.is_ended())
            {
                updates[number] = None;
            }
            return Ok(());
        }
        let image = match AnnouncedImage::read(attributes, prefix) {
            None => return Ok(()),
            Some(Err(())) if is_notified => return self.request_attributes(device, number, plan),
            Some(Err(())) => return Ok(()),
            Some(Ok(image)) => image,
        };
        if let Some(update) = self.update(device, number)
            && (&update.title, &update.version) == (&image.title, &image.version)
        {
            // An image that has failed is installed again when the node asks for it again.
            let is_again = is_notified
                && matches!(
                    update.stage,
                    UpdateStage::Ended {
                        is_installed: false
                    }
                );
            if !is_again {
                return Ok(());
            }
        }
        let download = ChunkedDownload::new(&image, plan.chunk_bytes);
        let stage = download.map_or(UpdateStage::Fetching, |download| UpdateStage::Downloading {
            download: Box::new(download),
            attempts: 0,
        });
        let is_known = !matches!(stage, UpdateStage::Fetching);
        let names = (image.title, image.version, String::new());
        self.begin_update(device, (number, plan), names, stage);
        if !is_known {
            let reason = format!("the checksum algorithm {} is unknown", image.algorithm);
            return self.fail_update(device, number, plan, &reason);
        }
        self.report_state(device, plan, json!({"state": "DOWNLOADING"}))?;
        self.request_chunk(device, number, plan)?;
        self.start_timer(device, number);
        Ok(())
    }

    fn begin_update(
        &mut self,
        device: usize,
        (number, plan): (usize, &UpdatePlan),
        (title, version, firmware_id): (String, String, String),
        stage: UpdateStage,
    ) {
        self.counts().updates += 1;
        self.draws += 1;
        let key = self.key(device).purpose(UPDATE_PURPOSE + number as u64);
        let draw = self.draws * 2;
        let result = if key.unit(draw) < plan.silent {
            UpdateResult::Silence
        } else if key.unit(draw + 1) < plan.failure {
            UpdateResult::Failure
        } else {
            UpdateResult::Success
        };
        let update = DeviceUpdate {
            title,
            version,
            firmware_id,
            begun_ns: self.now_ns,
            due_ns: self.now_ns + CHUNK_TIMEOUT_NS,
            result,
            stage,
        };
        self.devices[device].updates.get_or_insert_default()[number] = Some(update);
    }

    fn request_chunk(
        &mut self,
        device: usize,
        number: usize,
        plan: &UpdatePlan,
    ) -> Result<(), ClientError> {
        let now_ns = self.now_ns;
        let Some(update) = self.update(device, number) else {
            return Ok(());
        };
        let UpdateStage::Downloading { download, .. } = &update.stage else {
            return Ok(());
        };
        let prefix = plan.kind.prefix();
        let index = download.next_chunk();
        update.due_ns = now_ns + CHUNK_TIMEOUT_NS;
        let topic = format!("v2/{prefix}/request/{}/chunk/{index}", number + 1);
        self.publish_text(device, &topic, &plan.chunk_bytes.to_string())
    }

    /// `chunk` is `{request id}/chunk/{index}`.
    fn receive_chunk(
        &mut self,
        device: usize,
        number: usize,
        plan: &UpdatePlan,
        chunk: &str,
        bytes: &[u8],
    ) -> Result<(), ClientError> {
        let index = chunk.split_once("/chunk/");
        let index = index.filter(|(id, _)| id.parse() == Ok(number + 1));
        let Some(index) = index.and_then(|(_, index)| index.parse().ok()) else {
            return Ok(());
        };
        let Some(DeviceUpdate {
            stage: UpdateStage::Downloading { download, attempts },
            ..
        }) = self.update(device, number)
        else {
            return Ok(());
        };
        *attempts = 0;
        let outcome = download.receive(index, bytes);
        if outcome == ChunkOutcome::Unexpected {
            return Ok(());
        }
        self.counts().downloaded_bytes += bytes.len() as u64;
        match outcome {
            ChunkOutcome::Unexpected => Ok(()),
            ChunkOutcome::Continues => self.request_chunk(device, number, plan),
            ChunkOutcome::Complete { is_intact: true } => self.install(device, number, plan),
            ChunkOutcome::Complete { is_intact: false } => self.reject_image(device, number, plan),
        }
    }

    /// JetLinks: a message with the URL of an image.
    fn begin_fetch(
        &mut self,
        device: usize,
        number: usize,
        plan: &UpdatePlan,
        message: &Value,
    ) -> Result<(), ClientError> {
        let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
        let version = text("version");
        if let Some(update) = self.update(device, number)
            && update.version == version
            && !matches!(
                update.stage,
                UpdateStage::Ended {
                    is_installed: false
                }
            )
        {
            // The node repeats the message when a device connects.
            return Ok(());
        }
        let names = (String::new(), version, text("firmwareId"));
        self.begin_update(device, (number, plan), names, UpdateStage::Fetching);
        self.report_progress(device, number, plan, 0, json!({"success": true}))?;
        let Some(digest) = ImageDigest::new(&text("signMethod")) else {
            return self.fail_update(device, number, plan, "the checksum algorithm is unknown");
        };
        let image = ImageRequest {
            url: text("url"),
            size: message["size"].as_u64().unwrap_or(0),
            digest,
            expected_digest: text("sign"),
        };
        let (ready, begun_ns) = (self.ready_pipes.clone(), self.now_ns);
        self.access.translators.fetch_image(image, move |result| {
            ready.push_fetched(FetchedImage {
                device,
                purpose: FetchPurpose::Update { number, begun_ns },
                result,
            });
        });
        Ok(())
    }

    /// The image is complete and verified.
    fn install(
        &mut self,
        device: usize,
        number: usize,
        plan: &UpdatePlan,
    ) -> Result<(), ClientError> {
        self.draws += 1;
        let key = self.key(device).purpose(UPDATE_PURPOSE + number as u64);
        let (from, to) = (plan.delay.from.ns as f64, plan.delay.to.ns as f64);
        let due_ns = self.now_ns + key.between(self.draws * 2, from, to) as u64;
        if let Some(update) = self.update(device, number) {
            update.stage = UpdateStage::Installing;
            update.due_ns = due_ns;
        }
        self.start_timer(device, number);
        if plan.protocol == DeviceProtocol::Jetlinks {
            return self.report_progress(device, number, plan, 100, json!({"success": true}));
        }
        for state in ["DOWNLOADED", "VERIFIED", "UPDATING"] {
            self.report_state(device, plan, json!({"state": state}))?;
        }
        Ok(())
    }

    fn reject_image(
        &mut self,
        device: usize,
        number: usize,
        plan: &UpdatePlan,
    ) -> Result<(), ClientError> {
        self.counts().damaged_images += 1;
        self.fail_update(
            device,
            number,
            plan,
            "size or checksum of the image is wrong",
        )
    }

    fn end_installation(
        &mut self,
        device: usize,
        number: usize,
        plan: &UpdatePlan,
    ) -> Result<(), ClientError> {
        let now_ns = self.now_ns;
        let Some(update) = self.update(device, number) else {
            return Ok(());
        };
        let took_ns = now_ns.saturating_sub(update.begun_ns);
        match update.result {
            UpdateResult::Failure => {
                return self.fail_update(device, number, plan, SIMULATED_FAILURE);
            }
            UpdateResult::Silence => {
                update.stage = UpdateStage::Ended {
                    is_installed: false,
                };
                return Ok(());
            }
            UpdateResult::Success => update.stage = UpdateStage::Ended { is_installed: true },
        }
        let (title, version) = (update.title.clone(), update.version.clone());
        let counts = self.counts();
        counts.completed_updates += 1;
        counts.update.saturating_record(took_ns);
        if plan.protocol == DeviceProtocol::Jetlinks {
            let success = json!({"complete": true, "success": true});
            return self.report_progress(device, number, plan, 100, success);
        }
        let prefix = plan.kind.prefix();
        let mut report = json!({"state": "UPDATED"});
        report[format!("current_{prefix}_title")] = json!(title);
        report[format!("current_{prefix}_version")] = json!(version);
        self.report_state(device, plan, report)
    }

    fn fail_update(
        &mut self,
        device: usize,
        number: usize,
        plan: &UpdatePlan,
        reason: &str,
    ) -> Result<(), ClientError> {
        let Some(update) = self.update(device, number) else {
            return Ok(());
        };
        if update.stage.is_ended() {
            return Ok(());
        }
        update.stage = UpdateStage::Ended {
            is_installed: false,
        };
        self.counts().failed_updates += 1;
        if plan.protocol == DeviceProtocol::Jetlinks {
            let failure = json!({"complete": true, "success": false, "errorReason": reason});
            return self.report_progress(device, number, plan, 0, failure);
        }
        self.report_state(device, plan, json!({"state": "FAILED", "error": reason}))
    }

    /// ThingsBoard: telemetry whose fields `state` and `error` have the prefix of the image.
    fn report_state(
        &mut self,
        device: usize,
        plan: &UpdatePlan,
        report: Value,
    ) -> Result<(), ClientError> {
        let mut telemetry = serde_json::Map::new();
        for (name, value) in report.as_object().into_iter().flatten() {
            let name = match name.as_str() {
                "state" | "error" => format!("{}_{name}", plan.kind.prefix()),
                name => name.to_owned(),
            };
            telemetry.insert(name, value.clone());
        }
        self.publish_text(device, TELEMETRY, &Value::Object(telemetry).to_string())
    }

    /// JetLinks: the progress of an installation.
    fn report_progress(
        &mut self,
        device: usize,
        number: usize,
        plan: &UpdatePlan,
        percent: u8,
        result: Value,
    ) -> Result<(), ClientError> {
        let now_ms = self.device_clock_ms(device);
        let Some(update) = self.update(device, number) else {
            return Ok(());
        };
        let mut report = json!({
            "messageId": format!("update-{now_ms}"), "timestamp": now_ms, "progress": percent, "complete": false,
            "version": update.version, "firmwareId": update.firmware_id,
        });
        for (name, value) in result.as_object().into_iter().flatten() {
            report[name] = value.clone();
        }
        let topics = self.render_text(&plan.topics, device);
        let topic = format!("{topics}upgrade/progress");
        self.publish_text(device, &topic, &report.to_string())
    }

    /// JetLinks: answers which version the device runs.
    fn report_version(
        &mut self,
        device: usize,
        number: usize,
        plan: &UpdatePlan,
        request: &Value,
    ) -> Result<(), ClientError> {
        let installed = self.update(device, number).and_then(|update| {
            let is_installed = matches!(update.stage, UpdateStage::Ended { is_installed: true });
            is_installed.then(|| update.version.clone())
        });
        let version = installed.unwrap_or_else(|| plan.version.clone());
        let answer = json!({
            "messageId": request["messageId"], "timestamp": self.device_clock_ms(device), "success": true,
            "version": version,
        });
        let topics = self.render_text(&plan.topics, device);
        self.publish_text(device, &format!("{topics}read/reply"), &answer.to_string())
    }

    fn publish_text(
        &mut self,
        device: usize,
        topic: &str,
        payload: &str,
    ) -> Result<(), ClientError> {
        self.topic.clear();
        self.topic.extend_from_slice(topic.as_bytes());
        self.payload.clear();
        self.payload.extend_from_slice(payload.as_bytes());
        let qos = self.fleet(device).subscription_qos;
        self.publish(device, qos, false, self.now_ns)
    }
}
