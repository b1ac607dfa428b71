//! Stores windows and keyed state of rules as objects of separate kinds, so that a restart continues with
//! them.
//!
//! A snapshot may be larger than one object. It is therefore stored in parts: `NAME/0`, `NAME/1` and so on.
//! Part 0 contains the number of parts and the hash of the statement.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use store::{ExpectedVersion, ObjectError, Objects};
use wall_clock::now_ms;

/// Kind of the objects that contain windows.
pub const WINDOW_KIND: &str = "rule_window";
pub const RULE_STATE_KIND: &str = "rule_state";
const PART_BYTES: usize = 1 << 20;

pub(crate) struct SavedRuleState {
    objects: Objects,
    kind: &'static str,
    /// Description for log messages.
    description: &'static str,
}

impl SavedRuleState {
    pub(crate) fn for_windows(objects: Objects) -> Self {
        Self {
            objects,
            kind: WINDOW_KIND,
            description: "windows of a rule",
        }
    }

    /// Values stored by `kv_store_put`.
    pub(crate) fn for_rule_states(objects: Objects) -> Self {
        Self {
            objects,
            kind: RULE_STATE_KIND,
            description: "state of a rule",
        }
    }

    pub(crate) fn write(
        &mut self,
        name: &str,
        sql_hash: u64,
        snapshot: &[u8],
    ) -> Result<(), ObjectError> {
        let parts: Vec<&[u8]> = snapshot.chunks(PART_BYTES).collect();
        let hash = format!("{sql_hash:016x}");
        // Part 0 is written last. Its distinct round number prevents parts of two snapshots from being
        // combined.
        let round = now_ms();
        for (n, part) in parts.iter().enumerate().rev() {
            let value = json!({
                "sql_hash": hash,
                "parts": parts.len(),
                "round": round,
                "bytes": STANDARD.encode(part),
            });
            self.objects.put(
                self.kind,
                &format!("{name}/{n}"),
                value,
                ExpectedVersion::Any,
            )?;
        }
        self.remove_parts_from(name, parts.len());
        Ok(())
    }

    pub(crate) fn read(&self, name: &str, sql_hash: u64) -> Option<Vec<u8>> {
        let part = |n: usize| match self.objects.get(self.kind, &format!("{name}/{n}")) {
            Ok(object) => object.map(|object| object.value),
            Err(error) => {
                tracing::warn!(rule = name, %error, "stored {} cannot be read; starting empty", self.description);
                None
            }
        };
        let first = part(0)?;
        if first["sql_hash"] != json!(format!("{sql_hash:016x}")) {
            return None;
        }
        let mut snapshot = Vec::new();
        for n in 0..first["parts"].as_u64()? as usize {
            let part = part(n).filter(|part: &Value| part["round"] == first["round"])?;
            STANDARD
                .decode_vec(part["bytes"].as_str()?, &mut snapshot)
                .ok()?;
        }
        Some(snapshot)
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.remove_parts_from(name, 0);
    }

    fn remove_parts_from(&mut self, name: &str, from: usize) {
        for n in from.. {
            match self
                .objects
                .delete(self.kind, &format!("{name}/{n}"), ExpectedVersion::Any)
            {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!(rule = name, %error, "stored {} cannot be deleted", self.description);
                    return;
                }
            }
        }
    }
}
