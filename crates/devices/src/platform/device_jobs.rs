//! The thread for blocking work on device messages.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::device_job_queue::DeviceJob;
use super::platform_state::Platform;
use crate::command::EncodedDownlink;
use crate::topic_permissions::PROVISION_RESPONSE;

pub(super) fn start_worker(platform: &Platform) -> std::io::Result<()> {
    let weak = Arc::downgrade(&platform.inner);
    let run = move || {
        let mut processor = None;
        // The thread ends when the last platform is dropped, or when it is stopped.
        while let Some(platform) = weak.upgrade().map(|inner| Platform { inner }) {
            let Some(job) = platform.inner.jobs.next() else {
                return;
            };
            platform.inner.jobs.begin();
            let run = AssertUnwindSafe(|| match job {
                DeviceJob::Control(sent) => platform.run_control_job(&sent),
                DeviceJob::RecheckAdmission(device, client_id) => {
                    platform.recheck_admission(&device, &client_id)
                }
                DeviceJob::Provision {
                    client_id,
                    from,
                    request,
                } => {
                    let messenger = &platform.inner.parts.messenger;
                    let attempts = &platform.inner.provisioning_attempts;
                    let key = super::provisioning::key_of(&request);
                    let now = Instant::now();
                    if attempts.is_blocked(from, &key, now) {
                        tracing::warn!(
                            client_id = &*client_id,
                            ?from,
                            "provisioning rejected: too many failures for this key; client disconnected"
                        );
                        messenger.disconnect(std::slice::from_ref(&client_id));
                        return;
                    }
                    let answer = platform.provision(from, &request);
                    if answer.is_err() {
                        attempts.record_failure(from, &key, now);
                    }
                    let (Ok(answer) | Err(answer)) = answer;
                    let encoded = EncodedDownlink {
                        topic: PROVISION_RESPONSE.to_owned(),
                        payload: answer.to_string(),
                        needs_subscription: false,
                        // The answer contains credentials.
                        log_recipient: None,
                    };
                    messenger.send(&client_id, encoded);
                }
                DeviceJob::Deferred(again) => {
                    // During start, the replay loads the devices itself.
                    if let Some(pipeline) = platform.inner.pipeline.get() {
                        let message = again.as_message();
                        platform.load_children(&message);
                        let processor = processor.get_or_insert_with(|| pipeline.retry_processor());
                        pipeline.process(processor, &message);
                    }
                }
            });
            if panic::catch_unwind(run).is_err() {
                tracing::error!("device job panicked; this is a bug");
            }
            platform.inner.jobs.done();
        }
    };
    let builder = thread::Builder::new().name("devices-jobs".to_owned());
    builder.spawn(run).map(|_| ())
}
