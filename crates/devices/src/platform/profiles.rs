//! Products as the pipeline sees them.

use std::sync::{Arc, Mutex, PoisonError};

use bumpalo::Bump;
use hashbrown::HashMap;
use series::Value;

use super::Platform;
use crate::chain::{Chain, ROOT};
use crate::dialect::{Dialects, Raw};
use crate::ingest::{KeyRule, Mode, Model, ProductNo, Profile};
use crate::{Product, ProductId, UnknownKeys};

/// Numbers of products, given as they are met.
#[derive(Default)]
pub(super) struct Numbers(Mutex<HashMap<ProductId, ProductNo>>);

impl Numbers {
    fn of(&self, product: &ProductId) -> ProductNo {
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = ProductNo(numbers.len() as u32);
        *numbers.entry(product.clone()).or_insert(next)
    }
}

impl Platform {
    pub(super) fn number_of(&self, product: &ProductId) -> ProductNo {
        self.inner.numbers.of(product)
    }

    /// All products as they are now, for the pipeline to begin with.
    pub fn profiles(&self) -> Vec<(ProductNo, Profile)> {
        let products = self.registry().products();
        let products = products.iter();
        products
            .map(|slot| (self.number_of(slot.id()), self.profile(&slot.get())))
            .collect()
    }

    /// A product was made, changed or removed.
    pub fn take_product(&self, id: &str) {
        let Ok(id) = ProductId::new(id) else { return };
        let Some(pipeline) = self.inner.pipeline.get() else {
            return;
        };
        let slot = self.registry().product(id.as_str());
        let profile = slot.map(|slot| self.profile(&slot.get()));
        pipeline.set_profile(self.number_of(&id), profile);
    }

    /// A rule chain was made, changed or removed: products that have it get the new one.
    pub fn take_chain(&self, name: &str) {
        for slot in self.registry().products() {
            if slot.get().chain().unwrap_or(ROOT) == name {
                self.take_product(slot.id().as_str());
            }
        }
    }

    fn profile(&self, product: &Arc<Product>) -> Profile {
        profile(product, self.inner.parts.chains.of(product.chain()))
    }
}

fn profile(product: &Arc<Product>, chain: Arc<Chain>) -> Profile {
    let dialects = crate::dialect::Dialect::ALL
        .into_iter()
        .filter(|dialect| product.speaks((*dialect).into()))
        .fold(Dialects::NONE, Dialects::with);
    let storage = product.storage();
    Profile {
        product: product.id.clone(),
        dialects,
        mode: match product.mode() {
            crate::Mode::Sync => Mode::Sync,
            crate::Mode::Actor => Mode::Actor,
        },
        model: Arc::new(Checked(Arc::clone(product))),
        chain,
        is_stored: storage.enabled,
        is_logged: storage.device_log,
        has_alarms: !product.definition.alarms.is_empty(),
        sinks: names(&storage.sinks),
        log_sinks: names(storage.sinks_of_log()),
        log_payload_bytes: storage.log_payload_bytes as usize,
    }
}

fn names(names: &[String]) -> Arc<[Box<str>]> {
    names.iter().map(|name| name.as_str().into()).collect()
}

/// What a product's thing model says of values, and which of them are to be stored.
struct Checked(Arc<Product>);

impl Model for Checked {
    fn key(&self, name: &str) -> KeyRule {
        let product = &self.0;
        let stored = &product.storage().keys;
        match product.model.property(name) {
            None if product.model.unknown_keys == UnknownKeys::Refuse => KeyRule::Unknown,
            _ if !stored.is_empty() && !stored.contains(name) => KeyRule::Ignored,
            None if product.definition.text_numbers => KeyRule::OpenNumbers,
            None => KeyRule::Open,
            Some(property) => KeyRule::Property(property.at.into()),
        }
    }

    fn convert<'a>(
        &self,
        property: u32,
        value: Raw<'a>,
        arena: &'a Bump,
    ) -> Result<Value<'a>, Box<str>> {
        let value = match value {
            Raw::Null => rules::Value::Null,
            Raw::Bool(value) => rules::Value::Bool(value),
            Raw::Int(value) => rules::Value::Int(value),
            Raw::Float(value) => rules::Value::Float(value),
            Raw::Text(text) => rules::Value::Str(text),
            Raw::Json(json) => rules::Value::Json(json),
        };
        let Some(property) = self.0.model.properties().get(property as usize) else {
            return Err("the thing model has no such property".into());
        };
        let checked = property.value_type.check(value, arena);
        checked.map_err(|reason| reason.to_string().into())
    }
}
