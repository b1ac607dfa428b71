//! What devices of the node say, on its way into the time series: the pipeline, and the platform that knows it and the registry.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use broker::Handle;
use broker::control::Publication;
use broker::hooks::HooksFactory;
use devices::chain::{self, Chains};
use devices::command::Letter;
use devices::hooks::{Clients as _, DeviceHooks, DownTopicPolicy};
use devices::ingest::Pipeline;
use devices::live::Live;
use devices::platform::{Parts, Platform, ProductMaker, Teller};
use devices::retention::Retention;
use devices::{DeviceChange, ProductId};
use series::{Assignment, Series};
use store::{Expected, Store, WeakObjects};

use super::devices::Devices;
use super::outside::Others;
use super::registration_audit::RegistrationAudit;
use super::telemetry::Telemetry;

/// What the configuration says of it.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Of the time series; `None`: `telemetry` in the node's data directory.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) fsync: series::Fsync,
    /// 0: for ever.
    pub(crate) retention_d: u32,
    pub(crate) memory_bytes: usize,
    pub(crate) flush_after_s: u32,
    pub(crate) max_wal_bytes: u64,
    pub(crate) min_free_bytes: u64,
    pub(crate) max_keys: u32,
    pub(crate) max_future_s: u32,
    pub(crate) latest_cache_bytes: usize,
    pub(crate) verify_bytes_per_s: u64,
    /// 0: one per core.
    pub(crate) mailboxes: usize,
    pub(crate) mailbox_bytes: usize,
    pub(crate) max_batch: usize,
    pub(crate) gateways_register: bool,
    pub(crate) max_gateway_products: usize,
    /// User names with commas between them.
    pub(crate) down_topic_publishers: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let series = series::Config::default();
        let ingest = devices::ingest::Config::default();
        Self {
            directory: None,
            fsync: series.fsync,
            retention_d: 90,
            memory_bytes: series.memory_bytes,
            flush_after_s: series.flush_after.as_secs() as u32,
            max_wal_bytes: series.max_wal_bytes,
            min_free_bytes: series.min_free_bytes,
            max_keys: series.max_keys,
            max_future_s: (series.max_future_ms / 1000) as u32,
            latest_cache_bytes: series.latest_cache_bytes,
            verify_bytes_per_s: series.verify_bytes_per_s,
            mailboxes: 0,
            mailbox_bytes: ingest.mailbox_bytes,
            max_batch: ingest.max_batch,
            gateways_register: true,
            max_gateway_products: 100,
            down_topic_publishers: None,
        }
    }
}

impl Settings {
    fn series(&self, assignment: Assignment) -> series::Config {
        series::Config {
            fsync: self.fsync,
            memory_bytes: self.memory_bytes,
            flush_after: Duration::from_secs(self.flush_after_s.into()),
            max_wal_bytes: self.max_wal_bytes,
            min_free_bytes: self.min_free_bytes,
            max_keys: self.max_keys,
            max_future_ms: i64::from(self.max_future_s) * 1000,
            latest_cache_bytes: self.latest_cache_bytes,
            verify_bytes_per_s: self.verify_bytes_per_s,
            assignment,
            ..series::Config::default()
        }
    }

    fn ingest(&self, directory: PathBuf) -> devices::ingest::Config {
        let default = devices::ingest::Config::default();
        devices::ingest::Config {
            directory: Some(directory),
            mailboxes: match self.mailboxes {
                0 => default.mailboxes,
                count => count,
            },
            mailbox_bytes: self.mailbox_bytes,
            max_batch: self.max_batch,
        }
    }
}

#[derive(Clone)]
pub(super) struct Ingest {
    pub(super) series: Series,
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) platform: Platform,
    pub(super) others: Arc<Others>,
    pub(super) retention: Retention,
    teller: Arc<Clients>,
    down_topics: Arc<DownTopicPolicy>,
}

/// Sends to clients, once the broker is there.
struct Clients {
    broker: OnceLock<(Handle, tokio::runtime::Handle)>,
    others: Arc<Others>,
}

impl Teller for Clients {
    fn tell(&self, client_id: &str, letter: Letter) {
        let Some((handle, _)) = self.broker.get() else {
            return;
        };
        let log = self.others.log_of(&letter);
        let publication = Publication {
            topic: letter.topic,
            payload: letter.payload.into(),
            qos: 1,
            ..Publication::default()
        };
        let told = |outcome: Result<bool, broker::control::Refusal>| match outcome {
            Ok(true) => log.write(),
            Ok(false) => {}
            Err(refusal) => tracing::debug!(%refusal, "a device cannot be told something"),
        };
        handle.tell_soon(client_id, publication, told);
    }

    fn send_away(&self, client_ids: &[Box<str>]) {
        let (Some((handle, runtime)), false) = (self.broker.get(), client_ids.is_empty()) else {
            return;
        };
        let (handle, client_ids) = (handle.clone(), client_ids.to_vec());
        runtime.spawn(async move {
            for client_id in client_ids {
                handle.kick(&client_id).await;
            }
        });
    }
}

/// Creates products of devices behind gateways.
struct Products(WeakObjects);

impl ProductMaker for Products {
    fn create(&self, id: &str, product: &serde_json::Value) -> bool {
        let Some(objects) = self.0.upgrade() else {
            return false;
        };
        let put = objects.put(devices::PRODUCT_KIND, id, product.clone(), Expected::Absent);
        if let Err(error) = &put {
            tracing::warn!(id, %error, "product for devices behind a gateway cannot be created");
        }
        put.is_ok()
    }
}

impl Ingest {
    /// Opens the time series. May wait.
    pub(super) fn open_series(
        data_dir: &Path,
        settings: &Settings,
        retention: &Retention,
    ) -> anyhow::Result<Series> {
        let directory = settings.directory.clone();
        let directory = directory.unwrap_or_else(|| data_dir.join("telemetry"));
        let opened = Series::open(&directory, settings.series(retention.assignment()));
        let (series, report) = opened.context("cannot open the telemetry of devices")?;
        for cut in &report.cuts {
            tracing::warn!(
                ?cut,
                "the end of the telemetry's log was not whole, as after a crash; it was cut off"
            );
        }
        for problem in &report.problems {
            tracing::error!(
                problem,
                "a file that guards the telemetry is damaged; run `tidegate store check` on the stopped node"
            );
        }
        Ok(series)
    }

    /// Begins with what there is, and works off what a process before has left in mailboxes. May wait.
    pub(super) fn open(
        data_dir: &Path,
        settings: &Settings,
        series: Series,
        devices: &Devices,
        store: &Store,
        (chains, retention, others): (Chains, Retention, Others),
        registration_log: Arc<RegistrationAudit>,
    ) -> anyhow::Result<Self> {
        others.sinks().set_series(series.clone());
        let others = Arc::new(others);
        let teller = Arc::new(Clients {
            broker: OnceLock::new(),
            others: others.clone(),
        });
        let platform = Platform::start(Parts {
            registry: devices.registry.clone(),
            directory: devices.directory.clone(),
            states: devices.states.clone(),
            live: Arc::<Live>::default(),
            chains,
            outside: others.clone(),
            teller: teller.clone(),
            registration_log,
            gateways_register: settings.gateways_register,
            products: Arc::new(Products(store.objects().downgrade())),
            max_gateway_products: settings.max_gateway_products,
        })
        .context("cannot start the thread for what devices say")?;
        let pipeline = Pipeline::open(
            &settings.ingest(data_dir.join("mailboxes")),
            platform.profiles(),
            Arc::new(series.clone()),
            Arc::new(platform.clone()),
            Arc::new(platform.clone()),
        )?;
        platform.begin(pipeline.clone());
        let ingest = Self {
            series,
            pipeline,
            platform,
            others,
            retention,
            teller,
            down_topics: Arc::new(DownTopicPolicy::read(
                settings
                    .down_topic_publishers
                    .as_deref()
                    .unwrap_or_default(),
            )),
        };
        ingest.follow(devices, store);
        Ok(ingest)
    }

    /// Heeds what becomes of products, chains and devices.
    fn follow(&self, devices: &Devices, store: &Store) {
        let (platform, teller) = (self.platform.clone(), self.teller.clone());
        let was_in_use = AtomicBool::new(platform.is_in_use());
        let (others, retention, stored) = (
            self.others.clone(),
            self.retention.clone(),
            self.series.clone(),
        );
        // Behind the registry and the chains, which were there first: they are as they are now when this is told.
        store.objects().on_change(Box::new(move |change| {
            if change.kind == chain::KIND {
                platform.take_chain(&change.id);
                others.sinks().refresh();
            }
            if change.kind != devices::PRODUCT_KIND {
                return;
            }
            platform.take_product(&change.id);
            if let Ok(id) = ProductId::new(&change.id) {
                teller.send_away(&platform.ended_by_product(&id));
            }
            others.wake_askers(None);
            others.sinks().refresh();
            if let Err(error) = stored.assign(retention.assignment()) {
                tracing::error!(%error, "the telemetry of devices stays as long as it did before");
            }
            let is_in_use = platform.is_in_use();
            if was_in_use.swap(is_in_use, Relaxed) != is_in_use
                && let Some((handle, _)) = teller.broker.get()
            {
                handle.renew_interest();
            }
        }));
        let (series, pipeline) = (self.series.clone(), self.pipeline.clone());
        devices.registry.on_change(Box::new(move |change| {
            if let DeviceChange::Removed(device) = change {
                pipeline.forget(device.no);
                if let Err(error) = series.delete_device(device.no) {
                    let device = device.id.as_str();
                    tracing::error!(device, %error, "the telemetry of a removed device stays");
                }
            }
        }));
    }

    pub(super) fn hooks(&self) -> Arc<dyn HooksFactory> {
        Arc::new(DeviceHooks {
            pipeline: self.pipeline.clone(),
            clients: Arc::new(self.platform.clone()),
            down_topics: self.down_topics.clone(),
        })
    }

    /// The broker runs. To be called within the runtime.
    pub(super) fn start(&self, devices: &Devices, handle: &Handle) {
        // There is one broker.
        let runtime = tokio::runtime::Handle::current();
        let _ = self.teller.broker.set((handle.clone(), runtime));
        // A product may have been made meanwhile.
        handle.renew_interest();
        self.others.start(handle.clone());
        let (platform, teller) = (self.platform.clone(), self.teller.clone());
        let others = self.others.clone();
        devices.registry.on_change(Box::new(move |change| {
            teller.send_away(&platform.ended_by(change));
            let (DeviceChange::Created(device)
            | DeviceChange::Removed(device)
            | DeviceChange::Updated(device)) = change;
            others.wake_askers(Some(device.no));
        }));
    }

    pub(super) fn telemetry(&self, devices: &Devices) -> Telemetry {
        Telemetry {
            registry: devices.registry.clone(),
            series: self.series.clone(),
            pipeline: self.pipeline.clone(),
            live: self.platform.live().clone(),
        }
    }

    /// Works off what waits. May wait; nobody may say anything any more.
    pub(super) fn stop(&self) {
        self.pipeline.stop();
        self.platform.stop();
    }
}
