//! The records that all nodes of the cluster have, by kind.

use std::sync::Arc;

use bytes::Bytes;
use cluster::{
    ALARM_RECORDS_KIND, ATTRIBUTE_RECORDS_KIND, DEVICE_RECORDS_KIND, FIRMWARE_RECORDS_KIND,
    PeerNodeId, RecordReplication,
};

/// The exchange of each kind of records with other nodes.
pub(super) struct ReplicatedRecords {
    pub(super) devices: Arc<RecordReplication>,
    pub(super) attributes: Arc<RecordReplication>,
    pub(super) firmware: Arc<RecordReplication>,
    pub(super) alarms: Arc<RecordReplication>,
}

impl ReplicatedRecords {
    pub(super) fn new() -> Self {
        Self {
            devices: RecordReplication::new(DEVICE_RECORDS_KIND),
            attributes: RecordReplication::new(ATTRIBUTE_RECORDS_KIND),
            firmware: RecordReplication::new(FIRMWARE_RECORDS_KIND),
            alarms: RecordReplication::new(ALARM_RECORDS_KIND),
        }
    }

    fn all(&self) -> [&RecordReplication; 4] {
        [
            &self.devices,
            &self.attributes,
            &self.firmware,
            &self.alarms,
        ]
    }

    pub(super) fn peer_up(&self, peer: PeerNodeId) {
        for records in self.all() {
            records.peer_up(peer);
        }
    }

    pub(super) fn peer_down(&self, peer: PeerNodeId) {
        for records in self.all() {
            records.peer_down(peer);
        }
    }

    /// Takes a message whose first byte is `kind`; returns it if it is about no records.
    pub(super) fn receive(&self, kind: u8, peer: PeerNodeId, message: Bytes) -> Option<Bytes> {
        let mut all = self.all().into_iter();
        match all.find(|records| records.kind() == kind) {
            Some(records) => {
                records.receive(peer, message);
                None
            }
            None => Some(message),
        }
    }

    pub(super) fn stop(&self) {
        for records in self.all() {
            records.stop();
        }
    }
}
