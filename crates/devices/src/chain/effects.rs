//! A row that passes through a chain, and the effects of the nodes.

use bumpalo::Bump;
use series::{KeyId, Point};

use crate::ingest::PipelineOutputs;

/// A row that passes through a chain.
#[derive(Clone, Copy)]
pub struct ChainRow<'r, 'a> {
    pub device: &'r str,
    pub product: &'r str,
    pub ts_ms: i64,
    pub points: &'r [Point<'a>],
    /// Names of the points after a transform; empty: [`ChainEffects::key_name`] returns them.
    pub names: &'r [&'a str],
}

/// The effects of nodes, and the data that nodes need.
pub trait ChainEffects<'a> {
    /// Arena for data that must live until the row is stored.
    fn arena(&self) -> &'a Bump;
    fn key_name(&self, key: KeyId) -> &str;
    /// Returns the number of a key, which is created if necessary, or the reason why it cannot be created.
    fn register_key(&self, name: &str) -> Result<KeyId, Box<str>>;
    fn save_row(&mut self, points: &[Point<'a>]);
    fn evaluate_alarms(&mut self, ts_ms: i64, points: &[Point<'a>]);
    fn republish(&mut self, topic: &str, payload: &[u8], qos: u8, retain: bool);
    fn outputs(&self) -> &dyn PipelineOutputs;
}
