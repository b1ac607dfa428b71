//! Several nodes that act as one broker, connected by a real NATS server.

mod alarms;
mod clients;
mod device_requests;
mod devices;
mod drains;
mod exclusive;
mod failover;
mod failures;
mod files;
mod firmware;
mod kills;
mod live_streams;
mod messages;
mod objects;
mod own_servers;
mod partitions;
mod rebalances;
mod recovery;
mod relay;
mod support;
mod telemetry_copies;
mod trial;
mod witness;
