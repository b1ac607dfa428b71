//! Quotas: how many objects a namespace may own, and how much its clients may use and store.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bytes of a megabyte in quotas.
pub const QUOTA_MEGABYTE: u64 = 1_000_000;

macro_rules! quotas {
    ($($(#[doc = $doc:literal])* $variant:ident $field:ident $default:expr, $plural:literal;)+) => {
        /// Something that is counted per namespace.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Quota {
            $($(#[doc = $doc])* $variant,)+
        }

        /// Maximum numbers of what a namespace owns; `null`: no limit.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct Quotas {
            $(#[doc = concat!("Maximum number of ", $plural, "; `null`: no limit.")]
            pub $field: Option<u32>,)+
        }

        impl Default for Quotas {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl Quota {
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Name of the field in [`Quotas`].
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($field),)+ }
            }

            /// What is counted, in the plural.
            #[must_use]
            pub fn plural(self) -> &'static str {
                match self { $(Self::$variant => $plural,)+ }
            }
        }

        impl Quotas {
            /// Without any limit.
            #[must_use]
            pub fn unlimited() -> Self {
                Self { $($field: None,)+ }
            }

            #[must_use]
            pub fn limit(&self, quota: Quota) -> Option<u32> {
                match quota { $(Quota::$variant => self.$field,)+ }
            }
        }
    };
}

quotas! {
    Products products Some(20), "products";
    /// Devices of all its products, including child devices of gateways.
    Devices devices None, "devices";
    Groups groups Some(20), "device groups";
    /// Alarm rules of all its products.
    AlarmRules alarm_rules Some(50), "alarm rules";
    Notifications notifications Some(20), "notifications";
    ApiKeys api_keys Some(20), "API keys";
    Endpoints endpoints Some(5), "relay endpoints";
    Dashboards dashboards Some(50), "dashboards";
    /// Connections of its relay endpoints, and MQTT connections of its devices.
    Connections connections None, "connections";
    /// Messages per second from these connections: all of a relay endpoint, and those on device topics.
    MessagesPerS messages_per_s None, "messages per second";
    /// Files and file transfers of its devices and operators.
    Files files None, "files";
    /// Megabytes (1,000,000 bytes) of these files.
    FileMegabytes file_megabytes None, "megabytes of files";
    FirmwarePackages firmware_packages Some(100), "firmware packages";
    FirmwareAssignments firmware_assignments Some(1000), "firmware assignments";
    /// Megabytes of stored telemetry of its devices.
    TelemetryMegabytes telemetry_megabytes None, "megabytes of telemetry";
}

impl Quotas {
    /// Checks that one more may be created.
    ///
    /// # Errors
    /// Returns a sentence without its full stop: the quota, the limit, the usage and the remedy.
    pub fn check(
        &self,
        quota: Quota,
        namespace: &str,
        used: u64,
        added: u64,
    ) -> Result<(), String> {
        let Some(limit) = self.limit(quota) else {
            return Ok(());
        };
        match used + added <= u64::from(limit) {
            true => Ok(()),
            false => Err(format!(
                "The quota {} of the namespace {namespace:?} is {limit}, and {used} are in use; delete some {}, or have \
                 a node-wide admin raise the quota",
                quota.name(),
                quota.plural(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_names_limit_usage_and_remedy() {
        let quotas: Quotas = serde_json::from_str(r#"{"groups": 2}"#).expect("valid");
        assert_eq!(quotas.check(Quota::Groups, "acme", 1, 1), Ok(()));
        let rejected = quotas.check(Quota::Groups, "acme", 2, 1);
        assert_eq!(
            rejected.expect_err("full"),
            "The quota groups of the namespace \"acme\" is 2, and 2 are in use; delete some device groups, or have a \
             node-wide admin raise the quota"
        );
        assert_eq!(quotas.check(Quota::Devices, "acme", 1 << 40, 1), Ok(()));
        assert_eq!(quotas.alarm_rules, Some(50), "a default");
        assert_eq!(Quotas::unlimited().limit(Quota::AlarmRules), None);
    }
}
