//! Several nodes that act as one broker, connected by a real NATS server.

mod clients;
mod device_requests;
mod devices;
mod drains;
mod failures;
mod messages;
mod objects;
mod relay;
mod support;
