//! Connections: begun at the rate of the phase, subscribed, and begun again after they end.

use std::cmp::Reverse;

use load_client::client_error::ClientError;
use mio::Token;
use mio::event::Event;
use mqtt::{Packet, Properties, QoS, SubscribeBuf, SubscriptionOptions, Version};

use super::super::device_connection::DeviceConnection;
use super::Worker;
use super::device::ConnectionStage;
use crate::definition::FleetTransport;
use crate::schedule::{DueSend, first_delay_ns};
use crate::script::ConnectOptions;
use crate::secure_login::secure_login;
use crate::template::{NO_STAMP, RequestView, Template};
use crate::translation::{LOCAL_VERSION, TranslatedRoute};

/// Local ports tried for one connection.
const MAX_PORT_ATTEMPTS: usize = 100;
/// Purpose of a device's random key from which delays are drawn.
const DELAY_PURPOSE: u64 = 2 << 32;

impl Worker<'_> {
    /// Begins the connections that are due.
    pub(super) fn open_connections(&mut self) {
        while let Some(&Reverse((at_ns, device))) = self.returning.peek() {
            if at_ns > self.now_ns {
                break;
            }
            self.returning.pop();
            let entry = &self.devices[device as usize];
            if entry.is_wanted && entry.stage == ConnectionStage::Offline {
                self.waiting.push_back(device);
            }
        }
        let phase = &self.plan.phases[self.phase];
        let at_a_time = (phase.connect_concurrency as usize)
            .div_ceil(self.access.threads)
            .max(1);
        let elapsed_ns = self.phase_elapsed_ns();
        let rate = phase.connect_rate_at(elapsed_ns);
        let rate = rate.map(|rate| rate / self.access.threads as f64);
        self.connect_budget
            .refill(elapsed_ns, rate, !self.waiting.is_empty());
        while self.connecting_count < at_a_time && self.connect_budget.allows(rate) {
            let Some(device) = self.waiting.pop_front() else {
                return;
            };
            let entry = &self.devices[device as usize];
            if entry.is_wanted && entry.stage == ConnectionStage::Offline {
                self.connect_budget.spend();
                self.dial(device as usize);
            }
        }
    }

    fn dial(&mut self, device: usize) {
        if self.access.uses_pipe(self.fleet(device).transport) {
            return self.open_pipe(device);
        }
        let started_ns = load_client::host::now_ns();
        let mut attempt = 0;
        let dialed = loop {
            let source = self.pick_source(device, attempt);
            let registry = self.poll.registry();
            let dialed = DeviceConnection::dial(self.access, source, registry, Token(device));
            attempt += 1;
            match &dialed {
                Err(error)
                    if error.is_address_in_use()
                        && source.is_some()
                        && attempt < MAX_PORT_ATTEMPTS => {}
                _ => break dialed,
            }
        };
        let entry = &mut self.devices[device];
        entry.started_ns = started_ns;
        entry.stage = ConnectionStage::Dialing;
        self.connecting_count += 1;
        self.connecting.push_back((device as u32, started_ns));
        match dialed {
            Ok(transport) => entry.transport = Some(transport),
            Err(error) => self.fail(device, &error.into()),
        }
    }

    /// Connects the device by a translator or to the node in this process, and sends CONNECT.
    fn open_pipe(&mut self, device: usize) {
        let fleet = self.fleet(device);
        let endpoint = fleet.endpoint.as_ref();
        let route = TranslatedRoute {
            source: self.pick_source(device, 0),
            endpoint: endpoint.map_or(String::new(), |text| self.render_text(text, device)),
            identifies: fleet.identifies,
        };
        let pipe = (device, &self.ready_pipes);
        let started_ns = load_client::host::now_ns();
        let pipe = DeviceConnection::open_pipe(self.access, fleet.transport, route, pipe);
        let entry = &mut self.devices[device];
        entry.started_ns = started_ns;
        entry.stage = ConnectionStage::Dialing;
        self.connecting_count += 1;
        self.connecting.push_back((device as u32, started_ns));
        match pipe {
            Ok(pipe) => self.devices[device].transport = Some(pipe),
            Err(error) => return self.fail(device, &error.into()),
        }
        let greeted = self
            .send_connect(device)
            .and_then(|()| self.on_readable(device));
        if let Err(failure) = greeted {
            self.fail(device, &failure);
        }
    }

    fn pick_source(&self, device: usize, attempt: usize) -> Option<std::net::SocketAddr> {
        let number = device * self.access.threads + self.thread;
        self.access.sources_of(self.fleet(device).transport).pick(
            number,
            attempt,
            self.plan.seed as u32,
        )
    }

    /// TCP may be set up: sends CONNECT.
    pub(super) fn send_connect_when_open(
        &mut self,
        device: usize,
        event: &Event,
    ) -> Result<(), ClientError> {
        let Some(transport) = &mut self.devices[device].transport else {
            return Ok(());
        };
        if event.is_error() || event.is_write_closed() {
            return Err(transport.take_error().into());
        }
        if !event.is_writable() {
            return Ok(());
        }
        transport.flush()?;
        self.send_connect(device)
    }

    fn send_connect(&mut self, device: usize) -> Result<(), ClientError> {
        let packet = self.connect_packet(device);
        let entry = &mut self.devices[device];
        entry.stage = ConnectionStage::Greeting;
        if let Some(transport) = &mut entry.transport {
            transport.send(&packet)?;
        }
        Ok(())
    }

    fn connect_packet(&mut self, device: usize) -> Vec<u8> {
        let (fleet, version) = (self.fleet(device), self.version(device));
        let client_id = self.render_text(&fleet.client_id, device);
        let text = |template: &Template| self.render_text(template, device);
        let (username, password) = match &fleet.secure {
            Some(secure) => {
                let (id, key) = (text(&secure.id), text(&secure.key));
                let (username, password) = secure_login(&id, &key, self.device_clock_ms(device));
                (Some(username), Some(password))
            }
            None => (
                fleet.username.as_ref().map(text),
                fleet.password.as_ref().map(text),
            ),
        };
        let options = ConnectOptions {
            client_id,
            username,
            password,
        };
        let ConnectOptions {
            client_id,
            username,
            password,
        } = self.call_before_connect(device, options);
        let mut out = Vec::with_capacity(64 + client_id.len());
        Packet::Connect(mqtt::Connect {
            version,
            clean_start: fleet.clean_session,
            keep_alive_s: fleet.keep_alive_s,
            client_id: &client_id,
            username: username.as_deref(),
            password: password.as_deref().map(str::as_bytes),
            will: None,
            properties: Properties::EMPTY,
            is_bridge: false,
        })
        .encode(version, &mut out);
        out
    }

    /// Version of MQTT that a device and its broker or translator speak.
    #[inline]
    pub(super) fn version(&self, device: usize) -> Version {
        match self.fleet(device).transport {
            FleetTransport::Mqtt => self.access.version,
            _ => LOCAL_VERSION,
        }
    }

    /// A text of a device that is no message.
    pub(super) fn render_text(&self, template: &Template, device: usize) -> String {
        let mut text = Vec::new();
        let input = self.render_input(device, RequestView::default(), &NO_STAMP);
        template.render(&input, &mut text);
        String::from_utf8(text).expect("templates and values are UTF-8")
    }

    pub(super) fn on_connack(&mut self, device: usize) -> Result<(), ClientError> {
        let now_ns = self.now_ns;
        let entry = &mut self.devices[device];
        let took_ns = now_ns.saturating_sub(entry.started_ns);
        let lost_ns = std::mem::take(&mut entry.lost_ns);
        entry.attempts = 0;
        let counts = self.counts();
        counts.connects += 1;
        counts.connect.saturating_record(took_ns);
        self.shared
            .worker(self.thread)
            .connect_times
            .record(took_ns);
        let counts = self.counts();
        if lost_ns > 0 {
            counts
                .reconnect
                .saturating_record(now_ns.saturating_sub(lost_ns));
        }
        let fleet = self.fleet(device);
        if fleet.subscriptions.is_empty() {
            return self.on_established(device);
        }
        let qos = if fleet.subscription_qos == 0 {
            QoS::AtMostOnce
        } else {
            QoS::AtLeastOnce
        };
        let mut packet = SubscribeBuf::new(1);
        for filter in &fleet.subscriptions {
            packet.push(
                &self.render_text(filter, device),
                SubscriptionOptions::new(qos),
            );
        }
        let mut out = Vec::new();
        packet.encode(Properties::EMPTY, self.version(device), &mut out);
        let entry = &mut self.devices[device];
        entry.stage = ConnectionStage::Subscribing;
        if let Some(transport) = &mut entry.transport {
            transport.send(&out)?;
        }
        Ok(())
    }

    pub(super) fn on_established(&mut self, device: usize) -> Result<(), ClientError> {
        self.devices[device].stage = ConnectionStage::Ready;
        self.connecting_count -= 1;
        self.connected += 1;
        self.settle(device);
        self.schedule_sends(device);
        self.connect_children(device)?;
        self.resume_updates(device)?;
        self.call_connected(device)
    }

    /// Adds the first messages of a device to the schedule, unless they have been before.
    pub(super) fn schedule_sends(&mut self, device: usize) {
        if self.devices[device].is_scheduled {
            return;
        }
        self.devices[device].is_scheduled = true;
        let (fleet, key) = (self.fleet(device), self.key(device));
        let part = &mut self.fleets[fleet.number as usize];
        // Whichever device is connected first: one may never be.
        let has_random_sends = std::mem::replace(&mut part.has_random_sends, true);
        for (number, send) in fleet.sends.iter().enumerate() {
            if send.random_devices.is_some() && has_random_sends {
                continue;
            }
            let delay_ns = first_delay_ns(send, number as u16, key) as f64 / self.load.max(1e-3);
            let start_ns = match send.start {
                crate::definition::SendStart::Staggered => self.now_ns,
                // The same times for all devices, whenever they connected.
                crate::definition::SendStart::Together => {
                    let since_ns = self.now_ns - self.run_start_ns;
                    self.run_start_ns + since_ns.next_multiple_of(send.interval_ns)
                }
            };
            self.schedule.push(DueSend {
                at_ns: start_ns + delay_ns as u64,
                device: if send.random_devices.is_some() {
                    DueSend::ALL
                } else {
                    device as u32
                },
                send: number as u16,
                fleet: fleet.number as u16,
            });
        }
    }

    /// Gives up connections that take too long.
    pub(super) fn expire_connecting(&mut self) {
        while let Some(&(device, started_ns)) = self.connecting.front() {
            let entry = &self.devices[device as usize];
            if entry.is_connecting() && entry.started_ns == started_ns {
                if self.now_ns.saturating_sub(started_ns) < self.access.connect_timeout_ns {
                    return;
                }
                self.fail(device as usize, &ClientError::TimedOut);
            }
            self.connecting.pop_front();
        }
    }

    /// A connection has failed or ended; the device tries again later.
    pub(super) fn fail(&mut self, device: usize, error: &ClientError) {
        let stage = self.devices[device].stage;
        if stage == ConnectionStage::Offline {
            return;
        }
        let id = self.render_text(&self.fleet(device).id, device);
        let now_ns = self.now_ns;
        let counts = self.counts();
        counts.failures.record(&id, error);
        self.shared.log_failure(&id, &error.kind(), error);
        let counts = self.counts();
        if stage == ConnectionStage::Ready {
            counts.disconnects += 1;
        } else {
            counts.connect_failures += 1;
        }
        self.close(device);
        self.settle(device);
        let is_gone = !self.reconnect(device).enabled;
        let entry = &mut self.devices[device];
        if stage == ConnectionStage::Ready {
            entry.lost_ns = now_ns;
            entry.is_gone = is_gone;
        }
        entry.attempts = entry.attempts.saturating_add(1);
        self.plan_return(device, now_ns);
    }

    /// Lets a device connect again some time after `from_ns`.
    pub(super) fn plan_return(&mut self, device: usize, from_ns: u64) {
        let entry = &self.devices[device];
        let attempts = entry.attempts.saturating_sub(1);
        let reconnect = self.reconnect(device);
        if !entry.is_wanted || !reconnect.enabled {
            return;
        }
        self.draws += 1;
        let key = self.key(device).purpose(DELAY_PURPOSE);
        let (from, to) = (reconnect.delay.from.ns as f64, reconnect.delay.to.ns as f64);
        let mut delay_ns = key.between(self.draws, from, to);
        if reconnect.backoff {
            delay_ns *= f64::from(attempts.min(30)).exp2();
            delay_ns = delay_ns.min(reconnect.max_delay.ns as f64).max(from);
        }
        self.returning
            .push(Reverse((from_ns + delay_ns as u64, device as u32)));
    }
}
