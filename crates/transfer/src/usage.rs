//! Usage of quotas: files, bytes and transfers by sender, product, namespace and node.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::error::{TransferError, TransferErrorKind};
use crate::record::{FileOwner, OwnerKind};
use crate::settings::TransferSettings;

/// What a part of the node uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Complete files and transfers.
    pub files: u64,
    /// Their announced or received bytes.
    pub bytes: u64,
    /// Transfers that are not complete.
    pub transfers: u64,
}

/// Limits that a namespace sets; `None`: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NamespaceFileLimits {
    pub files: Option<u64>,
    pub bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum UsageScope {
    Owner(OwnerKind, Box<str>),
    Product(Box<str>),
    Namespace(Box<str>),
    Node,
}

impl UsageScope {
    pub(crate) fn all_of(owner: &FileOwner) -> impl Iterator<Item = Self> {
        let product = owner.product.as_deref().map(|id| Self::Product(id.into()));
        [
            Self::Owner(owner.kind, owner.id.as_str().into()),
            Self::Namespace(owner.namespace.as_str().into()),
            Self::Node,
        ]
        .into_iter()
        .chain(product)
    }

    fn describe(&self) -> String {
        match self {
            Self::Owner(OwnerKind::Client, id) => format!("the client {id:?}"),
            Self::Owner(OwnerKind::Device, id) => format!("the device {id:?}"),
            Self::Owner(OwnerKind::Operator, id) => format!("the operator {id:?}"),
            Self::Product(id) => format!("the product {id:?}"),
            Self::Namespace(id) => format!("the namespace {id:?}"),
            Self::Node => "the node".to_owned(),
        }
    }
}

/// The usage of all parts of the node.
#[derive(Default)]
pub(crate) struct UsageTable(HashMap<UsageScope, Usage, RandomState>);

impl UsageTable {
    pub(crate) fn node(&self) -> Usage {
        self.0.get(&UsageScope::Node).copied().unwrap_or_default()
    }

    pub(crate) fn namespace(&self, id: &str) -> Usage {
        let usage = self.0.get(&UsageScope::Namespace(id.into()));
        usage.copied().unwrap_or_default()
    }

    /// Checks that an owner may use more.
    ///
    /// # Errors
    /// Names the quota, its limit, the setting and the remedy.
    pub(crate) fn check(
        &self,
        owner: &FileOwner,
        added: Usage,
        settings: &TransferSettings,
        namespace: NamespaceFileLimits,
    ) -> Result<(), TransferError> {
        for scope in UsageScope::all_of(owner) {
            let used = self.0.get(&scope).copied().unwrap_or_default();
            let (files, bytes, transfers) = match &scope {
                UsageScope::Owner(..) => (
                    Some((settings.max_files_per_owner, "files.max_files_per_owner")),
                    Some((settings.max_bytes_per_owner, "files.max_bytes_per_owner")),
                    Some((
                        settings.max_transfers_per_owner,
                        "files.max_transfers_per_owner",
                    )),
                ),
                UsageScope::Product(_) => (
                    Some((
                        settings.max_files_per_product,
                        "files.max_files_per_product",
                    )),
                    Some((
                        settings.max_bytes_per_product,
                        "files.max_bytes_per_product",
                    )),
                    Some((
                        settings.max_transfers_per_product,
                        "files.max_transfers_per_product",
                    )),
                ),
                UsageScope::Namespace(_) => (
                    namespace.files.map(|limit| (limit, "quota files")),
                    namespace.bytes.map(|limit| (limit, "quota file_megabytes")),
                    Some((
                        settings.max_transfers_per_namespace,
                        "files.max_transfers_per_namespace",
                    )),
                ),
                UsageScope::Node => (
                    Some((settings.max_files, "files.max_files")),
                    Some((settings.max_bytes, "files.max_bytes")),
                    Some((settings.max_transfers, "files.max_transfers")),
                ),
            };
            for (what, limit, used, added) in [
                ("files", files, used.files, added.files),
                ("bytes of files", bytes, used.bytes, added.bytes),
                ("transfers", transfers, used.transfers, added.transfers),
            ] {
                if added == 0 {
                    continue;
                }
                if let Some((limit, name)) = limit
                    && used.saturating_add(added) > limit
                {
                    let detail = format!(
                        "{} may have {limit} {what} ({name}), has {used} and asks for {added} more; delete files, or wait \
                         until transfers are complete or expire",
                        scope.describe()
                    );
                    return Err(TransferError::new(TransferErrorKind::QuotaExceeded, detail));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn add(&mut self, owner: &FileOwner, added: Usage) {
        for scope in UsageScope::all_of(owner) {
            let usage = self.0.entry(scope).or_default();
            usage.files += added.files;
            usage.bytes += added.bytes;
            usage.transfers += added.transfers;
        }
    }

    pub(crate) fn remove(&mut self, owner: &FileOwner, removed: Usage) {
        for scope in UsageScope::all_of(owner) {
            let Some(usage) = self.0.get_mut(&scope) else {
                continue;
            };
            usage.files = usage.files.saturating_sub(removed.files);
            usage.bytes = usage.bytes.saturating_sub(removed.bytes);
            usage.transfers = usage.transfers.saturating_sub(removed.transfers);
            if *usage == Usage::default() {
                self.0.remove(&scope);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scope_has_its_limit() {
        let owner = FileOwner {
            kind: OwnerKind::Device,
            id: "d".to_owned(),
            product: Some("p".to_owned()),
            namespace: "n".to_owned(),
        };
        let settings = TransferSettings {
            max_files_per_owner: 10,
            max_bytes_per_product: 100,
            max_transfers: 5,
            ..TransferSettings::default()
        };
        let namespace = NamespaceFileLimits {
            files: Some(8),
            bytes: None,
        };
        let mut table = UsageTable::default();
        let one = |files, bytes, transfers| Usage {
            files,
            bytes,
            transfers,
        };
        for (added, expected) in [
            (one(9, 0, 0), "the namespace \"n\" may have 8 files"),
            (one(11, 0, 0), "the device \"d\" may have 10 files"),
            (one(1, 101, 0), "the product \"p\" may have 100 bytes"),
            (one(1, 100, 6), "the node may have 5 transfers"),
        ] {
            let rejected = table.check(&owner, added, &settings, namespace);
            let detail = rejected.expect_err(expected).detail;
            assert!(detail.starts_with(expected), "{detail}");
        }
        let added = one(8, 100, 5);
        assert_eq!(table.check(&owner, added, &settings, namespace), Ok(()));
        table.add(&owner, added);
        assert_eq!((table.node(), table.namespace("n")), (added, added));
        let more = table.check(&owner, one(0, 1, 0), &settings, namespace);
        assert!(more.is_err());
        table.remove(&owner, added);
        assert!(table.0.is_empty());
        type Limit = fn(&mut TransferSettings) -> &mut u64;
        let limits: [(&str, Limit); 4] = [
            ("device \"d\"", |all| &mut all.max_transfers_per_owner),
            ("product \"p\"", |all| &mut all.max_transfers_per_product),
            ("namespace \"n\"", |all| {
                &mut all.max_transfers_per_namespace
            }),
            ("node", |all| &mut all.max_transfers),
        ];
        for (scope, limit) in limits {
            let mut settings = TransferSettings::default();
            *limit(&mut settings) = 2;
            let unlimited = NamespaceFileLimits::default();
            assert_eq!(
                table.check(&owner, one(0, 0, 2), &settings, unlimited),
                Ok(())
            );
            let rejected = table.check(&owner, one(0, 0, 3), &settings, unlimited);
            let detail = rejected.expect_err(scope).detail;
            let expected = format!("the {scope} may have 2 transfers");
            assert!(detail.starts_with(&expected), "{detail}");
        }
    }
}
