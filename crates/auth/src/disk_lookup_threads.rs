//! Threads that process the queue of login lookups.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hooks::Authentication;
use mqtt::ReasonCode;
use tokio::sync::oneshot;

use crate::auth_state::{AuthState, PendingCheck};
use crate::authenticator::LoginRequest;
use crate::authenticator_chain::{AuthenticatorChain, ChainProgress};
use crate::disk_lookups::DiskLookup;
use crate::login_outcome::{LoginOutcome, login_outcome};

/// A lookup thread. It is counted until it finds the queue empty.
struct DiskLookupThread {
    shared: Arc<AuthState>,
    has_ended: bool,
}

impl Drop for DiskLookupThread {
    /// Corrects the count if the runtime shuts down before running the thread.
    fn drop(&mut self) {
        if !self.has_ended {
            self.shared.lookups.end_thread();
        }
    }
}

impl DiskLookupThread {
    fn run(mut self) {
        while let Some(batch) = self.shared.lookups.take_batch() {
            let look_up = |lookup| {
                let look_up = AssertUnwindSafe(|| self.shared.run_disk_lookup(lookup));
                catch_unwind(look_up).unwrap_or_else(|_| {
                    tracing::error!("login lookup panicked; client is rejected. This is a bug");
                    None
                })
            };
            let answers: Vec<_> = batch.into_iter().filter_map(look_up).collect();
            for (answer, outcome) in answers {
                // The client may have disconnected.
                let _ = answer.send(outcome);
            }
        }
        self.has_ended = true;
    }
}

impl AuthState {
    /// Queues a lookup for a thread that may read the disk.
    pub(crate) fn queue_disk_lookup(
        self: &Arc<Self>,
        request: LoginRequest,
        chain: Arc<AuthenticatorChain>,
        at: usize,
    ) -> Authentication {
        let Some(slot) = self.try_acquire_slot() else {
            return Authentication::Deny(ReasonCode::SERVER_BUSY);
        };
        let (answer, answered) = oneshot::channel();
        self.lookups.push(DiskLookup {
            request,
            chain,
            next_authenticator: at,
            slot,
            result_sender: answer,
        });
        let shared = self.clone();
        Authentication::Pending(Box::pin(async move {
            // This runs after the shard has read all logins that arrived together.
            shared.start_lookup_threads();
            match tokio::time::timeout(shared.timeout(), answered).await {
                Ok(Ok(Ok(grant))) => Authentication::Allow(grant),
                Ok(Ok(Err(code))) => Authentication::Deny(code),
                // The runtime is shutting down, the lookup panicked, or the disk does not respond in time.
                Ok(Err(_)) | Err(_) => {
                    shared.counters.failed.fetch_add(1, Relaxed);
                    Authentication::Deny(ReasonCode::SERVER_UNAVAILABLE)
                }
            }
        }))
    }

    fn start_lookup_threads(self: &Arc<Self>) {
        if self.lookups.try_start_thread() {
            let thread = DiskLookupThread {
                shared: self.clone(),
                has_ended: false,
            };
            self.runtime().spawn_blocking(move || thread.run());
        }
    }

    /// Runs one lookup; `None` if it needs more than disk reads and continues on the I/O runtime.
    fn run_disk_lookup(
        self: &Arc<Self>,
        lookup: DiskLookup,
    ) -> Option<(oneshot::Sender<LoginOutcome>, LoginOutcome)> {
        let DiskLookup {
            request,
            chain,
            next_authenticator: at,
            slot,
            result_sender: answer,
        } = lookup;
        if answer.is_closed() {
            return None;
        }
        let ask = match chain.look_up_on_disk(at, &request, self.has_users()) {
            ChainProgress::Decided(result) if self.can_finish_now(&result) => {
                return Some((
                    answer,
                    login_outcome(self.finish_login(request, result, None)),
                ));
            }
            ChainProgress::Decided(Ok(identity)) => PendingCheck::RuleSources(identity),
            ChainProgress::Decided(Err(_)) => PendingCheck::Authenticators(chain, at),
            ChainProgress::Pending(at) => PendingCheck::Authenticators(chain, at),
        };
        let checks = self.clone().run_checks(request, ask, slot);
        self.runtime().spawn(async move {
            // The client may have disconnected.
            let _ = answer.send(checks.await);
        });
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Condvar, Mutex};

    use hooks::{Client, ClientAction, Credentials, Hooks, HooksFactory as _, PeerAddress};
    use mqtt::Version;

    use super::*;
    use crate::disk_lookups::LOOKUP_BATCH;
    use crate::{
        AuthService, AuthSettings, DeviceDirectory, DeviceIdentity, DeviceLogin,
        DeviceLookupResult, DevicePermissions,
    };

    /// A device directory whose disk lookups block until released.
    #[derive(Default)]
    struct Disk {
        removed: Mutex<HashSet<String>>,
        is_held: Mutex<bool>,
        changed: Condvar,
        looked_up: AtomicUsize,
        took_time: AtomicUsize,
    }

    struct AllPermissions;

    impl DevicePermissions for AllPermissions {
        fn is_allowed(&self, _: &ClientAction<'_>) -> bool {
            true
        }
    }

    impl Disk {
        fn hold(&self, is_held: bool) {
            *self.is_held.lock().unwrap() = is_held;
            self.changed.notify_all();
        }

        fn remove(&self, name: &str) {
            self.removed.lock().unwrap().insert(name.to_owned());
        }

        fn device() -> DeviceLookupResult {
            DeviceLookupResult::Device(Box::new(DeviceIdentity {
                name: Some(crate::device_directory::OwnedClientDevice {
                    id: "d".into(),
                    product: "p".into(),
                }),
                attributes: Vec::new(),
                expires_at_ms: None,
                permissions: Arc::new(AllPermissions),
            }))
        }
    }

    impl DeviceDirectory for Disk {
        fn may_be_device(&self, username: Option<&str>, _: Option<&str>) -> bool {
            username.is_some()
        }

        fn find_in_memory(&self, _: &DeviceLogin<'_>) -> DeviceLookupResult {
            DeviceLookupResult::NotInMemory
        }

        fn find_on_disk(&self, login: &DeviceLogin<'_>) -> Result<DeviceLookupResult, String> {
            let held = self.is_held.lock().unwrap();
            drop(self.changed.wait_while(held, |is_held| *is_held).unwrap());
            self.looked_up.fetch_add(1, Relaxed);
            let name = login.username.unwrap_or_default();
            if self.removed.lock().unwrap().contains(name) {
                return Ok(DeviceLookupResult::NoDevice);
            }
            match (name.split('-').next(), login.password()) {
                (Some("chosen"), _) => Ok(DeviceLookupResult::NotInMemory),
                (Some("broken"), _) => Err("the disk is broken".to_owned()),
                (Some("panic"), _) => panic!("on purpose"),
                (_, Some(b"right")) => Ok(Self::device()),
                (_, _) => Ok(DeviceLookupResult::WrongCredentials),
            }
        }

        fn find_blocking(&self, _: &DeviceLogin<'_>) -> Result<DeviceLookupResult, String> {
            self.took_time.fetch_add(1, Relaxed);
            Ok(Self::device())
        }
    }

    fn auth(timeout_ms: u64) -> (AuthService, Arc<Disk>) {
        let mut settings = AuthSettings::default();
        settings.limits.timeout_ms = timeout_ms;
        settings.limits.max_failed_logins_per_address = 0;
        let auth = AuthService::new(&settings, tokio::runtime::Handle::current()).unwrap();
        let disk = Arc::<Disk>::default();
        auth.set_devices(disk.clone());
        (auth, disk)
    }

    fn ask(shard_hooks: &mut dyn Hooks, username: &str, password: &str) -> Authentication {
        shard_hooks.authenticate(&Credentials {
            client: Client {
                client_id: username,
                username: Some(username),
                peer: Some(PeerAddress::Unix),
                last_address: None,
                local_address: None,
                version: Version::V5,
                connection: Default::default(),
            },
            password: Some(password.as_bytes()),
            certificate: None,
            method: None,
            listener: "mqtt",
            allows_anonymous: false,
            common_name_as_username: false,
            keep_alive_s: 0,
            clean_start: true,
        })
    }

    async fn answered(login: Authentication) -> Result<(), ReasonCode> {
        match login {
            Authentication::Pending(answer) => match answer.await {
                Authentication::Allow(_) => Ok(()),
                Authentication::Deny(code) => Err(code),
                _ => panic!("neither accepted nor rejected"),
            },
            Authentication::Deny(code) => Err(code),
            _ => panic!("not from memory"),
        }
    }

    const WRONG: ReasonCode = ReasonCode::BAD_USER_NAME_OR_PASSWORD;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_thousand_clients_are_each_answered_as_is_right() {
        let (auth, disk) = auth(60_000);
        let mut shard_hooks = auth.hooks_for(0);
        disk.remove("d-500");
        let login: Vec<_> = (0..1000)
            .map(|at| {
                let password = if at % 2 == 0 { "right" } else { "wrong" };
                ask(&mut *shard_hooks, &format!("d-{at}"), password)
            })
            .collect();
        for (at, login) in login.into_iter().enumerate() {
            let wanted = match at % 2 == 0 && at != 500 {
                true => Ok(()),
                false => Err(WRONG),
            };
            assert_eq!(answered(login).await, wanted, "{at}");
        }
        assert_eq!(disk.looked_up.load(Relaxed), 1000);
        assert_eq!(disk.took_time.load(Relaxed), 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_device_removed_during_its_lookup_is_rejected() {
        let (auth, disk) = auth(60_000);
        let mut shard_hooks = auth.hooks_for(0);
        disk.hold(true);
        let login: Vec<_> = (0..3 * LOOKUP_BATCH)
            .map(|at| ask(&mut *shard_hooks, &format!("d-{at}"), "right"))
            .collect();
        let last = format!("d-{}", 3 * LOOKUP_BATCH - 1);
        disk.remove(&last);
        disk.hold(false);
        for (at, login) in login.into_iter().enumerate() {
            let wanted = match at == 3 * LOOKUP_BATCH - 1 {
                true => Err(WRONG),
                false => Ok(()),
            };
            assert_eq!(answered(login).await, wanted, "{at}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_slow_check_does_not_delay_other_lookups() {
        let (auth, disk) = auth(60_000);
        let mut shard_hooks = auth.hooks_for(0);
        let names = ["chosen-1", "broken-1", "panic-1", "d-1"];
        let login = names.map(|name| ask(&mut *shard_hooks, name, "right"));
        let unavailable = Err(ReasonCode::SERVER_UNAVAILABLE);
        let wanted = [Ok(()), unavailable, unavailable, Ok(())];
        for ((name, login), wanted) in names.into_iter().zip(login).zip(wanted) {
            assert_eq!(answered(login).await, wanted, "{name}");
        }
        assert_eq!(disk.took_time.load(Relaxed), 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn an_unresponsive_disk_rejects_clients() {
        let (auth, disk) = auth(100);
        let mut shard_hooks = auth.hooks_for(0);
        disk.hold(true);
        let login = ask(&mut *shard_hooks, "d-1", "right");
        let unavailable = Err(ReasonCode::SERVER_UNAVAILABLE);
        assert_eq!(answered(login).await, unavailable);
        disk.hold(false);
        let login = ask(&mut *shard_hooks, "d-1", "right");
        assert_eq!(answered(login).await, Ok(()));
    }
}
