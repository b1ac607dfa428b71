//! Devices that a gateway connects: they send and receive by its connection.

use std::ops::Range;

use load_client::client_error::ClientError;
use serde_json::Value;

use super::Worker;
use super::device::ConnectionStage;
use crate::definition::DeviceProtocol;
use crate::template::RequestView;

impl Worker<'_> {
    pub(super) fn is_child(&self, device: usize) -> bool {
        self.fleet(device).gateway.is_some()
    }

    /// The device whose connection a device uses: its gateway, or itself.
    #[inline]
    pub(super) fn carrier(&self, device: usize) -> usize {
        let Some(gateway) = &self.fleet(device).gateway else {
            return device;
        };
        let part = &self.fleets[usize::from(self.devices[device].fleet)];
        let gateways = &self.fleets[gateway.fleet];
        gateways.first_device + (device - part.first_device) / gateway.children as usize
    }

    /// Children of a device in one of the fleets of children.
    fn children(&self, device: usize, fleet: usize) -> Range<usize> {
        let per_gateway = self.plan.fleets[fleet]
            .gateway
            .as_ref()
            .map_or(0, |gateway| gateway.children as usize);
        let gateways = &self.fleets[usize::from(self.devices[device].fleet)];
        let first =
            self.fleets[fleet].first_device + (device - gateways.first_device) * per_gateway;
        first..first + per_gateway
    }

    /// Reports the children of a gateway that has connected, and lets them send.
    pub(super) fn connect_children(&mut self, device: usize) -> Result<(), ClientError> {
        for &fleet in &self.fleet(device).child_fleets {
            let plan = &self.plan.fleets[fleet];
            let Some(gateway) = &plan.gateway else {
                continue;
            };
            for child in self.children(device, fleet) {
                let (topic, payload) = &gateway.announcement;
                self.render(child, topic, payload, RequestView::default());
                self.publish(child, plan.subscription_qos, false, self.now_ns)?;
                self.devices[child].stage = ConnectionStage::Ready;
                self.schedule_sends(child);
            }
        }
        Ok(())
    }

    /// The connection of a gateway has ended.
    pub(super) fn disconnect_children(&mut self, device: usize) {
        for &fleet in &self.fleet(device).child_fleets {
            for child in self.children(device, fleet) {
                self.devices[child].stage = ConnectionStage::Offline;
                self.devices[child].fault = 0;
            }
        }
    }

    /// The child that a message to a gateway is for.
    pub(super) fn find_child(&self, device: usize, topic: &str, payload: &Value) -> Option<usize> {
        let fleets = &self.fleet(device).child_fleets;
        let protocol = fleets.iter().find_map(|fleet| {
            let response = self.plan.fleets[*fleet].responses.first()?;
            Some(response.protocol)
        })?;
        let name = match protocol {
            DeviceProtocol::Jetlinks => {
                let mut levels = topic.split('/').skip(3);
                levels.next().filter(|level| *level == "child")?;
                levels.next()?
            }
            _ => payload["device"].as_str()?,
        };
        fleets
            .iter()
            .flat_map(|fleet| self.children(device, *fleet))
            .find(|child| self.render_text(&self.fleet(*child).id, *child) == name)
    }
}
