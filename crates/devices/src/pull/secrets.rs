//! Secrets of pull sources: not returned by the API, and retained if a change omits them.

use serde_json::Value;

/// Objects with secrets, the fields that are secrets, and the fields that identify the server they are for.
const SECRET_FIELDS: [(&str, &[&str], &[&str]); 3] = [
    (
        "/prometheus/server",
        &["password", "token", "headers"],
        &["url"],
    ),
    ("/http/server", &["password", "token", "headers"], &["url"]),
    ("/ipmi", &["password"], &["hosts"]),
];

/// Returns the source without its secrets.
#[must_use]
pub fn redact(stored: &Value) -> Value {
    let mut shown = stored.clone();
    for (place, secrets, _) in SECRET_FIELDS {
        if let Some(fields) = shown.pointer_mut(place).and_then(Value::as_object_mut) {
            fields.retain(|name, _| !secrets.contains(&name.as_str()));
        }
    }
    shown
}

/// Adds the omitted secrets from the current definition, unless the change would send them to another system.
#[must_use]
pub fn restore_secrets(mut written: Value, current: Option<&Value>) -> Value {
    for (place, secrets, addresses) in SECRET_FIELDS {
        let Some(before) = current.and_then(|current| current.pointer(place)) else {
            continue;
        };
        let Some(fields) = written.pointer_mut(place).and_then(Value::as_object_mut) else {
            continue;
        };
        let is_same = |name: &&str| fields.get(*name) == before.get(*name);
        if !addresses.iter().all(is_same) {
            continue;
        }
        for secret in secrets {
            // `password_file` and `password` are alternatives.
            let is_given =
                fields.contains_key(*secret) || fields.contains_key(&format!("{secret}_file"));
            if let Some(secret_value) = before.get(*secret).filter(|_| !is_given) {
                fields.insert((*secret).to_owned(), secret_value.clone());
            }
        }
    }
    written
}

/// Removes secrets from the schema of responses.
pub(super) fn hide_secrets(schema: &mut Value) {
    for (place, secrets, _) in SECRET_FIELDS {
        let mut object = Some(schema as &mut Value);
        for step in place.split('/').skip(1) {
            object = object.and_then(|object| {
                let property = object.get_mut("properties")?.get_mut(step)?;
                // Optional parts are `anyOf` with null.
                if property.get("anyOf").is_some() {
                    let variants = property.get_mut("anyOf")?.as_array_mut()?;
                    return variants
                        .iter_mut()
                        .find(|variant| variant.get("properties").is_some());
                }
                Some(property)
            });
        }
        if let Some(properties) = object
            .and_then(|object| object.get_mut("properties"))
            .and_then(Value::as_object_mut)
        {
            properties.retain(|name, _| !secrets.contains(&name.as_str()));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_hidden_and_retained_for_the_same_system_only() {
        let stored = json!({"http": {"server": {
            "url": "http://a", "token": "t", "headers": {"x": "y"}, "username": "u",
        }}});
        let shown = redact(&stored);
        assert_eq!(
            shown,
            json!({"http": {"server": {"url": "http://a", "username": "u"}}})
        );
        assert_eq!(restore_secrets(shown, Some(&stored)), stored);
        let elsewhere = json!({"http": {"server": {"url": "http://b"}}});
        assert_eq!(restore_secrets(elsewhere.clone(), Some(&stored)), elsewhere);
        let by_file =
            json!({"http": {"server": {"url": "http://a", "token_file": "f", "headers": {}}}});
        assert_eq!(restore_secrets(by_file.clone(), Some(&stored)), by_file);
    }
}
