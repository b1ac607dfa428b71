//! Namespaces whose owners are banned: their relay endpoints are closed until an owner may log in again.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use relay::OwnerBan;
use store::{Object, Objects, StoreError};
use wall_clock::now_ms;

use super::authority::NamespaceRole;
use super::stored_credentials::{OPERATOR_KIND, OperatorBan, StoredOperator};

/// What of an operator matters for the namespaces that it owns.
struct NamespaceOwner {
    is_enabled: bool,
    ban: Option<OperatorBan>,
    namespaces: Vec<String>,
}

/// All operators with the role `owner` in some namespace.
#[derive(Default)]
struct OwnerTable {
    owners: HashMap<String, NamespaceOwner>,
    /// Names of the owners of each namespace.
    by_namespace: HashMap<String, BTreeSet<String>>,
}

impl OwnerTable {
    /// Applies a stored or, with `None`, deleted operator, and returns the namespaces that it owned or owns.
    fn replace(&mut self, name: &str, operator: Option<StoredOperator>) -> BTreeSet<String> {
        let mut affected = BTreeSet::new();
        if let Some(before) = self.owners.remove(name) {
            for namespace in before.namespaces {
                if let Some(names) = self.by_namespace.get_mut(&namespace) {
                    names.remove(name);
                    if names.is_empty() {
                        self.by_namespace.remove(&namespace);
                    }
                }
                affected.insert(namespace);
            }
        }
        let Some(operator) = operator else {
            return affected;
        };
        let grants = operator.namespaces.into_iter();
        let namespaces: Vec<String> = grants
            .filter(|grant| grant.role == NamespaceRole::Owner)
            .map(|grant| grant.namespace)
            // It belongs to the node, and cannot be disabled.
            .filter(|namespace| namespace != namespaces::DEFAULT)
            .collect();
        if namespaces.is_empty() {
            return affected;
        }
        for namespace in &namespaces {
            let names = self.by_namespace.entry(namespace.clone()).or_default();
            names.insert(name.to_owned());
            affected.insert(namespace.clone());
        }
        let owner = NamespaceOwner {
            is_enabled: operator.enabled,
            ban: operator.ban,
            namespaces,
        };
        self.owners.insert(name.to_owned(), owner);
        affected
    }

    /// The ban of the owners of a namespace; `None`: one of them may log in, or none of them is banned.
    fn ban_of(&self, namespace: &str, now_ms: u64) -> Option<OwnerBan> {
        let names = self.by_namespace.get(namespace)?;
        let owners = names.iter().filter_map(|name| self.owners.get(name));
        let mut latest: Option<&OperatorBan> = None;
        let (mut first_return_ms, mut last_end_ms) = (u64::MAX, 0);
        for owner in owners {
            match owner.ban.as_ref().filter(|ban| ban.is_in_force(now_ms)) {
                Some(ban) => {
                    let end_ms = ban.until_ms.unwrap_or(u64::MAX);
                    last_end_ms = last_end_ms.max(end_ms);
                    if owner.is_enabled {
                        first_return_ms = first_return_ms.min(end_ms);
                    }
                    if latest.is_none_or(|latest| latest.at_ms <= ban.at_ms) {
                        latest = Some(ban);
                    }
                }
                None if owner.is_enabled => return None,
                None => {}
            }
        }
        // A disabled owner does not return when the ban ends, but then no ban is in effect any more.
        let end_ms = first_return_ms.min(last_end_ms);
        latest.map(|ban| OwnerBan {
            reason: ban.reason.clone(),
            since_ms: ban.at_ms,
            until_ms: (end_ms != u64::MAX).then_some(end_ms),
        })
    }
}

/// Calls `apply` with each namespace whose owners are banned, and again whenever the bans of its owners may have changed.
/// A ban that ends by itself causes no call: see [`OwnerBan::until_ms`].
///
/// # Errors
/// Fails if the store cannot be read.
pub fn watch_owner_bans(
    objects: &Objects,
    apply: impl Fn(&str, Option<OwnerBan>) + Send + Sync + 'static,
) -> Result<(), StoreError> {
    let mut table = OwnerTable::default();
    objects.for_each(OPERATOR_KIND, |object| {
        let name = object.id.clone();
        table.replace(&name, read(object));
    })?;
    for namespace in table.by_namespace.keys() {
        if let Some(ban) = table.ban_of(namespace, now_ms()) {
            apply(namespace, Some(ban));
        }
    }
    let (table, stored) = (Mutex::new(table), objects.downgrade());
    objects.observe_changes(Box::new(move |change| {
        if change.kind != OPERATOR_KIND {
            return;
        }
        let Some(stored) = stored.upgrade() else {
            return;
        };
        let operator = match stored.get(OPERATOR_KIND, &change.id) {
            Ok(object) => object.and_then(read),
            Err(error) => {
                tracing::error!(operator = change.id, %error, "reading a changed operator failed; its relay endpoints stay as they are");
                return;
            }
        };
        let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
        for namespace in table.replace(&change.id, operator) {
            apply(&namespace, table.ban_of(&namespace, now_ms()));
        }
    }));
    Ok(())
}

fn read(object: Object) -> Option<StoredOperator> {
    match serde_json::from_value(object.value) {
        Ok(operator) => Some(operator),
        Err(error) => {
            tracing::error!(operator = object.id, %error, "a stored operator is invalid; ignored");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW_MS: u64 = 1000;

    fn operator(fields: Value) -> StoredOperator {
        let mut value = json!({
            "role": null, "namespaces": [{"namespace": "acme", "role": "owner"}], "enabled": true,
            "description": "", "password_hash": "",
        });
        for (name, field) in fields.as_object().unwrap() {
            value[name] = field.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    fn banned(at_ms: u64, until_ms: Option<u64>) -> Value {
        let reason = format!("banned at {at_ms}");
        json!({"ban": {"reason": reason, "by": "boss", "at_ms": at_ms, "until_ms": until_ms}})
    }

    /// The time of the ban of acme's owners, and its end.
    fn ban_of(operators: &[Value]) -> Option<(u64, Option<u64>)> {
        let mut table = OwnerTable::default();
        for (at, fields) in operators.iter().enumerate() {
            table.replace(&format!("owner-{at}"), Some(operator(fields.clone())));
        }
        let ban = table.ban_of("acme", NOW_MS)?;
        assert_eq!(ban.reason, format!("banned at {}", ban.since_ms));
        Some((ban.since_ms, ban.until_ms))
    }

    #[test]
    fn a_namespace_is_closed_while_an_owner_is_banned_and_no_other_may_log_in() {
        let disabled = json!({"enabled": false});
        let disabled_and_banned = |until_ms: u64| {
            let mut fields = banned(5, Some(until_ms));
            fields["enabled"] = false.into();
            fields
        };
        let viewer = json!({"namespaces": [{"namespace": "acme", "role": "viewer"}]});
        let cases = [
            (vec![json!({})], None),
            (vec![banned(5, None)], Some((5, None))),
            (vec![banned(5, Some(NOW_MS))], None),
            (vec![banned(5, Some(2000))], Some((5, Some(2000)))),
            (vec![banned(5, None), json!({})], None),
            (vec![banned(5, None), viewer], Some((5, None))),
            (vec![disabled.clone()], None),
            (vec![banned(5, None), disabled.clone()], Some((5, None))),
            // The first that returns opens it, and the latest ban is shown.
            (
                vec![banned(7, Some(2000)), banned(6, Some(3000))],
                Some((7, Some(2000))),
            ),
            (
                vec![banned(6, None), banned(7, Some(3000))],
                Some((7, Some(3000))),
            ),
            // A disabled owner does not return.
            (
                vec![disabled_and_banned(2000), banned(4, Some(3000))],
                Some((5, Some(3000))),
            ),
            (vec![disabled_and_banned(2000)], Some((5, Some(2000)))),
        ];
        for (operators, expected) in cases {
            assert_eq!(ban_of(&operators), expected, "{operators:?}");
        }
    }

    #[test]
    fn a_changed_operator_affects_the_namespaces_that_it_owned_and_owns() {
        let mut table = OwnerTable::default();
        let grants = |names: &[&str]| {
            let grants = names
                .iter()
                .map(|name| json!({"namespace": name, "role": "owner"}));
            Some(operator(json!({"namespaces": grants.collect::<Vec<_>>()})))
        };
        let mut replace = |operator| Vec::from_iter(table.replace("ann", operator));
        assert_eq!(replace(grants(&["acme", "default"])), ["acme"]);
        assert_eq!(replace(grants(&["other"])), ["acme", "other"]);
        assert_eq!(
            replace(Some(operator(json!({"namespaces": []})))),
            ["other"]
        );
        assert_eq!(replace(None), [""; 0]);
        assert!(table.owners.is_empty() && table.by_namespace.is_empty());
    }

    #[test]
    fn the_default_namespace_belongs_to_the_node() {
        let mut table = OwnerTable::default();
        let mut fields = banned(5, None);
        fields["namespaces"] = json!([{"namespace": "default", "role": "owner"}]);
        table.replace("ann", Some(operator(fields)));
        assert_eq!(table.ban_of("default", NOW_MS), None);
    }
}
