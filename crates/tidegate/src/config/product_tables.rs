//! `[[product]]`: tables converted to the JSON that the crate `devices` also reads from the store.

use std::fmt;
use std::path::Path;

use devices::Product;
use serde_json::Value;

use super::config_draft::ConfigDraft;

/// The key with the file name of a thing model.
const MODEL_FILE: &str = "model_file";

/// Ids and definitions of products.
#[derive(Clone, Default)]
pub(crate) struct DeclaredProducts(pub(crate) Vec<(String, Value)>);

impl fmt::Debug for DeclaredProducts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The definitions may contain secrets.
        f.debug_list()
            .entries(self.0.iter().map(|(id, _)| id))
            .finish()
    }
}

/// Resolves a relative file name against the directory of the configuration file.
pub(super) fn resolve_files(table: &mut Value, directory: &Path) {
    if let Some(file) = table.get_mut(MODEL_FILE)
        && let Some(text) = file.as_str()
    {
        *file = directory.join(text).display().to_string().into();
    }
}

/// Validates the products of the file as the node will read them.
pub(super) fn finish_products(draft: &mut ConfigDraft) -> DeclaredProducts {
    let mut products: Vec<(String, Value)> = Vec::new();
    for mut table in std::mem::take(&mut draft.products) {
        let mut take = |field: &str| table.value.as_object_mut()?.remove(field);
        let (id, model_file) = (take("id"), take(MODEL_FILE));
        let Some(Value::String(id)) = id else {
            let message = "expected a text: products are known by their ids";
            draft.add_error(table.origin, "product.id", message);
            continue;
        };
        if products.iter().any(|(known, _)| *known == id) {
            let message = format!("there is a product {id:?} already; ids are unique");
            draft.add_error(table.origin, "product.id", message);
            continue;
        }
        if let Some(file) = model_file {
            let key = format!("product.{MODEL_FILE}");
            let read = match file.as_str() {
                None => Err("expected the name of a file".to_owned()),
                Some(_) if table.value.get("model").is_some() => {
                    Err("give either model or model_file".to_owned())
                }
                Some(path) => std::fs::read_to_string(path)
                    .map_err(|error| format!("{path} cannot be read: {error}")),
            };
            match read {
                Ok(model) => table.value["model"] = model.into(),
                Err(message) => {
                    draft.add_error(table.origin, key, format!("{id}: {message}"));
                    continue;
                }
            }
        }
        match Product::read(&id, &table.value, 0) {
            Ok(_) => {
                let declared = (devices::PRODUCT_KIND, id.clone());
                draft.declared_at.insert(declared, table.origin);
                products.push((id, table.value));
            }
            Err(errors) => {
                for error in errors {
                    let key = match error.field.as_str() {
                        "product" => "product".to_owned(),
                        field => format!("product.{field}"),
                    };
                    let message = format!("{id}: {}", error.message);
                    draft.add_error(table.origin.clone(), key, message);
                }
            }
        }
    }
    DeclaredProducts(products)
}
