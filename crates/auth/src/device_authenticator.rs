//! Authenticates devices of the registry, which is accessed over
//! [`DeviceDirectory`](crate::DeviceDirectory).
//!
//! The authenticator `devices` follows `users` unless the configuration places it elsewhere. Devices in the directory's
//! memory are answered on the shard. Others are looked up in batches on threads that may read the disk
//! (`disk_lookup_threads.rs`).

use crate::authenticator::{
    AnswerFuture, AuthBackendError, AuthenticatedIdentity, Authenticator, AuthenticatorAnswer,
    LoginRequest,
};
use crate::device_directory::{
    DeviceDirectorySlot, DeviceGrant, DeviceLogin, DeviceLookupResult, OwnedClientDevice,
};
use crate::password::PasswordCheckPool;

pub(crate) struct DeviceDirectoryAuthenticator {
    pub(crate) directory: DeviceDirectorySlot,
    pub(crate) checker: PasswordCheckPool,
}

fn device_login(request: &LoginRequest) -> DeviceLogin<'_> {
    DeviceLogin {
        client_id: &request.client_id,
        username: request.username.as_deref(),
        password: request.password.as_ref().map(|password| &*password.0),
        common_name: request.common_name.as_deref(),
        peer: request.peer,
    }
}

/// `None` if the answer is not available yet.
fn to_answer(found: DeviceLookupResult) -> Option<AuthenticatorAnswer> {
    Some(match found {
        DeviceLookupResult::NoDevice => AuthenticatorAnswer::Ignore,
        DeviceLookupResult::WrongCredentials => AuthenticatorAnswer::Deny,
        DeviceLookupResult::QuotaExceeded => AuthenticatorAnswer::QuotaExceeded,
        DeviceLookupResult::NotInMemory => return None,
        DeviceLookupResult::Device(device) => {
            AuthenticatorAnswer::Allow(Box::new(AuthenticatedIdentity {
                username: device.name.as_ref().map(OwnedClientDevice::username),
                // A client that only requests registration has no identity yet.
                is_anonymous: device.name.is_none(),
                attributes: device.attributes,
                expires_at_ms: device.expires_at_ms,
                device: Some(DeviceGrant {
                    permissions: device.permissions,
                    name: device.name,
                }),
                ..AuthenticatedIdentity::default()
            }))
        }
    })
}

impl Authenticator for DeviceDirectoryAuthenticator {
    fn applies_to(&self, request: &LoginRequest) -> bool {
        let (username, common_name) = (request.username.as_deref(), request.common_name.as_deref());
        (self.directory.get())
            .is_some_and(|directory| directory.may_be_device(username, common_name))
    }

    fn check_now(&self, request: &LoginRequest) -> Option<AuthenticatorAnswer> {
        match self.directory.get() {
            Some(directory) => to_answer(directory.find_in_memory(&device_login(request))),
            None => Some(AuthenticatorAnswer::Ignore),
        }
    }

    fn uses_disk_lookup(&self) -> bool {
        true
    }

    fn accepts_tokens(&self) -> bool {
        true
    }

    fn look_up_on_disk(
        &self,
        request: &LoginRequest,
    ) -> Option<Result<AuthenticatorAnswer, AuthBackendError>> {
        let directory = self.directory.get()?;
        match directory.find_on_disk(&device_login(request)) {
            Ok(found) => to_answer(found).map(Ok),
            Err(why) => Some(Err(AuthBackendError(why))),
        }
    }

    fn check<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<AuthenticatorAnswer, AuthBackendError>> {
        Box::pin(async move {
            let Some(directory) = self.directory.get().cloned() else {
                return Ok(AuthenticatorAnswer::Ignore);
            };
            let request = request.clone();
            let found = self
                .checker
                .run_for(move || directory.find_blocking(&device_login(&request)))
                .await;
            let unread = || AuthBackendError::new("the devices could not be read");
            let found = found.ok_or_else(unread)?.map_err(AuthBackendError::new)?;
            to_answer(found).ok_or_else(unread)
        })
    }
}
