//! The record of self-registrations.

use std::net::IpAddr;

use crate::device::Device;

/// A completed self-registration.
pub struct Registration<'a> {
    pub device: &'a Device,
    /// `false`: the device existed and received new credentials.
    pub was_created: bool,
    /// The address the request came from, if it is known.
    pub peer_address: Option<IpAddr>,
}

/// Records self-registrations. May wait.
pub trait RegistrationLog: Send + Sync {
    fn record(&self, registration: &Registration<'_>);
}
