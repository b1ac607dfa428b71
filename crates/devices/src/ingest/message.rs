//! Messages of devices.

use series::DeviceNo;

use super::profile::{DeviceRef, ProductNo};

/// A message sent by a device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceMessage<'a> {
    /// The device whose connection it arrived on.
    pub sender: DeviceRef<'a>,
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub received_ms: i64,
}

/// A message that is processed later, on another thread.
#[derive(Debug)]
pub struct OwnedDeviceMessage {
    no: DeviceNo,
    product: ProductNo,
    id: Box<str>,
    topic: Box<str>,
    payload: Box<[u8]>,
    received_ms: i64,
}

impl OwnedDeviceMessage {
    #[must_use]
    pub fn new(message: &DeviceMessage<'_>) -> Self {
        Self {
            no: message.sender.no,
            product: message.sender.product,
            id: message.sender.id.into(),
            topic: message.topic.into(),
            payload: message.payload.into(),
            received_ms: message.received_ms,
        }
    }

    #[must_use]
    pub fn as_message(&self) -> DeviceMessage<'_> {
        DeviceMessage {
            sender: DeviceRef {
                no: self.no,
                product: self.product,
                id: &self.id,
            },
            topic: &self.topic,
            payload: &self.payload,
            received_ms: self.received_ms,
        }
    }

    /// Approximate memory of the message.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.payload.len() + self.topic.len()
    }
}
