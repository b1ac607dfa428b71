//! Runs the rule chain of a product on a row, and collects what it saves.

use std::cell::Cell;

use bumpalo::Bump;
use rules::EvaluationScratch;
use series::{KeyId, Point};

use crate::chain::{ChainEffects, ChainRow};
use crate::ingest::decoder::{DecodedRow, ProductContext};
use crate::ingest::pipeline_shared::PipelineShared;
use crate::ingest::ports::PipelineOutputs;
use crate::ingest::product_keys::KeyRegistrar;
use crate::ingest::profile::DeviceRef;

/// A row and its device.
pub(super) struct DeviceRow<'v> {
    pub(super) device_ref: DeviceRef<'v>,
    pub(super) row: DecodedRow,
}

/// What a chain has done with a row.
pub(super) struct ChainOutput<'a> {
    /// Points to save: those of the row or others.
    pub(super) saved: Vec<Option<Vec<Point<'a>>>>,
    pub(super) has_republished: bool,
}

/// Runs the rule chain of a product on a row.
pub(super) fn run_chain<'a>(
    product_context: &ProductContext,
    scratch: &EvaluationScratch,
    arena: &'a Bump,
    row: DeviceRow<'_>,
    shared: &PipelineShared,
    points: &[Point<'a>],
) -> ChainOutput<'a> {
    let (first, count) = (row.row.first as usize, row.row.count as usize);
    let points = &points[first..first + count];
    let mut effects = ProcessorChainEffects {
        product_context,
        arena,
        shared,
        device_ref: row.device_ref,
        row_points: points.as_ptr(),
        saved: Vec::new(),
        has_republished: false,
    };
    let passing = ChainRow {
        device: row.device_ref.id,
        product: product_context.profile.product.as_str(),
        ts_ms: row.row.ts_ms,
        points,
        names: &[],
    };
    let chain = &product_context.profile.chain;
    if let Err(error) = chain.run(&passing, &product_context.chain_keys, scratch, &mut effects) {
        let now_ms = row.row.ts_ms;
        let subject = format!("rule chain, node {}", error.node);
        shared
            .rejections
            .record(row.device_ref.no, now_ms, &subject, &error.reason);
    }
    ChainOutput {
        saved: effects.saved,
        has_republished: effects.has_republished,
    }
}

/// Receives the effects of a chain's nodes.
struct ProcessorChainEffects<'s, 'a> {
    product_context: &'s ProductContext,
    arena: &'a Bump,
    shared: &'s PipelineShared,
    device_ref: DeviceRef<'s>,
    /// Address of the row's own points.
    row_points: *const Point<'a>,
    saved: Vec<Option<Vec<Point<'a>>>>,
    has_republished: bool,
}

impl<'a> ChainEffects<'a> for ProcessorChainEffects<'_, 'a> {
    fn arena(&self) -> &'a Bump {
        self.arena
    }

    fn key_name(&self, key: KeyId) -> &str {
        self.product_context.key_name(key)
    }

    fn register_key(&self, name: &str) -> Result<KeyId, Box<str>> {
        let has_reserved_keys = Cell::new(false);
        let registrar = KeyRegistrar {
            storage: &*self.shared.storage,
            counts: &self.shared.key_counts,
            has_reserved_keys: &has_reserved_keys,
        };
        let key = registrar.reserve(self.device_ref.product, name)?;
        // Columns of a statement: a few names, each new once.
        if has_reserved_keys.get() {
            let committed = self.shared.storage.commit_keys();
            committed.map_err(|error| error.reason)?;
        }
        Ok(key)
    }

    fn save_row(&mut self, points: &[Point<'a>]) {
        let is_own = points.as_ptr() == self.row_points;
        self.saved.push((!is_own).then(|| points.to_vec()));
    }

    fn evaluate_alarms(&mut self, ts_ms: i64, points: &[Point<'a>]) {
        let (outside, profile) = (&self.shared.outputs, &self.product_context.profile);
        outside.evaluate_alarms(self.device_ref, profile, ts_ms, points);
    }

    fn republish(&mut self, topic: &str, payload: &[u8], qos: u8, retain: bool) {
        self.has_republished = true;
        (self.shared.outputs).republish(topic, payload, qos, retain);
    }

    fn outputs(&self) -> &dyn PipelineOutputs {
        &*self.shared.outputs
    }
}
