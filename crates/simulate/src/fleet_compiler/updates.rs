//! How the devices of a fleet install firmware and software.

use super::FleetCompiler;
use crate::definition::{DeviceProtocol, ResponseDefinition};
use crate::device_protocol::{JETLINKS_FIRMWARE, image_filters};
use crate::plan::{ImageKind, UpdatePlan};
use crate::template::{Template, TemplateScope};

/// Chunks of images fit into the packets that devices accept.
const MAX_CHUNK_BYTES: u32 = 64 * 1024;
const DEFAULT_CHUNK_BYTES: u32 = 16 * 1024;

impl FleetCompiler<'_> {
    /// How images are installed; returns the filters that the device subscribes to.
    pub(super) fn compile_update(
        &mut self,
        at: usize,
        (response, kind): (&ResponseDefinition, ImageKind),
        scope: &TemplateScope<'_>,
        updates: &mut Vec<UpdatePlan>,
    ) -> Vec<String> {
        let field = |name: &str| format!("on[{at}].{name}");
        if scope.gateway.is_some() {
            self.error(
                &field("kind"),
                "devices with a `gateway` install no images; they have no connection of their own",
            );
            return Vec::new();
        }
        if updates.iter().any(|update| update.kind == kind) {
            self.error(&field("kind"), "an earlier entry has the same kind");
            return Vec::new();
        }
        for (name, is_set) in [
            ("method", response.method.is_some()),
            ("topic", response.topic.is_some()),
            ("answer", response.answer.is_some()),
            ("answer_topic", response.answer_topic.is_some()),
        ] {
            if is_set {
                self.error(&field(name), "images are installed, not answered");
            }
        }
        let chunk_bytes = response.chunk_bytes.unwrap_or(DEFAULT_CHUNK_BYTES);
        if !(1..=MAX_CHUNK_BYTES).contains(&chunk_bytes) {
            self.error(
                &field("chunk_bytes"),
                format!("expected 1 to {MAX_CHUNK_BYTES}, found {chunk_bytes}"),
            );
        }
        let filters = match image_filters(self.protocol, kind) {
            Ok(filters) => filters,
            Err(message) => {
                self.error(&field("kind"), message);
                return Vec::new();
            }
        };
        let topics = match self.protocol {
            DeviceProtocol::Jetlinks => self.template(&field("kind"), JETLINKS_FIRMWARE, scope),
            _ => Template::default(),
        };
        updates.push(UpdatePlan {
            kind,
            protocol: self.protocol,
            topics,
            version: response.version.clone().unwrap_or_else(|| "0".to_owned()),
            chunk_bytes,
            delay: response.delay,
            silent: response.silent.0,
            failure: response.failure.0,
        });
        filters
    }
}
