//! Converts products to profiles of the pipeline.

use std::sync::Arc;

use bumpalo::Bump;
use series::PointValue;

use super::platform_state::Platform;
use crate::chain::{Chain, ROOT};
use crate::id::ProductId;
use crate::ingest::{KeyRule, PipelineMode, ProductNo, ProductProfile, TelemetryModel};
use crate::model::UnknownKeys;
use crate::product::Product;
use crate::protocol::{DeviceProtocols, RawValue};

impl Platform {
    pub(super) fn number_of(&self, product: &ProductId) -> ProductNo {
        self.inner.product_numbers.number_for(product)
    }

    /// The profiles of all present products, for [`Pipeline::open`](crate::ingest::Pipeline::open).
    pub fn profiles(&self) -> Vec<(ProductNo, ProductProfile)> {
        let products = self.registry().products();
        let products = products.iter();
        products
            .map(|slot| (self.number_of(slot.id()), self.profile(&slot.get())))
            .collect()
    }

    /// Updates the profile after a product was created, changed or removed.
    pub fn refresh_product(&self, id: &str) {
        let Ok(id) = ProductId::new(id) else { return };
        let Some(pipeline) = self.inner.pipeline.get() else {
            return;
        };
        let slot = self.registry().product(id.as_str());
        let profile = slot.map(|slot| self.profile(&slot.get()));
        pipeline.set_profile(self.number_of(&id), profile);
    }

    /// Updates all products of a namespace after it was created.
    pub fn refresh_namespace(&self, id: &str) {
        for slot in self.registry().products() {
            if slot.get().namespace() == id {
                self.refresh_product(slot.id().as_str());
            }
        }
    }

    /// Updates all products that use a rule chain after it was created, changed or removed.
    pub fn refresh_chain(&self, name: &str) {
        for slot in self.registry().products() {
            if slot.get().rule_chain().unwrap_or(ROOT) == name {
                self.refresh_product(slot.id().as_str());
            }
        }
    }

    fn profile(&self, product: &Arc<Product>) -> ProductProfile {
        ProductProfile {
            namespace: self.registry().namespace_usage(product.namespace()),
            ..profile(
                product,
                self.inner.parts.chains.chain_or_root(product.rule_chain()),
            )
        }
    }
}

fn profile(product: &Arc<Product>, chain: Arc<Chain>) -> ProductProfile {
    let protocols = crate::protocol::DeviceProtocol::ALL
        .into_iter()
        .filter(|protocol| product.allows_protocol(*protocol))
        .fold(DeviceProtocols::NONE, DeviceProtocols::with);
    let storage = product.storage();
    ProductProfile {
        product: product.id.clone(),
        protocols,
        mode: match product.mode() {
            crate::product::ProductMode::Sync => PipelineMode::Sync,
            crate::product::ProductMode::Actor => PipelineMode::Actor,
        },
        model: Arc::new(ProductTelemetryModel(Arc::clone(product))),
        chain,
        is_stored: storage.enabled,
        is_copied: storage.enabled && storage.replicated,
        is_logged: storage.device_log,
        has_alarms: !product.definition.alarms.is_empty(),
        sinks: boxed_names(&storage.sinks),
        log_sinks: boxed_names(storage.log_sink_names()),
        log_payload_bytes: storage.log_payload_bytes as usize,
        namespace: None,
    }
}

fn boxed_names(names: &[String]) -> Arc<[Box<str>]> {
    names.iter().map(|name| name.as_str().into()).collect()
}

/// The thing model of a product as a telemetry model, and the properties to store.
struct ProductTelemetryModel(Arc<Product>);

impl TelemetryModel for ProductTelemetryModel {
    fn key_rule(&self, name: &str) -> KeyRule {
        let product = &self.0;
        let stored = &product.storage().keys;
        match product.model.property(name) {
            None if product.model.unknown_keys == UnknownKeys::Reject => KeyRule::Unknown,
            _ if !stored.is_empty() && !stored.contains(name) => KeyRule::Ignored,
            None if product.definition.parse_numeric_text => KeyRule::OpenNumbers,
            None => KeyRule::Open,
            Some(property) => KeyRule::Property(property.index.into()),
        }
    }

    fn convert<'a>(
        &self,
        property: u32,
        value: RawValue<'a>,
        arena: &'a Bump,
    ) -> Result<PointValue<'a>, Box<str>> {
        let value = match value {
            RawValue::Null => rules::Value::Null,
            RawValue::Bool(value) => rules::Value::Bool(value),
            RawValue::Int(value) => rules::Value::Int(value),
            RawValue::Float(value) => rules::Value::Float(value),
            RawValue::Text(text) => rules::Value::Str(text),
            RawValue::Json(json) => rules::Value::Json(json),
        };
        let Some(property) = self.0.model.properties().get(property as usize) else {
            return Err("the thing model has no such property".into());
        };
        let checked = property.value_type.check(value, arena);
        checked.map_err(|reason| reason.to_string().into())
    }
}
